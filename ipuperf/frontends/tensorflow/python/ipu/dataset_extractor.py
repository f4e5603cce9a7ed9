"""Data sets as files."""

from ...refusals import refused

dataset_extractor = refused("dataset_extractor.dataset_extractor", "write the data set with tf.data (Dataset.save)")
export_variables = refused("dataset_extractor.export_variables", "use tf.train.Checkpoint or tf.compat.v1.train.Saver")

__all__ = ["dataset_extractor", "export_variables"]

"""``tensorflow.python.ipu.ipu_pipeline_estimator``: estimators are gone from TensorFlow since version 2.16."""

from ...keras.refused import refused

IPUPipelineEstimator = refused("IPUPipelineEstimator")

__all__ = ["IPUPipelineEstimator"]

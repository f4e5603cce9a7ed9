"""``tensorflow.python.ipu.ipu_pipeline_estimator``: estimators are gone from TensorFlow since version 2.16."""

from ...keras.refused import refused

IPUPipelineEstimator = refused("IPUPipelineEstimator")
IPUPipelineEstimatorSpec = refused("IPUPipelineEstimatorSpec")

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec"]

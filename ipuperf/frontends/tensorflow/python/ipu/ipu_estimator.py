"""``tensorflow.python.ipu.ipu_estimator``: estimators are gone from TensorFlow since version 2.16."""

from ...keras.refused import refused

IPUEstimator = refused("IPUEstimator")
IPUEstimatorSpec = refused("IPUEstimatorSpec")

__all__ = ["IPUEstimator", "IPUEstimatorSpec"]

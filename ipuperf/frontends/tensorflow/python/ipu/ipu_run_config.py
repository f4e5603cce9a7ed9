"""``tensorflow.python.ipu.ipu_run_config``: how an estimator runs, of which TensorFlow has none since version 2.16."""

from ...keras.refused import refused

IPURunConfig = refused("IPURunConfig")
RunConfig = refused("RunConfig")

__all__ = ["IPURunConfig", "RunConfig"]

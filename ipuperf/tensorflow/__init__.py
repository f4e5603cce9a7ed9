"""The TensorFlow front end: what TensorFlow's port for the IPU adds to TensorFlow.

TensorFlow itself is the installed one: it traces the program's functions into graphs, which :mod:`.graph` imports.
:mod:`.python.ipu` stands beside it as ``tensorflow.python.ipu`` (:mod:`ipuperf.runtime.install`), :mod:`.keras` is Keras
on the IPU.
"""

from __future__ import annotations

try:
    import tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "TensorFlow programs need TensorFlow: pip install 'ipuperf[tensorflow]'", name="tensorflow"
    ) from None

from tensorflow.python.autograph.core import config as _autograph

# What is called inside a tf.function is not rewritten by AutoGraph, as nothing of TensorFlow is.
_autograph.CONVERSION_RULES = (_autograph.DoNotConvert("ipuperf"), *_autograph.CONVERSION_RULES)

__all__ = ["tensorflow"]

"""``tensorflow.python.ipu``: what TensorFlow's port for the IPU adds to TensorFlow.

Raises (when imported):
    ModuleNotFoundError: without TensorFlow. ImportError: with a version that programs cannot run on.
"""

import importlib as _importlib
import sys as _sys

from ipuperf.base.requirements import pip_install as _pip_install

from ...state import check_version as _check_version
from ...surface import make_modules as _make_modules

try:
    from tensorflow import __version__ as _version
    from tensorflow.python.autograph.core import config as _autograph
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        f"TensorFlow programs need TensorFlow: {_pip_install('tensorflow')}", name="tensorflow"
    ) from None
else:
    _check_version(_version)

from ...facade.norms import let_batch_norms_have_half_parameters as _let_batch_norms_have_half_parameters
from ...facade.strategies import attach_keras as _attach_keras
from ...facade.tensors import outlined_function  # noqa: F401  # it is a name of the package
from .modules import MODULES as _MODULES

_make_modules(__name__, _MODULES)
for _name in _MODULES:
    _package, _, _last = _name.rpartition(".")
    if _package in ("", "ops", "optimizers"):
        globals()[_last] = _sys.modules[f"{__name__}.{_name}"]


def _stand_for_private_keras() -> None:
    """``tensorflow.python.keras`` is Keras for programs for which this module is TensorFlow's."""
    from ipuperf.runtime import install, keras_names

    if "tensorflow" in install.installed_names():
        keras_names.stand_for_private()
        _sys.modules["tensorflow.python"].__dict__.pop("keras", None)  # the next import finds what stands for it


# What is called inside a tf.function is not rewritten by AutoGraph, as nothing of TensorFlow is.
_autograph.CONVERSION_RULES = (_autograph.DoNotConvert("ipuperf"), *_autograph.CONVERSION_RULES)

_let_batch_norms_have_half_parameters()

if "tf_keras.src.engine.training" in _sys.modules:  # TensorFlow has loaded Keras 2: ``tf.keras.ipu`` is there at once
    _attach_keras()
    _stand_for_private_keras()

__all__ = sorted({name for name in globals() if not name.startswith("_")} - {"modules"})


def __getattr__(name: str) -> object:
    """``keras``, which is imported on first use."""
    if name == "keras":
        return _importlib.import_module("ipuperf.frontends.tensorflow.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""``tensorflow.python.ipu``: what TensorFlow's port for the IPU adds to TensorFlow.

Raises (when imported):
    ModuleNotFoundError: without TensorFlow. ImportError: with a version that programs cannot run on.
"""

# ruff: noqa: F401  # what is imported is the package's content
import sys as _sys

from ipuperf.frontends.tensorflow.versions import check_version as _check_version

try:
    from tensorflow import __version__ as _version
    from tensorflow.python.autograph.core import config as _autograph
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "TensorFlow programs need TensorFlow: pip install 'ipuperf[tensorflow]'", name="tensorflow"
    ) from None
else:
    _check_version(_version)

from . import (
    autoshard,
    config,
    dataset_benchmark,
    dataset_extractor,
    distributed,
    gradient_accumulation,
    horovod,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_multi_worker_strategy,
    ipu_outfeed_queue,
    ipu_session_run_hooks,
    ipu_strategy,
    loops,
    ops,
    optimizers,
    scopes,
    serving,
    sharding,
    utils,
    vertex_edsl,
)
from .ops import (
    all_to_all_op,
    application_compile_op,
    control_flow_ops,
    cross_replica_ops,
    custom_ops,
    embedded_runtime,
    embedding_ops,
    f8_ops,
    functional_ops,
    image_ops,
    internal_ops,
    math_ops,
    nn_ops,
    normalization_ops,
    pipelining_ops,
    rand_ops,
    reduce_scatter_op,
    replication_ops,
    rnn_ops,
    slicing_ops,
    statistics_ops,
    summary_ops,
    within_replica_ops,
)
from .ops.functional_ops import outlined_function
from .optimizers import (
    cross_replica_optimizer,
    gradient_accumulation_optimizer,
    ipu_optimizer,
    map_gradient_optimizer,
    sharded_optimizer,
)


def _stand_for_private_keras() -> None:
    """``tensorflow.python.keras`` is Keras for programs for which this module is TensorFlow's."""
    from ipuperf.runtime import install, keras_names

    if "tensorflow" in install.installed_names():
        keras_names.stand_for_private()
        _sys.modules["tensorflow.python"].__dict__.pop("keras", None)  # the next import finds what stands for it


# What is called inside a tf.function is not rewritten by AutoGraph, as nothing of TensorFlow is.
_autograph.CONVERSION_RULES = (_autograph.DoNotConvert("ipuperf"), *_autograph.CONVERSION_RULES)

if "tf_keras.src.engine.training" in _sys.modules:  # TensorFlow has loaded Keras 2: ``tf.keras.ipu`` is there at once
    ipu_strategy.attach_keras()
    _stand_for_private_keras()

__all__ = sorted(name for name in globals() if not name.startswith("_"))  # all that is imported above


def __getattr__(name: str) -> object:
    """What imports Keras is imported on first use: ``keras`` and the names of estimators."""
    import importlib

    if name == "keras":
        return importlib.import_module("ipuperf.frontends.tensorflow.keras")
    if name in ("ipu_estimator", "ipu_pipeline_estimator", "ipu_run_config"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

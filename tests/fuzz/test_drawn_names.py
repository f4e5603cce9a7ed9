"""The public functions of the front ends that programs are made of are drawn by some family of random programs.

Types (graphs, streams, groupings, enumerations, dictionaries, base classes) come with the functions that take and give
them, and are not compared; neither is what only the host calls: loading files, hooks, logging, and :data:`HOST`.
"""

import csv
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing.families import FAMILIES, drawn_names
from upstream_names import NAMES

torch = pytest.importorskip("torch")
pytest.importorskip("tensorflow")

from ipuperf import poptorch  # noqa: E402
from ipuperf.popxl.errors import CANNOT  # noqa: E402
from ipuperf.popxl_addons import Module, surface  # noqa: E402

pytestmark = pytest.mark.heavy

OPERATIONS = Path(__file__).parents[1] / "poptorch" / "supported.csv"
HOST = (
    *("config", "utils", "distributed", "horovod", "dataset_benchmark", "ipu_strategy", "serving", "vertex_edsl"),
    *("sharding", "ipu_estimator", "ipu_pipeline_estimator", "ipu_run_config"),
)
"""Modules of ``tensorflow.python.ipu`` that configure, ask or start, and those of estimators (refused)."""
REFUSED = (
    *("outside_compilation_scope", "PrecisionAtRecall", "RecallAtPrecision"),
    *("SensitivityAtSpecificity", "SpecificityAtSensitivity"),
)
"""What calls the host within a program, or has shapes that depend on data."""
BASES = (
    *("IpuOptimizerBase", "AbstractRNNCell", "InputLayer", "Wrapper", "Mean", "MeanMetricWrapper", "MeanTensor", "Sum"),
    *("Loss", "Metric", "Optimizer", "Layer"),
)
"""Classes that others are made of; the metrics among them take no targets."""
GROUPS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit")
NOT_DRAWN = {
    "poptorch.ctc_beam_search_decoder": "PyTorch has no such decoder",
    "poptorch.optim.LAMB": "PyTorch has no such optimiser",
    "poptorch.Options.anchorTensor": "it names tensors of one program",
    "poptorch.Options.enableProfiling": "it writes files; so does logDir",
    "poptorch.Options.logDir": "see enableProfiling",
    "poptorch.Options.Precision.autocastEnabled": "it has to be off, and is refused otherwise",
    "keras.layers.ConvLSTM3D": "it takes six axes with the batch; ConvLSTM2D is drawn",
    "keras.optimizers.Nadam": "it counts its updates in Python, so a traced one differs",
    "tensorflow.python.ipu.ops.embedding_ops.create_host_embedding": "its table is not a variable of the program",
    "poptorch.Options.Jit.traceModel": "it has to be on, and is refused otherwise",
}
"""Names that no family draws, and why not; ten at most."""


def _value(name: str) -> Any:
    """What a qualified name stands for; None where it is no public name of a module of ours, or of Keras."""
    module, _, attribute = name.rpartition(".")
    library = "tf_" if module.startswith("keras") else "ipuperf."
    try:
        return getattr(importlib.import_module(f"{library}{module}"), attribute, None)
    except ImportError:
        return None


def _functions(value: Any) -> bool:
    """Whether a name is a function or a layer, and not a type."""
    return issubclass(value, Module) if inspect.isclass(value) else inspect.isroutine(value)


def _popxl() -> Iterator[str]:
    """PopXL's and addons' functions, layers and data types."""
    for name in (f"{module}.{name}" for module, name in NAMES):
        value = None if name in CANNOT or name in surface.CANNOT else _value(name)
        if value is not None and (_functions(value) or type(value).__name__ == "dtype"):
            yield name


def _poptorch() -> Iterator[str]:
    """The operations of the documented table, PopTorch's own ops and optimisers."""
    with OPERATIONS.open(encoding="utf-8", newline="") as file:
        yield from (row["operation"] for row in csv.DictReader(file) if not row["remark"].startswith("refused"))
    for name in poptorch.__all__:
        value = getattr(poptorch, name)
        annotation = getattr(value, "__annotations__", {}).get("return", "")
        if getattr(value, "__module__", "") == "ipuperf.frontends.poptorch.ops" and annotation != "NoReturn":
            yield f"poptorch.{name}"
    for name, value in vars(poptorch.optim).items():
        here = getattr(value, "__module__", "") == poptorch.optim.__name__
        if here and inspect.isclass(value) and issubclass(value, torch.optim.Optimizer):
            yield f"poptorch.optim.{name}"


def _options() -> Iterator[str]:
    """Whatever sets an option and gives the options back."""
    options = poptorch.Options()
    groups = {f".{name}": getattr(options, name) for name in GROUPS}
    for group, owner in {"": options, **groups}.items():
        for name, function in vars(type(owner)).items():
            given = getattr(function, "__annotations__", {}).get("return", "")
            if not name.startswith("_") and inspect.isfunction(function) and given.endswith("Options"):
                yield f"poptorch.Options{group}.{name}"


def _tensorflow() -> Iterator[str]:
    """Functions and optimizers of ``tensorflow.python.ipu``, and the options that act."""
    from ipuperf.frontends.options import APPLIED
    from ipuperf.tensorflow.config_options import OPTIONS
    from ipuperf.tensorflow.python.ipu.modules import MODULES

    for module in MODULES:
        name = f"tensorflow.python.ipu.{module}"
        value = importlib.import_module(f"ipuperf.{name}") if module.split(".")[0] not in HOST else None
        for attribute in getattr(value, "__all__", ()):
            if attribute not in REFUSED and _acts(getattr(value, attribute, None)):
                yield f"{name}.{attribute}"
    for option, described in OPTIONS.items():
        if described.status == APPLIED:
            yield f"tensorflow.python.ipu.config.IPUConfig.{option}"


def _acts(value: Any) -> bool:
    """Whether a value is a function that is not refused, or an optimizer."""
    if inspect.isclass(value):
        return value.__name__.endswith("Optimizer") or hasattr(value, "compute_gradients")
    return inspect.isroutine(value) and "NoReturn" not in str(getattr(value, "__annotations__", {}).get("return", ""))


def _keras() -> Iterator[str]:
    """Layers and optimizers of ours, and whatever Keras has."""
    from tensorflow import keras

    from ipuperf.tensorflow.addons.keras import optimizers as added
    from ipuperf.tensorflow.keras import layers, optimizers

    for name, module in {
        "tensorflow.python.ipu.keras.layers": layers,
        "tensorflow.python.ipu.keras.optimizers": optimizers,
        "ipu_tensorflow_addons.keras.optimizers": added,
    }.items():
        refused = {n for n in module.__all__ if str(getattr(module, n).__doc__).startswith("Not supported")}
        names = [n for n in module.__all__ if n not in refused and n not in BASES]
        yield from (f"{name}.{n}" for n in names if inspect.isclass(getattr(module, n)))
    for name, base in {"losses": "Loss", "metrics": "Metric", "optimizers": "Optimizer", "layers": "Layer"}.items():
        module = getattr(keras, name)
        found = {n: v for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, getattr(module, base))}
        names = [n for n in found if n not in (*BASES, *REFUSED) and not _on_the_host(found[n])]
        yield from (f"keras.{name}.{n}" for n in names)


def _on_the_host(value: Any) -> bool:
    """Whether a layer prepares data, which happens before they come to the IPU."""
    return "preprocessing" in value.__module__ or "feature_column" in value.__module__


def test_every_public_function_is_drawn() -> None:
    drawn = {name for family in FAMILIES for name in drawn_names(family)}
    known = {id(value) for value in map(_value, drawn) if value is not None}
    public = [*_popxl(), *_poptorch(), *_options(), *_tensorflow(), *_keras()]
    assert len(public) > 800
    left = {name for name in public if name not in drawn and id(_value(name)) not in known}
    assert left == set(NOT_DRAWN)
    assert len(NOT_DRAWN) <= 10

"""The public functions of the front ends that programs are made of are drawn by some family of random programs.

Types (graphs, streams, groupings, enumerations, dictionaries) come with the functions that take and give them, and are
not compared; neither is what only the host calls (loading files, hooks, logging).
"""

from __future__ import annotations

import csv
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing.families import FAMILIES, drawn_names

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.popxl import surface  # noqa: E402
from ipuperf.popxl_addons import Module  # noqa: E402
from ipuperf.popxl_addons import surface as addons_surface  # noqa: E402

pytestmark = pytest.mark.heavy

OPERATIONS = Path(__file__).parents[1] / "poptorch" / "supported.csv"
GROUPS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit")
NOT_DRAWN = {
    "poptorch.ctc_beam_search_decoder": "PyTorch has no such decoder",
    "poptorch.optim.LAMB": "PyTorch has no such optimiser",
    "poptorch.Options.anchorTensor": "it names tensors of one program",
    "poptorch.Options.enableProfiling": "it writes files; so does logDir",
    "poptorch.Options.logDir": "see enableProfiling",
    "poptorch.Options.Precision.autocastEnabled": "it has to be off, and is refused otherwise",
    "poptorch.Options.Jit.traceModel": "it has to be on, and is refused otherwise",
}
"""Names that no family draws, and why not; ten at most."""


def _value(name: str) -> Any:
    """What a qualified name stands for; None where it is no public name of a module of ours."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"ipuperf.{module}"), attribute, None)
    except ImportError:
        return None


def _functions(value: Any) -> bool:
    """Whether a name is a function or a layer, and not a type."""
    return issubclass(value, Module) if inspect.isclass(value) else inspect.isroutine(value)


def _popxl() -> Iterator[str]:
    """PopXL's and addons' functions, layers and data types."""
    for table in (surface, addons_surface):
        refused = {name for name, _ in table.missing()}
        for module, names in table.UPSTREAM.items():
            for name in (f"{module}.{name}" for name in names):
                value = None if name in refused else _value(name)
                if value is not None and (_functions(value) or type(value).__name__ == "dtype"):
                    yield name


def _poptorch() -> Iterator[str]:
    """The operations of the documented table, PopTorch's own ops and optimisers."""
    with OPERATIONS.open(encoding="utf-8", newline="") as file:
        yield from (row["operation"] for row in csv.DictReader(file) if not row["remark"].startswith("refused"))
    for name in poptorch.__all__:
        value = getattr(poptorch, name)
        annotation = getattr(value, "__annotations__", {}).get("return", "")
        if getattr(value, "__module__", "") == "ipuperf.poptorch.ops" and annotation != "NoReturn":
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


def test_every_public_function_is_drawn() -> None:
    drawn = {name for family in FAMILIES if family not in ("tensorflow", "keras") for name in drawn_names(family)}
    known = {id(value) for value in map(_value, drawn) if value is not None}
    public = [*_popxl(), *_poptorch(), *_options()]
    assert len(public) > 550
    left = {name for name in public if name not in drawn and id(_value(name)) not in known}
    assert left == set(NOT_DRAWN)
    assert len(NOT_DRAWN) <= 10

"""What each module says when it is imported: its tables and constants, and the defaults of its functions and classes.

The code of each module runs once more, as a module that nothing uses; the golden row (:mod:`built`) has what it holds.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from built import shown
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.client.session import BaseSession
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

import ipuperf.tensorflow
from ipuperf.tensorflow.graph.table import Family

PATCHED = ((Function, "__call__"), (BaseSession, "run"), (BaseSession, "__init__"), (autograph, "CONVERSION_RULES"))
"""What of TensorFlow modules replace."""
ROOT = Path(ipuperf.tensorflow.__file__).parent
FILES = [path.relative_to(ROOT.parents[1]).with_suffix("") for path in ROOT.rglob("*.py")]
MODULES = sorted(".".join(file.parts).removesuffix(".__init__") for file in FILES)


class SaidError(Exception):
    """What a module says."""


def defaults(name: str, function: Any) -> Iterator[str]:
    """Parameters with a default."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"{name}({parameter.name}={shown(parameter.default)})"


def assigned(module: Any) -> Iterator[str]:
    """Names that a module gives a value."""
    for statement in ast.parse(inspect.getsource(module)).body:
        for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
            yield from (part.id for part in ast.walk(target or ast.Pass()) if isinstance(part, ast.Name))


def lines_of(module: Any) -> Iterator[str]:
    """A line for each constant, class attribute and default of a module."""
    for name in assigned(module):
        if name.startswith("__"):
            continue
        value = getattr(module, name, None)
        yield f"{name} = {shown(value)} {shown(vars(value)) if isinstance(value, Family) else ''}"
    for name, value in vars(module).items():
        if getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(value):
            yield from defaults(name, value)
        for part, member in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield from defaults(f"{name}.{part}", function)
            elif not part.endswith("_"):
                yield f"{name}.{part} = {shown(member)}"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = import_module(name).__spec__
    for place, attribute in PATCHED:
        monkeypatch.setattr(place, attribute, getattr(place, attribute))
    again = module_from_spec(spec)
    spec.loader.exec_module(again)
    with pytest.raises(SaidError):
        raise SaidError("\n".join(lines_of(again)))

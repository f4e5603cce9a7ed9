"""Graphs without code.

PyTorch writes and compiles Python code for each graph at each change, an eighth of the time of an export; what an
export does with its graphs is to walk through them. Code is written where a graph is called all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch.fx import graph_module
from torch.fx.graph import PythonCode

from ipuperf.runtime.replacing import replaced

_WRITTEN, _COMPILED = torch.fx.Graph.python_code, graph_module._forward_from_src


class _Later(str):
    """The code of a graph that is not written yet."""

    graph: torch.fx.Graph


def _later(graph: torch.fx.Graph, root_module: str, *, verbose: bool = False, **options: Any) -> PythonCode:
    """``Graph.python_code``; what is to be read (``verbose``) is written."""
    if verbose:
        return _WRITTEN(graph, root_module, verbose=True, **options)
    source = _Later()
    source.graph = graph
    return PythonCode(source, {}, {})


class _Forward:
    """A method whose code is written when it is called, or asked for its signature."""

    def __init__(self, graph: torch.fx.Graph, fields: Any) -> None:
        self._graph, self._fields = graph, fields

    @cached_property
    def _compiled(self) -> Any:
        code = _WRITTEN(self._graph, "self")
        return _COMPILED(code.src, code.globals, self._fields)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._compiled)

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        return self if module is None else MethodType(self, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)


def _compiled(source: str, names: dict[str, Any], fields: Any = None) -> Any:
    """``_forward_from_src``, later."""
    return _Forward(source.graph, fields) if isinstance(source, _Later) else _COMPILED(source, names, fields)


@contextmanager
def no_code() -> Iterator[None]:
    """Within it, graphs have no code before they are called."""
    with replaced(torch.fx.Graph, python_code=_later), replaced(graph_module, _forward_from_src=_compiled):
        yield

"""Graphs without code.

PyTorch writes and compiles Python code for each graph at each change, an eighth of the time of an export; what an
export does with its graphs is to walk through them. Code is written when a graph is called all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import graph_module
from torch.fx.graph import PythonCode

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


def _compiled(source: str, names: dict[str, Any], fields: Any = None) -> Any:
    """``_forward_from_src``, at the first call."""
    if not isinstance(source, _Later):
        return _COMPILED(source, names, fields)

    def forward(self: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        code = _WRITTEN(source.graph, "self")
        type(self).forward = _COMPILED(code.src, code.globals, fields)
        return type(self).forward(self, *args, **kwargs)

    return forward


_FUNCTIONS: tuple[tuple[Any, str, Any, Any], ...] = (
    (torch.fx.Graph, "python_code", _WRITTEN, _later),
    (graph_module, "_forward_from_src", _COMPILED, _compiled),
)


@contextmanager
def no_code() -> Iterator[None]:
    """Within it, graphs have no code before they are called."""
    try:
        for owner, name, _, lazy in _FUNCTIONS:
            setattr(owner, name, lazy)
        yield
    finally:
        for owner, name, function, _ in _FUNCTIONS:
            setattr(owner, name, function)

"""``GraphCache``: build a graph once for equal arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipuperf import popxl
from ipuperf.ir import CONTEXT


def _key(value: Any) -> Any:
    """What makes two arguments equal: a tensor's spec, a container's members, otherwise the value."""
    if isinstance(value, (popxl.Tensor, popxl.TensorSpec)):
        return ("tensor", *value.spec.to_tuple())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_key(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((k, _key(v)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


class GraphCache:
    """Graphs by function, arguments, program and IPU."""

    def __init__(self) -> None:
        self._graphs: dict[Any, popxl.Graph] = {}
        self._kept: list[Any] = []  # arguments whose id is part of a key must stay alive

    def create_graph(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> popxl.Graph:
        """``ir.create_graph(fn, *args, **kwargs)``, or the graph made earlier for equal arguments."""
        program = popxl.gir()
        ipu = CONTEXT.ipus[-1] if CONTEXT.ipus else None
        key = (program, fn, ipu, _key(args), _key(dict(sorted(kwargs.items()))))
        if key not in self._graphs:
            self._graphs[key] = program.create_graph(fn, *args, **kwargs)
            self._kept.append((args, kwargs))
        return self._graphs[key]

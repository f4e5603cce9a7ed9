"""``GraphCache``: build a graph once for equal arguments; ``function``: call a function's graph, built so.

Source: popxl-addons: popxl_addons/graph_cache.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.ir import CONTEXT

from .graph import BoundGraph, GraphWithNamedArgs


def _key(value: Any) -> Any:
    """What makes two arguments equal: a tensor's spec, a container's members, a graph, a module's hash, otherwise the
    value."""
    if isinstance(value, (popxl.Tensor, popxl.TensorSpec)):
        return ("tensor", *value.spec.to_tuple())
    if isinstance(value, BoundGraph):
        return ("bound", value.graph, *((k, _key(v)) for k, v in value.args.items()))
    if isinstance(value, GraphWithNamedArgs):
        return ("graph", value.graph)
    if isinstance(value, popxl.Module):
        return (type(value), hash(value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_key(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((k, _key(v)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


@checked_arguments
def bound_arguments(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments that ``fn`` (for a module: its ``build``) gets, by parameter, defaults included.

    Raises:
        TypeError: arguments that it does not take.
    """
    signature = inspect.signature(fn.build if isinstance(fn, popxl.Module) else fn)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


class GraphCache:
    """Graphs by function, arguments, program, IPU and tile set.

    A function is known by itself, a module by its class and ``hash``: modules that are to share graphs define
    ``__hash__``.
    """

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[popxl.Ir, dict[Any, popxl.Graph]] = WeakKeyDictionary()
        self._kept: list[Any] = []  # what has an id or a hash in a key must stay alive

    @checked_arguments
    def create_graph(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> popxl.Graph:
        """``ir.create_graph(fn, *args, **kwargs)``, or the graph made earlier for equal arguments."""
        program = popxl.gir()
        graphs = self._graphs.setdefault(program, {})
        place = tuple(stack[-1] if stack else None for stack in (CONTEXT.ipus, CONTEXT.tile_sets))
        key = (_key(fn), place, _key(bound_arguments(fn, *args, **kwargs)))
        if key not in graphs:
            graphs[key] = program.create_graph(fn, *args, **kwargs)
            self._kept.append((fn, args, kwargs))
        return graphs[key]


@checked_arguments
def function(fn: Callable[..., Any]) -> Callable[..., tuple[popxl.Tensor, ...]]:
    """A function that calls a graph of ``fn``, made once for equal arguments; a decorator.

    Arguments that are no tensors count when the graph is made; only tensors are operands of the call.
    """
    cache = GraphCache()

    @functools.wraps(fn)
    def outlined(*args: Any, **kwargs: Any) -> tuple[popxl.Tensor, ...]:
        graph = cache.create_graph(fn, *args, **kwargs)
        arguments = list(bound_arguments(fn, *args, **kwargs).values())
        return popxl.ops.call(graph, *_tensors(arguments))

    return outlined


def _tensors(values: Any) -> list[popxl.Tensor]:
    """The tensors among arguments and in their sequences and dictionaries, in order."""
    if isinstance(values, popxl.Tensor):
        return [values]
    members = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return [tensor for value in members for tensor in _tensors(value)]


__all__ = ["GraphCache", "bound_arguments", "function"]

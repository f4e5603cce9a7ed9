"""Turning a Python function into a subgraph: arguments to graph inputs, results to graph outputs.

Rules in ``docs/reference/popxl.md`` 3: tensors and specs become inputs in the order of the signature, named as the
parameter; a parameter annotated ``TensorByRef`` is by reference; sequences hold tensors only or none; other arguments
pass through.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from .data import graph_input, graph_output
from .graph import Graph
from .handle import Tensor
from .module import Module
from .spec import TensorByRef, TensorSpec
from .streams import Stream


def graph_stem(fn: Callable[..., Any]) -> str:
    """Name stem of the subgraph of ``fn``: its qualified name without ``.<locals>``, a module's class name."""
    if isinstance(fn, Module):
        return type(fn).__name__
    while isinstance(fn, partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", type(fn).__name__)
    return name.replace(".<locals>", "")


def _target(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn.build if isinstance(fn, Module) else fn


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Annotations, with string annotations evaluated where possible."""
    while isinstance(fn, partial):
        fn = fn.func
    plain = inspect.unwrap(fn)
    bound: dict[str, Any] = {}
    for name, hint in getattr(plain, "__annotations__", {}).items():
        if isinstance(hint, str):
            try:
                hint = eval(hint, getattr(plain, "__globals__", {}))
            except Exception:  # an annotation that cannot be evaluated says nothing about references
                hint = TensorByRef if hint.rpartition(".")[2] == "TensorByRef" else None
        bound[name] = hint
    return bound


def _is_by_ref(hint: Any) -> bool:
    """Whether an annotation marks its tensors as by reference."""
    if hint is TensorByRef:
        return True
    return any(argument is TensorByRef for argument in typing.get_args(hint))


def _tensors_only(values: Sequence[Any], name: str) -> bool:
    """Whether there are tensors among ``values``; TypeError when there are others, too."""
    tensors = [isinstance(v, (Tensor, TensorSpec)) for v in values]
    if any(tensors) and not all(tensors):
        mixed = tensors.index(False)
        raise TypeError(
            f"argument {name!r}: a sequence must hold tensors only or no tensor; "
            f"element {mixed} is a {type(values[mixed]).__name__}"
        )
    return any(tensors)


class _Inputs:
    """Makes graph inputs of the tensors among the arguments."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.hints = _hints(_target(fn))

    def one(self, value: Any, name: str, by_ref: bool) -> Any:
        """The graph input for a tensor or spec; ``value`` itself for anything else."""
        if isinstance(value, (Tensor, TensorSpec)):
            return graph_input(**value.spec, name=name, by_ref=by_ref)
        if isinstance(value, Stream):
            return value
        if isinstance(value, (list, tuple)) and _tensors_only(value, name):
            return type(value)(self.one(v, f"{name}_{i}", by_ref) for i, v in enumerate(value))
        return value

    def bound(self, arguments: inspect.BoundArguments, parameters: Mapping[str, inspect.Parameter]) -> None:
        """Replace the arguments in place, in the order of the signature."""
        for name, parameter in parameters.items():
            if name not in arguments.arguments:
                continue
            value, by_ref = arguments.arguments[name], _is_by_ref(self.hints.get(name))
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                _tensors_only(value, name)
                value = tuple(self.one(v, f"{name}_{i}", by_ref) for i, v in enumerate(value))
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                _tensors_only(tuple(value.values()), name)
                value = {k: self.one(v, k, by_ref) for k, v in value.items()}
            else:
                value = self.one(value, name, by_ref)
            arguments.arguments[name] = value


def trace(graph: Graph, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fill ``graph`` by calling ``fn`` with graph inputs in place of tensors.

    Raises:
        TypeError: a sequence that mixes tensors and other values; ValueError: arguments that ``fn`` does not take, or
            it returns something else than None, a tensor or an iterable of tensors.
    """
    signature = inspect.signature(_target(fn))
    with graph:
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f"graph {graph.name!r}: the arguments do not match the signature: {error}") from error
        _Inputs(fn).bound(arguments, signature.parameters)
        for output in _outputs(fn(*arguments.args, **arguments.kwargs), graph):
            graph_output(output)


def _outputs(result: Any, graph: Graph) -> list[Tensor]:
    if result is None:
        return []
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Iterable) and not isinstance(result, (str, Mapping)):
        outputs = list(result)
        if all(isinstance(t, Tensor) for t in outputs):
            return outputs
    raise ValueError(
        f"graph {graph.name!r}: the function returned {type(result).__name__} ({result!r}); allowed: None, a tensor, "
        "or an iterable of tensors"
    )

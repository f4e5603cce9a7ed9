"""``torch.func`` within a model: gradients by :func:`~.derivatives.gradients`, also of each sample under ``vmap``.

PyTorch's own transforms differentiate at another level of the dispatcher, which an export does not record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._C import _functorch
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters

from ipuperf.runtime.replacing import replaced

from ..errors import UnsupportedError
from .derivatives import gradients
from .lines import calling_line


def _variable(x: Any) -> Any:
    """A tensor of its own with the numbers of ``x``; under ``vmap`` one for each sample, with a gradient of its own."""
    if not isinstance(x, torch.Tensor):
        return x
    stack = retrieve_all_functorch_interpreters()
    if stack and isinstance(stack[-1], VmapInterpreter) and _functorch.maybe_get_level(x) != stack[-1].level():
        level, size = stack[-1].level(), stack[-1].batch_size()
        return _functorch._add_batch_dim(x.unsqueeze(0).expand(size, *x.shape), 0, level)
    return x.clone()


def _variables(args: Sequence[Any], argnums: Any) -> tuple[list[Any], Any]:
    """The arguments with variables in the place of those that ``argnums`` names (None: all), and these."""
    places = range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else list(argnums)
    chosen = {place % len(args): pytree.tree_map(_variable, args[place]) for place in places}
    whole = [chosen.get(place, value) for place, value in enumerate(args)]
    return whole, chosen[argnums % len(args)] if isinstance(argnums, int) else tuple(chosen.values())


def _gradients(outputs: Sequence[torch.Tensor], variables: Any, seeds: Sequence[torch.Tensor]) -> Any:
    leaves, structure = pytree.tree_flatten(variables)
    found = gradients(outputs, leaves, seeds, create_graph=True, allow_unused=True, materialize_grads=True)
    return pytree.tree_unflatten(list(found), structure)


def _grad_and_value(func: Callable[..., Any], argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
    whole, variables = _variables(args, argnums)
    result = func(*whole, **kwargs)
    value = result[0] if has_aux else result
    if not isinstance(value, torch.Tensor) or value.dim():
        raise UnsupportedError(
            f"{calling_line()}: torch.func.grad: the function has to give one number, a tensor without axes"
        )
    return _gradients([value], variables, [torch.ones_like(value)]), result


def _vjp(func: Callable[..., Any], *primals: Any, argnums: Any = None, has_aux: bool = False) -> Any:
    whole, variables = _variables(primals, argnums)
    result = func(*whole)
    value, aux = result if has_aux else (result, None)
    outputs, _ = pytree.tree_flatten(value)

    def pullback(cotangents: Any, **_: Any) -> Any:
        return _gradients(outputs, variables, pytree.tree_leaves(cotangents))

    return (value, pullback, aux) if has_aux else (value, pullback)


def _jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """Forward mode by reverse mode, twice: the pullback of ``u`` is linear, and its own pullback is the pushforward."""
    value, pullback, *aux = _vjp(func, *primals, argnums=argnums, has_aux=has_aux)
    outputs, structure = pytree.tree_flatten(value)
    free = [_variable(torch.zeros_like(output)) for output in outputs]
    pulled = pytree.tree_leaves(pullback(free))
    pushed = pytree.tree_unflatten(list(_gradients(pulled, free, pytree.tree_leaves(tangents))), structure)
    return (value, pushed, *aux)


@contextmanager
def no_transform_left() -> Iterator[None]:
    """What a failure within the block leaves of ``vmap`` ends with it."""
    depth = len(retrieve_all_functorch_interpreters())
    try:
        yield
    finally:
        while len(retrieve_all_functorch_interpreters()) > depth:
            _functorch.pop_dynamic_layer_stack()


@contextmanager
def transforms() -> Iterator[None]:
    """Within it ``torch.func.grad``, ``vjp``, ``jvp``, ``jacrev`` and ``hessian`` can be exported."""
    by_reverse = {
        "grad_and_value_impl": _grad_and_value,
        "_jvp_with_argnums": _jvp,
        "_vjp_with_argnums": _vjp,
        # hessian asks for it; forward mode of one sample at a time would be batched at two levels.
        "jacfwd": lambda func, argnums=0, **_: eager_transforms.jacrev(func, argnums),
    }
    with no_transform_left(), replaced(eager_transforms, **by_reverse):
        yield


def _for_each(info: Any, in_dims: Any, outputs: Any, inputs: Any, seeds: Any, unused: bool) -> tuple[Any, Any]:
    """The mark under ``vmap``: one for all samples whose outputs and inputs are their own, else one for each seed."""

    def batched(values: Sequence[torch.Tensor], dims: Sequence[int | None]) -> list[torch.Tensor]:
        return [
            value.unsqueeze(0).expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(values, dims, strict=True)
        ]

    of_outputs, of_inputs, of_seeds, _ = in_dims
    derivative = torch.ops.ipuperf.derivative
    if all(dim is None for dim in (*of_outputs, *of_inputs)):
        lines = batched(seeds, of_seeds)
        each = [derivative(outputs, inputs, [line[n] for line in lines], unused) for n in range(info.batch_size)]
        return [torch.stack(column) for column in zip(*each, strict=True)], [0] * len(inputs)
    if any(dim is None for dim in of_inputs):
        raise UnsupportedError("torch.autograd.grad under vmap: an input that all samples share; use torch.func.grad")
    # A batched input is a variable itself: a view of it would be another one.
    found = derivative(batched(outputs, of_outputs), inputs, batched(seeds, of_seeds), unused)
    return found, list(of_inputs)


torch.library.register_vmap("ipuperf::derivative", _for_each)

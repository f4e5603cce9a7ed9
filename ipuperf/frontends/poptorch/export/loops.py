"""``torch._higher_order_ops`` while a model is exported: loops trip after trip, as a Python loop would be, branches
both, of which one is chosen, and ``flex_attention`` by its plain formula.

A ``while_loop`` needs a bound that no tensor's value decides: its condition is false on the numbers that the loop
counts by itself, as in ``(i < 10) & (error > limit)``. Then each of so many trips is computed, and those after the end
keep what the loop has carried.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops import utils
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from ipuperf.runtime.replacing import replaced

from ..errors import UnsupportedError
from .formulas import cond
from .lines import calling_line

#: Trips of the longest loop.
_LONGEST = 256
_AND = frozenset({"__and__", "__rand__", "bitwise_and", "logical_and"})


def _known(condition: Any) -> bool | None:
    """What a condition is, if no tensor's value decides it."""
    number = condition.constant if isinstance(condition, FakeTensor) else condition
    return None if number is None else bool(number)


class _Conjunctions(TorchFunctionMode):
    """Within it what is known to be false makes a conjunction false, whatever its other operand."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _AND:
            for operand in args[:2]:
                if isinstance(operand, bool | torch.Tensor) and _known(operand) is False:
                    return operand
        return func(*args, **(kwargs or {}))


def _while(holds: Callable[..., Any], trip: Callable[..., Any], carried: Sequence[Any], others: Sequence[Any]) -> Any:
    # Conditions read the counters as they go on; the results have them as they were when the loop ended.
    going, results = None, list(carried)
    for _ in range(_LONGEST):
        with _Conjunctions():
            condition = holds(*carried, *others)
        known = _known(condition)
        if known is False:
            return tuple(results)
        if known is None:
            if not any(map(_is_counter, carried)):
                break
            condition = condition.reshape(())
            going = condition if going is None else going & condition
        after = trip(*carried, *others)
        if going is None:
            results = list(after)
        else:
            results = [torch.where(going, *pair) for pair in zip(after, results, strict=True)]
        carried = [new if _is_counter(new) else result for new, result in zip(after, results, strict=True)]
    raise UnsupportedError(
        f"{calling_line()}: while_loop: no number that the loop counts ends it within {_LONGEST} trips; the program of "
        "an IPU is static: let the condition be (i < limit) & ..., with a counter that begins with a number"
    )


def _is_counter(value: Any) -> bool:
    """Whether it is a tensor whose number is known."""
    return isinstance(value, FakeTensor) and value.constant is not None


def _scan(combine: Callable[..., Any], init: Any, xs: Any, additional_inputs: Any = ()) -> tuple[Any, Any]:
    carry, every, structure = init, [], None
    for row in zip(*(x.unbind(0) for x in xs), strict=True):
        carry, result = combine(*pytree.tree_leaves(carry), *row, *additional_inputs)
        leaves, structure = pytree.tree_flatten(result)
        every.append(leaves)
    assert structure is not None  # PyTorch refuses a scan over nothing
    return carry, pytree.tree_unflatten([torch.stack(column) for column in zip(*every, strict=True)], structure)


def _map(function: Callable[..., Any], xs: Any, others: Any) -> Any:
    results = [function(*row, *others) for row in zip(*(x.unbind(0) for x in xs), strict=True)]
    return pytree.tree_map(lambda *column: torch.stack(column), *results)


def _associative(combine: Callable[..., Any], xs: Any, additional_inputs: Any = ()) -> Any:
    return generic_associative_scan(combine, xs, additional_inputs=tuple(additional_inputs))


def _attention(query: Any, key: Any, value: Any, score: Any, mask: Any, scale: float, *_: Any) -> tuple[Any, ...]:
    """``flex_attention``: score and mask are functions of positions, here of all positions at once."""
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1).expand(*query.shape[:2], -1, -1)
                  for x in (key, value))  # fmt: skip
    scores = query @ key.mT * scale
    places = [torch.arange(n).reshape(-1, *(1,) * (3 - axis)) for axis, n in enumerate(scores.shape)]
    scores = torch.where(mask[-1](*places), score(scores, *places), -math.inf)
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.where(hidden, 0.0, torch.where(hidden, 0.0, scores).softmax(-1))
    return weights @ value, scores.logsumexp(-1), scores.amax(-1)


#: What stands for the op of each module.
_OPS: dict[str, dict[str, Callable[..., Any]]] = {
    "torch._higher_order_ops.associative_scan": {"associative_scan_op": _associative},
    "torch._higher_order_ops.cond": {"cond_op": cond},
    "torch._higher_order_ops.map": {"map_impl": _map},
    "torch._higher_order_ops.scan": {"scan_op": _scan},
    "torch._higher_order_ops.while_loop": {"while_loop_op": _while},
    "torch.nn.attention.flex_attention": {"flex_attention_hop": _attention},
}


def _uncompiled(model: Any = None, **_: Any) -> Any:
    """``torch.compile`` in ``forward``, also as a decorator: the function itself."""
    return _uncompiled if model is None else model


def _called(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    return function(*args, **(kwargs or {}))


@contextmanager
def loops() -> Iterator[None]:
    """Within it loops and branches of PyTorch are called instead of compiled."""
    with ExitStack() as stack:
        stack.enter_context(replaced(utils, _hop_compile_and_call=_called))
        stack.enter_context(replaced(torch, compile=_uncompiled))
        for name, ops in _OPS.items():
            stack.enter_context(replaced(importlib.import_module(name), **ops))
        yield

"""``all_reduce``: one value of the tensors on several IPUs of a replica, on each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from ipuperf.base.near_names import instead_of
from ipuperf.functions import arithmetic

from ...arguments import checked_arguments
from ...context import ipu
from ...handle import Tensor
from ..ipu_copy import ipu_copy
from ..lifting import lifted

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    name: lifted(vars(arithmetic)[function])
    for name, function in (
        ("add", "add"),
        ("mul", "mul"),
        ("max", "maximum"),
        ("and", "logical_and"),
        ("or", "logical_or"),
    )
}


@checked_arguments
def all_reduce(ts: Sequence[Tensor], ipus: Sequence[int] | None = None, op: str = "add") -> list[Tensor]:
    """The reduction of ``ts``, one of each of several IPUs, on each of these IPUs.

    It is written as copies to the first IPU, the reduction there and copies back, which is what it costs (upstream has
    one op); its gradient follows from those.

    Args:
        ipus: the IPU of each tensor; default: where they are.

    Raises:
        ValueError: no tensors, another number of IPUs, an IPU twice, unequal shapes, an operator that is not supported
            between IPUs (``min``, ``mean``, ``square_add``).
    """
    places = [t.ipu for t in ts] if ipus is None else list(ipus)
    _check(ts, places, op)
    here = [ts[0], *(ipu_copy(t, places[0], place) for t, place in zip(ts[1:], places[1:], strict=True))]
    with ipu(places[0]):
        total = reduce(_REDUCTIONS[op], here)
    return [total, *(ipu_copy(total, place, places[0]) for place in places[1:])]


def _check(ts: Sequence[Tensor], places: Sequence[int], op: str) -> None:
    if not ts or len(ts) != len(places):
        raise ValueError(f"all_reduce: {len(ts)} tensors for the IPUs {list(places)}; one on each IPU is needed")
    if len(set(places)) < len(places):
        raise ValueError(f"all_reduce: IPUs {list(places)}; each may be there once")
    if len({(t.shape, t.dtype) for t in ts}) > 1:
        raise ValueError(
            f"all_reduce: tensors {[(t.shape, t.dtype.name) for t in ts]}; equal shapes and types are needed"
        )
    if op not in _REDUCTIONS:
        raise ValueError(f"all_reduce: op {op!r} between IPUs{instead_of(op, _REDUCTIONS)}")

"""Outlining: repeated stretches of ops share one function, so their code and vertex state are there once.

PopART's ``SubgraphOutline`` (on by default, ``SessionOptions.enableOutlining``) looks for stretches of the schedule
that occur again with equal ops, and makes a function of those whose value exceeds ``outlineThreshold`` (1 by default).
An op of high value (matrix products, convolutions, norms, collectives, remote transfers, and weight updates of
replicated programs) counts 1000, any other 0.1 (``Op::getHighSubgraphValue``, ``getLowSubgraphValue``), so that a
product is shared alone, and a ReLU only next to one or among ten others. Host I/O and copies between IPUs are never
shared. PopXL leaves outlining to the user, who calls graphs.

A call costs control code and, for each tensor that a stretch reads from outside, the vertices of the copy into the
function's input, on the tiles where the tensor lies.

Simplifications: ops are compared one by one, and functions do not contain each other, so
``outlineSequenceBreakCost`` and ``enableOutliningCopyCostPruning`` mean nothing here; the cycles of copying operands
in and results out, and the bytes of a function's own inputs (at most the operands of one stretch), are not counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.ir import Tensor
from ipuperf.ops.remote import RemoteLoad, RemoteStore
from ipuperf.ops.work import Outlining

from .layout import Layout

if TYPE_CHECKING:
    from ipuperf.ops.work import Work

    from .lowered import LoweredOp

HIGH_VALUE, LOW_VALUE = 1000.0, 0.1

#: PopART's default of ``outlineThreshold``.
OUTLINE_THRESHOLD = 1.0

_NORMS = ("LayerNorm", "GroupNorm", "BatchNorm", "InstanceNorm")
_UPDATES = ("Adam", "Lamb", "SGD", "CopyVarUpdate", "ScaledAdd")
_MODULUS = (1 << 61) - 1
_BASE = 1_000_003


def value_of(kind: str, works: Iterable[Work], replicas: int) -> float | None:
    """Value of an op of type ``kind`` in a stretch; None: it is never shared.

    ``replicas``: of the program; weight updates are of high value in a replicated one.
    """
    high = kind.startswith(_NORMS) or (replicas > 1 and kind.startswith(_UPDATES))
    for item in works:
        if item.outlining is Outlining.NEVER:
            return None
        high = high or item.outlining is Outlining.HIGH
    return HIGH_VALUE if high else LOW_VALUE


def repeated(keys: Sequence[int], values: Sequence[float | None], threshold: float) -> list[bool]:
    """For each op whether it lies in a stretch that occurred before and whose value exceeds ``threshold``.

    Args:
        keys: equal for ops whose code is equal.
        values: of the ops; None ends a stretch.
        threshold: at least 0.

    Every stretch worth it contains one of the least ones, from which no op can be taken at either end: those are looked
    up, by a hash of their keys.
    """
    prefix, power = [0], [1]
    for key in keys:
        prefix.append((prefix[-1] * _BASE + key + 1) % _MODULUS)
        power.append(power[-1] * _BASE % _MODULUS)
    first: dict[tuple[int, int], int] = {}
    change = [0] * (len(keys) + 1)
    for start, stop in sorted(set(_least(values, threshold))):
        length = stop - start
        found = (length, (prefix[stop] - prefix[start] * power[length]) % _MODULUS)
        if first.setdefault(found, start) + length <= start:
            change[start] += 1
            change[stop] -= 1
    depth, result = 0, []
    for delta in change[:-1]:
        depth += delta
        result.append(depth > 0)
    return result


def _least(values: Sequence[float | None], threshold: float) -> Iterator[tuple[int, int]]:
    """``[start, stop)`` of the shortest stretches worth more than ``threshold``: for each op the one that ends with it,
    then for each op the one that begins with it."""
    for ends in (True, False):
        order = values if ends else values[::-1]
        far, total = 0, 0.0
        for near, value in enumerate(order):
            if value is None:
                far, total = near + 1, 0.0
                continue
            total += value
            while (dropped := order[far] or 0.0) < total - threshold - 1e-9 and far < near:
                total -= dropped
                far += 1
            if total > threshold + 1e-9:
                yield (far, near + 1) if ends else (len(values) - near - 1, len(values) - far)


class Outlinable(NamedTuple):
    """An op of a program whose code may be shared: how it was lowered, where its tensors lie, its value."""

    item: LoweredOp
    layouts: Mapping[Tensor, Layout]
    value: float | None

    @property
    def key(self) -> Hashable:
        """Equal for ops whose code can be the same. Which buffer a transfer from or to Streaming Memory belongs to is
        decided after outlining (PopART's ``RemoteSetup``: what shares a function becomes entries of one buffer)."""
        op = self.item.op
        if isinstance(op, (RemoteLoad, RemoteStore)):
            return (op.type, *(self.layouts[tensor] for tensor in (op.inputs[0], *op.outputs)))
        return id(self.item.steps.code)


@dataclass(frozen=True)
class Outlined:
    """Code of the ops of one IPU when repeated stretches are functions.

    Attributes:
        kept: ops that have their own code.
        calls: calls of functions that replace a stretch.
        operands: tensors that those calls read, with their layouts.
    """

    kept: tuple[LoweredOp, ...]
    calls: int
    operands: tuple[tuple[Tensor, Layout], ...]


def outline(ops: Sequence[Outlinable], threshold: float | None) -> Outlined:
    """What is left of the code of ``ops``, the ops of one IPU that have code or end a stretch, in the order of the
    program.

    ``threshold``: None switches outlining off.
    """
    if threshold is None:
        return Outlined(tuple([op.item for op in ops]), 0, ())
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(op.key, len(numbers)) for op in ops]
    shared = repeated(keys, [op.value for op in ops], threshold)
    kept, calls, operands = [], 0, list[tuple[Tensor, Layout]]()
    made: set[Tensor] = set()
    for index, (item, layouts, _) in enumerate(ops):
        if not shared[index]:
            kept.append(item)
            continue
        if not index or not shared[index - 1]:
            calls += 1
            made = set()
        inputs = item.op.inputs
        read = inputs if len(inputs) == 1 else dict.fromkeys(inputs)
        operands += [(tensor, layouts[tensor]) for tensor in read if tensor not in made]
        made.update(inputs, item.op.outputs)
    return Outlined(tuple(kept), calls, tuple(operands))

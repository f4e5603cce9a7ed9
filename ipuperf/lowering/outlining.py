"""Outlining: repeated stretches of ops share one function, so their code and vertex state are there once.

PopART's ``SubgraphOutline`` (on by default, ``SessionOptions.enableOutlining``) looks for stretches of the schedule
that occur again with equal ops, and makes a function of those whose value exceeds ``outlineThreshold`` (1 by default).
An op of high value (matrix products, convolutions, norms, collectives, remote transfers, and weight updates of
replicated programs) counts 1000, any other 0.1 (``Op::getHighSubgraphValue``, ``getLowSubgraphValue``), so that a
product is shared alone, and a ReLU only next to one or among ten others. Host I/O and copies between IPUs are never
shared. PopXL leaves outlining to the user, who calls graphs.

A call copies what the stretch reads from outside into the inputs of the function before it, and what it changes of
that or makes for others back after it (``popart:willow/src/popx/op/callx.cpp`` copyInputs, copyModified, copyOutputs;
all of it, as ``aliasZeroCopy`` is off by default): on-tile copies, one compute set each (:mod:`.function_calls`). Its
code is control code and a vertex of each of these copies on the tiles where the tensor lies.

Simplifications: ops are compared one by one, and functions do not contain each other, so
``outlineSequenceBreakCost`` and ``enableOutliningCopyCostPruning`` mean nothing here; a function's own inputs and
outputs lie as the tensors of each call (PopART lays them out as those of the first one), and their bytes (at most the
operands of one stretch) are not counted. Recomputed ops, which are those of the forward pass once more in PopART, share
their code and are calls where recomputed ops repeat each other; what they make is copied there, not in the forward pass
too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
_LOOKED_AT = 8
"""Earlier occurrences of the begin of a stretch that are compared with it, the latest ones."""
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


def kept(ops: Sequence[Outlinable], threshold: float | None) -> tuple[LoweredOp, ...]:
    """The ops that have their own code, of ``ops``, those of one IPU that have code or end a stretch, in the order of
    the program. ``threshold``: None switches outlining off."""
    if threshold is None:
        return tuple([op.item for op in ops])
    shared = repeated(_numbered(ops), [op.value for op in ops], threshold)
    return tuple([op.item for op, other in zip(ops, shared, strict=True) if not other])


def function_bodies(ops: Sequence[Outlinable], threshold: float | None) -> list[Sequence[Outlinable]]:
    """The stretches of ``ops`` that run as calls of functions; see :func:`called`. ``ops`` and ``threshold`` as for
    :func:`kept`."""
    if threshold is None:
        return []
    graphs = [id(op.item.op.graph) for op in ops]
    return [ops[each.start : each.stop] for each in called(_numbered(ops), [op.value for op in ops], graphs, threshold)]


def _numbered(ops: Sequence[Outlinable]) -> list[int]:
    """A number for each op, equal where their keys are."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(op.key, len(numbers)) for op in ops]


def called(keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], threshold: float) -> list[range]:
    """Stretches that run as calls, in order; none overlap.

    A stretch that occurred before begins where one of the least ones does (as in :func:`repeated`), goes on as long as
    what followed an earlier occurrence, and does not reach into that (:func:`_best`). First occurrences are calls too.
    Of stretches inside others, the outer ones are taken.

    Args:
        keys, values, threshold: as in :func:`repeated`.
        graphs: equal for ops of one graph; a stretch ends with its graph.
    """
    least = dict(_least_of_one(values, threshold))
    earlier: dict[tuple[int, ...], deque[int]] = {}
    found: list[range] = []
    start = 0
    while start < len(keys):
        length = 0
        if start in least:
            begin = tuple(keys[start : least[start]])
            source, length = _best(keys, values, graphs, earlier.get(begin, ()), start)
        if start in least and length >= len(begin):
            found += [range(source, source + length), range(start, start + length)]
        else:
            length = 1
        for place in range(start, start + length):
            if place in least:
                earlier.setdefault(tuple(keys[place : least[place]]), deque(maxlen=_LOOKED_AT)).append(place)
        start += length
    return _outermost(found, len(keys))


def _best(
    keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], places: Iterable[int], start: int
) -> tuple[int, int]:
    """Which of the earlier ``places`` goes on as ``start`` does, and for how many ops: the latest one that does up to
    ``start`` itself (equal layers one after the other), else the one with which that is longest."""
    best = (0, 0)
    for place in reversed(tuple(places)):
        length = _alike(keys, values, graphs, place, start)
        if length == start - place:
            return place, length
        if length > best[1]:
            best = (place, length)
    return best


def _least_of_one(values: Sequence[float | None], threshold: float) -> Iterator[tuple[int, int]]:
    """For each op the end of the shortest stretch worth more than ``threshold`` that begins with it, where there is."""
    stop, total = 0, 0.0
    for start, first in enumerate(values):
        if first is None:
            continue
        if stop <= start:
            stop, total = start, 0.0
        while stop < len(values) and total <= threshold + 1e-9 and (value := values[stop]) is not None:
            total += value
            stop += 1
        if total > threshold + 1e-9:
            yield start, stop
        total -= first


def _alike(keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], earlier: int, start: int) -> int:
    """How many ops from ``start`` on are those from ``earlier`` on, before both end or meet."""
    length, most = 0, min(start - earlier, len(keys) - start)
    while (
        length < most
        and keys[earlier + length] == keys[start + length]
        and None not in (values[earlier + length], values[start + length])
        and graphs[start + length] == graphs[start]
        and graphs[earlier + length] == graphs[earlier]
    ):
        length += 1
    return length


def _outermost(stretches: Iterable[range], ops: int) -> list[range]:
    """The longest of ``stretches`` that do not overlap, in order."""
    taken = bytearray(ops)
    kept = []
    for stretch in sorted(stretches, key=lambda each: (-len(each), each.start)):
        if not any(taken[stretch.start : stretch.stop]):
            taken[stretch.start : stretch.stop] = b"\1" * len(stretch)
            kept.append(stretch)
    return sorted(kept, key=lambda each: each.start)

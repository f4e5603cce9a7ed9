"""Outlining: repeated stretches of ops share one function, so their code and vertex state take memory once.

PopART's ``SubgraphOutline`` (on by default, ``SessionOptions.enableOutlining``) looks for stretches of the schedule
that occur again with equal ops, and makes a function of those whose value exceeds ``outlineThreshold`` (1 by default).
Ops of high value count 1000: matrix products, convolutions, norms, collectives, remote transfers, and weight updates of
replicated programs. Any other op counts 0.1 (``Op::getHighSubgraphValue``, ``getLowSubgraphValue``). So a product is
shared alone, and a ReLU only next to one or among ten others. Host I/O and copies between IPUs are never shared. PopXL
leaves outlining to the user, who calls graphs.

Before a call, the tensors that the stretch reads from outside are copied into the inputs of the function. After it, the
operands it changed and the results that others read are copied back (``popart:willow/src/popx/op/callx.cpp``
copyInputs, copyModified, copyOutputs; all of them, as ``aliasZeroCopy`` is off by default). These are on-tile copies,
one compute set each way (:mod:`.function_calls`). The code of a call is control code, and a vertex of each copy on the
tiles where the tensor lies.

Simplifications: Ops are compared one by one, and functions do not contain each other, so
``outlineSequenceBreakCost`` and ``enableOutliningCopyCostPruning`` have no meaning here. A function's own inputs and
outputs lie as the tensors of each call (PopART lays them out as those of the first call). Their bytes, at most the
operands of one stretch, are not counted. In PopART recomputed ops repeat those of the forward pass. Here they share
the code of the forward pass, and are calls where recomputed ops repeat each other; their results are copied there, not
in the forward pass too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.ir import Tensor
from ipuperf.ops.transfers.remote import RemoteLoad, RemoteStore
from ipuperf.ops.work import Outlining, Work

from .layout import Layout

if TYPE_CHECKING:
    from .lowered import LoweredOp

HIGH_VALUE, LOW_VALUE = 1000.0, 0.1

#: PopART's default of ``outlineThreshold``.
OUTLINE_THRESHOLD = 1.0

_NORMS = ("LayerNorm", "GroupNorm", "BatchNorm", "InstanceNorm")
_UPDATES = ("Adam", "Lamb", "SGD", "CopyVarUpdate", "ScaledAdd")
_LOOKED_AT = 8
"""How many earlier occurrences of a stretch's begin are compared with it; the latest are used."""
# Modulus (a prime) and base of the rolling hashes; at 61 bits collisions are unlikely.
_MODULUS = (1 << 61) - 1
_BASE = 1_000_003


def value_of(kind: str, works: Iterable[Work], replicas: int) -> float | None:
    """Value of an op of type ``kind`` in a stretch; None if it is never shared.

    ``replicas``: replication factor of the program; weight updates are of high value in a replicated one.
    """
    high = kind.startswith(_NORMS) or (replicas > 1 and kind.startswith(_UPDATES))
    for work in works:
        if work.outlining is Outlining.NEVER:
            return None
        high = high or work.outlining is Outlining.HIGH
    return HIGH_VALUE if high else LOW_VALUE


def repeated(keys: Sequence[int], values: Sequence[float | None], threshold: float) -> list[bool]:
    """For each op whether it lies in a stretch that occurred before and whose value exceeds ``threshold``.

    Args:
        keys: equal for ops whose code is equal.
        values: of the ops; None ends a stretch.
        threshold: at least 0.

    Every stretch above the threshold contains a shortest one, from which no op can be taken at either end. Only these
    are looked up, by a hash of their keys.
    """
    prefix, power = [0], [1]
    for key in keys:
        # Rolling hashes: the hash of any stretch follows from two prefixes.
        prefix.append((prefix[-1] * _BASE + key + 1) % _MODULUS)
        power.append(power[-1] * _BASE % _MODULUS)
    first_start: dict[tuple[int, int], int] = {}
    change = [0] * (len(keys) + 1)
    # Sorted by start, so that the first occurrence of a stretch is met first.
    for start, stop in sorted(set(_least(values, threshold))):
        length = stop - start
        key_hash = (length, (prefix[stop] - prefix[start] * power[length]) % _MODULUS)
        # Overlapping occurrences do not count as repeated.
        if first_start.setdefault(key_hash, start) + length <= start:
            change[start] += 1
            change[stop] -= 1
    # The running sum of begins and ends tells which ops lie in any repeated stretch.
    depth, result = 0, []
    for delta in change[:-1]:
        depth += delta
        result.append(depth > 0)
    return result


def _least(values: Sequence[float | None], threshold: float) -> Iterator[tuple[int, int]]:
    """``[start, stop)`` of the shortest stretches worth more than ``threshold``.

    These are, for each op, the stretch that ends with it, and then for each op the stretch that begins with it.
    """
    for ends in (True, False):
        order = values if ends else values[::-1]
        far, total = 0, 0.0
        for near, value in enumerate(order):
            if value is None:
                far, total = near + 1, 0.0
                continue
            total += value
            # Values are sums of tenths, so comparisons leave room for rounding.
            while (dropped := order[far] or 0.0) < total - threshold - 1e-9 and far < near:
                total -= dropped
                far += 1
            if total > threshold + 1e-9:
                yield (far, near + 1) if ends else (len(values) - near - 1, len(values) - far)


class Outlinable(NamedTuple):
    """An op of a program whose code may be shared: how it was lowered, where its tensors lie, its value."""

    lowered_op: LoweredOp
    layouts: Mapping[Tensor, Layout]
    value: float | None

    @property
    def key(self) -> Hashable:
        """Equal for ops whose code can be the same.

        The buffer of a transfer from or to Streaming Memory is not part of it, as it is decided after outlining
        (PopART's ``RemoteSetup``: transfers that share a function become entries of one buffer).
        """
        op = self.lowered_op.op
        if isinstance(op, (RemoteLoad, RemoteStore)):
            return (op.type, *(self.layouts[tensor] for tensor in (op.inputs[0], *op.outputs)))
        # Ops that are alike share one code object (:mod:`.alike`).
        return id(self.lowered_op.steps.code)


@dataclass(frozen=True)
class FunctionCall:
    """One call.

    Attributes:
        ops: the ops it runs.
        operands: tensors that are copied in.
        results: tensors that are copied out.
    """

    ops: Sequence[Outlinable]
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    def layout(self, tensor: Tensor) -> Layout:
        """The layout of an operand or result."""
        return self.ops[0].layouts[tensor]

    def of(self, tiles: int) -> FunctionCall:
        """The same call without tensors that do not lie on a tile set of ``tiles`` tiles."""
        layouts = self.ops[0].layouts
        # Tensors of the other tile set have layouts of another length.
        elsewhere = [
            tensor
            for tensor in (*self.operands, *self.results)
            if tensor not in layouts or layouts[tensor].elements.tiles != tiles
        ]
        if not elsewhere:
            return self
        operands, results = (
            tuple(tensor for tensor in tensors if tensor not in elsewhere) for tensors in (self.operands, self.results)
        )
        return FunctionCall(self.ops, operands, results)


@dataclass(frozen=True)
class SharedCode:
    """The code of one tile set of an IPU: ops with code of their own (``kept``), and calls of functions."""

    kept: tuple[LoweredOp, ...]
    calls: tuple[FunctionCall, ...]


def ops_with_own_code(ops: Sequence[Outlinable], threshold: float | None) -> tuple[LoweredOp, ...]:
    """The ops that have code of their own.

    Args:
        ops: ops of one IPU that have code or end a stretch, in the order of the program.
        threshold: see :func:`repeated`; None switches outlining off.
    """
    if threshold is None:
        return tuple([op.lowered_op for op in ops])
    shared = repeated(_numbered(ops), [op.value for op in ops], threshold)
    return tuple([op.lowered_op for op, is_shared in zip(ops, shared, strict=True) if not is_shared])


def function_bodies(ops: Sequence[Outlinable], threshold: float | None) -> list[Sequence[Outlinable]]:
    """The stretches of ``ops`` that run as calls of functions; see :func:`called`. ``ops`` and ``threshold`` as for
    :func:`ops_with_own_code`."""
    if threshold is None:
        return []
    graphs = [id(op.lowered_op.op.graph) for op in ops]
    return [
        ops[stretch.start : stretch.stop]
        for stretch in called(_numbered(ops), [op.value for op in ops], graphs, threshold)
    ]


def _numbered(ops: Sequence[Outlinable]) -> list[int]:
    """A number for each op; ops with equal keys have equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(op.key, len(numbers)) for op in ops]


def called(keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], threshold: float) -> list[range]:
    """Stretches that run as calls, in order; none overlap.

    A repeated stretch begins where a shortest one does (as in :func:`repeated`). It goes on as long as it equals an
    earlier occurrence, but does not reach into that (:func:`_best`). First occurrences are calls too. Where one stretch
    lies inside another, the outer one is used.

    Args:
        keys, values, threshold: as in :func:`repeated`.
        graphs: equal for ops of one graph; a stretch ends with its graph.
    """
    least = dict(_least_of_one(values, threshold))
    earlier: dict[tuple[int, ...], deque[int]] = {}
    stretches: list[range] = []
    start = 0
    while start < len(keys):
        length = 0
        if start in least:
            begin = tuple(keys[start : least[start]])
            source, length = _best(keys, values, graphs, earlier.get(begin, ()), start)
        if start in least and length >= len(begin):
            stretches += [range(source, source + length), range(start, start + length)]
        else:
            length = 1
        # A later stretch may equal what lies inside this one, so each place in it is noted.
        for place in range(start, start + length):
            if place in least:
                earlier.setdefault(tuple(keys[place : least[place]]), deque(maxlen=_LOOKED_AT)).append(place)
        start += length
    return _outermost(stretches, len(keys))


def _best(
    keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], places: Iterable[int], start: int
) -> tuple[int, int]:
    """The earlier place whose ops equal those from ``start`` on, and for how many ops.

    It is the latest of ``places`` that is equal up to ``start`` itself (equal layers one after the other), otherwise
    the one with the longest equal stretch.
    """
    best = (0, 0)
    for place in reversed(tuple(places)):
        length = _alike(keys, values, graphs, place, start)
        if length == start - place:
            return place, length
        if length > best[1]:
            best = (place, length)
    return best


def _least_of_one(values: Sequence[float | None], threshold: float) -> Iterator[tuple[int, int]]:
    """For each op that begins a stretch worth more than ``threshold``: the op, and the end of the shortest one."""
    stop, total = 0, 0.0
    for start, first_value in enumerate(values):
        if first_value is None:
            continue
        if stop <= start:
            stop, total = start, 0.0
        while stop < len(values) and total <= threshold + 1e-9 and (value := values[stop]) is not None:
            total += value
            stop += 1
        if total > threshold + 1e-9:
            yield start, stop
        total -= first_value


def _alike(keys: Sequence[int], values: Sequence[float | None], graphs: Sequence[int], earlier: int, start: int) -> int:
    """How many ops from ``start`` on equal those from ``earlier`` on, before the two stretches end or meet."""
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
    covered = bytearray(ops)
    chosen = []
    for stretch in sorted(stretches, key=lambda stretch: (-len(stretch), stretch.start)):
        if not any(covered[stretch.start : stretch.stop]):
            covered[stretch.start : stretch.stop] = b"\1" * len(stretch)
            chosen.append(stretch)
    return sorted(chosen, key=lambda stretch: stretch.start)

"""Export to MLCommons Chakra: the execution trace of each IPU, one file each, for simulators and tools that read them.

A file is a ``GlobalMetadata`` and then one ``Node`` for each step of the IPU, each with its length in front. The
numbers of the message fields are those of ``et_def.proto`` (schema of Chakra 1.0).

=====================================  =====================================================================
step                                   node
=====================================  =====================================================================
compute, exchange, sync                ``COMP_NODE``
host_run, host_begin, host_end         ``COMP_NODE`` with ``is_cpu_op``
remote_load, host_mid that receives    ``MEM_LOAD_NODE``, ``tensor_size`` in bytes
remote_store, host_mid that sends      ``MEM_STORE_NODE``, ``tensor_size`` in bytes
link of a copy between IPUs            ``COMM_SEND_NODE``, ``COMM_RECV_NODE``: one for each transfer, the same
                                       ``comm_tag`` at both ends
link and compute of a collective       one ``COMM_COLL_NODE`` for all its rounds; ``comm_size`` is what the IPU sends
                                       in them, ``involved_ipus`` its group
sync_external, idle                    none: such waits follow from the dependencies
=====================================  =====================================================================

Nodes depend on the node before them in the order of their tiles (``data_deps``): an IPU does one step after the other.
The compute tiles and the I/O tiles are two such orders, which join where both do one step at the same time. Times are
whole micro-seconds, rounded down; the attributes ``start_cycles`` and ``cycles`` are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ipuperf.report.arguments import checked
from ipuperf.report.protobuf import blob, text, uint, varint
from ipuperf.trace import WAITING_KINDS, Trace, TraceError, replacing, slice_count

MOST_SLICES = 1_000_000
"""Slices of a trace that is exported. A node takes some 150 bytes, so that all files have about 150 MB."""

_LOAD, _STORE, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 2, 3, 4, 5, 6, 7
_COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "reduce_scatter": 7}
"""``CollectiveCommType`` of the kinds of transfers."""
_ON_HOST = ("host_run", "host_begin", "host_end")
_INT32, _INT64, _UINT64, _BOOL, _STRING = 7, 9, 13, 27, 29
_INT32_LIST = 8


@dataclass(frozen=True)
class _Transfer:
    """What one IPU sends to another, or to a link that leads out of the IPUs (``destination`` -1)."""

    number: int
    source: int
    destination: int
    start: int
    bytes: int
    kind: str
    op: int


@dataclass
class _Node:
    """A node, before it has a number."""

    type: int
    name: str
    start: int
    cycles: int
    attributes: list[bytes] = field(default_factory=list)


@checked
def to_chakra(trace: Trace, folder: str | Path) -> list[Path]:
    """Write ``PROGRAM.IPU.et`` for each IPU of the trace into ``folder``, which is made.

    Repeats and replicas that the trace keeps folded are written one by one.

    Returns:
        The files, by IPU.

    Raises:
        TraceError: the trace has more than :data:`MOST_SLICES` slices. OSError: a file cannot be written.
    """
    count = slice_count(trace)
    if count > MOST_SLICES:
        raise TraceError(
            f"Chakra: the trace has {count:,} slices with all repeats and replicas, allowed: {MOST_SLICES:,}; simulate "
            "fewer micro-batches, device iterations or replicas"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    stem = "".join(letter if letter.isalnum() else "-" for letter in str(trace.meta.get("program") or "program"))
    transfers = _transfers(trace)
    members = _members(transfers)
    flops = {op: int(value) for op, value in zip(*_columns(trace, "ops", "op_id", "flops"), strict=True)}
    files = []
    for ipu, slices in _slices(trace):
        nodes = _IpuNodes(ipu, float(trace.meta["clock_hz"]), transfers, members, flops)
        file = place / f"{stem}.{ipu}.et"
        with replacing(file) as temporary:
            Path(temporary).write_bytes(_framed(_metadata(trace, ipu)) + b"".join(map(_framed, nodes.of(slices))))
        files.append(file)
    return files


def _columns(trace: Trace, table: str, *names: str) -> list[list[Any]]:
    columns = trace.columns(table)
    return [columns[name].tolist() for name in names]


def _slices(trace: Trace) -> Iterator[tuple[int, list[Any]]]:
    """The slices of each IPU by lane and time."""
    table = trace.expand().sort_values(["ipu", "start", "lane"], kind="stable")
    for ipu, rows in table.groupby("ipu", sort=True):
        yield int(ipu), list(rows.itertuples(index=False))


def _transfers(trace: Trace) -> Mapping[int, Sequence[_Transfer]]:
    """The transfers that each IPU takes part in, by start."""
    ends = {
        link: (_ipu_of(source), _ipu_of(destination))
        for link, source, destination in zip(*_columns(trace, "links", "link_id", "source", "destination"), strict=True)
    }
    columns = _columns(trace, "transfers", "transfer", "start", "link_id", "bytes", "kind", "ipu", "op_id")
    by_ipu: dict[int, list[_Transfer]] = defaultdict(list)
    for number, links in groupby(sorted(zip(*columns, strict=True)), lambda row: row[0]):
        hops = list(links)
        _, start, _, size, kind, source, op = hops[0]
        # The receiver is the IPU that links lead to and none leads on from.
        reached = {ends[hop[2]][1] for hop in hops} - {ends[hop[2]][0] for hop in hops} - {-1, source}
        destination = min(reached, default=-1)
        transfer = _Transfer(number, source, destination, start, size, kind, op)
        for ipu in {source, destination} - {-1}:
            by_ipu[ipu].append(transfer)
    return {ipu: sorted(found, key=lambda transfer: transfer.start) for ipu, found in by_ipu.items()}


def _members(transfers: Mapping[int, Sequence[_Transfer]]) -> Mapping[tuple[int, int], tuple[int, ...]]:
    """The IPUs of the group in which an IPU (second) takes part in a collective (op, first), itself included."""
    groups: dict[tuple[int, int], set[int]] = {}
    for transfer in (transfer for found in transfers.values() for transfer in found):
        if transfer.kind not in _COLLECTIVES or transfer.destination < 0:
            continue
        ends = [(transfer.op, ipu) for ipu in (transfer.source, transfer.destination)]
        first, second = (groups.setdefault(end, {end[1]}) for end in ends)
        if first is not second:
            first |= second
            groups.update({(transfer.op, ipu): first for ipu in second})
    return {place: tuple(sorted(group)) for place, group in groups.items()}


def _ipu_of(name: str) -> int:
    """The number of an IPU by the name of a link's end; -1 for what is no IPU."""
    number = name.removeprefix("ipu")
    return int(number) if name.startswith("ipu") and number.isdigit() else -1


class _IpuNodes:
    """Makes the nodes of one IPU."""

    def __init__(
        self,
        ipu: int,
        clock_hz: float,
        transfers: Mapping[int, Sequence[_Transfer]],
        members: Mapping[tuple[int, int], tuple[int, ...]],
        flops: Mapping[int, int],
    ) -> None:
        self._ipu, self._clock, self._members, self._flops = ipu, clock_hz, members, flops
        self._transfers = transfers.get(ipu, ())
        self._starts = [transfer.start for transfer in self._transfers]
        self._number = 0

    def of(self, slices: Sequence[Any]) -> Iterator[bytes]:
        """Yield the encoded nodes of all slices in an order in which no node comes before what it depends on."""
        before: dict[int, list[int]] = {}
        for group in self._groups(slices):
            lanes = sorted({row.lane for row in group})
            needed = sorted({number for lane in lanes for number in before.get(lane, ())})
            numbers = []
            for node in self._nodes(group):
                yield self._encoded(node, needed)
                numbers.append(self._number)
                self._number += 1
            for lane in lanes:
                before[lane] = numbers or before.get(lane, [])

    def _groups(self, slices: Sequence[Any]) -> Iterator[list[Any]]:
        """Slices that become nodes together: those of a collective, and one step of both sets of tiles."""
        by_lane: dict[int, list[list[Any]]] = defaultdict(list)
        for row in slices:
            if row.kind in WAITING_KINDS:
                continue
            lane = by_lane[row.lane]
            if lane and self._is_of_collective(lane[-1], row):
                lane[-1].append(row)
            else:
                lane.append([row])
        groups = sorted((group for lane in by_lane.values() for group in lane), key=lambda group: group[0].start)
        for _, together in groupby(groups, key=self._met):
            yield [row for group in together for row in group]

    @staticmethod
    def _met(group: Sequence[Any]) -> object:
        """What is equal for one step of the compute tiles and the I/O tiles, and for no other two groups."""
        row = group[0]
        # Each lane has one slice of such a step; `id` keeps all other groups apart.
        return (row.op_id, row.kind, row.start, row.dur) if row.kind == "exchange" and row.dur else id(group)

    def _is_of_collective(self, group: Sequence[Any], row: Any) -> bool:
        first = group[0]
        places = [(part.instance, part.program_id, part.iteration) for part in (first, row)]
        return places[0] == places[1] and first.kind == "link" and self._collective(first) != ""

    def _moved(self, row: Any) -> Sequence[_Transfer]:
        """The transfers of this IPU that start within a slice."""
        end = row.start + max(1, row.dur)
        return self._transfers[bisect_left(self._starts, row.start) : bisect_left(self._starts, end)]

    def _collective(self, row: Any) -> str:
        """The kind of the collective that a slice of kind ``link`` belongs to; empty for a copy between IPUs."""
        return next((transfer.kind for transfer in self._moved(row) if transfer.kind in _COLLECTIVES), "")

    def _nodes(self, group: Sequence[Any]) -> list[_Node]:
        """The nodes of a group; those of one group do not depend on each other."""
        row, last = group[0], group[-1]
        name = row.op or row.program or row.kind
        if row.kind == "link":
            kind = self._collective(row)
            return self._copies(row, name) if not kind else [self._of_collective(group, name, kind)]
        node = _Node(_COMPUTE, f"{name}/{row.kind}", row.start, row.dur, [_bool("is_cpu_op", row.kind in _ON_HOST)])
        if row.kind == "compute":
            node.attributes += [_number(_INT64, "num_ops", self._flops.get(row.op_id, 0)), _text("vertex", row.program)]
        if row.kind not in ("host_mid", "remote_load", "remote_store"):
            # Both ends of an exchange within the IPU are on its tiles.
            size = sum(part.bytes_in for part in group)
            node.attributes += [_number(_UINT64, "tensor_size", size)] if size else []
            return [node]
        memory = "host" if row.kind == "host_mid" else "Streaming Memory"
        sizes = {_LOAD: last.bytes_in, _STORE: last.bytes_out}
        if row.kind != "host_mid":
            sizes = {_LOAD: row.bytes_in} if row.kind == "remote_load" else {_STORE: row.bytes_out}
        return [
            _Node(
                type_,
                node.name,
                row.start,
                row.dur,
                [_bool("is_cpu_op", False), _number(_UINT64, "tensor_size", size), _text("memory", memory)],
            )
            for type_, size in sizes.items()
            if size or len(sizes) == 1
        ]

    def _copies(self, row: Any, name: str) -> list[_Node]:
        """A node for each transfer that the IPU sends or receives in a slice."""
        nodes = []
        for transfer in self._moved(row):
            sends = transfer.source == self._ipu
            attributes = [
                _bool("is_cpu_op", False),
                _number(_INT64, "comm_size", transfer.bytes),
                _number(_INT32, "comm_src", transfer.source),
                _number(_INT32, "comm_dst", transfer.destination),
                _number(_INT32, "comm_tag", transfer.number),
            ]
            nodes.append(_Node(_SEND if sends else _RECEIVE, f"{name}/link", row.start, row.dur, attributes))
        return nodes

    def _of_collective(self, group: Sequence[Any], name: str, kind: str) -> _Node:
        end = group[-1].start + group[-1].dur
        attributes = [
            _bool("is_cpu_op", False),
            _number(_INT64, "comm_type", _COLLECTIVES[kind]),
            _number(_INT64, "comm_size", sum(row.bytes_out for row in group)),
            _number(_INT64, "rounds", sum(row.kind == "link" for row in group)),
            _numbers("involved_ipus", self._members.get((group[0].op_id, self._ipu), ())),
        ]
        return _Node(_COLLECTIVE, f"{name}/{kind}", group[0].start, end - group[0].start, attributes)

    def _encoded(self, node: _Node, needed: Sequence[int]) -> bytes:
        start, end = (int(cycles * 1_000_000 // self._clock) for cycles in (node.start, node.start + node.cycles))
        exact = (_number(_INT64, "start_cycles", node.start), _number(_INT64, "cycles", node.cycles))
        dependencies = b"".join(map(varint, needed))
        return b"".join(
            (
                uint(1, self._number),
                text(2, node.name),
                uint(3, node.type),
                blob(5, dependencies) if needed else b"",
                uint(6, start),
                uint(7, end - start),
                *(blob(10, attribute) for attribute in (*node.attributes, *exact)),
            )
        )


def _metadata(trace: Trace, ipu: int) -> bytes:
    """What made the trace, and the clock that its cycles count."""
    attributes = (
        _text("made by", f"ipuperf {trace.meta['ipuperf_version']}"),
        _text("machine", str(trace.meta["machine"])),
        _number(_INT64, "clock_hz", int(trace.meta["clock_hz"])),
        _number(_INT32, "ipu", ipu),
        _number(_INT32, "ipus", int(trace.meta["num_ipus"])),
        _number(_INT32, "replicas", int(trace.meta["replicas"])),
    )
    return text(1, "1.0.0") + b"".join(blob(2, attribute) for attribute in attributes)


def _number(field_number: int, name: str, value: int) -> bytes:
    return text(1, name) + uint(field_number, int(value))


def _numbers(name: str, values: Sequence[int]) -> bytes:
    return text(1, name) + blob(_INT32_LIST, blob(1, b"".join(map(varint, values))))


def _bool(name: str, value: bool) -> bytes:
    return text(1, name) + uint(_BOOL, int(value))


def _text(name: str, value: str) -> bytes:
    return text(1, name) + text(_STRING, value)


def _framed(message: bytes) -> bytes:
    return varint(len(message)) + message

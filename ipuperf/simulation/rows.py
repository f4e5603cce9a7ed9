"""Makes tables of the trace from what was recorded: steps, instances, links, host events, the program tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.lowering.planner.alternatives import next_best
from ipuperf.trace import FoldedHostEvents, FoldedInstances, Words

from .folding import Unfolding
from .instructions import LocalLoop, Segment, StepPart, Stretch
from .kinds import StepRow, kind_of, local_kind
from .recorder import HostEvent, LineKey, Recorder, Rows, RunBefore
from .standing import WaitSegments, waits_of
from .walk import ProgramTree

if TYPE_CHECKING:
    from ipuperf.lowering.planner.plan import ConvolutionPlan
    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.machine import Link

    from .classes import ReplicaClasses
    from .control_programs import ControlPrograms
    from .ipu import IpuProcess

Columns = dict[str, Any]

_STEP = (
    "kind",
    "dur",
    "dur_mean",
    "active_tiles",
    "argmax_tile",
    "bytes_in",
    "bytes_out",
    "flops",
)
_IDLE_KINDS = ("idle", "host_run")


class ExecutedRows:
    """What the IPUs executed, in true time and sorted: tables ``steps`` and ``instances``, and when the run ended.

    Every IPU gets an instance of kind ``host_run`` for the fixed cost at the start of the run, and one for a run before
    it. After its last step it is ``idle`` until the last IPU has finished, and ``host_run`` again while the host
    handles the last slices. The instances of an IPU therefore add up to the run. The lane of the I/O tiles shows only
    what they execute.

    Args:
        tree: the program.
        placement: IPU of the machine, by replica and IPU of the replica.
        classes: the classes of replicas; the first replica of each was simulated.
        processes: the finished processes of the simulated replicas.
        recorder: holds their rows.
        unfolding: brings rows to true time.
        host_end: when the host finished, in the time of the event loop.
        run_cycles: fixed cost of the run, with the run before it.
        run_before: an engine's run before this one; it becomes a separate instance with its name.
    """

    def __init__(
        self,
        tree: ProgramTree,
        placement: Sequence[Sequence[int]],
        classes: ReplicaClasses,
        processes: Sequence[IpuProcess],
        recorder: Recorder,
        unfolding: Unfolding,
        host_end: int,
        run_cycles: int,
        run_before: RunBefore | None = None,
    ) -> None:
        self._tree = tree
        self._placement = placement
        self._classes = classes
        self._indices = [process.index for process in processes]
        self._unfolding = unfolding
        finishes = [unfolding.time(process.finish) for process in processes]
        last_finish = max(finishes)
        self.end = max(last_finish, unfolding.time(host_end))
        self._inside = _StretchColumns(tree.stretches, tree.lengths)
        rows, counters = recorder.stretches, recorder.counters.columns()
        self._stood, self._waits = recorder.stood, WaitSegments()
        parts = [
            self._process(ended_process.number, stretch_rows, counters, unfolding)
            for ended_process, stretch_rows in zip(processes, rows, strict=True)
        ]
        for process, finish in zip(processes, finishes, strict=True):
            if process.lane:
                continue
            begin = run_before.cycles if run_before else 0
            waits = [
                ("host_run", begin, run_cycles - begin),
                ("idle", finish, last_finish - finish),
                ("host_run", last_finish, self.end - last_finish),
            ]
            parts += [self._waiting(process.number, *wait) for wait in waits if wait[2]]
            if run_before and begin:
                named = tree.program_outside(run_before.name, process.index)
                parts.append(self._waiting(process.number, "host_run", 0, begin, named))
        # Each column is taken out of the parts, so that no more than one of them is there twice.
        columns = {name: np.concatenate([part.pop(name) for part in parts]) for name in tuple(parts[0])}
        self._segments = len(tree.segments)  # those that are objects
        self._waits.number(columns["segment"], self._segments)
        lengths = np.concatenate([whole_numbers(tree.lengths), self._waits.dur])
        columns["dur"] = lengths[columns["segment"]]
        self._columns = _sorted(columns)
        self._used, first_places = np.unique(self._columns["segment"], return_index=True)
        # In the order of their first appearance, by which the trace numbers them.
        self._used = self._used[np.argsort(first_places)]

    def _process(self, process: int, rows: Rows, counters: Columns, unfolding: Unfolding) -> Columns:
        """The instances of one process in true time."""
        stretch, start, context = rows.columns().values()
        in_syncs = stretch < 0
        stood, usual = np.flatnonzero(in_syncs), np.flatnonzero(~in_syncs)
        waits = waits_of([self._stood[number] for number in (-1 - stretch[stood]).tolist()])
        which, place = self._inside.spread(stretch[usual])
        row = usual[which]
        contexts = np.where(waits.context < 0, context[stood][waits.row], waits.context)
        context = np.concatenate([context[row], contexts])
        length = np.concatenate([self._inside.length[place], waits.dur])
        starts = np.concatenate([start[row] + self._inside.start[place], waits.start])
        ends, counted = unfolding.instances(
            process, starts + length, {name: values[context] for name, values in counters.items()}
        )
        # A wait is numbered as if it were a row.
        counts = np.ones(len(stretch), dtype=np.int64)
        counts[stood] = np.bincount(waits.row, minlength=len(stood))
        numbers = np.cumsum(counts) - counts
        positions = {
            "segment": np.concatenate([self._inside.segment[place], self._waits.add(waits)]),
            "number": np.concatenate([numbers[row], numbers[stood][waits.row] + waits.place]),
        }
        return {**counted, **positions, "start": ends - length, "process": np.full(len(ends), process)}

    def _waiting(self, process: int, kind: str, start: int, dur: int, program: int = -1) -> Columns:
        segment = self._tree.waiting_segment(kind, dur, program)
        values = {"segment": segment, "number": -1, "batch": -1, "iteration": -1, "start": start, "process": process}
        steps = {
            f"{name}_steps": np.zeros((1, self._unfolding.depth), dtype=np.int64) for name in ("batch", "iteration")
        }
        return {"repeat": np.array([-1]), **steps, **{name: np.array([value]) for name, value in values.items()}}

    def instances(self) -> FoldedInstances:
        """Table ``instances``."""
        columns, names = self._columns, np.zeros(self._segments + len(self._waits.leaf), dtype=np.int64)
        names[self._used] = np.arange(len(self._used))
        outside = self._outside()[columns["segment"]]
        same = ("start", "dur", "repeat", "process", "number", "iteration", "iteration_steps")
        return FoldedInstances(
            {
                **self._unfolding.loops(),
                **{name: columns[name] for name in same},
                "segment": names[columns["segment"]],
                "micro_batch": np.where(outside, -1, columns["batch"]),
                "micro_batch_steps": np.where(outside[:, None], 0, columns["batch_steps"]),
                **self._members(),
            }
        )

    def _members(self) -> dict[str, np.ndarray]:
        """For every process: the simulated process ``of`` its class, its ``own`` number, replica and IPU."""
        places = range(self._stride)
        replicas = [(replica, replica_class) for replica, replica_class in enumerate(self._classes.of) for _ in places]
        rows = [
            (
                replica_class * self._stride + place,
                replica * self._stride + place,
                replica,
                self._placement[replica][self._indices[place]],
            )
            for (replica, replica_class), place in zip(replicas, [*places] * len(self._classes.of), strict=True)
        ]
        return dict(zip(("of", "own", "replica", "ipu"), np.array(rows, dtype=np.int64).T, strict=True))

    @property
    def _stride(self) -> int:
        """Processes of a replica."""
        return len(self._indices) // len(self._classes.members)

    def _outside(self) -> np.ndarray:
        """For each segment, whether it belongs to no micro-batch: weight update, Streaming Memory, collectives."""
        tree = self._tree
        updates = {op.op_id for op in tree.program.ops if op.phase == "update"}
        steps = tree.leaves.steps
        kinds = {kind: kind_of(step) for kind, step in {type(step): step for step in steps}.items()}
        leaves = [not kinds[type(step)].in_micro_batch or step.op_id in updates for step in steps]
        outside = leaves.__getitem__
        segments = tree.segments[: self._segments]
        of_objects = [bool(segment.leaves) and all(map(outside, segment.leaves)) for segment in segments]
        return np.concatenate([np.array(of_objects, dtype=bool), np.array(leaves, dtype=bool)[self._waits.leaf]])

    def steps(self, tiles: int, io_tiles: int = 0) -> Columns:
        """Table ``steps``: the segments that were executed, numbered by first appearance.

        Args:
            tiles: how many tiles an IPU has.
            io_tiles: how many of them, at the end, are the I/O tiles (lane 1).
        """
        segments = [self._segment(number) for number in self._used.tolist()]
        program, op_id, rows, row = self._step_rows(segments, tiles, tiles - io_tiles)
        counts = np.array([len(s.durations or s.parts) for s in segments], dtype=np.int64)
        dur = whole_numbers(chain.from_iterable(s.durations or [part.dur for part in s.parts] for s in segments))
        first_steps = np.repeat(np.cumsum(counts) - counts, counts)
        elapsed = np.concatenate([[0], np.cumsum(dur)])
        start, loop = elapsed[:-1] - elapsed[first_steps], np.full(len(row), -1)
        for place, segment, loops_before in zip(
            (np.cumsum(counts) - counts).tolist(), segments, self._loops_before(), strict=True
        ):
            if segment.loops:
                inside = np.array(segment.layout.inside)
                start[place : place + len(inside)] = segment.layout.starts
                loop[place : place + len(inside)] = np.where(inside < 0, -1, loops_before + inside)
        step_columns = list(zip(*rows, strict=True)) if rows else [()] * len(_STEP)
        kinds = Words.of(step_columns[_STEP.index("kind")])
        columns: Columns = {
            name: np.array(values)[row]
            for name, values in zip(_STEP, step_columns, strict=True)
            if name not in ("kind", "dur")
        }
        return {
            "program_id": program,
            "op_id": op_id,
            **columns,
            "kind": Words(kinds.words, kinds.codes[row]),
            "dur": dur,
            "segment": np.repeat(np.arange(len(segments)), counts),
            "seq": np.arange(len(row)) - first_steps,
            "rel_start": start,
            "lane": np.repeat(np.array([self._lane(s) for s in segments], dtype=np.int64), counts),
            "loop": loop,
        }

    def _step_rows(
        self, segments: Sequence[Segment], tiles: int, compute_tiles: int
    ) -> tuple[np.ndarray, np.ndarray, list[StepRow], np.ndarray]:
        """For each step of the segments its program, its op and the number of its row; and the different rows.

        A local step has one row, however many segments contain it, and so have steps that say the same.
        """
        leaves = self._tree.leaves
        parts: list[StepRow] = []
        programs: list[int] = []
        ops: list[int] = []
        keys: list[Sequence[int]] = []  # leaves; -1, -2 ...: parts
        for segment in segments:
            if segment.durations:
                keys.append(segment.leaves)
                continue
            leaf = leaves[segment.leaves[0]] if segment.leaves else None
            own_tiles = tiles - compute_tiles if leaf is not None and leaf.lane else compute_tiles
            # Parts get negative keys, because leaves have the numbers from 0 on.
            keys.append(range(-1 - len(parts), -1 - len(parts) - len(segment.parts), -1))
            parts += [_part_row(part, own_tiles) for part in segment.parts]
            programs += [leaf.program + part.program if leaf else part.program for part in segment.parts]
            ops += [leaf.step.op_id if leaf else -1] * len(segment.parts)
        key = whole_numbers(chain.from_iterable(keys))
        local = np.unique(key[key >= 0])
        found = [leaves[number] for number in local.tolist()]
        # Many leaves are one step, whose row is made once.
        alike = {(id(leaf.step), leaf.lane): leaf for leaf in found}
        numbers: dict[StepRow, int] = {}
        number = {
            key: numbers.setdefault(
                local_kind(leaf.step).row(leaf.step, tiles, compute_tiles if leaf.lane else 0), len(numbers)
            )
            for key, leaf in alike.items()
        }
        of_parts = [numbers.setdefault(row, len(numbers)) for row in parts]
        row = whole_numbers([*[number[id(leaf.step), leaf.lane] for leaf in found], *of_parts])
        place = np.where(key >= 0, np.searchsorted(local, key), len(local) - 1 - key)
        program = whole_numbers([leaf.program for leaf in found] + programs)
        op_id = whole_numbers([leaf.step.op_id for leaf in found] + ops)
        return program[place], op_id[place], list(numbers), row[place]

    def _loops_before(self) -> list[int]:
        """For each segment of table ``steps``, the number of loops in the segments before it."""
        return list(accumulate(map(len, self._loops()), initial=0))[:-1]

    def loops(self) -> Columns:
        """Table ``loops``: the loops inside segments, segment by segment."""
        rows: list[tuple[int, int, int]] = []
        for number, known, loops in zip(self._used.tolist(), self._loops_before(), self._loops(), strict=True):
            if loops:
                segment = self._segment(number)
                layout = segment.layout
                for parent, loop, period in zip(layout.parents, segment.loops, layout.periods, strict=True):
                    rows.append((known + parent if parent >= 0 else -1, loop.trips, period))
        parents, counts, periods = zip(*rows, strict=True) if rows else ((),) * 3
        return {"loop": np.arange(len(rows)), "parent": parents, "count": counts, "period": periods}

    def _loops(self) -> list[tuple[LocalLoop, ...]]:
        """The loops of each segment of table ``steps``."""
        segments, objects = self._tree.segments, self._segments
        return [segments[number].loops if number < objects else () for number in self._used.tolist()]

    def _segment(self, number: int) -> Segment:
        return self._tree.segments[number] if number < self._segments else self._waits.segment(number)

    def _lane(self, segment: Segment) -> int:
        return self._tree.leaves[segment.leaves[0]].lane if segment.leaves else 0


class _StretchColumns:
    """The segments of all stretches, one after the other: ``segment``, ``start`` in the stretch and ``length``."""

    def __init__(self, stretches: Sequence[Stretch], lengths: Sequence[int]) -> None:
        segments = [stretch.segments for stretch in stretches]
        self.segment = whole_numbers(chain.from_iterable(segments))
        self.length = np.array(lengths, dtype=np.int64)[self.segment]
        self._sizes = whole_numbers(map(len, segments))
        begin = np.cumsum(self.length) - self.length
        self.start = begin - np.repeat(begin[np.cumsum(self._sizes) - self._sizes], self._sizes)

    def spread(self, stretches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each segment of these stretches: the number of its stretch among them, and its place in the columns."""
        counts = self._sizes[stretches]
        which = np.repeat(np.arange(len(stretches)), counts)
        shift = (np.cumsum(self._sizes) - self._sizes)[stretches] - (np.cumsum(counts) - counts)
        return which, np.arange(len(which)) + shift[which]


def _sorted(columns: Columns) -> Columns:
    """The rows, sorted by start, process, end and number. ``columns`` are used up, one by one."""
    keys = (columns["number"], columns["start"] + columns["dur"], columns["process"], columns["start"])
    order = np.lexsort(keys)
    del keys
    return {name: columns.pop(name)[order] for name in tuple(columns)}


def _part_row(part: StepPart, tiles: int) -> StepRow:
    """The row of a part of a shared step.

    All tiles are assumed to take as long as the IPU. No tile is active while the IPU waits for work.
    """
    active = 0 if part.kind in _IDLE_KINDS else tiles
    return (part.kind, part.dur, float(part.dur), active, -1, part.bytes_in, part.bytes_out, 0)


def program_rows(programs: ControlPrograms, ipus: Sequence[int]) -> Columns:
    """Table ``programs``; ``ipus`` are the IPU numbers of the first replica, which stands for all."""
    parent = np.array(programs.parents, dtype=np.int64)
    # The sort is stable, so the children of a program keep their sequence.
    by_parent = np.argsort(parent, kind="stable")
    order = np.empty_like(by_parent)
    order[by_parent] = np.arange(len(programs)) - np.searchsorted(parent[by_parent], parent[by_parent])
    return {
        "program_id": np.arange(len(programs)),
        "parent": parent,
        "order": order,
        "type": Words.of(programs.types),
        "name": Words.of(programs.names),
        "op_id": np.array(programs.ops, dtype=np.int64),
        "ipu": np.array([*ipus, -1])[np.array(programs.ipus, dtype=np.int64)],
    }


def op_rows(program: DeviceProgram) -> Columns:
    """Table ``ops``."""
    names = ("op_id", "name", "type", "graph", "phase", "flops", "line", "dtype", "module")
    values = {name: [getattr(op, name) for op in program.ops] for name in names}
    return {name: column if name in ("op_id", "flops") else Words.of(column) for name, column in values.items()}


def plan_rows(program: DeviceProgram) -> Columns:
    """Table ``plans``: for each product, the chosen plan and the cheapest other plan.

    The other plan is searched now (see :func:`~ipuperf.lowering.planner.alternatives.next_best`).
    """
    known: dict[int, list[tuple[Any, ...]]] = {}  # by chosen plan, because many products share one
    # Products that differ in their memory alone often have the same other plan.
    ample: dict[tuple[Any, ...], float] = {}
    for plan in {id(plan): plan for plans in program.plans.values() for plan in plans}.values():
        ample[_search(plan)] = max(ample.get(_search(plan), 0.0), plan.request.proportion)

    def described(chosen: ConvolutionPlan) -> list[tuple[Any, ...]]:
        return [
            (rank, plan.total, plan.tiles, plan.temp_bytes, plan.vertex, plan.explain())
            for rank, plan in enumerate([chosen, next_best(chosen, ample[_search(chosen)])])
            if plan is not None
        ]

    rows = [
        (op_id, number, *row)
        for op_id, plans in sorted(program.plans.items())
        for number, chosen in enumerate(plans)
        for row in known.get(id(chosen)) or known.setdefault(id(chosen), described(chosen))
    ]
    names = ("op_id", "product", "rank", "cycles", "tiles", "temp_bytes", "vertex", "plan")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {}


def _search(plan: ConvolutionPlan) -> tuple[Any, ...]:
    """What the search for another plan depends on, besides memory."""
    return plan.request.form, plan.request.types, plan.vertex, plan.form.changes


def link_rows(links: Sequence[Link]) -> Columns:
    """Table ``links``: one row per direction, DDR channels and PCIe ports included."""
    return {
        "link_id": np.arange(len(links)),
        "name": [link.name for link in links],
        "kind": [link.kind for link in links],
        "source": [link.source for link in links],
        "destination": [link.destination for link in links],
        "bandwidth_bytes_per_s": [float(link.bandwidth_bytes_per_s) for link in links],
        "latency_cycles": [link.latency_cycles for link in links],
    }


def host_rows(
    events: Sequence[HostEvent],
    unfolding: Unfolding,
    streams: Sequence[tuple[str, str]],
    run_cycles: int,
    run_before: RunBefore | None = None,
) -> FoldedHostEvents:
    """Table ``host_events``: a run before this one, the fixed cost of the run, then the host's work for every slice.

    The work is sorted by start, server and stream. The first slice of a host sync includes the cost of the sync. Labels
    name the server when there are several.
    """
    lines: dict[LineKey, int] = {}
    first_events = [(run_before.name, run_before.cycles, run_before.cycles)] if run_before else []
    first_events.append(("session.run", run_cycles - (run_before.cycles if run_before else 0), run_cycles))
    names, durations, stops = zip(*first_events, strict=True)
    line = [*range(len(names)), *(len(names) + lines.setdefault(event.line, len(lines)) for event in events)]
    lengths = whole_numbers([*durations, *(event.dur for event in events)])
    ends, repeat = unfolding.rows(whole_numbers([*stops, *(event.start + event.dur for event in events)]))
    several = len({key.server for key in lines}) > 1
    labels = [f"{key.work} {streams[key.stream][1]}{f' host {key.server}' if several else ''}" for key in lines]
    ranks = {place: rank for rank, place in enumerate(sorted({key[:2] for key in lines}))}
    return FoldedHostEvents(
        {
            **unfolding.loops(),
            "start": ends - lengths,
            "dur": lengths,
            "repeat": repeat,
            "line": whole_numbers(line),
            # Negative ranks put the runs before all work of the host.
            "order": whole_numbers([*range(-len(names), 0), *(ranks[key[:2]] for key in lines)]),
        },
        {"labels": (*names, *labels)},
    )


def whole_numbers(values: Iterable[int]) -> np.ndarray:
    """A column of whole numbers (``int64``)."""
    return np.fromiter(values, dtype=np.int64)

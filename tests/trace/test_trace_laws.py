"""Folded answers against plain loops over every execution: small random traces with loops inside their segments."""

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipuperf.trace import KINDS, NO_OP_NAME, TABLES, Trace, fold, merged_slices, spent, working_cycles
from ipuperf.trace.loops import common_depth
from ipuperf.trace.schema import HOST_WAITING_KINDS, WAITING_KINDS
from ipuperf.trace.summary import tile_balance

META = {"machine": "m", "clock_hz": 10**9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 8, "replicas": 2}
SEEDS = range(16)
WAITING = {*WAITING_KINDS, *HOST_WAITING_KINDS}


class Made:
    """A random trace, its rows, and every slice of it by plain loops.

    Segment 4 has no steps; ids do not count from zero, rows stand in any order.
    """

    def __init__(self, seed: int) -> None:
        self.random = pick = random.Random(seed)
        self.loops: dict[int, tuple[int, int, int]] = {}
        self.steps, self.instances = [], []
        for segment in (2, 5, 9):
            own = [-1]
            for _ in range(pick.randint(0, 3)):
                loop = 3 + 2 * len(self.loops)
                self.loops[loop] = (pick.choice(own), pick.randint(1, 3), pick.choice((0, 7, 20, 50)))
                own.append(loop)
            for seq in range(pick.randint(1, 5)):
                moved = [pick.randint(0, 99) for _ in range(3)]
                self.steps.append(SimpleNamespace(
                    segment=segment, seq=seq, program_id=pick.randint(-1, 1), op_id=pick.choice((-1, 3, 7, 8)),
                    kind=pick.choice(KINDS), rel_start=pick.randint(0, 30), dur=pick.choice((0, 1, 5, 9)),
                    dur_mean=pick.randint(0, 40) / 4, active_tiles=3, argmax_tile=1, bytes_in=moved[0],
                    bytes_out=moved[1], flops=moved[2], lane=pick.randint(0, 1), loop=pick.choice(own)))  # fmt: skip
        pick.shuffle(self.steps)
        for number in range(pick.randint(2, 8)):
            self.instances.append(SimpleNamespace(
                instance=10 + number, segment=pick.choice((2, 4, 5, 9)), ipu=pick.choice((0, 1, 6)),
                replica=pick.randint(0, 1), micro_batch=number - 1, iteration=pick.randint(-1, 4),
                start=pick.randint(0, 99), dur=pick.randint(50, 99), parent=0))  # fmt: skip
        ops = {"op_id": [8, 3, 7], "name": ["g/b", "g/s/a", "h/recompute/c"], "type": ["B", "A", "C"]}
        ops |= {"graph": ["g", "g", "h"], "phase": ["fwd", "bwd", "update"], "flops": [1, 2, 3]}
        ops |= {"line": ["x.py:1", "x.py:2", ""], "dtype": [""] * 3, "module": ["g", "s", "h"]}
        loops = {"loop": list(self.loops)} | {
            name: [loop[place] for loop in self.loops.values()]
            for place, name in enumerate(("parent", "count", "period"))
        }
        self.trace = Trace(META, {"steps": columns("steps", self.steps), "ops": ops, "loops": loops,
                                  "instances": columns("instances", self.instances)})  # fmt: skip
        self.slices = list(self._slices())

    def chain(self, loop: int) -> list[int]:
        """Loops around a step, the outermost first."""
        return [] if loop < 0 else [*self.chain(self.loops[loop][0]), loop]

    def executions(self, step: Any, chain: list[int]) -> Iterator[tuple[int, int]]:
        """Start and trip of the innermost of these loops."""
        for trips in itertools.product(*(range(self.loops[loop][1]) for loop in chain)):
            later = sum(trip * self.loops[loop][2] for trip, loop in zip(trips, chain, strict=True))
            yield step.rel_start + later, trips[-1] if trips else -1

    def _slices(self) -> Iterator[Any]:
        """By instance, step and trip."""
        for instance in self.instances:
            for step in sorted(self.steps, key=lambda step: step.seq):
                if step.segment == instance.segment:
                    for start, trip in self.executions(step, self.chain(step.loop)):
                        yield SimpleNamespace(start=instance.start + start, step=step, instance=instance, trip=trip)

    def window(self) -> tuple[int, int]:
        begin = self.random.randint(0, 150)
        return begin, begin + self.random.choice((1, 10, 100))


def columns(table: str, rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in TABLES[table].column_names}


made = cache(Made)
every = pytest.mark.parametrize("seed", SEEDS)


def touches(one: Any, window: tuple[int, int] | None) -> bool:
    if window is None:
        return True
    start, end = one.start, one.start + one.step.dur
    return start < window[1] and (end > window[0] if one.step.dur else start >= window[0])


def told(made: Made, slices: fold.Slices) -> list[tuple[int, ...]]:
    """Slices as rows: start, duration, segment, seq, instance and trip."""
    steps, instances = made.trace.columns("steps"), made.trace.columns("instances")
    rows = (slices.start, slices.dur, steps["segment"][slices.step], steps["seq"][slices.step])
    rows += (instances["instance"][slices.instance], slices.trip)
    return list(zip(*(row.tolist() for row in rows), strict=True))


def row_of(one: Any) -> tuple[int, ...]:
    return one.start, one.step.dur, one.step.segment, one.step.seq, one.instance.instance, one.trip


@every
def test_slices_are_every_execution_that_touches_the_window(seed: int) -> None:
    own = made(seed)
    for window in (None, *(own.window() for _ in range(6))):
        expected = [row_of(one) for one in own.slices if touches(one, window)]
        assert told(own, fold.slices(own.trace, window)) == expected
        assert fold.slice_count(own.trace, window) == len(expected)
    mask = np.array([step.kind != own.steps[0].kind for step in own.steps])
    expected = [row_of(one) for one in own.slices if one.step.kind != own.steps[0].kind]
    assert told(own, fold.slices(own.trace, steps=mask)) == expected
    for steps, whole in ((mask, expected), (None, [row_of(one) for one in own.slices])):
        for batch in (1, 3, 10**6):
            pieces = list(fold.slice_batches(own.trace, batch=batch, steps=steps))
            assert [row for piece in pieces for row in told(own, piece)] == whole
            at_once = Counter(row[4] for row in whole)
            assert all(len(piece) < batch + max(at_once.values()) for piece in pieces)
            if batch == 3:
                full = Counter(itertools.accumulate(min(at_once[i.instance], batch) for i in own.instances))
                assert len(pieces) <= max(full) // batch + 1


@every
def test_a_window_that_fits_is_the_longest(seed: int) -> None:
    own = made(seed)
    starts = sorted(one.start for one in own.slices)
    for limit in range(1, len(starts) + 1):
        window = fold.fitting_window(own.trace, limit)
        if len(starts) <= limit:
            assert window is None
        else:
            assert window == (starts[0], max(starts[limit], starts[0] + 1))


@every
def test_expanded_rows(seed: int) -> None:
    own = made(seed)
    names = {-1: "", 3: "g/s/a", 7: "h/recompute/c", 8: "g/b"}
    window = own.window()
    for clip in (False, True):
        rows = []
        for one in own.slices:
            if not touches(one, window):
                continue
            step, instance = one.step, one.instance
            start, end = one.start, one.start + step.dur
            key = instance.replica, instance.ipu, step.lane, start, step.dur > 0
            if clip:
                start, end = max(start, window[0]), min(end, window[1])
            batch = -1 if step.op_id == 7 else instance.micro_batch  # an op of the weight update
            trip = one.trip if one.trip >= 0 else instance.iteration
            rows.append((key, (instance.ipu, instance.replica, step.lane, start, end - start, step.kind,
                               names[step.op_id], "", batch, trip, step.op_id, step.program_id, instance.instance,
                               step.bytes_in, step.bytes_out)))  # fmt: skip
        expected = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
        assert list(own.trace.expand(window, clip=clip).itertuples(index=False, name=None)) == expected
    kinds = {own.steps[0].kind}
    assert len(own.trace.expand(kinds=kinds)) == sum(one.step.kind in kinds for one in own.slices)


@every
def test_sums_over_ipus_segments_and_steps(seed: int) -> None:
    own = made(seed)
    totals, runs = own.trace.totals(), Counter((one.step.segment, one.step.seq) for one in own.slices)
    by_ipu: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for one in own.slices:
        by_ipu[one.instance.replica, one.instance.ipu][one.step.kind] += one.step.dur
    ipus = sorted({(i.replica, i.ipu) for i in own.instances})
    assert list(zip(totals["replica"], totals["ipu"], strict=True)) == ipus
    for row, key in zip(totals.itertuples(), ipus, strict=True):
        assert [getattr(row, kind) for kind in KINDS] == [by_ipu[key][kind] for kind in KINDS]
        mine = [i for i in own.instances if (i.replica, i.ipu) == key]
        assert row.elapsed == max(i.start + i.dur for i in mine) - min(i.start for i in mine)
    assert fold.step_runs(own.trace).tolist() == [runs[step.segment, step.seq] for step in own.steps]
    segments = sorted({step.segment for step in own.steps})
    assert fold.segment_runs(own.trace).tolist() == [sum(i.segment == s for i in own.instances) for s in segments]
    ends = [i.start + i.dur for i in own.instances]
    assert fold.span(own.trace) == (min(i.start for i in own.instances), max(ends))
    works = [
        sum(
            step.dur * len(list(own.executions(step, own.chain(step.loop))))
            for step in own.steps
            if step.segment == segment and step.kind not in {*WAITING, "host_mid"}
        )
        for segment in segments
    ]
    assert working_cycles(own.trace).tolist() == works
    computes = [one.step for one in own.slices if one.step.kind == "compute"]
    longest = sum(step.dur for step in computes)
    assert tile_balance(own.trace) == (sum(step.dur_mean for step in computes) / longest if longest else None)


@every
def test_what_ops_cost(seed: int) -> None:
    own = made(seed)
    facts = {-1: (NO_OP_NAME, "", "other", "", "", ""), 8: ("g/b", "B", "fwd", "g", "g", "x.py:1")}
    facts |= {3: ("g/s/a", "A", "bwd", "g", "s", "x.py:2"), 7: ("h/recompute/c", "C", "update", "h", "h", "")}
    chosen = np.arange(len(own.instances))[::2]
    for rows in (None, chosen):
        kept = None if rows is None else {own.instances[row].instance for row in rows}
        parts: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for one in own.slices:
            if kept is None or one.instance.instance in kept:
                parts[one.step.op_id, one.instance.ipu].append(one.step)
        whole = sum(step.dur for steps in parts.values() for step in steps if step.kind not in WAITING)
        expected = []
        for (op, ipu), steps in parts.items():
            cycles = {kind: sum(step.dur for step in steps if step.kind == kind) for kind in KINDS}
            busy = {kind: spent for kind, spent in cycles.items() if kind not in WAITING}
            most = max(busy, key=busy.__getitem__) if any(busy.values()) else max(cycles, key=cycles.__getitem__)
            wide = sum(max(step.dur - step.dur_mean, 0) for step in steps if step.kind == "compute")
            total, waits = sum(busy.values()), sum(cycles.values()) - sum(busy.values())
            expected.append((*facts[op], ipu, most, total, waits, total / whole if whole else 0.0,
                             sum(step.flops for step in steps), round(wide),
                             sum(step.bytes_in + step.bytes_out for step in steps),
                             sum(step.bytes_in for step in steps if step.kind == "exchange"),
                             *cycles.values()))  # fmt: skip
        expected.sort(key=lambda row: (-row[8], -row[9], row[0], row[6]))
        table = own.trace.operations_by_ipu(rows)
        assert list(table.itertuples(index=False, name=None)) == expected
    summed = own.trace.operations()
    by_ipu = own.trace.operations_by_ipu().groupby("op")[["cycles", "waiting_cycles", "compute", "flops"]].sum()
    for row in summed.itertuples():
        assert (row.cycles, row.waiting_cycles, row.compute_cycles, row.flops) == tuple(by_ipu.loc[row.op])
    assert summed.columns[:6].tolist() == ["op", "type", "phase", "graph", "module", "line"]
    order = list(zip(-summed["cycles"], -summed["waiting_cycles"], summed["op"], strict=True))
    assert order == sorted(order)


@every
def test_loops_of_one_label_are_one_slice(seed: int) -> None:
    own = made(seed)
    labels = {id(step): own.random.randint(0, 1) for step in own.steps}
    rows = np.arange(len(own.instances))[::-1]
    found = merged_slices(own.trace, np.array([labels[id(step)] for step in own.steps]), rows)
    inside = {loop: [s for s in own.steps if loop in own.chain(s.loop)] for loop in own.loops}
    equal = {loop for loop, steps in inside.items() if len({labels[id(step)] for step in steps}) == 1}
    expected = []
    for row in rows:
        instance, begun = own.instances[row], set()
        for step in sorted(own.steps, key=lambda step: step.seq):
            if step.segment != instance.segment:
                continue
            chain = own.chain(step.loop)
            level = next((n for n, loop in enumerate(chain) if loop in equal), None)
            if level is not None and chain[level] in begun:
                continue
            begun.add(None if level is None else chain[level])
            dur = step.dur if level is None else own.loops[chain[level]][1] * own.loops[chain[level]][2]
            for start, trip in own.executions(step, chain[:level]):
                expected.append((instance.start + start, dur, step.segment, step.seq, instance.instance, trip))
    assert told(own, found) == expected


@every
def test_rows_within_a_window(seed: int) -> None:
    own = made(seed)
    window = own.window()
    inside = [i.instance for i in own.instances if i.start < window[1] and i.start + i.dur > window[0]]
    assert own.trace.within(window).columns("instances")["instance"].tolist() == inside


@every
def test_cycles_spent_by_a_time(seed: int) -> None:
    """Loops whose trips do not overlap: an execution has taken what of it is over."""
    pick = random.Random(seed)
    rows: dict[str, list[int]] = {"loop": [], "parent": [], "count": [], "period": []}
    dur = length = pick.randint(1, 5)
    nest = []
    for _ in range(pick.randint(1, 3)):
        nest.append((pick.randint(1, 3), length + pick.randint(0, 4)))
        length = (nest[-1][0] - 1) * nest[-1][1] + length
    for number, (count, period) in enumerate(reversed(nest)):
        for name, value in zip(rows, (number, number - 1, count, period), strict=True):
            rows[name].append(value)
    loops = Trace(META, {"steps": {}, "instances": {}, "loops": rows}).loops
    starts = [
        sum(k * period for k, (_, period) in zip(trips, nest, strict=True))
        for trips in itertools.product(*(range(count) for count, _ in nest))
    ]
    time = np.arange(-2, length + 5)
    row = np.full(len(time), len(nest) - 1)
    expected = [sum(min(max(at - start, 0), dur) for start in starts) for at in time.tolist()]
    assert spent(loops, np.full(len(time), dur), row, time).tolist() == expected
    assert spent(loops, np.array([dur]), row[:1], np.array([0.5])).tolist() == [0.5]


@every
def test_loops_that_two_steps_share(seed: int) -> None:
    own = made(seed)
    loops = own.trace.loops
    ids = [-1, *own.loops]
    pairs = list(itertools.product(ids, ids))
    one, two = (loops.place(np.array(side)) for side in zip(*pairs, strict=True))
    shared = [sum(a == b for a, b in zip(own.chain(a), own.chain(b), strict=False)) for a, b in pairs]
    assert common_depth(loops, one, two).tolist() == shared
    assert loops.place(np.array([0, 99])).tolist() == [-1, -1]

"""Every schedule as a row: its table, depths and times, for counts at and beside every bound, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from answers import asked, listed, together
from digest import lines
from rows import Golden

from ipuperf import schedules
from ipuperf.schedules import SCHEDULES, Liveness, RecomputationMode, assembly, checks, legality, timetable

NAMES = {**{name: getattr(schedules, name) for name in schedules.__all__}, **vars(assembly), **vars(checks)}
NAMES |= {**vars(legality), **vars(timetable), "MODES": RecomputationMode, "L": Liveness, "I": {"inference": True}}
NAMES |= {"cells": lambda *at: [(s, r, timetable.Cell(*c)) for s, r, *c in at]}


def told(table: Any) -> tuple[object, ...]:
    """What a timetable says of itself."""
    depths = (table.stash, table.stashed, table.in_flight, table.ramp_up, table.ramp_down, table.period, table.steady)
    times = (schedules.equal_stage_time(table, 2, 3, 1), round(schedules.bubble_fraction(table, 2, 3, 1), 9))
    return (*depths, table.ipus, table.shared_ipus, table.inference, *times, "\n" + table.text())


NAMES["told"] = told

COUNTS = [(1, 1), (1, 2), (2, 4), (2, 5), (3, 4), (3, 5), (3, 6), (3, 8), (3, 12), (4, 8), (4, 12)]
INFERRING = ("grouped", "interleaved", "sequential", "popart_pipeline", "sharded", "grouped_overlapped")
INFERRING += ("phased_serial", "phased_parallel")
MADE = [
    *(f"told(grouped_overlapped(2, {m}))" for m in (4, 5, 6, 7)),
    *(f"told(grouped(2, 4, recompute=MODES.{mode.name}))" for mode in RecomputationMode),
    *(f"told(interleaved(2, 4, recompute=MODES.{mode.name}))" for mode in RecomputationMode),
    *(f"told(sequential(2, 4, recompute=MODES.{mode.name}))" for mode in RecomputationMode),
    *(f"told(grouped_overlapped(2, 8, recompute=MODES.{mode.name}))" for mode in RecomputationMode),
    *(f"told({name}({n}, 2, liveness=L.{live.name}))" for name in ("phased_serial", "phased_parallel")
      for n in (1, 2, 3) for live in Liveness),
    *(f"told(phased_serial(2, {m}, separate_backward_phase=True))" for m in (1, 3)),
    *(f"phase_numbers({n}, L.{live.name}, {separate})" for n in (1, 2, 4) for live in Liveness
      for separate in (False, True)),
    *(f"told(timetable_of('interleaved_1f1b', {n}, {m}, chunks={c}))"
      for n, m, c in ((4, 4, 4), (6, 3, 2), (6, 4, 3), (6, 6, 3), (5, 5, 2), (4, 3, 2), (3, 3, 1))),
    *(f"closed_form_time({f}, {b}, schedule={name!r}, stages={n}, micro_batches=12{rest})"
      for name in ("grouped", "interleaved", "1f1b", "popart_pipeline", "sequential", "sharded", "phased_serial",
                   "phased_parallel", "grouped_overlapped", "zb_h1")
      for n in (1, 2, 3) for f, b in ((2, 3), (3, 2), (2, 2))
      for rest in ("", ", inference=True", ", recompute=True", ", inference=True, recompute=True")),
]  # fmt: skip
REFUSED = """
grouped(0, 4)
grouped(1, 0)
grouped(True, 2)
grouped(2, 4.0)
grouped(2, 3)
grouped(2, 10)
grouped(2, 5, inference=True)
grouped(2, 4, devices=[0])
grouped(2, 4, devices=[0, -1])
grouped(2, 4, devices=[0, True])
told(grouped(2, 4, devices=[0, 0]))
told(grouped(2, 4, devices=[1, 0]))
told(grouped(2, 4, devices=[0, (1, 2)]))
told(grouped(2, 4, devices=[0, 3]))
grouped(2, 4, devices=[0, (1, 1)])
grouped(2, 4, devices=[0, ()])
grouped(2, 4, devices=[0, "1"])
grouped(2, 4, recompute=True)
grouped(2, 4, inference=True, recompute=MODES.Auto)
popart_pipeline(2, 4, devices=[0, (1, 2)])
popart_pipeline(2, 4, devices=[0, 0])
told(popart_pipeline(3, 5, devices=[0, 1, 0]))
popart_pipeline(2, 2)
popart_pipeline(2, 1, inference=True)
told(popart_pipeline(2, 2, inference=True))
popart_pipeline(2, 4, inference=True, recompute=True)
told(sharded(3, 2, devices=[0, 0, 1]))
sharded(3, 2, devices=[0, 0])
interleaved(2, 4, devices=[0, 0])
told(interleaved(3, 4, inference=True, devices=[0, 1, 0]))
told(interleaved(4, 4, inference=True, devices=[0, 1, 0, 2]))
interleaved(2, 3)
told(sequential(2, 3, devices=[0, 0]))
timetable_of("nothing", 2, 4)
timetable_of("1f1b", 2, 4, chunks=2)
timetable_of("1f1b", 2, 4, devices=[0, 0])
timetable_of("zb_h1", 2, 4, devices=[1, 1])
timetable_of("interleaved_1f1b", 4, 4, devices=[0, 1, 1, 0])
timetable_of("interleaved_1f1b", 4, 4, devices=[0, 0, 0, 0])
told(timetable_of("interleaved_1f1b", 4, 4, devices=[1, 0, 1, 0]))
timetable_of("interleaved_1f1b", 4, 4, chunks=0)
[(name, s.copies, s.recompute, s.stages_per_ipu) for name, s in SCHEDULES.items()]
[copies_of(timetable_of(name, 4, 16)) for name in SCHEDULES]
copies_of(phased_serial(2, 2))
tutorial_columns_before_full(0)
[tutorial_columns_before_full(n) for n in range(1, 6)]
phased_serial(0, 1)
phased_serial(2, 0)
phase_numbers(0)
phased_serial(2, 1, liveness="AlwaysLive")
told(phased_serial(3, 2, devices=[0, 0, 0]))
told(phased_serial(3, 2, devices=[[0, 1], [0, 1], [0, 1]]))
told(phased_parallel(3, 2, devices=[0, 1, 0]))
told(phased_parallel(4, 1, devices=[[0, 2], [1, 3], [0, 2], [1, 3]]))
check_counts("x", 1, 1)
check_counts("x", 1, 0, "phases")
check_counts("x", "1", 1, "phases")
check_multiple("x", 2, 3, 4)
check_multiple("x", 2, 5, 4)
check_multiple("x", 2, 8, 4)
check_at_least("x", 2, 3, 4, "2N", "M")
check_at_least("x", 2, 4, 4, "2N", "M")
bubble_fraction(grouped(2, 4), 0, 0)
equal_stage_time(timetable_of("zb_h1", 2, 4), 1, 2, 1)
grouped(2, 4).label(Cell("F", 1, 2))
grouped(2, 4, devices=[0, 0]).label(Cell("F", 1, 2))
assemble("x", 1, ((0,), (1,)), cells((2, 0, "F", 0, 0)), 2)
assemble("x", 1, ((0,), (1,)), cells((0, 0, "F", 2, 0)), 2)
assemble("x", 1, ((0,), (1,)), cells((-1, 0, "F", 0, 0)), 2)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (0, 1, "B", 0, 0)), 1)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (1, 1, "B", 0, 0)), 2)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (1, 1, "B", 0, 0)), 2, (0,))
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (1, 1, "B", 0, 0)), 2, (1,))
assemble("x", 2, ((0,),), cells((0, 0, "F", 0, 0), (1, 1, "F", 0, 1)), 2, **I)
assemble("x", 2, ((0,),), cells((1, 0, "F", 0, 0), (0, 1, "F", 0, 1)), 2, **I)
assemble("x", 2, ((0,),), cells((0, 0, "F", 0, 0), (0, 1, "F", 0, 1)), 2, **I)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (0, 1, "F", 0, 0)), 2, **I)
assemble("x", 1, ((0,),), cells((0, 0, "X", 0, 0)), 1, **I)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 1)), 1, **I)
assemble("x", 1, ((0,), (1,)), cells((0, 0, "F", 0, 0), (0, 0, "F", 1, 0)), 1, **I)
assemble("x", 1, ((0,), (1,)), cells((0, 0, "F", 0, 0), (1, 0, "F", 1, 0)), 2, **I)
assemble("x", 1, ((0,), (1,)), cells((0, 0, "F", 0, 0), (0, 0, "F", 1, 0)), 1, **I, reads=[])
assemble("x", 1, ((0,),), cells((0, 1, "F", 0, 0), (0, 0, "B", 0, 0)), 1)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (0, 2, "R", 0, 0), (0, 1, "B", 0, 0)), 1)
assemble("x", 1, ((0,),), cells((0, 0, "F", 0, 0), (0, 2, "B", 0, 0), (0, 1, "W", 0, 0)), 1)
assemble("x", 1, ((0,), (1,)), cells((0, 0, "F", 0, 0), (1, 0, "F", 1, 0), (1, 1, "B", 1, 0), (1, 0, "B", 0, 0)), 2)
chain(3)
chain(1)
"""


@pytest.mark.parametrize(("stages", "count"), COUNTS)
def test_every_schedule(stages: int, count: int, golden: Golden) -> None:
    """All of them in a row: in training, with recomputation, and in inference."""
    calls = {
        **{name: f"timetable_of({name!r}, {stages}, {count})" for name in SCHEDULES},
        **{f"{name} again": f"timetable_of({name!r}, {stages}, {count}, recompute=True)" for name in SCHEDULES},
        **{f"{name} inferring": f"{name}({stages}, {count}, inference=True)" for name in INFERRING},
    }
    golden({name: asked(f"told({call})", NAMES) for name, call in calls.items()})


@together([*MADE, *listed(REFUSED)])
def test_every_answer(cases: list[str], golden: Golden) -> None:
    golden({case: asked(case, NAMES) for case in cases})


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("schedule", "stages", "count"),
    [("grouped", 3, 6), ("interleaved", 2, 4), ("grouped_overlapped", 2, 6), ("popart_pipeline", 3, 60),
     ("sequential", 1, 1)],
)  # fmt: skip
def test_the_figure_has_the_table_in_it(schedule: str, stages: int, count: int, golden: Golden) -> None:
    figure = schedules.timetable_figure(getattr(schedules, schedule)(stages, count))
    golden(lines(figure))

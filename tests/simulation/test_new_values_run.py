"""The run that brings new values to the IPUs, against times worked out by hand."""

from __future__ import annotations

import pytest
import simprograms as s

from ipuperf.lowering import NewValues, new_values_program
from ipuperf.simulation import RunBefore, SimulationError, simulate
from ipuperf.trace import check

MICROSECOND = 1e-6
HOST = {"run": 100 * MICROSECOND, "host_sync": 30 * MICROSECOND, "callback": 10 * MICROSECOND}
HOST |= {"answer": 20 * MICROSECOND}
CYCLES = 1_325
"""In a microsecond."""


def program(replicas: int = 1):
    return s.program(s.seq(s.phase(10)), s.seq(s.phase(10)), replicas=replicas)


def duration(values, machine, replicas=1, threads=None):
    made = new_values_program(values, program(replicas))
    trace = simulate(made, machine, prefetch_depth=0, front_end=False, callback_threads=threads)
    assert check(trace) == []
    return trace.columns("runs")["dur"][0] / CYCLES


@pytest.mark.parametrize("scalars", [(3, 0), (0, 3), (1, 2)])
def test_one_sync_for_all_scalars(scalars) -> None:
    """100 for the run, and twice 30 for the sync, 3 times 10 for the callbacks and 20 for the answer."""
    assert duration(NewValues("new", scalars), s.machine(**HOST)) == pytest.approx(260, abs=0.1)


def test_replicas_share_the_callbacks_of_a_broadcast() -> None:
    values, machine = NewValues("new", (1, 2)), s.machine(**HOST)
    assert duration(values, machine, replicas=2) == pytest.approx(260, abs=0.1)
    assert duration(values, machine, replicas=2, threads=1) == pytest.approx(320, abs=0.1)


def test_nothing_to_bring_is_a_run_all_the_same() -> None:
    assert duration(NewValues("new", (0, 0)), s.machine(**HOST)) == 100


def test_what_all_ipus_have_goes_on_from_the_first() -> None:
    values = NewValues("new", (1, 0), shared=2)
    assert values.streams == 3
    first, second = new_values_program(values, program()).ipus[0].steps
    assert [copy.ipu for copy in first.copies] == [0, 0, 0]
    assert [(one.source, one.destination, one.bytes) for one in second.copies] == [(0, 1, 8)]
    late = s.machine(**HOST, latency=5 * CYCLES)
    assert duration(values, late) == pytest.approx(265, abs=0.1)


def test_the_run_before_shifts_all_that_follows() -> None:
    machine = s.machine(**HOST)
    plain = simulate(program(), machine)
    trace = simulate(program(), machine, before=RunBefore("new", 1_000))
    assert check(trace) == []
    assert trace.columns("runs")["dur"][0] == plain.columns("runs")["dur"][0] + 1_000
    assert (
        simulate(program(), machine, before=RunBefore("new", 0)).columns("runs")["dur"] == plain.columns("runs")["dur"]
    ).all()


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(SimulationError, match=r"before.cycles is -1, it must not be negative"):
        simulate(program(), s.machine(), before=RunBefore("new", -1))
    with pytest.raises(ValueError, match=r"\(-1,\) scalars, 0 shared; allowed: counts from 0"):
        NewValues("new", (-1,))

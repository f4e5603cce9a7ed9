"""``docs/how-to/adding-a-step.md``, followed: its block adds a kind of step, and a program with it runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf.ir import FLOAT32, Ir, IrError, TensorSpec, Variable
from ipuperf.lowering import DeviceProgram, lower, supersteps
from ipuperf.lowering.steps import Cost, ExternalSync, LocalStep, Repeat, Step
from ipuperf.lowering.steps import Sequence as StepSequence
from ipuperf.lowering.supersteps import Superstepper, lowers
from ipuperf.machine import load_machine
from ipuperf.ops.base import Op
from ipuperf.ops.work import Work
from ipuperf.simulation import SimulationError, simulate
from ipuperf.simulation.instructions import LeafStep
from ipuperf.simulation.kinds import LocalKind, SharedKind, simulates
from ipuperf.simulation.party import Party, Waiting
from ipuperf.trace import check

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "adding-a-step.md").read_text(encoding="utf-8")
POD4 = load_machine("pod4")
ROUNDED = 2
"""Cycles by which a transfer may be longer than its bytes take: it ends at a whole cycle."""


@dataclass(frozen=True)
class Nap(LocalStep):
    """A local step of its own kind: all tiles do nothing for ``cycles``."""

    cycles: int

    @property
    def cost(self) -> Cost:
        return Cost(self.cycles)


@simulates(Nap)
class NapKind(LocalKind[Nap]):
    """As a local step stands."""


@dataclass(frozen=True)
class Orphan(Step):
    """Nothing simulates it."""


@dataclass(frozen=True)
class Unheard(Work):
    """Nothing lowers it."""


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    lowerings = dict(supersteps._LOWERINGS)
    given = (dataclass, lowers, simulates, LeafStep, Party, SharedKind, Step, Superstepper, Work)
    found: dict[str, Any] = {"Waiting": Waiting, **{thing.__name__: thing for thing in given}}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.S | re.M):
        exec("from __future__ import annotations\n" + block, found)
    yield found
    # Programs are kept in the cache only where none but our code lowers them.
    supersteps._LOWERINGS.clear()
    supersteps._LOWERINGS.update(lowerings)


class Spilling(Op):
    """An op that asks for ``works`` and has no result."""

    type = "Spilling"
    works: Sequence[Work] = ()

    def infer(self) -> Sequence[TensorSpec]:
        return []

    def work(self) -> Sequence[Work]:
        return self.works


def program(*works: Work, ipus: int = 1) -> DeviceProgram:
    """A program whose only op asks for ``works``; with a variable on the last IPU where there are several."""
    ir = Ir()
    graph, data = ir.main_graph, np.zeros(4, np.float32)
    variable = graph.add(Variable("x", TensorSpec(data.shape, FLOAT32), graph, data, ir.grouping()))
    if ipus > 1:
        far = graph.add(Variable("far", TensorSpec(data.shape, FLOAT32), graph, data, ir.grouping()))
        far.ipu = ipus - 1
    graph.create(type("Spilling", (Spilling,), {"works": works}), [variable], [])
    return lower(ir, POD4)


def with_steps(lowered: DeviceProgram, *steps: Step) -> DeviceProgram:
    return dataclasses.replace(lowered, ipus=(StepSequence(-1, "main", steps),))


def test_it_is_lowered_and_described(names: dict[str, Any]) -> None:
    lowered = program(names["SpillWork"](4096))
    assert list(lowered.walk()) == [names["Spill"](0, lowered.ops[0].name.removeprefix("main/"), 4096)]
    assert "'bytes': 4096" in lowered.describe()


def test_ipus_meet_before_it_if_it_says_so(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [list(program(names["SpillWork"](4096), ipus=2).walk(ipu)) == [] for ipu in (0, 1)] == [False, True]
    monkeypatch.setattr(names["Spill"], "meets", lambda step, ipu, syncs: syncs.everyone)
    lowered = program(names["SpillWork"](4096), ipus=2)
    (sync,) = lowered.walk(1)
    assert isinstance(sync, ExternalSync)
    assert sync.participants == (0, 1)
    assert next(lowered.walk(0)) == sync
    assert check(simulate(lowered, POD4)) == []


def test_its_time_is_that_of_its_bytes(names: dict[str, Any]) -> None:
    size = 10_000_000
    trace = simulate(program(names["SpillWork"](size)), POD4)
    steps = trace.columns("steps")
    (row,) = np.flatnonzero(steps["kind"] == "remote_store")
    slowest = min(link.bandwidth_bytes_per_s for link in POD4.topology.remote_route(0, False))
    latency = sum(link.latency_cycles for link in POD4.topology.remote_route(0, False))
    assert 0 <= steps["dur"][row] - latency - size * POD4.chip.clock_hz / slowest <= ROUNDED
    assert steps["bytes_out"][row] == size
    assert check(trace) == []


def test_it_folds_in_a_loop_beside_a_local_step(names: dict[str, Any]) -> None:
    body = StepSequence(-1, "body", (Nap(0, "nap", 50), names["Spill"](0, "spill", 1000)))
    loop = with_steps(program(), Repeat(-1, "loop", 300, body))
    trace = simulate(loop, POD4)
    assert trace == simulate(loop, POD4, fold=False)
    steps, instances = trace.columns("steps"), trace.columns("instances")
    naps = steps["segment"][(steps["kind"] == "compute") & (steps["dur"] == 50)]
    assert np.isin(instances["segment"], naps).sum() == 300
    assert loop.costs()[0].cycles == 300 * 50


def test_both_fidelities_agree_on_a_local_step() -> None:
    naps = with_steps(program(), Nap(0, "a", 7), Nap(0, "b", 0), Nap(0, "c", 5))
    assert (
        simulate(naps, POD4).columns("instances")["dur"].tolist()
        == simulate(naps, POD4, fidelity="tile").columns("instances")["dur"].tolist()
    )


def test_what_is_wrong_with_it_is_one_line(names: dict[str, Any]) -> None:
    with pytest.raises(SimulationError, match=r"Spill 'x' on IPU 0: bytes is -1, it must not be negative"):
        simulate(with_steps(program(), names["Spill"](0, "x", -1)), POD4)


def test_a_step_without_a_simulation_and_work_without_a_lowering_are_errors() -> None:
    with pytest.raises(SimulationError, match=r"step 'x' is a Orphan, which has no simulation; known: .*Phase"):
        simulate(with_steps(program(), Orphan(0, "x")), POD4)
    with pytest.raises(IrError, match="no lowering for Unheard"):
        program(Unheard())


def test_the_page_is_short_and_every_file_it_mentions_is_there() -> None:
    assert len(TEXT.splitlines()) <= 40
    for path in re.findall(r"`((?:ipuperf|docs|tests)/[\w/.]+)`", TEXT):
        assert (ROOT / path).exists(), path

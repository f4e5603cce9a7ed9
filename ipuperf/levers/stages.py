"""The lever on where a pipeline is divided: layers move between neighbouring stages.

A layer is what starts with the first op that reads the parameters of one module and ends before the next such op: the
places where a user can begin a block. Candidates come from the cycles of the forward ops as they were lowered, each
with its part of the rest that its IPU does; which one is best is what the simulation says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.lowering.steps import LocalStep
from ipuperf.pipelines import BuildRequest

from .layers import ModuleLayer, divided, layers_of, obstacle
from .rerun import Rerun
from .trial import Lever, Trial, Untried

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram
    from ipuperf.trace import Trace

CANDIDATES = 4
"""Divisions at most that are simulated."""

Division = tuple[int, ...]
"""The number of layers of each stage."""


@dataclass(frozen=True)
class _Chain:
    """The layers of a pipeline in order, their cycles, and how they are divided now."""

    layers: Sequence[ModuleLayer]
    cycles: Sequence[int]
    now: Division

    def sums(self, division: Division) -> list[int]:
        """Cycles of each stage."""
        found, start = [], 0
        for count in division:
            found.append(sum(self.cycles[start : start + count]))
            start += count
        return found

    def moves(self, division: Division) -> str:
        """What changes, in words."""
        before, after = _stages(self.now), _stages(division)
        moved: dict[tuple[int, int], list[str]] = {}
        for layer, old, new in zip(self.layers, before, after, strict=True):
            if old != new:
                moved.setdefault((old, new), []).append(layer.name)
        parts = [f"{_named(names)} from stage {old} to stage {new}" for (old, new), names in sorted(moved.items())]
        return "move " + " and ".join(parts)

    def uneven(self) -> str:
        """The stage with most of the work, in words."""
        sums = self.sums(self.now)
        slowest = max(range(len(sums)), key=lambda stage: sums[stage])
        return f"stage {slowest} has {100 * sums[slowest] / max(sum(sums), 1):.0f} % of the work on tiles"


class StageDivision(Lever):
    """Layers in other stages."""

    what = "layers in other stages"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if len(run.device_program.ipus) == 1:
            return
        asked: list[BuildRequest] = []

        def see(request: BuildRequest) -> BuildRequest:
            asked.append(request)
            return request

        run.fresh(see)
        if len(asked) != 1:
            itself = "the program itself says which op runs on which IPU"
            yield self.untried("it has several pipelines" if asked else itself)
            return
        why = obstacle(asked[0])
        if why:
            yield self.untried(why)
            return
        chain = _chain(asked[0], run)
        candidates = _candidates(chain)
        if not candidates:
            yield self.untried("every stage is one layer, or all are even")
            return
        trials = [self._trial(run, chain, division) for division in candidates]
        yield min(trials, key=lambda trial: (not trial.fits, trial.cycles))

    def _trial(self, run: Rerun, chain: _Chain, division: Division) -> Trial:
        executable = run.fresh(lambda request: divided(request, division))
        return Trial(f"{chain.moves(division)}; {chain.uneven()}", executable.trace)


def _chain(request: BuildRequest, run: Rerun) -> _Chain:
    """The layers with their part of what their IPU does besides waiting, as their forward ops are parts of its own."""
    forward = _forward_cycles(run.device_program)
    layers = layers_of(request)
    ipu_of = {part.graph: part.ipu for part in request.parts}
    ipus = [ipu_of[layer.ops[0].graph] for layer in layers]
    cycles = [sum(forward.get(f"{op.graph.name}/{op.label}", 0) for op in layer.ops) for layer in layers]
    whole = {ipu: sum(own for own, on in zip(cycles, ipus, strict=True) if on == ipu) for ipu in set(ipus)}
    busy = _busy(run.trace)
    shares = [own * busy.get(ipu, 0) // max(whole[ipu], 1) for own, ipu in zip(cycles, ipus, strict=True)]
    now = tuple(sum(layer.ops[0].graph is part.graph for layer in layers) for part in request.parts)
    return _Chain(layers, shares, now)


def _busy(trace: Trace) -> dict[int, int]:
    """Cycles of each IPU of the first replica on its tiles: compute and exchange."""
    table = trace.operations_by_ipu()
    parts = [column for column in ("compute", "exchange", "sync") if column in table]
    return {int(ipu): int(cycles) for ipu, cycles in table.groupby("ipu")[parts].sum().sum(axis=1).items()}


def _forward_cycles(program: DeviceProgram) -> Mapping[str, int]:
    """Cycles of each op of the called graphs, executed once."""
    found: dict[str, int] = {}
    for body in program.functions.values():
        for step in body.steps:
            if isinstance(step, LocalStep) and step.op_id >= 0:
                name = program.ops[step.op_id].name
                found[name] = found.get(name, 0) + step.duration
    return found


def _candidates(chain: _Chain) -> list[Division]:
    """The most even division, then those in which one layer moves out of the stage with most work; the most even ones
    of them."""
    sums = chain.sums(chain.now)
    slowest = max(range(len(sums)), key=lambda stage: sums[stage])
    stages = _stages(chain.now)
    pins = [stage if layer.pinned else None for layer, stage in zip(chain.layers, stages, strict=True)]
    found = [_evenest(chain.cycles, len(chain.now), pins)]
    for other in (slowest - 1, slowest + 1):
        edge = stages.index(slowest) if other < slowest else stages.index(slowest) + chain.now[slowest] - 1
        if 0 <= other < len(sums) and chain.now[slowest] > 1 and pins[edge] is None:
            counts = list(chain.now)
            counts[slowest] -= 1
            counts[other] += 1
            found.append(tuple(counts))
    found = [division for division in dict.fromkeys(found) if division != chain.now]
    return sorted(found, key=lambda division: max(chain.sums(division)))[:CANDIDATES]


def _evenest(cycles: Sequence[int], stages: int, pins: Sequence[int | None]) -> Division:
    """The division into consecutive, non-empty stages whose largest sum is smallest; pinned layers have their stage.

    There is one: the present division has them so.
    """
    best: dict[int, tuple[int, Division]] = {0: (0, ())}
    for stage in range(stages):
        longer: dict[int, tuple[int, Division]] = {}
        for end in range(stage + 1, len(cycles) - (stages - stage - 1) + 1):
            options = [
                (max(most, sum(cycles[start:end])), (*division, end - start))
                for start, (most, division) in best.items()
                if start < end and all(pin in (None, stage) for pin in pins[start:end])
            ]
            if options:
                longer[end] = min(options)
        best = longer
    return best[len(cycles)][1]


def _stages(division: Division) -> list[int]:
    """The stage of each layer."""
    return [stage for stage, count in enumerate(division) for _ in range(count)]


def _named(names: Sequence[str]) -> str:
    if len(names) > 3:
        return f"{names[0]} to {names[-1]} ({len(names)} layers)"
    return ", ".join(names)

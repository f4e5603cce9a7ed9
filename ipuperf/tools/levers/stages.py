"""The lever on where a pipeline is divided: layers move between neighbouring stages.

A layer begins with the first op that reads the parameters of a module, and ends before the next such op. These are
the places where a user can begin a block. Candidates follow from the cycles of the lowered forward ops. Each layer
also gets its share of everything else that its IPU does. The simulation says which candidate is best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ipuperf.lowering import DeviceProgram
from ipuperf.lowering.steps import LocalStep
from ipuperf.pipelines import BuildRequest
from ipuperf.trace import Trace

from .change import ProgramChange
from .layers import ModuleLayer, divided, layers_of, obstacle
from .rerun import Rerun
from .trial import Lever, Trial, Untried, simulated

CANDIDATES = 4
"""The largest number of divisions that are simulated."""

Division = tuple[int, ...]
"""The number of layers of each stage."""


@dataclass(frozen=True)
class _Chain:
    """The layers of a pipeline in order, their cycles, and their present division into stages."""

    layers: Sequence[ModuleLayer]
    cycles: Sequence[int]
    division: Division

    def sums(self, division: Division) -> list[int]:
        """Cycles of each stage."""
        stage_cycles, start = [], 0
        for count in division:
            stage_cycles.append(sum(self.cycles[start : start + count]))
            start += count
        return stage_cycles

    def moves(self, division: Division) -> list[tuple[str, int, int]]:
        """The moves that lead to a division: names of layers, their old and their new stage."""
        old_stages, new_stages = _stages(self.division), _stages(division)
        moved: dict[tuple[int, int], list[str]] = {}
        for layer, old, new in zip(self.layers, old_stages, new_stages, strict=True):
            if old != new:
                moved.setdefault((old, new), []).append(layer.name)
        return [(_named(names), old, new) for (old, new), names in sorted(moved.items())]

    def uneven(self) -> str:
        """The stage with most of the work, in words."""
        sums = self.sums(self.division)
        slowest = max(range(len(sums)), key=lambda stage: sums[stage])
        return f"stage {slowest} has {100 * sums[slowest] / max(sum(sums), 1):.0f} % of the work on tiles"


class StageDivision(Lever):
    """Layers move to other stages."""

    change = "layers in other stages"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if len(run.device_program.ipus) == 1:
            return
        requests = run.pipelines
        if len(requests) != 1:
            reason = "the program itself says which op runs on which IPU"
            yield self.untried("it has several pipelines" if requests else reason)
            return
        why = obstacle(requests[0])
        if why:
            yield self.untried(why)
            return
        chain = _chain(requests[0], run)
        candidates = _candidates(chain)
        if not candidates:
            yield self.untried("every stage is one layer, or all are even")
            return
        trials = [self._trial(run, chain, division) for division in candidates]
        # Any division that fits is better than a faster one that does not.
        yield min(trials, key=lambda trial: (not trial.fits, trial.cycles))

    def _trial(self, run: Rerun, chain: _Chain, division: Division) -> Trial:
        moves = chain.moves(division)
        moved = " and ".join(f"{names} from stage {old} to stage {new}" for names, old, new in moves)
        # Where a block begins is said in many ways, so the lines name the places.
        diff = tuple(f"+ # {names} in stage {new}" for names, _, new in moves)
        change = ProgramChange(
            f"move {moved}; {chain.uneven()}", diff=diff, of_pipeline=partial(divided, division=division)
        )
        return simulated(run, change)


def _chain(request: BuildRequest, run: Rerun) -> _Chain:
    """The layers with their cycles: the busy cycles of their IPU, shared in proportion to their forward cycles."""
    forward = _forward_cycles(run.device_program)
    layers = layers_of(request)
    ipu_of = {part.graph: part.ipu for part in request.parts}
    ipus = [ipu_of[layer.ops[0].graph] for layer in layers]
    cycles = [sum(forward.get(f"{op.graph.name}/{op.label}", 0) for op in layer.ops) for layer in layers]
    ipu_cycles = {
        ipu: sum(layer_cycles for layer_cycles, layer_ipu in zip(cycles, ipus, strict=True) if layer_ipu == ipu)
        for ipu in set(ipus)
    }
    busy = _busy(run.trace)
    # Backward and update cycles are not known by layer. They are taken to be in proportion to forward cycles.
    shares = [
        layer_cycles * busy.get(ipu, 0) // max(ipu_cycles[ipu], 1)
        for layer_cycles, ipu in zip(cycles, ipus, strict=True)
    ]
    division = tuple(sum(layer.ops[0].graph is part.graph for layer in layers) for part in request.parts)
    return _Chain(layers, shares, division)


def _busy(trace: Trace) -> dict[int, int]:
    """Cycles in which the tiles of each IPU compute, exchange or sync."""
    table = trace.operations_by_ipu()
    parts = [column for column in ("compute", "exchange", "sync") if column in table]
    return {int(ipu): int(cycles) for ipu, cycles in table.groupby("ipu")[parts].sum().sum(axis=1).items()}


def _forward_cycles(program: DeviceProgram) -> Mapping[str, int]:
    """Cycles of each op of the called graphs, for one execution."""
    op_cycles: dict[str, int] = {}
    for body in program.functions.values():
        for step in body.steps:
            if isinstance(step, LocalStep) and step.op_id >= 0:
                name = program.ops[step.op_id].name
                op_cycles[name] = op_cycles.get(name, 0) + step.duration
    return op_cycles


def _candidates(chain: _Chain) -> list[Division]:
    """Divisions to simulate, the most even ones first.

    These are the most even division of all, and those in which one layer leaves the stage with the most work.
    """
    sums = chain.sums(chain.division)
    slowest = max(range(len(sums)), key=lambda stage: sums[stage])
    stages = _stages(chain.division)
    pins = [stage if layer.pinned else None for layer, stage in zip(chain.layers, stages, strict=True)]
    divisions = [_evenest(chain.cycles, len(chain.division), pins)]
    for neighbour in (slowest - 1, slowest + 1):
        # Only the layer at the edge to the neighbour can move there.
        edge = stages.index(slowest) if neighbour < slowest else stages.index(slowest) + chain.division[slowest] - 1
        if 0 <= neighbour < len(sums) and chain.division[slowest] > 1 and pins[edge] is None:
            counts = list(chain.division)
            counts[slowest] -= 1
            counts[neighbour] += 1
            divisions.append(tuple(counts))
    divisions = [division for division in dict.fromkeys(divisions) if division != chain.division]
    return sorted(divisions, key=lambda division: max(chain.sums(division)))[:CANDIDATES]


def _evenest(cycles: Sequence[int], stages: int, pins: Sequence[int | None]) -> Division:
    """The division into consecutive, non-empty stages whose largest sum is smallest. Pinned layers keep their stage.

    Such a division always exists, because the present one satisfies these conditions.
    """
    # Dynamic programming over stages: the best division of each possible number of first layers.
    best: dict[int, tuple[int, Division]] = {0: (0, ())}
    for stage in range(stages):
        longer: dict[int, tuple[int, Division]] = {}
        # Each stage after this one needs at least one layer.
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

"""Lower bounds of the seconds and bytes of a configuration, known before it is built.

A *product* is a matrix product, a convolution or a lookup that has a plan. Its phases follow from its operands and
the memory proportion alone, and every micro-batch goes through every product once. So a unit of the model
(:mod:`.splits`) spends the same cycles on products, whatever IPU and other units it is placed with. What passes from
one unit to the next goes over links if they are on two IPUs. Both figures are read off the probes (:mod:`.probes`),
once for all configurations that a probe cannot tell apart. Then no weight update is shorter than, for any IPU,

    accumulation * (cycles of the products of its units + cycles of the longest of the flows to and from its neighbours)
    + cycles of the products that the first micro-batch passes before it and the last one after it,

and the fullest tile of an IPU holds at least an even share of

- the variables and gradient accumulators of its units,
- a stash for each micro-batch that waits there under the schedule,
- the largest temporary of their products,
- the vertex code of the unit that has most.

Recomputed products count if the probe recomputes them too. On the IPU of the last unit they count only if that unit
is recomputed when it is alone, and never on a single IPU, because front ends recompute something else there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipuperf.machine import Machine, load_scaled
from ipuperf.pipelines.schedules import ScheduleError
from ipuperf.tools.sweep import Sweep
from ipuperf.tools.sweep.spec import FIGURE, MACHINE

from .probes import UnitCost, costs_of_probe, large_enough, stash_depths
from .space import ACCUMULATION, MICRO_BATCH, REPLICAS, Configuration
from .splits import Units, placed, units_of
from .workers import Workers

_PROPORTIONS = "config.memory_proportions"
_PROBES = 120
"""The largest number of probes that are built."""
_ELSEWHERE = (MACHINE, "pipeline", "config.stages", ACCUMULATION, REPLICAS, "sharding", "offload")
"""Factors that do not change what a micro-batch does on its tiles."""


@dataclass(frozen=True)
class LeastCost:
    """Lower bounds of a configuration.

    Attributes:
        seconds: seconds of a weight update.
        bytes: bytes on the fullest tile.
        ipu: the IPU of that tile.
        parts: its bytes by what they are.
        refused: why the schedule cannot run the configuration at all; the seconds are then infinite.
    """

    seconds: float = 0.0
    bytes: int = 0
    ipu: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""

    def over(self, limit: int) -> str:
        """By how much it exceeds ``limit`` bytes of a tile, in words."""
        named = ", ".join(f"{name} {size:,}" for name, size in self.parts.items() if size)
        much = f"at least {self.bytes:,} bytes per tile, {self.bytes - limit:,} over the {limit:,} there are"
        return f"IPU {self.ipu}: {much} ({named})"


@dataclass(frozen=True)
class StageCost:
    """The costs of one IPU of a replica.

    Attributes:
        units: the costs of its units.
        state: bytes of optimiser state that these units have on chip.
        depth: how many micro-batches wait there between their forward and backward pass.
        again: whether the forward pass is recomputed for the backward pass.
        flows: cycles of a micro-batch on the links: activations from the IPU before it, gradients to that IPU,
            activations to the IPU after it, and gradients from that IPU.
    """

    units: tuple[UnitCost, ...]
    state: int
    depth: int
    again: bool
    flows: tuple[float, float, float, float]


@dataclass
class Bounds:
    """Bounds of the configurations of a sweep over a model. For a script nothing is known beforehand.

    Attributes:
        sweep: the sweep that is tuned.
        machine: its machine.
        built: the number of probes that were built and lowered.
    """

    sweep: Sweep
    machine: Machine
    built: int = 0
    _costs: dict[str, tuple[UnitCost, ...] | None] = field(default_factory=dict)
    _state: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _rates: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)

    def learn(self, configurations: Sequence[Configuration], workers: Workers) -> Iterator[int]:
        """Build the probes of configurations and yield each time how many are left.

        If there are very many, only those that serve the most configurations are built.

        Raises:
            UnknownOption: the model has no such ``config.NAME``. Other failures are ignored, because configurations
                can be tried without bounds.
        """
        served, probes = Counter[str](), dict[str, tuple[Configuration, int]]()
        for configuration in configurations:
            units = units_of(self.sweep.model, configuration)
            for share in dict.fromkeys(_shares(configuration)) if units is not None else ():
                key = self._key(configuration, share)
                served[key] += 1
                if units is not None and key not in probes and key not in self._costs:
                    probes[key] = (self._probe(configuration, units, share), units.ipus)
        keys = [key for key, _ in served.most_common(_PROBES) if key in probes]
        yield len(keys)
        for done, (key, costs) in enumerate(zip(keys, self._costs_of([probes[key] for key in keys], workers)), 1):
            self._costs[key] = costs
            yield len(keys) - done
        # The state is a difference to the costs of these probes, so it comes after them.
        self._learn_state(configurations, workers)

    def covers(self, configuration: Mapping[str, Any]) -> bool:
        """Whether there can be a probe of a configuration."""
        return units_of(self.sweep.model, configuration) is not None

    def _costs_of(
        self, probes: Sequence[tuple[Configuration, int]], workers: Workers
    ) -> Iterator[tuple[UnitCost, ...] | None]:
        for costs in workers.results(costs_of_probe, [(self.sweep, self.machine.chip, *probe) for probe in probes]):
            self.built += 1
            yield costs

    def _learn_state(self, configurations: Sequence[Configuration], workers: Workers) -> None:
        """Learn the bytes of optimiser state, as the difference of two probes with and without it on chip."""
        for configuration in configurations:
            units, key = units_of(self.sweep.model, configuration), self._state_key(configuration)
            # An unknown place counts as Streaming Memory, so that the bound stays low.
            if units is None or key in self._state or "optimiser" in configuration.get("offload", ("optimiser",)):
                continue
            share = _shares(configuration)[0]
            without_state = self._costs.get(self._key(configuration, share))
            if without_state is None:
                continue
            (with_state,) = self._costs_of(
                [(self._probe(configuration, units, share, state=True), units.ipus)], workers
            )
            self._state[key] = tuple(
                0 if with_state is None else with_state[ipu].variables - without_state[ipu].variables
                for ipu in range(units.ipus)
            )

    def of(self, configuration: Mapping[str, Any]) -> LeastCost:
        """The bound of a configuration; all zeros if no probe was built for it."""
        try:
            stages = self.stages(configuration)
        except ScheduleError as error:
            return LeastCost(math.inf, refused=str(error))
        if not stages:
            return LeastCost()
        cycles = _least_cycles(stages, int(configuration.get(ACCUMULATION, 1)))
        bytes_by_stage = [self._held(configuration, stage) for stage in stages]
        sizes = [sum(parts.values()) for parts in bytes_by_stage]
        fullest = sizes.index(max(sizes))
        return LeastCost(self.machine.chip.seconds(cycles), sizes[fullest], fullest, bytes_by_stage[fullest])

    def stages(self, configuration: Mapping[str, Any]) -> tuple[StageCost, ...]:
        """The costs of each IPU of a replica; empty if they are not known.

        Raises:
            ScheduleError: the schedule cannot run so many stages and micro-batches.
        """
        units = units_of(self.sweep.model, configuration)
        if units is None:
            return ()
        parts = placed(self.sweep.model, configuration)
        costs_or_none = [
            self._costs.get(self._key(configuration, share)) for share in _shares(configuration, len(parts))
        ]
        costs = [cost for cost in costs_or_none if cost is not None]
        if len(costs) < len(parts):
            return ()
        # A stash on the last IPU says that the loss is computed apart, on the first IPU.
        heads = len(parts) > 1 and costs[-1][-1].stash > 0
        depths = stash_depths(configuration, len(parts), heads=heads)
        state = self._state_of(configuration, units)
        stages, last_ipu = [], len(parts) - 1
        for ipu, (part, cost) in enumerate(zip(parts, costs)):
            unit_costs = tuple(cost[units.seen[unit]] for unit in part)
            # Whether the last stage recomputes is read off its probe.
            again = last_ipu > 0 and (ipu < last_ipu or cost[-1].again > 0)
            flows = self._flows(configuration, ipu, last_ipu + 1, unit_costs)
            stages.append(StageCost(unit_costs, sum(state[unit] for unit in part), depths[ipu], again, flows))
        return tuple(stages)

    def _flows(
        self, configuration: Mapping[str, Any], ipu: int, ipus: int, units: Sequence[UnitCost]
    ) -> tuple[float, float, float, float]:
        """:attr:`StageCost.flows` of an IPU. All bytes of a direction go over the narrowest link of the route."""
        if ipus == 1:
            return 0.0, 0.0, 0.0, 0.0
        rates = self._link_rates(int(configuration.get(REPLICAS, 1)), ipus)
        (activations_in, gradients_out), (gradients_in, activations_out) = units[0].before, units[-1].after
        rate_before, rate_after = rates[ipu - 1], rates[ipu]
        return (
            activations_in / rate_before,
            gradients_out / rate_before,
            activations_out / rate_after,
            gradients_in / rate_after,
        )

    def _link_rates(self, replicas: int, ipus: int) -> tuple[float, ...]:
        """Bytes per cycle from each IPU of a replica to the next, and from the last to the first.

        Of several replicas the slowest counts.
        """
        if (replicas, ipus) not in self._rates:
            placement, route = self.machine.place(replicas, ipus), self.machine.topology.route
            self._rates[replicas, ipus] = tuple(
                min(
                    link.bandwidth_bytes_per_s
                    for places in placement
                    for link in route(places[ipu], places[(ipu + 1) % ipus])
                )
                / self.machine.chip.clock_hz
                for ipu in range(ipus)
            )
        return self._rates[replicas, ipus]

    def _state_of(self, configuration: Mapping[str, Any], units: Units) -> list[int]:
        """Bytes of optimiser state that each unit has on chip."""
        known = self._state.get(self._state_key(configuration))
        if known is None or "optimiser" in configuration.get("offload", ("optimiser",)):
            return [0] * len(units.seen)
        copies = int(configuration.get(REPLICAS, 1)) if configuration.get("sharding") else 1
        return [known[seen] // copies for seen in units.seen]

    def _held(self, configuration: Mapping[str, Any], stage: StageCost) -> dict[str, int]:
        """Lower bounds of the bytes on the fullest tile of an IPU, by what they are."""
        units, tiles = stage.units, self.machine.chip.tiles
        stashed = [unit.stash for unit in units]
        if configuration.get("recompute") == "standard":
            stashed = stashed[:1]  # the input of the stage alone
        elif configuration.get("recompute", "none") == "none":
            stashed = [max(stashed)]  # the output of one unit and the input of the next are one tensor
        least_bytes = {
            "variables": stage.state + sum(unit.variables for unit in units),
            "gradient accumulators": sum(unit.accumulators for unit in units),
            "stashed activations": stage.depth * sum(stashed),
            # Products run one after the other, so only the largest temporary counts.
            "temporaries of a product": max(unit.temporary for unit in units),
            "vertex code": max(unit.code for unit in units),
        }
        # No fullest tile can hold less than an even share.
        return {name: size // tiles for name, size in least_bytes.items()}

    # -- probes ----------------------------------------------------------------------------------------------------

    def _probe(
        self, configuration: Configuration, units: Units, share: float | None, *, state: bool = False
    ) -> Configuration:
        """The configuration of a probe. Its optimiser state is in Streaming Memory unless ``state`` is true."""
        changed = {**configuration, **units.probe, REPLICAS: 1, ACCUMULATION: _legal(units.ipus)}
        # That chip has its multiplied figures already.
        changed = {name: value for name, value in changed.items() if not name.startswith(FIGURE)}
        # Any machine with enough IPUs will do, because a probe is lowered for the chip of the tuned machine.
        changed[MACHINE] = large_enough(units.ipus)
        if "offload" in changed:
            offloaded = {*configuration["offload"]} - {"optimiser"}
            changed["offload"] = tuple(sorted(offloaded if state else {*offloaded, "optimiser"}))
        if "sharding" in changed:
            changed["sharding"] = 0
        if share is not None:
            changed[_PROPORTIONS] = (share,)
        return changed

    def _key(self, configuration: Mapping[str, Any], share: float | None = None) -> str:
        """A key that is equal for configurations whose micro-batches do the same on their tiles.

        ``share`` stands for the memory proportion of one IPU, if there are several.
        """
        seen = {name: value for name, value in configuration.items() if name not in _ELSEWHERE}
        seen["offload"] = sorted({*configuration.get("offload", ())} - {"optimiser"})
        if share is not None:
            seen[_PROPORTIONS] = (share,)
        return json.dumps(sorted(seen.items()), default=list)

    def _state_key(self, configuration: Mapping[str, Any]) -> str:
        """A key that is equal for configurations with the same optimiser state."""
        return json.dumps(sorted(factor for factor in configuration.items() if _state_seen(factor[0])), default=list)


def _legal(ipus: int) -> int:
    """A number of micro-batches that every schedule can run, with or without a separate stage for the loss."""
    # A multiple of the number of stages in both cases.
    return 4 * ipus * (ipus + 1)


def _state_seen(name: str) -> bool:
    return name not in (*_ELSEWHERE, MICRO_BATCH, _PROPORTIONS, "recompute")


def _shares(configuration: Mapping[str, Any], ipus: int = 0) -> list[float | None]:
    """The memory proportion of each IPU (0 IPUs: those of the configuration). The last one holds for all later IPUs."""
    proportions = configuration.get(_PROPORTIONS, ())
    if not proportions:
        return [None] * max(1, ipus)
    return [proportions[min(ipu, len(proportions) - 1)] for ipu in range(ipus or len(proportions))]


def _least_cycles(stages: Sequence[StageCost], count: int) -> int:
    """A lower bound of the cycles of a weight update with ``count`` micro-batches."""
    least, cycles_before = 0, 0
    for number, stage in enumerate(stages):
        products = sum(unit.products + stage.again * unit.again for unit in stage.units)
        # Even the first micro-batch reaches a stage only through the stages before it.
        least = max(least, cycles_before + count * (products + int(max(stage.flows))))
        if number:  # the first IPU may compute the loss too, at the end
            cycles_before += sum(unit.products for unit in stage.units)
    return least


def machine_of(sweep: Sweep) -> Machine:
    """The machine of a sweep with one machine, with its figures multiplied."""
    only = {name: values[0] for name, values in sweep.factors.items()}
    return load_scaled(sweep.machine_of(only[MACHINE]), sweep.scaled(only))

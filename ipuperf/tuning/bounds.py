"""What a configuration takes at least, in seconds and in bytes, known before it is built.

A *product* is a matrix product, a convolution or a lookup that has a plan. Its phases follow from what is multiplied
and from the memory proportion alone, and every micro-batch goes through every product once; so what a unit of the model
(:mod:`.splits`) spends on products is the same on whatever IPU it stands and with whatever other units. What passes
from one unit to the next goes over links where they stand on two IPUs. Both are read off the probes (:mod:`.probes`),
once for all configurations that differ in nothing that they see. Then no weight update is shorter than, for any IPU,

    accumulation * (cycles of the products of its units + cycles of the longest of the flows to and from its neighbours)
    + cycles of the products that the first micro-batch passes before it and the last one after it,

and no tile of an IPU holds less than a share of the variables and gradient accumulators of its units, of as many
stashes as the schedule has micro-batches wait there, of the largest temporary of their products, and of the vertex
code of the one that has most. Recomputed
products count where the probe recomputes them too; on the IPU of the last unit only if that is recomputed alone as
well, and never on a single IPU (front ends recompute something else there).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipuperf.machine import Machine, load_scaled
from ipuperf.schedules import ScheduleError
from ipuperf.sweep import Sweep
from ipuperf.sweep.spec import FIGURE, MACHINE

from .probes import UnitCost, costs_of_probe, large_enough, stash_depths
from .space import ACCUMULATION, MICRO_BATCH, REPLICAS, Configuration
from .splits import Units, placed, units_of
from .workers import Workers

_PROPORTIONS = "config.memory_proportions"
_PROBES = 120
"""Probes that are built at the most."""
_ELSEWHERE = (MACHINE, "pipeline", "config.stages", ACCUMULATION, REPLICAS, "sharding", "offload")
"""Factors that a micro-batch does not see on its tiles."""


@dataclass(frozen=True)
class LeastCost:
    """What a configuration takes at least: seconds of a weight update, and bytes on the fullest tile of an IPU, with
    what they are. ``refused``: why the schedule cannot run it at all (the seconds are infinite)."""

    seconds: float = 0.0
    bytes: int = 0
    ipu: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""

    def over(self, limit: int) -> str:
        """What is too much for ``limit`` bytes of a tile, in words."""
        named = ", ".join(f"{name} {size:,}" for name, size in self.parts.items() if size)
        much = f"at least {self.bytes:,} bytes per tile, {self.bytes - limit:,} over the {limit:,} there are"
        return f"IPU {self.ipu}: {much} ({named})"


@dataclass(frozen=True)
class StageCost:
    """What one IPU of a replica has.

    Attributes:
        units: the costs of its units; ``state``: bytes of optimiser state that these have on chip.
        depth: how many micro-batches wait there.
        again: its forward runs again for the backward pass.
        flows: cycles of a micro-batch in which the links bring something from the IPU before it, take something back,
            take something to the IPU after it, and bring something back.
    """

    units: tuple[UnitCost, ...]
    state: int
    depth: int
    again: bool
    flows: tuple[float, float, float, float]


@dataclass
class Bounds:
    """Bounds of the configurations of a sweep over a model; of a script nothing is known beforehand.

    Attributes:
        sweep, machine: what is tuned.
        built: probes that were built and lowered.
    """

    sweep: Sweep
    machine: Machine
    built: int = 0
    _costs: dict[str, tuple[UnitCost, ...] | None] = field(default_factory=dict)
    _state: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _rates: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)

    def learn(self, configurations: Sequence[Configuration], workers: Workers) -> Iterator[int]:
        """Build the probes of configurations, and say each time how many are left; if they are very many only those
        that serve most are built.

        Raises:
            UnknownOption: the model has no such ``config.NAME``. Other failures are none here: bounds are help,
            configurations are tried without.
        """
        served, probes = Counter[str](), dict[str, tuple[Configuration, int]]()
        for each in configurations:
            units = units_of(self.sweep.model, each)
            for share in dict.fromkeys(_shares(each)) if units is not None else ():
                key = self._key(each, share)
                served[key] += 1
                if units is not None and key not in probes and key not in self._costs:
                    probes[key] = (self._probe(each, units, share), units.ipus)
        keys = [key for key, _ in served.most_common(_PROBES) if key in probes]
        yield len(keys)
        for done, (key, found) in enumerate(zip(keys, self._costs_of([probes[key] for key in keys], workers)), 1):
            self._costs[key] = found
            yield len(keys) - done
        self._learn_state(configurations, workers)

    def covers(self, configuration: Mapping[str, Any]) -> bool:
        """Whether there can be a probe of a configuration."""
        return units_of(self.sweep.model, configuration) is not None

    def _costs_of(
        self, probes: Sequence[tuple[Configuration, int]], workers: Workers
    ) -> Iterator[tuple[UnitCost, ...] | None]:
        for found in workers.results(costs_of_probe, [(self.sweep, self.machine.chip, *each) for each in probes]):
            self.built += 1
            yield found

    def _learn_state(self, configurations: Sequence[Configuration], workers: Workers) -> None:
        """How much optimiser state there is, from probes that have it on chip."""
        for each in configurations:
            units, key = units_of(self.sweep.model, each), self._state_key(each)
            if units is None or key in self._state or "optimiser" in each.get("offload", ("optimiser",)):
                continue
            share = _shares(each)[0]
            without = self._costs.get(self._key(each, share))
            if without is None:
                continue
            (found,) = self._costs_of([(self._probe(each, units, share, state=True), units.ipus)], workers)
            self._state[key] = tuple(
                0 if found is None else found[ipu].variables - without[ipu].variables for ipu in range(units.ipus)
            )

    def of(self, configuration: Mapping[str, Any]) -> LeastCost:
        """The bound of a configuration; nothing where nothing was learnt."""
        try:
            stages = self.stages(configuration)
        except ScheduleError as error:
            return LeastCost(math.inf, refused=str(error))
        if not stages:
            return LeastCost()
        cycles = _least_cycles(stages, int(configuration.get(ACCUMULATION, 1)))
        held = [self._held(configuration, stage) for stage in stages]
        sizes = [sum(parts.values()) for parts in held]
        fullest = sizes.index(max(sizes))
        return LeastCost(self.machine.chip.seconds(cycles), sizes[fullest], fullest, held[fullest])

    def stages(self, configuration: Mapping[str, Any]) -> tuple[StageCost, ...]:
        """What each IPU of a replica has; nothing where that is not known.

        Raises:
            ScheduleError: the schedule cannot run so many stages and micro-batches.
        """
        units = units_of(self.sweep.model, configuration)
        if units is None:
            return ()
        parts = placed(self.sweep.model, configuration)
        found = [self._costs.get(self._key(configuration, share)) for share in _shares(configuration, len(parts))]
        costs = [cost for cost in found if cost is not None]
        if len(costs) < len(parts):
            return ()
        heads = len(parts) > 1 and costs[-1][-1].stash > 0
        depths = stash_depths(configuration, len(parts), heads=heads)
        state = self._state_of(configuration, units)
        stages, last = [], len(parts) - 1
        for ipu, (part, cost) in enumerate(zip(parts, costs)):
            has = tuple(cost[units.seen[unit]] for unit in part)
            again = last > 0 and (ipu < last or cost[-1].again > 0)
            flows = self._flows(configuration, ipu, last + 1, has)
            stages.append(StageCost(has, sum(state[unit] for unit in part), depths[ipu], again, flows))
        return tuple(stages)

    def _flows(
        self, configuration: Mapping[str, Any], ipu: int, ipus: int, units: Sequence[UnitCost]
    ) -> tuple[float, float, float, float]:
        """:attr:`StageCost.flows`: all bytes of a direction go over the narrowest link of a route."""
        if ipus == 1:
            return 0.0, 0.0, 0.0, 0.0
        rates = self._link_rates(int(configuration.get(REPLICAS, 1)), ipus)
        (comes, back), (brought, goes) = units[0].before, units[-1].after
        before, after = rates[ipu - 1], rates[ipu]
        return comes / before, back / before, goes / after, brought / after

    def _link_rates(self, replicas: int, ipus: int) -> tuple[float, ...]:
        """Bytes in a cycle from each IPU of a replica to the next one, the last one's to the first; of the replica
        where it is least."""
        if (replicas, ipus) not in self._rates:
            placement, route = self.machine.place(replicas, ipus), self.machine.topology.route
            self._rates[replicas, ipus] = tuple(
                min(link.bandwidth_bytes_per_s for places in placement
                    for link in route(places[ipu], places[(ipu + 1) % ipus])) / self.machine.chip.clock_hz
                for ipu in range(ipus)
            )  # fmt: skip
        return self._rates[replicas, ipus]

    def _state_of(self, configuration: Mapping[str, Any], units: Units) -> list[int]:
        """Bytes of optimiser state on chip of each unit."""
        known = self._state.get(self._state_key(configuration))
        if known is None or "optimiser" in configuration.get("offload", ("optimiser",)):
            return [0] * len(units.seen)
        copies = int(configuration.get(REPLICAS, 1)) if configuration.get("sharding") else 1
        return [known[seen] // copies for seen in units.seen]

    def _held(self, configuration: Mapping[str, Any], stage: StageCost) -> dict[str, int]:
        """Bytes that the fullest tile of an IPU has at least, by what they are."""
        units, tiles = stage.units, self.machine.chip.tiles
        stashed = [unit.stash for unit in units]
        if configuration.get("recompute") == "standard":
            stashed = stashed[:1]  # the input of the stage alone
        elif configuration.get("recompute", "none") == "none":
            stashed = [max(stashed)]  # what one unit gives and the next one keeps is there once
        found = {
            "variables": stage.state + sum(unit.variables for unit in units),
            "gradient accumulators": sum(unit.accumulators for unit in units),
            "stashed activations": stage.depth * sum(stashed),
            "temporaries of a product": max(unit.temporary for unit in units),
            "vertex code": max(unit.code for unit in units),
        }
        return {name: size // tiles for name, size in found.items()}

    # -- probes ----------------------------------------------------------------------------------------------------

    def _probe(
        self, configuration: Configuration, units: Units, share: float | None, *, state: bool = False
    ) -> Configuration:
        """The configuration of a probe, which has optimiser state in Streaming Memory unless ``state``."""
        changed = {**configuration, **units.probe, REPLICAS: 1, ACCUMULATION: _legal(units.ipus)}
        changed = {name: value for name, value in changed.items() if not name.startswith(FIGURE)}
        changed[MACHINE] = large_enough(units.ipus)
        if "offload" in changed:
            others = {*configuration["offload"]} - {"optimiser"}
            changed["offload"] = tuple(sorted(others if state else {*others, "optimiser"}))
        if "sharding" in changed:
            changed["sharding"] = 0
        if share is not None:
            changed[_PROPORTIONS] = (share,)
        return changed

    def _key(self, configuration: Mapping[str, Any], share: float | None = None) -> str:
        """Equal where what a micro-batch does on its tiles is; of IPUs with one of several memory proportions."""
        said = {name: value for name, value in configuration.items() if name not in _ELSEWHERE}
        said["offload"] = sorted({*configuration.get("offload", ())} - {"optimiser"})
        if share is not None:
            said[_PROPORTIONS] = (share,)
        return json.dumps(sorted(said.items()), default=list)

    def _state_key(self, configuration: Mapping[str, Any]) -> str:
        """Equal where the optimiser state is."""
        return json.dumps(sorted(item for item in configuration.items() if _state_seen(item[0])), default=list)


def _legal(ipus: int) -> int:
    """Micro-batches that every schedule can run, whether the loss is a stage of its own or not."""
    return 4 * ipus * (ipus + 1)


def _state_seen(name: str) -> bool:
    return name not in (*_ELSEWHERE, MICRO_BATCH, _PROPORTIONS, "recompute")


def _shares(configuration: Mapping[str, Any], ipus: int = 0) -> list[float | None]:
    """The memory proportion of each IPU (0 IPUs: those said); the last one said is that of all after it."""
    given = configuration.get(_PROPORTIONS, ())
    if not given:
        return [None] * max(1, ipus)
    return [given[min(ipu, len(given) - 1)] for ipu in range(ipus or len(given))]


def _least_cycles(stages: Sequence[StageCost], count: int) -> int:
    """Cycles of a weight update at least, with ``count`` micro-batches."""
    found, passed = 0, 0
    for number, stage in enumerate(stages):
        products = sum(unit.products + stage.again * unit.again for unit in stage.units)
        found = max(found, passed + count * (products + int(max(stage.flows))))
        if number:  # the first IPU may compute the loss too, at the end
            passed += sum(unit.products for unit in stage.units)
    return found


def machine_of(sweep: Sweep) -> Machine:
    """The machine of a sweep that has one, with its figures multiplied."""
    only = {name: values[0] for name, values in sweep.factors.items()}
    return load_scaled(sweep.machine_of(only[MACHINE]), sweep.scaled(only))

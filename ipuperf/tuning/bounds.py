"""What a configuration takes at least, in seconds and in bytes, known before it is built.

A *product* is a matrix product, a convolution or a lookup that has a plan. Its phases follow from what is multiplied
and from the memory proportion alone, and every micro-batch goes through every product once; so what a unit of the model
(:mod:`.splits`) spends on products is the same on whatever IPU it stands and with whatever other units. It is read off
the *finest split*, in which each unit has an IPU of its own, once for all configurations that differ in nothing that
products see. Then no weight update is shorter than

    accumulation * max over IPUs of (sum over the units there of their products' cycles),

and no tile of an IPU holds less than the variables of its units, spread evenly. Recomputed products count where the
finest split recomputes them too; on the IPU of the last unit only if that is recomputed alone as well, and never on a
single IPU (front ends recompute something else there).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ipuperf.lowering import DeviceProgram
from ipuperf.machine import Machine, load_scaled
from ipuperf.machine.loader import preset_ipus
from ipuperf.sweep import Sweep
from ipuperf.sweep.programs import SweepPrograms
from ipuperf.sweep.spec import FIGURE, MACHINE

from .local_time import local_cycles
from .space import ACCUMULATION, MICRO_BATCH, REPLICAS
from .splits import Units, placed, units_of

_PROPORTIONS = "config.memory_proportions"
_WORTH = 6
"""Configurations of one finest split from which on it is worth building."""
_ELSEWHERE = (MACHINE, "pipeline", "config.stages", ACCUMULATION, REPLICAS, "sharding")
"""Factors that products of a micro-batch do not see."""


@dataclass(frozen=True)
class UnitCosts:
    """Of each unit: cycles of its products for a micro-batch, of those that run again for the backward pass, and bytes
    of its variables on chip."""

    products: tuple[int, ...]
    again: tuple[int, ...]
    variables: tuple[int, ...]


@dataclass(frozen=True)
class LeastCost:
    """What a configuration takes at least: seconds of a weight update, and bytes on the fullest tile of an IPU."""

    seconds: float = 0.0
    bytes: int = 0
    ipu: int = 0


@dataclass
class Bounds:
    """Bounds of the configurations of a sweep over a model; of a script nothing is known beforehand.

    Attributes:
        sweep, machine: what is tuned.
        built: finest splits that were built and lowered.
    """

    sweep: Sweep
    machine: Machine
    built: int = 0
    _costs: dict[str, UnitCosts | None] = field(default_factory=dict)
    _variables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _members: Counter[str] = field(default_factory=Counter)

    def expect(self, configurations: Sequence[Mapping[str, Any]]) -> None:
        """What will be asked for: a finest split is only built for more than a few."""
        self._members = Counter(self._time_key(each) for each in configurations)

    def learn(self, configuration: Mapping[str, Any]) -> bool:
        """Build the finest split of a configuration, unless that was done or is not worth it; whether it was."""
        units = units_of(self.sweep.model, configuration)
        key = self._time_key(configuration)
        if units is None or key in self._costs or self._members[key] < _WORTH:
            return False
        self._costs[key] = None
        for proportion in _proportions(configuration):
            found = self._cost_of(configuration, units, proportion)
            if found is None:
                return True
            self._costs[self._time_key(configuration, proportion)] = found
            self._variables[self._memory_key(configuration)] = found.variables
        return True

    def of(self, configuration: Mapping[str, Any]) -> LeastCost:
        """The bound of a configuration; nothing where nothing was learnt."""
        if units_of(self.sweep.model, configuration) is None:
            return LeastCost()
        parts = placed(self.sweep.model, configuration)
        costs = [self._costs.get(self._time_key(configuration, share)) for share in _shares(configuration, len(parts))]
        cycles = max(
            (0 if cost is None else _cycles(cost, part, len(parts)) for cost, part in zip(costs, parts)), default=0
        )
        seconds = self.machine.chip.seconds(cycles * int(configuration.get(ACCUMULATION, 1)))
        return LeastCost(seconds, *self._fullest(configuration, parts))

    def _fullest(self, configuration: Mapping[str, Any], parts: Sequence[range]) -> tuple[int, int]:
        """Bytes on a tile of the IPU with most variables, and that IPU."""
        known = self._variables.get(self._memory_key(configuration))
        if known is None:
            return 0, 0
        sizes = [-(-sum(known[unit] for unit in part) // self.machine.chip.tiles) for part in parts]
        return max((size, -ipu) for ipu, size in enumerate(sizes))[0], sizes.index(max(sizes))

    def _cost_of(self, configuration: Mapping[str, Any], units: Units, share: float | None) -> UnitCosts | None:
        """Of the finest split; None where the model cannot be split so."""
        micro_batches = 4 * units.count
        changed: dict[str, Any] = {**configuration, **units.finest, REPLICAS: 1, ACCUMULATION: micro_batches}
        changed = {name: value for name, value in changed.items() if not name.startswith(FIGURE)}
        changed[MACHINE] = _large_enough(units.count)
        if "offload" in changed:
            changed["offload"] = self._offload(configuration)
        if "sharding" in changed:
            changed["sharding"] = 0
        if share is not None:
            changed[_PROPORTIONS] = (share,)
        with suppress(Exception):  # whatever goes wrong: bounds are help, configurations are tried without
            executable = SweepPrograms(self.sweep).of(changed).executable
            self.built += 1
            machine = replace(executable.machine, chip=self.machine.chip)
            return _costs(executable.on(machine).device_program, units.count, micro_batches)
        return None

    def _time_key(self, configuration: Mapping[str, Any], share: float | None = None) -> str:
        """Equal where the products of a micro-batch are; of IPUs with one of several memory proportions."""
        said = {name: value for name, value in configuration.items() if name not in (*_ELSEWHERE, "offload")}
        if share is not None:
            said[_PROPORTIONS] = (share,)
        return json.dumps(sorted(said.items()), default=list)

    def _memory_key(self, configuration: Mapping[str, Any]) -> str:
        """Equal where the variables of a unit are."""
        seen_not = (*_ELSEWHERE, "offload", MICRO_BATCH, _PROPORTIONS, "recompute")
        said = {name: value for name, value in configuration.items() if name not in seen_not}
        return json.dumps([sorted(said.items()), self._offload(configuration)], default=list)

    def _offload(self, configuration: Mapping[str, Any]) -> tuple[str, ...]:
        """What is taken to be off the chip: state that is sharded as well, as its share is small."""
        given = tuple(configuration.get("offload", ()))
        return tuple(sorted({*given, "optimiser"})) if configuration.get("sharding") else given


def _proportions(configuration: Mapping[str, Any]) -> Sequence[float | None]:
    return list(dict.fromkeys(configuration.get(_PROPORTIONS, ()))) or [None]


def _shares(configuration: Mapping[str, Any], ipus: int) -> list[float | None]:
    """The memory proportion of each IPU; the last one said is that of all after it."""
    given = configuration.get(_PROPORTIONS, ())
    return [given[min(ipu, len(given) - 1)] if given else None for ipu in range(ipus)]


def _cycles(cost: UnitCosts, part: range, ipus: int) -> int:
    last = part.stop == len(cost.products)
    again = ipus > 1 and (not last or cost.again[-1] > 0)
    return sum(cost.products[unit] + again * cost.again[unit] for unit in part)


def _costs(program: DeviceProgram, units: int, micro_batches: int) -> UnitCosts | None:
    """Read off a lowered finest split; None where a unit has no IPU of its own."""
    if len(program.ipus) != units:
        return None
    recomputed = {op.op_id for op in program.ops if op.phase == "recompute"}
    products, again = [], []
    for ipu in range(units):
        found = local_cycles(program, ipu)
        planned = [op_id for op_id in found.total if op_id in program.plans]
        first = sum(micro_batches * found.once[op_id] for op_id in planned if op_id not in recomputed)
        products.append(first // micro_batches)
        again.append((sum(found.total[op_id] for op_id in planned) - first) // micro_batches)
    held = Counter[int]()
    for variable in program.memory.variables:
        if variable.category == "variable":
            held[variable.ipu] += variable.bytes.total
    return UnitCosts(
        tuple(products),
        tuple(again),
        tuple(held[ipu] for ipu in range(units)),
    )


def _large_enough(ipus: int) -> str:
    """The smallest preset with as many IPUs."""
    fitting = sorted((count, name) for name, count in preset_ipus().items() if count >= ipus)
    if not fitting:
        raise ValueError(f"no preset has {ipus} IPUs")
    return fitting[0][1]


def machine_of(sweep: Sweep) -> Machine:
    """The machine of a sweep that has one, with its figures multiplied."""
    only = {name: values[0] for name, values in sweep.factors.items()}
    return load_scaled(sweep.machine_of(only[MACHINE]), sweep.scaled(only))

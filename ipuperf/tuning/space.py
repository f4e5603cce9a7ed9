"""What is searched: the configurations of a sweep whose global batch is the wanted one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ipuperf.sweep import Sweep
from ipuperf.sweep.constraints import Constraint
from ipuperf.sweep.spec import FIGURE, MACHINE, SEED

from .errors import TuningError

Configuration: TypeAlias = dict[str, Any]

MICRO_BATCH, ACCUMULATION, REPLICAS = BATCH_FACTORS = ("micro_batch", "accumulation", "replicas")
"""Factors whose product is the global batch."""
_MOST = 200_000
"""Configurations, which are held in memory."""


class TuningSpace:
    """The configurations that may be chosen.

    Args:
        sweep: its factors and constraints. Of a model without a factor ``accumulation`` that is what the global batch
            leaves.
        global_batch: samples of a weight update.

    Attributes:
        sweep: a sweep over just these configurations, which ``ipuperf sweep`` can run.
        configurations: all of them, in order.
        names: factors with more than one value, but for the accumulation, which follows from the others.

    Raises:
        TuningError: the global batch cannot be had, there are too many configurations, or none.
    """

    def __init__(self, sweep: Sweep, global_batch: int) -> None:
        if len(sweep.seeds) > 1:
            raise TuningError(f"seeds: {list(sweep.seeds)}, allowed: one; all configurations are compared with it")
        for name, values in sweep.factors.items():
            if (name == MACHINE or name.startswith(FIGURE)) and len(values) != 1:
                raise TuningError(f"factor {name!r}: {list(values)}, allowed: one value; a tuning is for one machine")
        self.global_batch = global_batch
        self.derived = ACCUMULATION not in sweep.factors and bool(sweep.model)
        factors = dict(sweep.factors)
        if self.derived:
            factors[ACCUMULATION] = accumulations(factors, global_batch)
        named = [name for name in BATCH_FACTORS if name in factors]
        if not named:
            raise TuningError(
                f"global batch {global_batch:,}: none of the factors {', '.join(BATCH_FACTORS)} is there to divide it"
            )
        batch = f"{' * '.join(named)} == {global_batch}"
        for name in named:
            for value in factors[name]:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise TuningError(f"factor {name!r}: {value!r}, allowed: whole numbers of 1 or more")
        self.sweep = replace(sweep, factors=factors, constraints=(batch, *sweep.constraints))
        self.configurations = self._configurations(batch)
        self.names = tuple(name for name, values in factors.items() if len(values) > 1 and name != ACCUMULATION)
        self._places = {self._key(each): place for place, each in enumerate(self.configurations)}

    def _configurations(self, batch: str) -> list[Configuration]:
        """Those whose global batch is right and that satisfy the constraints."""
        found, broken, total = [], dict[str, int](), 0
        factors = self.sweep.factors
        constraints = [Constraint(text, (*factors, SEED)) for text in self.sweep.constraints]
        free = {name: values for name, values in factors.items() if not (self.derived and name == ACCUMULATION)}
        if np.prod([float(len(values)) for values in free.values()]) > 50 * _MOST:
            raise TuningError(f"too many combinations of factors, allowed: {50 * _MOST:,} before constraints")
        for chosen in itertools.product(*free.values()):
            each = dict(zip(free, chosen), **{SEED: self.sweep.seeds[0]})
            if self.derived:
                each[ACCUMULATION] = max(1, self.global_batch // _other_batch(each))
            total += 1
            text = next((c.text for c in constraints if not c.holds(each)), None)
            if text is None:
                found.append({name: each[name] for name in (*factors, SEED)})
            else:
                broken[text] = broken.get(text, 0) + 1
            if len(found) > _MOST:
                raise TuningError(f"more than {_MOST:,} configurations; take fewer values, or constraints")
        if not found:
            said = ", ".join(f"{text!r} rules out {number:,}" for text, number in broken.items())
            if broken == {batch: total}:
                said = f"the global batch {self.global_batch:,} is not the product of any values of the factors in it"
            raise TuningError(f"no configuration of {total:,} is possible: {said}")
        return found

    def _key(self, configuration: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(repr(configuration[name]) for name in self.names)

    def place(self, configuration: Mapping[str, Any]) -> int | None:
        """The number of a configuration (its factors :attr:`names` count); None where it is not in the space."""
        return self._places.get(self._key(configuration))

    @cached_property
    def impossible(self) -> dict[str, tuple[Any, ...]]:
        """Values of factors that no configuration has."""
        found = {}
        for name in self.names:
            had = {repr(each[name]) for each in self.configurations}
            lacking = tuple(value for value in self.sweep.factors[name] if repr(value) not in had)
            if lacking:
                found[name] = lacking
        return found

    @cached_property
    def levels(self) -> np.ndarray:
        """``int64[configurations, names]``: the place of each value among those of its factor."""
        order = {name: {repr(v): i for i, v in enumerate(self.sweep.factors[name])} for name in self.names}
        rows = [[order[name][repr(each[name])] for name in self.names] for each in self.configurations]
        return np.array(rows, dtype=np.int64).reshape(len(self.configurations), len(self.names))

    def nearest(self, levels: Sequence[int], among: np.ndarray, ranks: np.ndarray) -> int:
        """Of the configurations numbered ``among`` the one that differs in the fewest factors from ``levels``, then by
        the fewest steps, then of the lowest rank."""
        apart = np.abs(self.levels[among] - np.asarray(levels))
        order = np.lexsort((among, ranks[among], apart.sum(axis=1), (apart > 0).sum(axis=1)))
        return int(among[order[0]])

    def steps(self, place: int) -> list[tuple[str, int, int]]:
        """One step of each factor: its name, up or down (1, -1), and the configuration with that value that differs
        least in everything else."""
        found, here = [], self.levels[place]
        ranks = np.zeros(len(self.levels))
        for column, name in enumerate(self.names):
            there = np.unique(self.levels[:, column])
            for way, beyond in ((-1, there[there < here[column]][-1:]), (1, there[there > here[column]][:1])):
                for level in beyond:
                    wanted = here.copy()
                    wanted[column] = level
                    among = np.flatnonzero(self.levels[:, column] == level)
                    found.append((name, way, self.nearest(wanted, among, ranks)))
        return found


def _other_batch(configuration: Mapping[str, Any]) -> int:
    return int(configuration.get(MICRO_BATCH, 1)) * int(configuration.get(REPLICAS, 1))


def accumulations(factors: Mapping[str, Sequence[Any]], global_batch: int) -> tuple[int, ...]:
    """What the global batch leaves to accumulate, for every micro-batch and number of replicas that divide it."""
    sizes, copies = factors.get(MICRO_BATCH, (1,)), factors.get(REPLICAS, (1,))
    for name, values in ((MICRO_BATCH, sizes), (REPLICAS, copies)):
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise TuningError(f"factor {name!r}: {value!r}, allowed: whole numbers of 1 or more")
    found = sorted({global_batch // (m * r) for m in sizes for r in copies if global_batch % (m * r) == 0})
    if not found:
        raise TuningError(
            f"global batch {global_batch:,} cannot be divided: no micro_batch of {list(sizes)} times replicas of "
            f"{list(copies)} divides it"
        )
    return tuple(found)

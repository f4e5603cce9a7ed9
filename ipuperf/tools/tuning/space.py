"""The space of a tuning: the configurations of a sweep that have the wanted global batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ipuperf.tools.errors import TuningError
from ipuperf.tools.sweep import Sweep
from ipuperf.tools.sweep.constraints import Constraint
from ipuperf.tools.sweep.spec import FIGURE, MACHINE, SEED

Configuration: TypeAlias = dict[str, Any]

MICRO_BATCH, ACCUMULATION, REPLICAS = BATCH_FACTORS = ("micro_batch", "accumulation", "replicas")
"""Factors whose product is the global batch."""
_MOST = 200_000
"""The largest number of configurations. All of them are held in memory."""


class TuningSpace:
    """The configurations that may be chosen.

    Args:
        sweep: its factors and constraints. For a model without a factor ``accumulation``, the accumulation follows
            from the global batch.
        global_batch: samples of a weight update.

    Attributes:
        sweep: a sweep over exactly these configurations, which ``ipuperf sweep`` can run.
        configurations: all of them, in order.
        names: factors with more than one value, without the accumulation, which follows from the others.

    Raises:
        TuningError: the global batch is impossible, or there are too many configurations, or none.
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
        # The global batch is a constraint like the user's, so a sweep of this space keeps it.
        batch = f"{' * '.join(named)} == {global_batch}"
        for name in named:
            for value in factors[name]:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise TuningError(f"factor {name!r}: {value!r}, allowed: whole numbers of 1 or more")
        self.sweep = replace(sweep, factors=factors, constraints=(batch, *sweep.constraints))
        self.configurations = self._configurations(batch)
        self.names = tuple(name for name, values in factors.items() if len(values) > 1 and name != ACCUMULATION)
        self._places = {self._key(configuration): place for place, configuration in enumerate(self.configurations)}

    def _configurations(self, batch: str) -> list[Configuration]:
        """The configurations that have the global batch and satisfy the constraints."""
        possible, broken, total = [], dict[str, int](), 0
        factors = self.sweep.factors
        constraints = [Constraint(text, (*factors, SEED)) for text in self.sweep.constraints]
        # The accumulation follows from the other factors and does not multiply the combinations.
        free_factors = {name: values for name, values in factors.items() if not (self.derived and name == ACCUMULATION)}
        # All combinations are walked through, also those that constraints rule out.
        if np.prod([float(len(values)) for values in free_factors.values()]) > 50 * _MOST:
            raise TuningError(f"too many combinations of factors, allowed: {50 * _MOST:,} before constraints")
        for chosen in itertools.product(*free_factors.values()):
            configuration = dict(zip(free_factors, chosen), **{SEED: self.sweep.seeds[0]})
            if self.derived:
                # A remainder breaks the constraint of the batch, which then counts as the reason.
                configuration[ACCUMULATION] = max(1, self.global_batch // _other_batch(configuration))
            total += 1
            text = next((constraint.text for constraint in constraints if not constraint.holds(configuration)), None)
            if text is None:
                possible.append({name: configuration[name] for name in (*factors, SEED)})
            else:
                broken[text] = broken.get(text, 0) + 1
            if len(possible) > _MOST:
                raise TuningError(f"more than {_MOST:,} configurations; take fewer values, or constraints")
        if not possible:
            reasons = ", ".join(f"{text!r} rules out {number:,}" for text, number in broken.items())
            if broken == {batch: total}:
                reasons = (
                    f"the global batch {self.global_batch:,} is not the product of any values of the factors in it"
                )
            raise TuningError(f"no configuration of {total:,} is possible: {reasons}")
        return possible

    def _key(self, configuration: Mapping[str, Any]) -> tuple[str, ...]:
        # Values are compared as texts, because True equals 1.
        return tuple(repr(configuration[name]) for name in self.names)

    def place(self, configuration: Mapping[str, Any]) -> int | None:
        """The index of a configuration, found by its factors :attr:`names`; None if it is not in the space."""
        return self._places.get(self._key(configuration))

    @cached_property
    def impossible(self) -> dict[str, tuple[Any, ...]]:
        """Values of factors that no configuration has."""
        missing = {}
        for name in self.names:
            present = {repr(configuration[name]) for configuration in self.configurations}
            lacking = tuple(value for value in self.sweep.factors[name] if repr(value) not in present)
            if lacking:
                missing[name] = lacking
        return missing

    @cached_property
    def levels(self) -> np.ndarray:
        """``int64[configurations, names]``: the index of each value among the values of its factor."""
        order = {
            name: {repr(value): index for index, value in enumerate(self.sweep.factors[name])} for name in self.names
        }
        rows = [
            [order[name][repr(configuration[name])] for name in self.names] for configuration in self.configurations
        ]
        return np.array(rows, dtype=np.int64).reshape(len(self.configurations), len(self.names))

    def nearest(self, levels: Sequence[int], among: np.ndarray, ranks: np.ndarray) -> int:
        """The configuration of ``among`` that is nearest to ``levels``.

        It differs in the fewest factors. Among equals it is the fewest steps away, then it has the lowest rank.
        """
        differences = np.abs(self.levels[among] - np.asarray(levels))
        # The last key counts first: fewest factors, fewest steps, lowest rank, first place.
        order = np.lexsort((among, ranks[among], differences.sum(axis=1), (differences > 0).sum(axis=1)))
        return int(among[order[0]])

    def steps(self, place: int) -> list[tuple[str, int, int]]:
        """One step up and down of each factor: its name, 1 or -1, and a configuration with the next value.

        Of all configurations with that value, it is the one that differs least in everything else.
        """
        steps, start = [], self.levels[place]
        ranks = np.zeros(len(self.levels))
        for column, name in enumerate(self.names):
            levels = np.unique(self.levels[:, column])
            for direction, next_level in (
                (-1, levels[levels < start[column]][-1:]),
                (1, levels[levels > start[column]][:1]),
            ):
                for level in next_level:
                    target_levels = start.copy()
                    target_levels[column] = level
                    among = np.flatnonzero(self.levels[:, column] == level)
                    steps.append((name, direction, self.nearest(target_levels, among, ranks)))
        return steps


def _other_batch(configuration: Mapping[str, Any]) -> int:
    return int(configuration.get(MICRO_BATCH, 1)) * int(configuration.get(REPLICAS, 1))


def accumulations(factors: Mapping[str, Sequence[Any]], global_batch: int) -> tuple[int, ...]:
    """The accumulations that give the global batch with any micro-batch and number of replicas."""
    sizes, copies = factors.get(MICRO_BATCH, (1,)), factors.get(REPLICAS, (1,))
    for name, values in ((MICRO_BATCH, sizes), (REPLICAS, copies)):
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise TuningError(f"factor {name!r}: {value!r}, allowed: whole numbers of 1 or more")
    accumulated = sorted(
        {
            global_batch // (micro_batch * replicas)
            for micro_batch in sizes
            for replicas in copies
            if global_batch % (micro_batch * replicas) == 0
        }
    )
    if not accumulated:
        raise TuningError(
            f"global batch {global_batch:,} cannot be divided: no micro_batch of {list(sizes)} times replicas of "
            f"{list(copies)} divides it"
        )
    return tuple(accumulated)

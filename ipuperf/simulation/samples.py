"""How long a run takes on a machine with faults, sample by sample, and which fault costs how much.

A *sample* is a run with times of the host drawn anew (:mod:`.jitter`). The program is walked once; each sample then
simulates the events alone and makes no trace, and trips of loops that an earlier sample made are blocks
(:mod:`.trips`). Nothing is simulated again where nothing was drawn, and the time before
the IPUs begin only shifts what follows. Once the IPUs have all their inputs, a run goes on as an earlier one did that
was in the same state (:class:`_End`).

**Quantiles.** The q-quantile of n samples is the one of rank ceil(q n). Its interval is made of ranks as well and
assumes no distribution: the true quantile lies between the l-th and the u-th sample unless fewer than l, or u and more,
of n samples fall below it, each of which the binomial distribution gives at most 2.5 %. Where n samples are too few for
such a rank, the interval is open at that end.

**Blame.** A fault costs what a run takes longer on a machine with this fault alone (``alone``), and what it would save
to repair it on a machine with all of them (``repaired``). The two differ where faults hide each other: of two equally
slow IPUs each costs all, and to repair one saves nothing. Both are medians over the first samples, which meet the same
times of the host with and without the fault.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from ipuperf.base.collector import collector_paused
from ipuperf.machine import Faults

from .jitter import Draw, HostJitter
from .recorder import RunBefore
from .simulate import HostWork, check_host_options, checked_tree, first_classes, host_servers, played, with_classes

if TYPE_CHECKING:
    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.machine import Machine

    from .classes import ReplicaClasses
    from .folding import Folder, Unfolding
    from .ipu import IpuProcess
    from .recorder import LineKey
    from .trips import Block
    from .world import World

PARTS = (0.5, 0.9, 0.99)
"""The quantiles that are told."""

CONFIDENCE = 0.95
"""How often an interval holds the true quantile."""

BLAMED = 20
"""How many samples decide on what each fault costs; they are simulated with and without it."""


_ASKED_EVERY = 16
"""Instants from one question to the next whether IPUs wait for the host no more."""

_STATES = 64
"""Most states of a run after which its rest may be known."""


class Sampler:
    """Simulates runs of one program with different faults and draws.

    Args:
        program, machine: see :func:`.simulate.simulate`; the faults of the machine do not matter.
        host_options: of the same function: ``prefetch_depth``, ``front_end``, ``callback_threads``,
            ``host_processes``, ``before``.
    """

    def __init__(
        self,
        program: DeviceProgram,
        machine: Machine,
        *,
        prefetch_depth: int = 1,
        front_end: bool = True,
        callback_threads: int | None = 1,
        host_processes: int = 1,
        before: RunBefore | None = None,
    ) -> None:
        self._program = program
        self._machine = machine
        self._options = HostWork(prefetch_depth, front_end, callback_threads, host_processes, before)
        check_host_options(self._options, program.replicas)
        self._tree = checked_tree(program, machine, True, "phase")
        self._machines: dict[Faults, Machine] = {}
        self._classes: dict[Faults, ReplicaClasses] = {}
        self._settled: dict[Faults, int] = {}  # cycles of runs in which nothing was drawn
        self._known: dict[tuple[Faults, Draw], int] = {}
        # By the faults that concern IPUs and links: those of the host are in the draws.
        self._rests: dict[Faults, dict[Hashable, _Rest]] = {}
        self._blocks: dict[Faults, dict[Hashable, Block]] = {}

    def cycles(self, faults: Faults, draw: Draw) -> int:
        """Cycles of a run on the machine with these faults, host included."""
        starts = Faults(tuple([fault for fault in faults.jitters if fault.part == "run"]))
        others = Faults(tuple([fault for fault in faults.faults if fault not in starts.faults]))
        if others in self._settled:
            run = self._settled[others]
        elif (others, draw) in self._known:
            run = self._known[others, draw]
        else:
            run = self._known[others, draw] = self._simulated(others, draw)
        return run + self._jitter(starts, draw).run(self._options.processes)

    def _jitter(self, faults: Faults, draw: Draw) -> HostJitter:
        servers = host_servers(self._program, self._machine, self._options.processes)
        return HostJitter(faults, draw, self._machine.chip.cycles, servers, self._options.threads)

    def _simulated(self, faults: Faults, draw: Draw) -> int:
        machine = self._machines.get(faults)
        if machine is None:
            # A machine keeps its routes, so there is one for all samples.
            machine = self._machines[faults] = self._machine.with_only(faults)
        options = self._options._replace(draw=draw)
        drawn = any(fault.varies for fault in faults.jitters)
        devices = Faults(tuple([fault for fault in faults.faults if fault not in faults.jitters]))
        rests = self._rests.setdefault(devices, {}) if faults.jitters else {}
        blocks = self._blocks.setdefault(devices, {}) if drawn else None

        def run(classes: ReplicaClasses) -> tuple[int, int, ReplicaClasses]:
            end, program = _End(rests), self._program
            return played(
                program,
                machine,
                self._tree,
                options,
                None,
                True,
                "phase",
                None,
                end.outcome,
                classes,
                end.reached,
                blocks,
            )

        classes = self._classes.get(faults) or first_classes(self._program, machine, options.processes)
        cycles, draws, self._classes[faults] = with_classes(run, self._tree, classes)
        if not draws:
            self._settled[faults] = cycles
        return cycles

    def varies(self, faults: Faults) -> bool:
        """Whether runs with these faults may differ from each other, as far as the samples until now tell."""
        others = Faults(tuple([fault for fault in faults.faults if fault not in faults.jitters or fault.part != "run"]))
        return others not in self._settled or any(fault.varies for fault in faults.jitters if fault.part == "run")


class _Rest(NamedTuple):
    """What followed a state: ``cycles`` until the IPUs finished, ``syncs`` of the host and the cycles until each."""

    cycles: int
    syncs: tuple[tuple[int, list[LineKey]], ...]


class _End:
    """The end of a run, which an earlier sample may have shown.

    The host has prepared all inputs and IPUs wait for nothing that it has still to do. What they do from there on does
    not depend on its times. Where they are in a state in which an earlier sample had them, they go on as they did
    there, and only what the host does for the outputs is drawn. States are taken as IPUs begin shared steps, because
    the instants of the host differ from sample to sample.

    Args:
        rests: what followed the states of earlier samples.
    """

    def __init__(self, rests: dict[Hashable, _Rest]) -> None:
        self._rests = rests
        self._states: list[tuple[int, Hashable]] = []
        self._prepared = False
        self._begun = -1

    def reached(self, world: World, processes: Sequence[IpuProcess], folder: Folder, instant: int) -> bool:
        """Whether the rest of the run is known at the end of this instant."""
        now = world.events.now
        if not self._prepared:
            self._prepared = instant % _ASKED_EVERY == 0 and not world.host.awaited(now)
            return False
        if world.host.trips and world.host.trips.under_way:
            return False
        begun = sum([process.serial for process in processes])
        if len(self._states) == _STATES or begun == self._begun:
            return False
        self._begun = begun
        trips = tuple(tuple(process.loops.trips) for process in processes)
        state = (world.classes, folder.devices(now), trips)
        self._states.append((now, state))
        return state in self._rests

    def outcome(
        self, world: World, processes: Sequence[IpuProcess], unfolding: Unfolding
    ) -> tuple[int, int, ReplicaClasses]:
        """Cycles of the run, how many times were drawn in it, and the classes of replicas with which it succeeded."""
        host, known = world.host, None
        if self._states:
            now, state = self._states[-1]
            known = self._rests.get(state)
        if known is not None:
            time = unfolding.time(now)
            busy = time + host.replay(now, known.syncs) - now
            return max(time + known.cycles, busy), host.drawn, world.classes
        finish = max(unfolding.time(process.finish) for process in processes)
        for now, state in self._states:
            time = unfolding.time(now)
            syncs = tuple((unfolding.time(when) - time, keys) for when, keys in host.syncs if when > now)
            self._rests[state] = _Rest(finish - time, syncs)
        return max(finish, unfolding.time(host.busy_until)), host.drawn, world.classes


@collector_paused()
def sampled(
    program: DeviceProgram, machine: Machine, samples: int = 1, seed: int = 0, **host_options: Any
) -> dict[str, Any]:
    """What the faults of ``machine`` do to a run of ``program``, as plain values for the ``meta`` of its trace.

    Args:
        program, machine, host_options: as for :class:`Sampler`.
        samples: how many samples are drawn, from 1 on.
        seed: of the draws.

    Returns:
        ``texts`` (the faults), ``seed``, ``samples``, ``plain`` (cycles without faults), ``cycles`` (of each sample,
        ascending; one where all are equal), ``quantiles`` (``part``, ``cycles``, ``low``, ``high``; None: open),
        ``blame`` (``fault``, ``alone``, ``repaired`` in cycles) and ``blamed`` (how many samples it rests on).
    """
    sampler, faults = Sampler(program, machine, **host_options), machine.faults
    cycles = [sampler.cycles(faults, Draw(seed, 0))]
    if sampler.varies(faults):
        cycles += [sampler.cycles(faults, Draw(seed, sample)) for sample in range(1, samples)]
    draws = [Draw(seed, sample) for sample in range(min(len(cycles), BLAMED))]
    plain = sampler.cycles(Faults(), draws[0])
    blame = []
    for place, fault in enumerate(faults.faults):
        alone, others = Faults((fault,)), Faults((*faults.faults[:place], *faults.faults[place + 1 :]))
        blame.append(
            {
                "fault": fault.text,
                "alone": median_low([sampler.cycles(alone, draw) - plain for draw in draws]),
                "repaired": median_low([cycles[draw.sample] - sampler.cycles(others, draw) for draw in draws]),
            }
        )
    ordered = sorted(cycles)
    return {
        "texts": faults.texts,
        "seed": seed,
        "samples": samples,
        "plain": plain,
        "cycles": ordered,
        "quantiles": [quantile(ordered, part) for part in PARTS],
        "blame": blame,
        "blamed": len(draws),
    }


def quantile(ordered: Sequence[int], part: float) -> dict[str, Any]:
    """The quantile of a sorted sample with its interval; see the module's docstring.

    >>> quantile(list(range(1, 201)), 0.5)
    {'part': 0.5, 'cycles': 100, 'low': 86, 'high': 115}
    """
    count = len(ordered)
    value = ordered[max(0, math.ceil(round(part * count, 9)) - 1)]
    # All samples are equal where there is one: nothing was drawn.
    if count == 1:
        return {"part": part, "cycles": value, "low": value, "high": value}
    low, high = _ranks(count, part)
    return {
        "part": part,
        "cycles": value,
        "low": ordered[low - 1] if low else None,
        "high": ordered[high - 1] if high <= count else None,
    }


def _ranks(count: int, part: float) -> tuple[int, int]:
    """Ranks of the samples between which the quantile lies; 0 and count + 1 where there are none."""
    tail = (1 - CONFIDENCE) / 2
    low, high, below = 0, count + 1, 0.0
    for number in range(count):
        # Logarithms, as the factors alone leave the range of floating-point numbers.
        log = math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
        below += math.exp(log + number * math.log(part) + (count - number) * math.log1p(-part))
        if below <= tail:
            low = number + 1
        if below >= 1 - tail:
            high = number + 1
            break
    return low, high

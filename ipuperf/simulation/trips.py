"""Trips of a loop between two waits for the host, which are taken as one block where a trip like them is known.

Where times of the host are drawn, no trip of a loop is like another, so nothing is folded. But what the IPUs do between
two answers of the host does not depend on these times. A *component* is IPUs that share nothing with others but the
host: replicas without common links. When all of its IPUs wait and the host answers, it does what it did when the host
answered it in the same place. If it then came back to this place, what it did is a :class:`Block`: so many cycles, and
requests to the host at certain times. A known block is not simulated. The component stays where it is, its loops move
on, and its requests reach the host in time. The host, and so the times that are drawn, are simulated as ever. All
cycles are those of a run without blocks, but there are no rows, so this is for samples (:mod:`.samples`).

A place is where each IPU waits, for what, in which loops. Several answers for which a component waits need not come at
once; then the block is one for these distances in time. It is not used while a later one of them is not certain yet.
Nothing else may happen to a component in between: trips with two waits for the host are simulated event by event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.lowering.steps import Collective
from ipuperf.machine import MachineError

from .folding import advance
from .host import order
from .instructions import Enter, Next, Shared

if TYPE_CHECKING:
    from .host import HostRequest
    from .ipu import IpuProcess
    from .recorder import LineKey
    from .world import World

_MOST_BLOCKS = 1024
"""Most blocks that are remembered: where answers come at ever other distances, no block occurs again."""

Groups = Sequence[tuple[int, ...]]

Said = tuple[int, "LineKey", int, int, tuple[int, ...]]
"""A request for which no IPU waits: cycles after the begin of its block, line, replica, IPU, host sync."""


class Block(NamedTuple):
    """A trip.

    Attributes:
        said: requests for which no IPU waits.
        asked: cycles after its begin at which each request is made for which the component waits again, sorted.
        moves: for each IPU, which of its loops moves on, and by how many trips.
    """

    said: tuple[Said, ...]
    asked: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]


@dataclass
class _Record:
    """A trip that may become a block: its place and key, when it began, the loops then, and its requests so far."""

    place: Hashable
    key: Hashable
    begin: int
    loops: list[tuple[int, ...]]
    requests: list[tuple[int, HostRequest]] = field(default_factory=list)


class _Component:
    """IPUs that share nothing with others but the host.

    Attributes:
        waits: requests for whose answers it waits, in their order.
        place: where it is while all of its IPUs wait for them; None else.
        in_block: whether a block is under way.
        passed: how many answers are still to come that belong to it.
        record: what may become a block.
        awaits: whether it has begun to wait since :meth:`Trips.noted`.
    """

    def __init__(self, number: int, processes: list[IpuProcess]) -> None:
        self.number = number
        self.processes = processes
        self.waits: list[HostRequest] = []
        self.place: Hashable | None = None
        self.passed = 0
        self.in_block = False
        self.record: _Record | None = None
        self.awaits = False


class Trips:
    """Takes the trips of a simulation as blocks.

    Args:
        world: what the IPUs share.
        processes: the IPUs.
        groups: the groups of replicas in collectives.
        known: blocks of earlier simulations that differ in times of the host alone; new ones are added.

    Attributes:
        begun: how many blocks have begun.
        under_way: how many of them have not ended; the IPUs are then not where they seem to be.
    """

    def __init__(
        self, world: World, processes: Sequence[IpuProcess], groups: Groups, known: dict[Hashable, Block]
    ) -> None:
        self._world = world
        self._known = known
        self._components = [_Component(*numbered) for numbered in enumerate(_components(world, processes, groups))]
        self._of = {process.replica: component for component in self._components for process in component.processes}
        self._said: dict[tuple[int, int], list[tuple[int, list[HostRequest]]]] = {}  # of the blocks that have begun
        self.begun = self.under_way = 0

    # -- what the host says ------------------------------------------------------------------------------------------

    def request(self, request: HostRequest) -> None:
        """An IPU has sent a request to the host."""
        record = self._of[request.replica].record
        if record is not None:
            record.requests.append((self._world.events.now - record.begin, request))

    def wait(self, request: HostRequest) -> Callable[[], None]:
        """The host has noted a request for whose answer an IPU waits. What is returned is to be called with it."""
        component = self._of[request.replica]
        component.waits.append(request)
        component.awaits = True
        return partial(self._answered, component, request)

    def noted(self) -> None:
        """The host has noted all requests of the instant so far."""
        for component in self._components:
            if component.awaits:
                component.awaits = False
                if component.in_block:
                    # Its block has ended, and it waits where it did.
                    component.in_block = False
                    self.under_way -= 1
                else:
                    self._arrived(component)

    def _arrived(self, component: _Component) -> None:
        places = [process.waiting_place() for process in component.processes]
        waits = tuple(sorted([order(request) for request in component.waits]))
        record, component.record = component.record, None
        component.place = None if None in places else (self._world.classes, component.number, waits, tuple(places))
        if record is not None and component.place is not None and record.place == component.place:
            self._learn(component, record)

    def _answered(self, component: _Component, request: HostRequest) -> None:
        """The host has answered: the IPU goes on, unless a block takes the answer."""
        component.waits.remove(request)
        if component.passed:
            component.passed -= 1
            return
        place, component.place = component.place, None
        assert request.go is not None
        later = None if place is None else self._later(component, request)
        if later is not None:
            key = (place, later)
            block = self._known.get(key)
            if block is not None and self._has_room(component, block):
                component.place = place
                self._begin(component, block, [request, *component.waits])
                return
            if block is None and len(self._known) < _MOST_BLOCKS:
                loops = [tuple(process.loops.trips) for process in component.processes]
                component.record = _Record(place, key, self._world.events.now, loops)
        request.go()

    def _later(self, component: _Component, first: HostRequest) -> tuple[Hashable, ...] | None:
        """The answer that comes first, and how much later each of the others comes; None: this is not certain yet."""
        now, later = self._world.events.now, []
        seen: dict[tuple[LineKey, int], int] = {}
        for request in component.waits:
            whose = (request.key, request.replica)
            seen[whose] = place = seen.get(whose, -1) + 1
            end = request.line.end_of(request.line.granted[request.replica] + place)
            if end is None:
                return None
            later.append((order(request), max(0, end - now)))
        return (order(first), tuple(sorted(later)))

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _learn(self, component: _Component, record: _Record) -> None:
        """Remember what the component did since the host answered it last in the place where it is."""
        moves = [
            advance(earlier, tuple(process.loops.trips))
            for earlier, process in zip(record.loops, component.processes, strict=True)
        ]
        if None in moves or not any(trips for _, trips in moves):  # type: ignore[misc]
            return
        if len(self._components) > 1:
            # In a collective a component would meet others.
            for process, (level, trips) in zip(component.processes, moves, strict=True):  # type: ignore[misc]
                if trips and any(isinstance(step.leaf.step, Collective) for step in _body(process, level)):
                    return
        said = [
            (when, request.key, request.replica, request.ipu, request.sync)
            for when, request in record.requests
            if request.go is None
        ]
        asked = sorted([(order(request), when) for when, request in record.requests if request.go is not None])
        if [key for key, _ in asked] == sorted([order(request) for request in component.waits]):
            times = tuple([when for _, when in asked])
            self._known[record.key] = Block(tuple(said), times, tuple(moves))  # type: ignore[arg-type]

    @staticmethod
    def _has_room(component: _Component, block: Block) -> bool:
        """Whether no loop ends within the block."""
        for process, (level, trips) in zip(component.processes, block.moves, strict=True):
            if trips:
                loops, enter = process.loops, process.instructions[process.loops.begins[level]]
                assert isinstance(enter, Enter)
                if enter.count - 1 - loops.trips[level] < trips:
                    return False
        return True

    def _begin(self, component: _Component, block: Block, waits: list[HostRequest]) -> None:
        """The component does what it did in ``block``, and waits again with the requests with which it waits now."""
        world, host = self._world, self._world.host
        for process, (level, trips) in zip(component.processes, block.moves, strict=True):
            process.serial += 1
            if trips:
                process.loops.trips[level] += trips
        component.passed = len(component.waits)
        component.in_block = True
        self.begun += 1
        self.under_way += 1
        said = self._said.get((component.number, id(block)))
        if said is None:
            by_time: dict[int, list[HostRequest]] = {}
            for when, key, replica, ipu, sync in block.said:
                by_time.setdefault(when, []).append(host.request(key, replica, ipu, sync))
            said = self._said[component.number, id(block)] = list(by_time.items())
        for when, requests in said:
            world.events.after(when, partial(host.put_all, requests))
        asked: dict[int, list[HostRequest]] = {}
        for when, request in zip(block.asked, sorted(waits, key=order), strict=True):
            asked.setdefault(when, []).append(request)
        for when, requests in asked.items():
            world.events.after(when, partial(host.put_all, requests))


def _body(process: IpuProcess, level: int) -> list[Shared]:
    """The shared steps of the loop in which a process is at this level."""
    begin = process.loops.begins[level]
    found = []
    for instruction in process.instructions[begin:]:
        if isinstance(instruction, Next) and instruction.begin == begin:
            break
        if isinstance(instruction, Shared):
            found.append(instruction)
    return found


def _components(world: World, processes: Sequence[IpuProcess], groups: Groups) -> list[list[IpuProcess]]:
    """The IPUs of each component: those of the classes of replicas that have common links, directly or by others."""
    classes: dict[int, list[IpuProcess]] = {}
    for process in processes:
        classes.setdefault(process.replica, []).append(process)
    # Collectives of some of the replicas pass through links of others, perhaps while these are in a block.
    if len(classes) == 1 or any(1 < len(group) < len(world.placement) for group in groups):
        return [list(processes)]
    links = {replica: _links(world, world.alike(replica)) for replica in classes}
    components: list[tuple[set[str], list[IpuProcess]]] = []
    for replica, members in classes.items():
        near = [component for component in components if component[0] & links[replica]]
        joined = (links[replica].union(*(found for found, _ in near)), [*(p for _, ps in near for p in ps), *members])
        components = [component for component in components if component not in near] + [joined]
    return [sorted(found, key=lambda process: process.number) for _, found in components]


def _links(world: World, replicas: Iterable[int]) -> set[str]:
    """The resources of all links that transfers of these replicas may cross, collectives apart."""
    topology, resources = world.topology, set()
    for replica in replicas:
        ipus = world.placement[replica]
        routes = [topology.route(a, b) for a in ipus for b in ipus if a != b]
        for ipu in ipus:
            routes += [topology.host_route(ipu, False), topology.host_route(ipu, True)]
            # Without Streaming Memory there are no transfers of it.
            with contextlib.suppress(MachineError):
                routes += [topology.remote_route(ipu, False), topology.remote_route(ipu, True)]
        resources |= {link.resource for route in routes for link in route}
    return resources

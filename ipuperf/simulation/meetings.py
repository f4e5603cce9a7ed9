"""Where IPUs meet: collectives of a replica group, exchanges between the IPUs of a replica, and host exchanges; and
where the two tile sets of an IPU meet.

A meeting begins when its last party arrives; until then the others wait (kind ``sync_external``). Nobody can arrive at
the next meeting of the same key before leaving this one, so a key (which step, which group; which pairs of IPUs)
identifies a meeting, and a party that waits for ever can be named.

In an exchange between IPUs all transfers start together, one external sync after the last party arrived, as flows of
the network: the two directions of a link do not disturb each other, transfers over the same direction share it. Each
IPU goes on when its own transfers are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ipuperf.lowering.program import Collective, HostExchange, InterIpuCopy, IpuTransfer, TileSetCopy

from .algorithms import Planner
from .collectives import CollectiveRun
from .errors import SimulationError
from .network import Label

if TYPE_CHECKING:
    from .ipu import IpuProcess
    from .kernel import Kernel
    from .network import Network
    from .walk import Leaf

Party = tuple["IpuProcess", "Leaf", Callable[[], None]]
CopyKey = tuple[int, tuple[tuple[int, int], ...]]
"""Replica and the pairs of IPUs between which something is copied."""
HostKey = tuple[int, tuple[int, ...], str]
"""Replica, participants, and ``begin`` or ``end``."""


class Meetings:
    """All meetings of a simulation.

    Args:
        placement: IPU of the machine by replica and IPU of the replica.
        planner: chooses the algorithms of collectives; knows topology and external sync.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        placement: tuple[tuple[int, ...], ...],
        planner: Planner,
    ) -> None:
        self._kernel = kernel
        self._network = network
        self._planner = planner
        self._topology = planner.topology
        self._placement = placement
        self._sync = planner.external_sync
        self._gathering: dict[tuple[int, int, int], list[Party]] = {}
        self._rings: dict[tuple[int, int, int], CollectiveRun] = {}
        self._copies: dict[CopyKey, dict[int, Party]] = {}
        self._copy_starts: dict[CopyKey, int] = {}
        self._host: dict[HostKey, dict[int, Party]] = {}
        self._host_starts: dict[HostKey, int] = {}
        self._tile_sets: dict[tuple[int, int], Party] = {}

    def collective(self, process: IpuProcess, leaf: Leaf, done: Callable[[], None]) -> None:
        """``process`` has arrived at the collective ``leaf``; ``done`` is called when its part is over."""
        step = leaf.step
        assert isinstance(step, Collective)
        number = next(i for i, group in enumerate(step.groups) if process.replica in group)
        group = step.groups[number]
        if len(group) == 1:
            done()
            return
        key = (leaf.leaf_id, process.index, number)
        gathered = self._gathering.setdefault(key, [])
        gathered.append((process, leaf, done))
        process.open_wait = f"collective {step.name!r} of replicas {', '.join(map(str, group))}"
        if len(gathered) == len(group):
            del self._gathering[key]
            for party, _, _ in gathered:
                party.open_wait = ""
            members = [(party, finish) for party, _, finish in gathered]
            self._rings[key] = CollectiveRun(
                self._kernel, self._network, self._planner, key, leaf, members, lambda: self._close(key)
            )

    def _close(self, key: tuple[int, int, int]) -> None:
        del self._rings[key]

    def copy(self, process: IpuProcess, leaf: Leaf, done: Callable[[], None]) -> None:
        """``process`` has arrived at an exchange between IPUs of its replica; ``done`` is called when its own transfers
        are over."""
        step = leaf.step
        assert isinstance(step, InterIpuCopy)
        key = (process.replica, tuple(sorted((copy.source, copy.destination) for copy in step.copies)))
        parties = self._copies.setdefault(key, {})
        parties[process.index] = (process, leaf, done)
        others = [f"IPU {ipu}" for ipu in step.participants if ipu != process.index]
        pairs = ", ".join(f"IPU {source} to {destination}" for source, destination in key[1])
        process.open_wait = f"copy {step.name!r} with {' and '.join(others)} of its replica ({pairs})"
        if len(parties) == len(step.participants):
            del self._copies[key]
            _check_sizes(parties)
            for party, _, _ in parties.values():
                party.open_wait = ""
            self._copy_starts[key] = self._kernel.now + self._sync
            self._kernel.after(self._sync, lambda: self._move(key, parties))

    def _move(self, key: CopyKey, parties: Mapping[int, Party]) -> None:
        """All meet: start every transfer."""
        del self._copy_starts[key]
        step = parties[key[1][0][0]][1].step
        assert isinstance(step, InterIpuCopy)
        left = {index: sum(index in pair for pair in key[1]) for index in parties}
        for party, _, _ in parties.values():
            party.close_part("sync_external")
        for copy in sorted(step.copies, key=lambda copy: (copy.source, copy.destination)):
            self._send(key[0], step, copy, lambda copy=copy: self._arrived(copy, parties, left))  # type: ignore[misc]

    def _send(self, replica: int, step: InterIpuCopy, copy: IpuTransfer, done: Callable[[], None]) -> None:
        source, destination = (self._placement[replica][end] for end in (copy.source, copy.destination))
        label = Label("p2p", step.op_id, source)
        owner = (2, replica, copy.source, copy.destination, 0)
        self._network.send(owner, self._topology.route(source, destination), copy.bytes, label, done)

    def _arrived(self, copy: IpuTransfer, parties: Mapping[int, Party], left: dict[int, int]) -> None:
        """One transfer is over; an end without further transfers goes on."""
        for index in (copy.source, copy.destination):
            left[index] -= 1
            if left[index] == 0:
                process, leaf, done = parties[index]
                assert isinstance(leaf.step, InterIpuCopy)
                process.close_part("link", 0, leaf.step.received(index), leaf.step.sent(index))
                done()

    def host(self, process: IpuProcess, leaf: Leaf, end: str, done: Callable[[], None]) -> None:
        """``process`` has arrived at the ``begin`` or ``end`` of a host exchange; ``done`` is called when all have met.

        Raises:
            SimulationError: the IPUs mean different exchanges.
        """
        step = leaf.step
        assert isinstance(step, HostExchange)
        key = (process.replica, step.participants, end)
        parties = self._host.setdefault(key, {})
        parties[process.index] = (process, leaf, done)
        process.open_wait = (
            f"the {end} of host exchange {step.name!r} of IPUs {', '.join(map(str, step.participants))} of its replica"
        )
        if len(parties) == len(step.participants):
            del self._host[key]
            _check_host(parties)
            for party, _, _ in parties.values():
                party.open_wait = ""
            self._host_starts[key] = self._kernel.now + self._sync
            self._kernel.after(self._sync, lambda: self._met(key, parties))

    def _met(self, key: HostKey, parties: Mapping[int, Party]) -> None:
        del self._host_starts[key]
        for index in sorted(parties):
            parties[index][2]()

    def tile_sets(self, process: IpuProcess, leaf: Leaf, done: Callable[[], None]) -> None:
        """The compute tiles or the I/O tiles of an IPU have arrived at a copy between them; ``done`` is called when
        both have.

        Raises:
            SimulationError: the two mean different copies.
        """
        step = leaf.step
        assert isinstance(step, TileSetCopy)
        first = self._tile_sets.pop((process.replica, process.index), None)
        if first is None:
            self._tile_sets[process.replica, process.index] = (process, leaf, done)
            process.open_wait = f"the {'compute' if process.lane else 'I/O'} tiles at copy {step.name!r}"
            return
        other, meant, go = first
        if meant.step is not step:
            raise SimulationError(
                f"{process.name} is at copy {step.name!r} and {other.name} at {meant.step.name!r}; compute tiles and "
                "I/O tiles have to execute the copies between them in the same order"
            )
        other.open_wait = ""
        if step.destination == "compute":
            compute, io = (other, process) if process.lane else (process, other)
            compute.takes_over(io)
        go()
        done()

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[object, ...]:
        """Meetings under way, relative to ``now``; who waits for one is the state of the processes."""
        return (
            tuple(self._rings[key].state(now) for key in sorted(self._rings)),
            tuple(sorted((key, start - now) for key, start in self._copy_starts.items())),
            tuple(sorted((key, start - now) for key, start in self._host_starts.items())),
        )


def _check_sizes(parties: Mapping[int, Party]) -> None:
    """All sides have to mean the same copies."""
    meant: dict[tuple[int, int], dict[int, str]] = {}
    for process, leaf, _ in parties.values():
        assert isinstance(leaf.step, InterIpuCopy)
        for copy in leaf.step.copies:
            sizes = meant.setdefault((copy.source, copy.destination), {})
            sizes[copy.bytes] = f"{copy.bytes} bytes in {leaf.step.name!r} on {process.name}"
    for (source, destination), sizes in meant.items():
        if len(sizes) > 1:
            raise SimulationError(
                f"IPU {source} and IPU {destination} meet in different copies: {'; '.join(sizes.values())}; "
                "all have to execute the copies between them in the same order"
            )


def _check_host(parties: Mapping[int, Party]) -> None:
    """All participants have to mean the same host exchange."""
    meant = {}
    for process, leaf, _ in parties.values():
        assert isinstance(leaf.step, HostExchange)
        meant[leaf.step.copies] = f"{leaf.step.name!r} on {process.name}"
    if len(meant) > 1:
        raise SimulationError(
            f"the IPUs of a replica meet in different host exchanges: {'; '.join(meant.values())}; all have to execute "
            "them in the same order"
        )

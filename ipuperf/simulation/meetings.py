"""Where IPUs meet: collectives of a replica group, and copies from one IPU of a replica to another.

A meeting begins when its last party arrives; until then the others wait (kind ``sync_external``). Nobody can arrive at
the next meeting of the same key before leaving this one, so a key (which step, which group; which pair of IPUs)
identifies a meeting, and a party that waits for ever can be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ipuperf.lowering.program import Collective, InterIpuCopy

from .collectives import RingRun
from .errors import SimulationError
from .network import Label

if TYPE_CHECKING:
    from ipuperf.machine import Topology

    from .ipu import IpuProcess
    from .kernel import Kernel
    from .network import Network
    from .walk import Leaf

Party = tuple["IpuProcess", "Leaf", Callable[[], None]]


class Meetings:
    """All meetings of a simulation.

    Args:
        placement: IPU of the machine by replica and IPU of the replica.
        external_sync: cycles of an external sync.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        topology: Topology,
        placement: tuple[tuple[int, ...], ...],
        external_sync: int,
    ) -> None:
        self._kernel = kernel
        self._network = network
        self._topology = topology
        self._placement = placement
        self._sync = external_sync
        self._gathering: dict[tuple[int, int, int], list[Party]] = {}
        self._rings: dict[tuple[int, int, int], RingRun] = {}
        self._copies: dict[tuple[int, int, int], dict[int, Party]] = {}
        self._copy_starts: dict[tuple[int, int, int], int] = {}

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
            self._rings[key] = RingRun(
                self._kernel, self._network, self._topology, self._sync, key, leaf, members, lambda: self._close(key)
            )

    def _close(self, key: tuple[int, int, int]) -> None:
        del self._rings[key]

    def copy(self, process: IpuProcess, leaf: Leaf, done: Callable[[], None]) -> None:
        """``process`` has arrived at a copy between two IPUs of its replica; ``done`` is called when it is over."""
        step = leaf.step
        assert isinstance(step, InterIpuCopy)
        key = (process.replica, step.source, step.destination)
        parties = self._copies.setdefault(key, {})
        parties[process.index] = (process, leaf, done)
        partner = step.destination if process.index == step.source else step.source
        process.open_wait = (
            f"copy {step.name!r} with IPU {partner} of its replica (IPU {step.source} to {step.destination})"
        )
        if len(parties) == 2:
            del self._copies[key]
            self._check_sizes(parties, step)
            for party, _, _ in parties.values():
                party.open_wait = ""
            self._copy_starts[key] = self._kernel.now + self._sync
            self._kernel.after(self._sync, lambda: self._move(key, parties))

    def _check_sizes(self, parties: Mapping[int, Party], step: InterIpuCopy) -> None:
        """Both sides have to mean the same copy."""
        sizes = {}
        for party, leaf, _ in parties.values():
            assert isinstance(leaf.step, InterIpuCopy)
            sizes[leaf.step.bytes] = f"{leaf.step.bytes} bytes in {leaf.step.name!r} on {party.name}"
        if len(sizes) > 1:
            raise SimulationError(
                f"IPU {step.source} and IPU {step.destination} meet in different copies: {'; '.join(sizes.values())}; "
                "both have to execute the copies between them in the same order"
            )

    def _move(self, key: tuple[int, int, int], parties: Mapping[int, Party]) -> None:
        del self._copy_starts[key]
        replica, source, destination = key
        step = parties[source][1].step
        assert isinstance(step, InterIpuCopy)
        for party, _, _ in parties.values():
            party.close_part("sync_external")

        def arrived() -> None:
            parties[source][0].close_part("link", 0, 0, step.bytes)
            parties[destination][0].close_part("link", 0, step.bytes, 0)
            for _, _, done in parties.values():
                done()

        ipus = self._placement[replica]
        route = self._topology.route(ipus[source], ipus[destination])
        label = Label("p2p", step.op_id, ipus[source])
        self._network.send((2, *key, 0), route, step.bytes, label, arrived)

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[object, ...]:
        """Meetings under way, relative to ``now``; who waits for one is the state of the processes."""
        return (
            tuple(self._rings[key].state(now) for key in sorted(self._rings)),
            tuple(sorted((key, start - now) for key, start in self._copy_starts.items())),
        )

"""From bundles and cables to the list of links of a whole machine.

Every IPU has ten IPU-Links: six to its neighbour on the rung, two up and two down the rail. Inside an IPU-Machine one
of the two rail ends is the other rung (0-2, 1-3). The other end leaves the machine as a cable: IPUs 2 and 3 go up to
IPUs 0 and 1 of the next IPU-Machine.

``single``
    one IPU-Machine, or the first IPUs of one; no cables are plugged in.
``ladder``
    stacked IPU-Machines: the upper rung of each is cabled to the lower rung of the next (POD16, direct attach).
``torus``
    the ladder with its top cabled back to its bottom. Data sheets call the IPU-Links of a POD64 a "2D torus" and give
    no more detail. With ten links per IPU, eight ports per IPU-Machine and six links on each rung, an IPU has exactly
    three neighbours. That leaves only closing the two rails into rings: a torus of 2 x 32 IPUs (rungs x rails). A
    4 x 4 torus of IPU-Machines would also fit the ports. It would put the two rails of a machine on different
    neighbours, though, and smaller partitions of the same Pod are known to be ladders. This is an assumption.

Each of several **racks** (a POD128 has two, a POD256 four) is wired in this way. GW-Links join the gateway of each
IPU-Machine to that of the IPU-Machine at the same place in the next rack, and the last rack to the first. With two
racks all ports lead to the other one; with more, half of them go each way. Data sheets say that the racks are joined
"directly or switched"; which gateways and how many hops is an assumption. A switch would make every pair of racks one
hop apart.
"""

from __future__ import annotations

from ipuperf.machine.errors import MachineError
from ipuperf.machine.model import Host, IpuMachine
from ipuperf.machine.topology import Link, Topology


def build_topology(
    name: str, ipu_machine: IpuMachine, host: Host, num_ipus: int, num_ipu_machines: int, wiring: str, racks: int = 1
) -> Topology:
    """All links of a machine called ``name``, one `Link` per direction, named ``name/source->destination``.

    IPUs beyond ``num_ipus`` do not exist, nor do their links. Raises `MachineError` when two bundles join the same IPUs
    or no links lead from one IPU to the others.
    """
    links: list[Link] = []
    in_rack = num_ipu_machines // racks
    for rack in range(racks):
        start = rack * in_rack * ipu_machine.ipus
        for near_ipu, far_ipu, count in _ipu_bundles(ipu_machine, in_rack, wiring):
            if start + max(near_ipu, far_ipu) < num_ipus:
                links += _ipu_links(name, ipu_machine, start + near_ipu, start + far_ipu, count)
    links += _gw_links(name, ipu_machine, in_rack, racks)
    for machine in range(num_ipu_machines):
        # The last IPU-Machine may have fewer IPUs than the others.
        present = range(machine * ipu_machine.ipus, min((machine + 1) * ipu_machine.ipus, num_ipus))
        links += _outer_links(name, ipu_machine, host, machine, present)
    topology = Topology(tuple(links), num_ipus)
    _check(name, topology)
    return topology


def _ipu_bundles(ipu_machine: IpuMachine, machines: int, wiring: str) -> list[tuple[int, int, int]]:
    """(IPU, IPU, links) of every bundle, with IPU numbers of the whole machine."""
    ipus_per_machine = ipu_machine.ipus
    bundles = [
        (machine * ipus_per_machine + bundle.first, machine * ipus_per_machine + bundle.second, bundle.links)
        for machine in range(machines)
        for bundle in ipu_machine.bundles
    ]
    # A ladder has one joint fewer than machines; a torus closes with one more.
    joints = {"single": 0, "ladder": machines - 1, "torus": machines}[wiring]
    for lower in range(joints):
        # The modulo closes the torus; the joints of a ladder end before it.
        upper = (lower + 1) % machines
        bundles += [
            (lower * ipus_per_machine + cable.first, upper * ipus_per_machine + cable.second, cable.links)
            for cable in ipu_machine.cables
        ]
    return bundles


def _ipu_links(name: str, ipu_machine: IpuMachine, near_ipu: int, far_ipu: int, count: int) -> list[Link]:
    # The efficiency of the protocol is applied once, here.
    bandwidth = round(count * ipu_machine.link_bandwidth_bytes_per_s * ipu_machine.link_efficiency)
    return _both_ways(
        name, f"ipu{near_ipu}", f"ipu{far_ipu}", "ipu_link", count, bandwidth, ipu_machine.link_latency_cycles
    )


def _gw_links(name: str, ipu_machine: IpuMachine, in_rack: int, racks: int) -> list[Link]:
    """GW-Links between gateways at the same place of neighbouring racks, which form a ring."""
    links: list[Link] = []
    count = ipu_machine.gw_links if racks == 2 else ipu_machine.gw_links // 2
    # Two racks have one joint, not two: a ring of two would count the same links twice.
    for rack in range({1: 0, 2: 1}.get(racks, racks)):
        for place in range(in_rack):
            gateway, next_gateway = rack * in_rack + place, (rack + 1) % racks * in_rack + place
            bandwidth, latency = count * ipu_machine.gw_link_bandwidth_bytes_per_s, ipu_machine.gw_link_latency_cycles
            links += _both_ways(
                name, f"gateway{gateway}", f"gateway{next_gateway}", "gw_link", count, bandwidth, latency
            )
    return links


def _outer_links(name: str, ipu_machine: IpuMachine, host: Host, machine: int, present: range) -> list[Link]:
    """Links of one IPU-Machine to its gateway, DDR, network card and the host; straight to the host without a gateway.

    Traffic between an IPU and the host passes the gateway but shares nothing there. It is therefore modelled as a link
    of the IPU's own to the network card, which all IPUs of the machine share.
    """
    memory = ipu_machine.streaming_memory
    pcie = host.pcie_bandwidth_bytes_per_s
    if memory is None:
        links: list[Link] = []
        for ipu in present:
            # The IPUs of a card share its bandwidth, in each direction by itself.
            links += _both_ways(name, f"ipu{ipu}", "host0", "pcie", 1, pcie, 0, f"{name}/card{machine}")
        return links
    gateway = f"gateway{machine}"
    card = f"nic{machine}"
    links = _both_ways(name, card, "host0", "pcie", 1, memory.host_link_bandwidth_bytes_per_s, 0)
    ddr = memory.ddr_bandwidth_bytes_per_s
    # The two directions of a DDR channel share one bandwidth, so both name the same resource. Stores are slower.
    stores = round(ddr * memory.ddr_store_rate)
    for source, destination, rate in ((gateway, f"ddr{machine}", stores), (f"ddr{machine}", gateway, ddr)):
        links.append(
            Link(f"{name}/{source}->{destination}", source, destination, "ddr", 1, rate, 0, f"{name}/ddr{machine}")
        )
    for ipu in present:
        links += _both_ways(name, f"ipu{ipu}", gateway, "pcie", 1, memory.gateway_bandwidth_bytes_per_s, 0)
        links += _both_ways(name, f"ipu{ipu}", card, "pcie", 1, pcie, 0)
    return links


def _both_ways(
    name: str, near: str, far: str, kind: str, count: int, bandwidth: int, latency: int, shared: str = ""
) -> list[Link]:
    """A link each way. ``shared`` names a bandwidth that several links share, separately in each direction."""
    outward = f"{shared}:out" if shared else ""
    inward = f"{shared}:in" if shared else ""
    return [
        Link(f"{name}/{near}->{far}", near, far, kind, count, bandwidth, latency, outward),
        Link(f"{name}/{far}->{near}", far, near, kind, count, bandwidth, latency, inward),
    ]


def _check(name: str, topology: Topology) -> None:
    names: set[str] = set()
    for link in topology.links:
        if link.name in names:
            raise MachineError(f"{name}: two bundles of links make {link.name}; write one with the sum of their links")
        names.add(link.name)
    # Links go both ways, so it is enough that IPU 0 reaches an IPU of each rack.
    for ipu in topology.firsts:
        if not topology.reaches(0, ipu):
            raise MachineError(f"{name}: no IPU-Links lead from IPU 0 to IPU {ipu}; add a bundle or a cable")

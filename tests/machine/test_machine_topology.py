"""Links, routes, rings and placement, against the ladder as upstream draws it
(``docs/reference/hardware.md`` 1.2) and an own breadth-first search."""

import itertools
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.machine import LINK_KINDS, MachineError, list_machines, load_machine

POD4, POD16, POD64 = (load_machine(name) for name in ("pod4", "pod16", "pod64"))


def names(route) -> list[str]:
    return [link.name.split("/")[1] for link in route]


def ipu_edges(machine) -> dict[tuple[int, int], int]:
    links = [link for link in machine.topology.links if link.kind == "ipu_link"]
    return {(int(link.source[3:]), int(link.destination[3:])): link.count for link in links}


def test_rungs_have_96_and_rails_32_gigabytes_per_second_before_efficiency():
    one = POD4.ipu_machine.link_bandwidth_bytes_per_s
    assert one == 16_000_000_000
    rung, rail = POD4.topology.link("ipu0", "ipu1"), POD4.topology.link("ipu0", "ipu2")
    assert (rung.count * one, rail.count * one) == (96_000_000_000, 32_000_000_000)
    assert (rung.bandwidth_bytes_per_s, rail.bandwidth_bytes_per_s) == (81_600_000_000, 27_200_000_000)


def test_pod4_is_the_ladder_of_the_figure():
    half = {(0, 1): 6, (2, 3): 6, (0, 2): 2, (1, 3): 2}
    assert ipu_edges(POD4) == {**half, **{(b, a): links for (a, b), links in half.items()}}
    assert [POD4.topology.neighbours(ipu) for ipu in range(4)] == [(1, 2), (0, 3), (0, 3), (1, 2)]


@pytest.mark.parametrize("machine", [POD64, load_machine("bow-pod64")], ids=lambda m: m.name)
def test_every_ipu_of_a_torus_uses_its_ten_links(machine):
    used = Counter()
    for (source, _), links in ipu_edges(machine).items():
        used[source] += links
    assert set(used.values()) == {10}
    assert {len(machine.topology.neighbours(ipu)) for ipu in range(64)} == {3}


def test_a_ladder_leaves_the_cables_of_its_ends_unplugged():
    used = Counter()
    for (source, _), links in ipu_edges(POD16).items():
        used[source] += links
    assert {ipu for ipu in range(16) if used[ipu] == 8} == {0, 1, 14, 15}
    assert {used[ipu] for ipu in range(2, 14)} == {10}


@pytest.mark.parametrize("name", list_machines())
def test_links_come_in_pairs_with_hierarchical_names(name):
    machine = load_machine(name)
    ends = {(link.source, link.destination): link for link in machine.topology.links}
    assert len(ends) == len(machine.topology.links) == len({link.name for link in machine.topology.links})
    for (source, destination), link in ends.items():
        back = ends[destination, source]
        assert link.name == f"{name}/{source}->{destination}"
        assert link.kind in LINK_KINDS
        assert link.count == back.count
        slower, faster = sorted((link.bandwidth_bytes_per_s, back.bandwidth_bytes_per_s))
        # Only the DDR has a slower direction: stores.
        assert slower == (
            round(faster * machine.ipu_machine.streaming_memory.ddr_store_rate) if link.kind == "ddr" else faster
        )
        assert (link.resource == back.resource) == (link.kind == "ddr")


def own_distances(edges, start: int, ipus: int) -> list[int]:
    near: dict[int, set[int]] = {ipu: set() for ipu in range(ipus)}
    for a, b in edges:
        near[a].add(b)
    seen, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in near[here] - seen.keys():
            seen[there] = seen[here] + 1
            queue.append(there)
    return [seen[ipu] for ipu in range(ipus)]


@pytest.mark.parametrize("machine", [POD4, POD16, POD64], ids=lambda m: m.name)
def test_every_ipu_is_reached_by_a_shortest_connected_route(machine):
    edges = ipu_edges(machine)
    sources = range(machine.num_ipus) if machine.num_ipus <= 16 else (0, 1, 30, 63)
    for source in sources:
        distances = own_distances(edges, source, machine.num_ipus)
        for destination in range(machine.num_ipus):
            route = machine.topology.route(source, destination)
            assert len(route) == distances[destination] == machine.topology.hops(source, destination)
            stops = [f"ipu{source}", *(link.destination for link in route)]
            assert [link.source for link in route] == stops[:-1]
            assert stops[-1] == f"ipu{destination}"
            assert {link.kind for link in route} <= {"ipu_link"}


@pytest.mark.parametrize("machine", [POD4, POD16, POD64], ids=lambda m: m.name)
def test_routes_are_the_best_of_all_shortest_ways(machine):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph(list(ipu_edges(machine)))
    links = {(link.source, link.destination): link for link in machine.topology.links}

    def cost(way):
        hops = [links[f"ipu{a}", f"ipu{b}"] for a, b in itertools.pairwise(way)]
        widths = [hop.bandwidth_bytes_per_s for hop in hops]
        return (-min(widths), [-width for width in widths], way)

    pairs = itertools.permutations(range(machine.num_ipus), 2)
    for source, destination in itertools.islice(pairs, 0, None, 1 if machine.num_ipus <= 16 else 37):
        best = min(networkx.all_shortest_paths(graph, source, destination), key=cost)
        route = machine.topology.route(source, destination)
        assert [link.destination for link in route] == [f"ipu{ipu}" for ipu in best[1:]]


def test_routes_take_the_rung_first():
    assert names(POD4.topology.route(0, 3)) == ["ipu0->ipu1", "ipu1->ipu3"]
    assert names(POD4.topology.route(2, 1)) == ["ipu2->ipu3", "ipu3->ipu1"]
    assert names(POD16.topology.route(9, 6)) == ["ipu9->ipu8", "ipu8->ipu6"]
    assert names(POD16.topology.route(10, 13)) == ["ipu10->ipu11", "ipu11->ipu13"]
    assert POD4.topology.route(2, 2) == ()


def test_routes_use_the_closed_rail_of_the_torus_only():
    assert names(POD64.topology.route(0, 62)) == ["ipu0->ipu62"]
    assert names(POD64.topology.route(1, 62)) == ["ipu1->ipu0", "ipu0->ipu62"]
    assert POD16.topology.hops(0, 14) == 7
    assert max(POD64.topology.hops(0, ipu) for ipu in range(64)) == 17


def test_routes_are_kept_and_the_same_in_a_fresh_machine():
    assert POD64.topology.route(0, 33) is POD64.topology.route(0, 33)
    assert POD64.topology.route(0, 33) == load_machine("pod64").topology.route(0, 33)


def test_ring_of_a_machine():
    assert POD4.topology.ring(range(4)) == (0, 1, 3, 2)
    assert POD4.topology.ring([3, 2, 1, 0]) == (0, 1, 3, 2)
    assert POD4.topology.ring([2]) == (2,)
    assert POD4.topology.ring([3, 2]) == (2, 3)
    assert POD16.topology.ring(range(8)) == (0, 1, 3, 5, 7, 6, 4, 2)


@pytest.mark.parametrize(
    ("machine", "size"),
    [(POD4, 2), (POD4, 4), (POD16, 4), (POD16, 8), (POD16, 16), (POD64, 4), (POD64, 16), (POD64, 64)],
)
def test_ring_neighbours_are_adjacent_on_a_stretch_of_the_ladder(machine, size):
    for start in range(0, machine.num_ipus, size):
        members = range(start, start + size)
        order = machine.topology.ring(members)
        assert sorted(order) == list(members)
        assert order[0] == start
        for here, there in zip(order, order[1:] + order[:1]):
            assert there in machine.topology.neighbours(here)


@pytest.mark.parametrize("members", [(9, 18, 19, 24, 25, 49, 53, 57), (14, 22, 25, 26, 27, 52, 53, 61)])
def test_a_zigzag_over_scattered_rungs_has_the_fewest_hops_of_all_rings(members):
    def hops(order):
        return sum(POD64.topology.hops(a, b) for a, b in zip(order, order[1:] + order[:1]))

    first, *others = members
    assert hops(POD64.topology.ring(members)) == min(hops((first, *rest)) for rest in itertools.permutations(others))


def test_ring_over_the_same_stage_of_all_replicas_closes_through_the_torus():
    order = POD64.topology.ring(range(0, 64, 4))
    assert order == tuple(range(0, 64, 4))
    assert {POD64.topology.hops(a, b) for a, b in zip(order, order[1:] + order[:1])} == {2}


@given(st.sets(st.integers(0, 15), min_size=1, max_size=16))
def test_ring_is_a_permutation_within_the_ladder_bound(members):
    topology = POD16.topology
    order = topology.ring(sorted(members))
    assert set(order) == members
    assert len(order) == len(members)
    total = sum(topology.hops(a, b) for a, b in zip(order, order[1:] + order[:1]))
    rows, columns = {ipu // 2 for ipu in members}, {ipu % 2 for ipu in members}
    least = 2 * (max(rows) - min(rows)) + (2 if len(columns) == 2 else 0)
    assert total == least  # no closed tour of a ladder is shorter: up and down each row, over and back


def test_ring_of_wrong_ipus():
    with pytest.raises(MachineError, match=r"one or more different IPUs, got \[1, 1\]"):
        POD4.topology.ring([1, 1])
    with pytest.raises(MachineError, match="got \\[\\]"):
        POD4.topology.ring([])
    with pytest.raises(MachineError, match="there is no IPU 4, the IPUs are 0 to 3"):
        POD4.topology.ring([0, 4])


def test_ways_to_host_and_streaming_memory():
    topology = POD16.topology
    assert names(topology.host_route(5, to_host=True)) == ["ipu5->nic1", "nic1->host0"]
    assert names(topology.host_route(5, to_host=False)) == ["host0->nic1", "nic1->ipu5"]
    alone, shared = topology.host_route(5, to_host=False)[::-1]
    assert (alone.bandwidth_bytes_per_s, shared.bandwidth_bytes_per_s) == (5_647_000_000, 12_500_000_000)
    assert names(topology.remote_route(15, load=True)) == ["ddr3->gateway3", "gateway3->ipu15"]
    assert names(topology.remote_route(15, load=False)) == ["ipu15->gateway3", "gateway3->ddr3"]
    load, store = topology.remote_route(12, load=True)[0], topology.remote_route(15, load=False)[-1]
    assert load.resource == store.resource == "pod16/ddr3"
    assert (load.bandwidth_bytes_per_s, store.bandwidth_bytes_per_s) == (17_600_000_000, 13_024_000_000)


def test_no_such_link_or_ipu():
    with pytest.raises(MachineError, match=r"no link ipu0->ipu3; ipu0 has links to gateway0, ipu1, ipu2"):
        POD4.topology.link("ipu0", "ipu3")
    with pytest.raises(MachineError, match="there is no node ipu9"):
        POD4.topology.link("ipu9", "ipu3")
    with pytest.raises(MachineError, match="there is no IPU 4"):
        POD4.topology.neighbours(4)
    with pytest.raises(MachineError, match="there is no IPU -1"):
        POD4.topology.route(-1, 0)


def test_place():
    assert POD4.place(4, 1) == ((0,), (1,), (2,), (3,))
    assert POD4.place(2, 2) == ((0, 1), (2, 3))
    assert POD16.place(3, 2) == ((0, 1), (2, 3), (4, 5))
    assert POD4.place(1, 3) == ((0, 1, 2),)


def test_place_rounds_up_to_a_power_of_two():
    with pytest.raises(
        MachineError, match=r"3 replicas x 2 IPUs per replica need 6, rounded up to a power of two 8 IPUs"
    ):
        POD4.place(3, 2)


def test_place_names_the_presets_that_fit():
    with pytest.raises(MachineError) as caught:
        POD4.place(8, 4)
    assert str(caught.value) == (
        "pod4: 8 replicas x 4 IPUs per replica need 32 IPUs, there are 4; "
        "presets that fit: bow-pod64, pod64, bow-pod128, pod128, bow-pod256, pod256"
    )
    with pytest.raises(MachineError, match="presets that fit: bow-pod128, pod128, bow-pod256, pod256"):
        POD64.place(65, 1)
    with pytest.raises(MachineError, match="the largest preset has 256 IPUs"):
        POD64.place(257, 1)
    with pytest.raises(MachineError, match="0 replicas cannot be placed"):
        POD4.place(0, 1)
    with pytest.raises(MachineError, match="-1 IPUs per replica cannot be placed"):
        POD4.place(1, -1)


@given(st.integers(1, 20), st.integers(1, 20))
def test_place_gives_each_replica_its_own_consecutive_ipus(replicas, ipus):
    if replicas * ipus > 64:
        with pytest.raises(MachineError):
            POD64.place(replicas, ipus)
        return
    placed = POD64.place(replicas, ipus)
    assert [ipu for group in placed for ipu in group] == list(range(replicas * ipus))
    assert {len(group) for group in placed} == {ipus}


def test_racks_are_reached_through_gateways():
    topology = load_machine("pod256").topology
    assert [topology.rack(ipu) for ipu in (0, 63, 64, 255)] == [0, 0, 1, 3]
    assert [topology.place_in_rack(ipu) for ipu in (5, 69, 255)] == [5, 5, 63]

    def ends(source, destination):
        return [link.destination for link in topology.route(source, destination)]

    assert ends(5, 69) == ["gateway1", "gateway17", "ipu69"]
    assert ends(4, 73) == ["gateway1", "gateway17", "ipu71", "ipu73"]
    assert ends(0, 128) == ["gateway0", "gateway16", "gateway32", "ipu128"]  # two racks away, the smaller numbers first
    assert ends(0, 192) == ["gateway0", "gateway48", "ipu192"]  # the ring closes
    assert topology.hops(0, 128) == 4
    assert topology.racks == 4
    assert POD64.topology.racks == 1


def large_machine(tmp_path, wiring: str, machines: int, racks: int):
    path = tmp_path / "large.toml"
    figures = {"ipus": 4 * machines, "ipu_machines": machines, "racks": racks}
    lines = [
        f'{key} = {{ value = {n}, unit = "count", kind = "assumed", source = "test" }}' for key, n in figures.items()
    ]
    text = ['name = "large"', 'extends = "bow-pod256"', "[system]", f'wiring = "{wiring}"', *lines]
    path.write_text("\n".join(text), encoding="utf-8")
    return load_machine(str(path))


@pytest.mark.parametrize("wiring", ["torus", "ladder"])
def test_16384_ipus_of_one_rack_are_as_far_apart_as_rungs_and_rails_say(tmp_path, wiring):
    topology = large_machine(tmp_path, wiring, 4096, 1).topology
    rungs = 8192
    for source, destination in [(0, 1), (0, 16383), (3, 16382), (0, 8191), (5000, 9001), (16000, 20), (77, 77)]:
        apart = abs(source // 2 - destination // 2)
        along = min(apart, rungs - apart) if wiring == "torus" else apart
        assert topology.hops(source, destination) == along + (source % 2 != destination % 2)
    route = topology.route(5000, 9001)
    assert [link.destination for link in route[:2]] == ["ipu5001", "ipu5003"]  # the rung first
    assert len(route) == topology.hops(5000, 9001)
    order = topology.ring(range(16384))
    assert all(there in topology.neighbours(here) for here, there in itertools.pairwise(order))


def test_256_racks_of_64_ipus(tmp_path):
    topology = large_machine(tmp_path, "torus", 4096, 256).topology
    assert (topology.racks, topology.rack(16383), topology.place_in_rack(16383)) == (256, 255, 63)
    for rack in (1, 100, 128, 200, 255):
        joints = min(rack, 256 - rack)  # racks form a ring
        assert topology.hops(7, 64 * rack + 7) == joints + 2
        assert topology.hops(7, 64 * rack + 37) == joints + 2 + topology.hops(7, 37)  # down to the nearest IPU
    assert topology.ring(range(5, 16384, 64)) == tuple(range(5, 16384, 64))

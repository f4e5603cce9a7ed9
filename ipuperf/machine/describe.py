"""A machine as text for people (`describe`) and as plain data for JSON (`as_dict`)."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ipuperf.machine.model import Chip, Host, IpuMachine, Machine
from ipuperf.machine.topology import Link, Topology

_MAX_LINK_ROWS = 32  # beyond this many links, equal ones are folded into one row


def describe(machine: Machine) -> str:
    """Chip, memory, IPU-Machine, host, links, topology, and every figure with value, unit, kind and source.

    Bandwidths are those of one direction of a bundle with the protocol efficiency applied, in decimal GB/s.
    """
    size = f"{machine.num_ipus} IPU{'' if machine.num_ipus == 1 else 's'}"
    parts = [
        f"{machine.name}: {machine.description}",
        f"{size} in {machine.num_ipu_machines} x {machine.ipu_machine.name}, wiring {machine.wiring}{_racks(machine)}",
        "",
        _section("Chip", _chip_rows(machine.chip)),
        _section("IPU-Machine", _ipu_machine_rows(machine.ipu_machine)),
        _section("Host", _host_rows(machine.host)),
        "Links\n" + _indent(_link_table(machine.topology)),
        "Topology\n" + _indent(draw_topology(machine.topology)),
        *(["Faults\n" + _indent("\n".join(machine.faults.texts)) + "\n"] if machine.faults else []),
        "Figures\n" + _indent(_figure_table(machine)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _racks(machine: Machine) -> str:
    return f", {machine.racks} racks" if machine.racks > 1 else ""


def summary(names_and_machines: Iterable[tuple[str, Machine]]) -> str:
    """One line per machine: name, IPUs, chip, In-Processor-Memory and Streaming Memory (both in decimal GB)."""
    rows = [("machine", "IPUs", "chip", "In-Processor-Memory", "Streaming Memory")]
    for name, machine in names_and_machines:
        memory = machine.ipu_machine.streaming_memory
        ddr = f"{memory.ddr_capacity_bytes * machine.num_ipu_machines / 1e9:,g} GB" if memory else "none"
        inside = f"{machine.num_ipus * machine.chip.memory_bytes / 1e9:,.2f} GB"
        rows.append((name, str(machine.num_ipus), machine.chip.name, inside, ddr))
    return _columns(rows)


def as_dict(machine: Machine) -> dict[str, Any]:
    """The machine as dicts, lists, texts and numbers, ready for JSON; units are those of the dataclasses' names."""
    return {
        "name": machine.name,
        "description": machine.description,
        "num_ipus": machine.num_ipus,
        "num_ipu_machines": machine.num_ipu_machines,
        "wiring": machine.wiring,
        "racks": machine.racks,
        # The original is the whole chip of the preset once more, not a figure of this machine.
        "chip": {key: value for key, value in dataclasses.asdict(machine.chip).items() if key != "original"},
        "ipu_machine": dataclasses.asdict(machine.ipu_machine),
        "host": dataclasses.asdict(machine.host),
        "faults": machine.faults.texts,
        "links": [dataclasses.asdict(link) for link in machine.topology.links],
        "figures": {key: dataclasses.asdict(figure) for key, figure in machine.figures.items()},
        "absences": {key: dataclasses.asdict(absence) for key, absence in machine.absences.items()},
    }


def draw_topology(topology: Topology) -> str:
    """The IPU-Links as text: a ladder where the machine is one, otherwise each IPU with its neighbours.

    Of several racks joined by GW-Links only the first is drawn. Numbers on the lines count physical links; ``=6=`` is a
    rung, ``|2`` a rail to the row below.
    """
    counts = {
        (int(link.source[3:]), int(link.destination[3:])): link.count
        for link in topology.links
        if link.kind == "ipu_link"
    }
    if not counts:
        return "ipu0" if topology.ipus == 1 else ""
    if topology.racks == 1 or not any(link.kind == "gw_link" for link in topology.links):
        return _ladder(topology.ipus, counts) or _neighbour_list(topology, counts)
    size = topology.ipus // topology.racks
    first_rack = {pair: links for pair, links in counts.items() if max(pair) < size}
    drawing = _ladder(size, first_rack) or _neighbour_list(topology, first_rack)
    return f"{drawing}\n{topology.racks} such racks, their gateways joined by GW-Links"


def _ladder(ipus: int, counts: dict[tuple[int, int], int]) -> str:
    """The drawing, or nothing when some links are neither rungs nor rails, which a drawing would hide."""
    rungs = {(ipu, ipu + 1): counts.get((ipu, ipu + 1), 0) for ipu in range(0, ipus - 1, 2)}
    rails = {(ipu, ipu + 2): counts.get((ipu, ipu + 2), 0) for ipu in range(ipus - 2)}
    closing = {(ipu, ipus - 2 + ipu): counts.get((ipu, ipus - 2 + ipu), 0) for ipu in (0, 1)} if ipus > 4 else {}
    drawn = {pair for pair, links in {**rungs, **rails, **closing}.items() if links}
    if drawn != {(source, destination) for source, destination in counts if source < destination}:
        return ""
    lines = []
    for left in range(0, ipus, 2):
        rung = rungs.get((left, left + 1), 0)
        joint = f" ={rung}= " if rung else "     "
        right = f"ipu{left + 1}" if left + 1 < ipus else ""
        lines.append(f"{f'ipu{left}':<5}{joint}{right}".rstrip())
        sides = [f" |{links}" if (links := rails.get((ipu, ipu + 2), 0)) else "" for ipu in (left, left + 1)]
        if any(sides):
            lines.append(f"{sides[0]:<10}{sides[1]}".rstrip())
    if any(closing.values()):
        ends = [f"ipu{bottom} to ipu{source} ({links})" for (source, bottom), links in closing.items() if links]
        lines.append(f"closed to a torus: {', '.join(ends)}")
    return "\n".join(lines)


def _neighbour_list(topology: Topology, counts: dict[tuple[int, int], int]) -> str:
    lines = []
    for ipu in range(max(map(max, counts)) + 1):
        ends = [f"ipu{near} ({counts[ipu, near]})" for near in topology.neighbours(ipu)]
        lines.append(f"ipu{ipu}: {', '.join(ends) or 'no IPU-Links'}")
    return "\n".join(lines)


def _chip_rows(chip: Chip) -> list[tuple[str, str]]:
    regions = f"{chip.non_interleaved_bytes:,} non-interleaved + {chip.interleaved_bytes:,} interleaved"
    amp = f"f16/f16 {chip.amp_units_f16_f16}, f16/f32 {chip.amp_units_f16_f32}, f32/f32 {chip.amp_units_f32_f32}"
    exchange = (
        f"{chip.exchange_bytes_per_cycle} bytes/cycle/tile, {chip.exchange_bandwidth_bytes_per_s / 1e12:.2f} TB/s"
    )
    return [
        ("name", f"{chip.name} ({chip.architecture})"),
        ("tiles", f"{chip.tiles:,} with {chip.workers} workers each"),
        ("clock", f"{chip.clock_hz / 1e9:g} GHz"),
        ("memory", f"{_mib(chip.memory_bytes)} ({chip.bytes_per_tile:,} bytes per tile: {regions})"),
        ("exchange", f"{exchange}, {chip.exchange_setup_cycles} cycles per phase"),
        ("sync", f"internal {chip.sync_cycles}, external {chip.external_sync_cycles} cycles"),
        ("launch", f"{chip.launch_cycles} cycles per compute set"),
        ("integer division", f"{chip.division_cycles} cycles of a worker"),
        ("AMP units", amp),
    ]


def _ipu_machine_rows(ipu_machine: IpuMachine) -> list[tuple[str, str]]:
    link = f"{_gb(ipu_machine.link_bandwidth_bytes_per_s)} per link and direction"
    rows = [
        ("name", f"{ipu_machine.name}, {ipu_machine.ipus} IPUs with {ipu_machine.links_per_ipu} IPU-Links each"),
        ("IPU-Link", f"{link}, efficiency {ipu_machine.link_efficiency:g}, {ipu_machine.link_latency_cycles} cycles"),
    ]
    if ipu_machine.global_sync_cycles:
        rows.append(("sync", f"{ipu_machine.global_sync_cycles:,} cycles between IPU-Machines"))
    memory = ipu_machine.streaming_memory
    if memory is None:
        return [*rows, ("DDR", f"none: {ipu_machine.no_streaming_memory}")]
    stores = _gb(round(memory.ddr_bandwidth_bytes_per_s * memory.ddr_store_rate))
    shared = f"{_gb(memory.ddr_bandwidth_bytes_per_s)} shared by all IPUs and both directions, stores {stores} at most"
    ddr = f"{memory.ddr_capacity_bytes / 1e9:g} GB, {shared}"
    remote = f"{memory.remote_transfer_seconds * 1e6:g} us each, packets of {memory.remote_packet_bytes} bytes"
    return [*rows, ("DDR", ddr), ("remote transfer", remote)]


def _host_rows(host: Host) -> list[tuple[str, str]]:
    return [
        ("name", host.name),
        ("session.run", f"{host.run_seconds * 1e6:g} us, {host.call_seconds * 1e6:g} us more from a front end"),
        ("first run", f"{host.first_run_seconds * 1e6:g} us more"),
        ("several processes", f"{host.process_spread_seconds * 1e3:g} ms x (1/2 + ... + 1/n) until all begin"),
        (
            "host sync",
            f"{host.sync_seconds * 1e6:g} us, {host.callback_seconds * 1e6:g} us per stream and replica in it",
        ),
        ("without prefetching", f"{host.answer_seconds * 1e6:g} us more until the IPUs see an answer"),
        ("stream copy", f"{host.stream_latency_seconds * 1e6:g} us, then {_gb(host.pcie_bandwidth_bytes_per_s)}"),
    ]


def _link_table(topology: Topology) -> str:
    """Every link when they are few; otherwise one row for links with equal kind, count and bandwidth, with their
    number."""
    header = ("kind", "links", "bandwidth", "latency")
    if len(topology.links) <= _MAX_LINK_ROWS:
        return _columns([("link", *header), *((link.name, *_link_cells(link)) for link in topology.links)])
    classes: dict[tuple[str, ...], list[Link]] = {}
    for link in topology.links:
        # Without their numbers, so that links between nodes of the same kinds are alike.
        ends = tuple(node.rstrip("0123456789") for node in (link.source, link.destination))
        classes.setdefault((*ends, *_link_cells(link)), []).append(link)
    rows = [(f"{len(alike)} like {alike[0].name}", *_link_cells(alike[0])) for alike in classes.values()]
    return _columns([("links", *header), *rows])


def _link_cells(link: Link) -> tuple[str, str, str, str]:
    return link.kind, str(link.count), _gb(link.bandwidth_bytes_per_s), f"{link.latency_cycles} cycles"


def _figure_table(machine: Machine) -> str:
    rows = [("key", "value", "unit", "kind", "source")]
    rows += [
        (key, f"{figure.value:g}", figure.unit, figure.kind, figure.source) for key, figure in machine.figures.items()
    ]
    rows += [
        (key, "absent", "", "", f"{absence.reason} ({absence.source})") for key, absence in machine.absences.items()
    ]
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    return f"{title}\n{_indent(_columns(rows))}"


def _indent(text: str) -> str:
    return textwrap.indent(text, "  ") + "\n"


def _gb(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"

"""Loads machines: presets by name, a user's TOML file by path.

A machine file names its parts (``[parts] chip = "gc200"``, ...). Layers are laid over each other from the bottom up:
the parts, each after what it ``extends``, then the machine file, after what it ``extends``. A later layer replaces a
figure whole, with its unit, source and kind, so provenance never gets mixed; so it does the list of faults. A user's
file looks like this::

    extends = "pod4"

    [ipu_machine]
    ddr_bandwidth = { value = 20, unit = "GB/s", source = "my own run of STREAM", kind = "measured" }
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean
from ipuperf.machine.errors import MachineError
from ipuperf.machine.faults import parse_faults
from ipuperf.machine.figures import Absence, Figure, FrozenMapping, base_value, scaled_figure
from ipuperf.machine.model import (
    Bundle,
    Chip,
    CodeSizes,
    Host,
    IpuMachine,
    Machine,
    RearrangementRates,
    StreamingMemory,
)
from ipuperf.machine.schema import FIGURES, STREAMING_MEMORY, FileLayer, canonical, read_layer
from ipuperf.machine.wiring import build_topology

DATA = Path(__file__).parent / "data"


def list_machines() -> list[str]:
    """Names of the presets, in natural order (pod4 before pod16)."""
    return _in_room("machine")


def load_machine(name_or_path: str | Path) -> Machine:
    """Load a preset by name, or a machine from a user's ``.toml`` file.

    A `Path`, and a text that ends in ``.toml`` or holds a path separator, is a file; any other text is a preset. Raises
    `MachineError` for an unknown preset (listing them), an unreadable or wrong file, figures that are missing or
    contradict each other, and an argument that is neither a text nor a `Path`. The message names file and dotted key.
    """
    if not isinstance(name_or_path, (str, Path)):
        problem = f"{name_or_path!r} ({type(name_or_path).__name__}) is no machine"
        raise MachineError(f"{problem}, allowed: the name of a preset, the path of a TOML file")
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or re.search(r"[/\\]", name_or_path):
        return _build(_stack(Path(name_or_path)))
    return _built_in(name_or_path)


@checked()
def load_scaled(name_or_path: str | Path, factors: Mapping[str, float]) -> Machine:
    """A machine with some of its figures multiplied, to study how much they matter.

    Args:
        name_or_path: as for :func:`load_machine`.
        factors: dotted key of a figure -> its factor. Figures that are whole numbers are rounded (at least to 1), and a
            ratio stays at most 1; the machine's ``figures`` hold the outcome. ``chip.bytes_per_tile`` also scales its
            two regions.

    Raises:
        MachineError: as for :func:`load_machine`; the machine has no such figure; a factor is not above 0.
    """
    path = name_or_path
    if not isinstance(path, Path) and not (path.endswith(".toml") or re.search(r"[/\\]", path)):
        path = _preset(path, "machine")
    return _build(_stack(Path(path)), factors)


@cache
def _built_in(name: str) -> Machine:
    """A preset. Its file is part of the package and does not change while a program runs, so the cache stays valid."""
    return _build(_stack(_preset(name, "machine")))


def preset_ipus() -> dict[str, int]:
    """Name of every preset -> its number of IPUs, smallest first."""
    return dict(
        sorted(((name, _ipus_of_preset(name)) for name in list_machines()), key=lambda name_and_ipus: name_and_ipus[1])
    )


@cache
def _ipus_of_preset(name: str) -> int:
    """IPUs of a preset. It is cached, as every program that is too large for the smallest machine needs all of them."""
    # The number of IPUs stands in machine files, so the files of the parts need not be read.
    chain = tuple(_chain(_preset(name, "machine"), "machine"))
    return _Reader(_Stack(chain, chain)).whole("system.ipus")


@dataclass(frozen=True)
class _Stack:
    """Layers from the bottom up; the last one is the requested file. ``machine_layers`` are those of machine files."""

    layers: tuple[FileLayer, ...]
    machine_layers: tuple[FileLayer, ...]

    @property
    def file(self) -> str:
        return self.layers[-1].file

    def of_presets(self) -> _Stack:
        """The layers that are part of the package."""
        return _Stack(tuple([layer for layer in self.layers if Path(layer.file).parent == DATA]), self.machine_layers)


def _in_room(room: str) -> list[str]:
    """Names of the files of a room in ``data/``."""
    names = [path.stem.removeprefix(f"{room}-") for path in DATA.glob(f"{room}-*.toml")]
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def _preset(name: str, room: str, where: str = "") -> Path:
    names = _in_room(room)
    if name not in names:
        room_name = "machine" if room == "machine" else room.replace("-", " ")
        prefix = f"{where}: " if where else ""
        hint = "; a file must end in .toml" if room == "machine" else ""
        raise MachineError(
            f"{prefix}unknown {room_name} {name!r}{did_you_mean(name, names)}, presets: {', '.join(names)}{hint}"
        )
    return DATA / f"{room}-{name}.toml"


def _chain(path: Path, room: str) -> list[FileLayer]:
    """The file and the files that it extends, the most basic first."""
    layers: list[FileLayer] = []
    visited: list[Path] = []
    while True:
        # Resolved, so that two spellings of one path are recognised.
        if path.resolve() in visited:
            raise MachineError(f"{layers[-1].file}: extends: {path} extends itself in a circle")
        visited.append(path.resolve())
        layer = read_layer(path, room)
        layers.append(layer)
        base = layer.texts.get("extends")
        if base is None:
            return layers[::-1]
        if room == "machine" and base.endswith(".toml"):
            path = path.parent / base
        else:
            path = _preset(base, room, f"{layer.file}: extends")


def _stack(path: Path) -> _Stack:
    machine_layers = _chain(path, "machine")
    parts: list[FileLayer] = []
    for room, key in (("chip", "parts.chip"), ("ipu-machine", "parts.ipu_machine"), ("host", "parts.host")):
        naming_layers = [layer for layer in machine_layers if key in layer.texts]
        if naming_layers:
            # The last layer wins, as with every other key.
            layer = naming_layers[-1]
            parts += _chain(_preset(layer.texts[key], room, f"{layer.file}: {key}"), room)
    return _Stack((*parts, *machine_layers), tuple(machine_layers))


class _Reader:
    """The layers merged: each key's value and the file it comes from, with figures in base units."""

    def __init__(self, stack: _Stack) -> None:
        self.file = stack.file
        self.texts: dict[str, str] = {}
        self.pairs: dict[str, tuple[int, int]] = {}
        self.figures: dict[str, Figure | Absence] = {}
        self.files: dict[str, str] = {}
        for layer in stack.layers:
            self.texts.update(layer.texts)
            self.pairs.update(layer.pairs)
            self.figures.update(layer.figures)
            for dotted in (*layer.texts, *layer.pairs, *layer.figures):
                self.files[dotted] = layer.file

    def scale(self, dotted: str, factor: float) -> None:
        """Multiply a figure."""
        figure = self.figures.get(dotted)
        if not isinstance(figure, Figure):
            present = [key for key, entry in self.figures.items() if isinstance(entry, Figure)]
            raise self.error(dotted, f"the machine has no such figure to multiply{did_you_mean(dotted, present)}")
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not (is_number and 0 < factor < math.inf):
            raise self.error(dotted, f"multiplied by {factor!r}, allowed: a factor above 0")
        # The factor really applied differs from the one given where the figure is rounded.
        previous = self.base(dotted)
        self.figures[dotted] = scaled_figure(figure, FIGURES[canonical(dotted)], factor)
        if dotted == "chip.bytes_per_tile":
            self._share(self.whole(dotted), self.base(dotted) / previous)

    def _share(self, tile_bytes: int, factor: Fraction) -> None:
        """Scale both regions of a tile's memory so that they fill ``tile_bytes``."""
        # The other region gets the rest, so that both still fill the tile after rounding.
        non_interleaved = round(self.base("chip.non_interleaved") * factor)
        for key, size in (
            ("chip.non_interleaved", non_interleaved),
            ("chip.interleaved", tile_bytes - non_interleaved),
        ):
            figure = self.figures[key]
            if isinstance(figure, Figure):
                self.figures[key] = replace(figure, value=size, unit="bytes")

    def error(self, dotted: str, problem: str) -> MachineError:
        """An error about a key, naming the file that the key's value comes from."""
        return MachineError(f"{self.files.get(dotted, self.file)}: {dotted}: {problem}")

    def text(self, dotted: str) -> str:
        if dotted not in self.texts:
            raise self.error(dotted, "missing text, give it here or extend a machine that has it")
        return self.texts[dotted]

    def is_absent(self, dotted: str) -> bool:
        return isinstance(self.figures.get(dotted), Absence)

    def base(self, dotted: str) -> Fraction:
        figure = self.figures.get(dotted)
        if not isinstance(figure, Figure):
            raise self.error(
                dotted, "missing figure, give value, unit, source and kind or extend a machine that has it"
            )
        return base_value(figure, FIGURES[canonical(dotted)])

    def whole(self, dotted: str) -> int:
        """A figure in hertz, bytes, bytes per second, counts or rates: an integer, rounded to the nearest unit."""
        return round(self.base(dotted))

    def number(self, dotted: str) -> float:
        """A figure in seconds, ratios or cycles per byte."""
        return float(self.base(dotted))

    def cycles(self, dotted: str, clock_hz: int) -> int:
        """A latency in whole cycles, rounded up."""
        base = self.base(dotted)
        figure = self.figures[dotted]
        in_cycles = isinstance(figure, Figure) and figure.unit == "cycles"
        # The base is an exact fraction, so a whole number of cycles is never rounded up by one.
        return int(base) if in_cycles else math.ceil(base * clock_hz)

    def racks(self) -> int:
        """Racks of the machine, 1 unless given."""
        return self.whole("system.racks") if "system.racks" in self.figures else 1

    def several_machines(self) -> bool:
        """Whether the machine has more than one IPU-Machine. Other code checks that number."""
        figure = self.figures.get("system.ipu_machines")
        return isinstance(figure, Figure) and self.whole("system.ipu_machines") > 1

    def bundles(self, group: str, ipus: int, two_machines: bool) -> tuple[Bundle, ...]:
        """The bundles under ``ipu_machine.<group>``, whose IPUs have to exist."""
        prefix = f"ipu_machine.{group}."
        names = dict.fromkeys(key.split(".")[2] for key in (*self.pairs, *self.figures) if key.startswith(prefix))
        bundles = []
        for name in names:
            key = f"{prefix}{name}.between"
            if key not in self.pairs:
                raise MachineError(
                    f"{self.files[f'{prefix}{name}.links']}: {key}: missing, a pair of IPUs as in [0, 1]"
                )
            near_ipu, far_ipu = self.pairs[key]
            for ipu in (near_ipu, far_ipu):
                if ipu >= ipus:
                    raise self.error(key, f"IPU {ipu} is not there, an IPU-Machine has IPUs 0 to {ipus - 1}")
            # A cable may join equal numbers, as its ends are in two IPU-Machines.
            if near_ipu == far_ipu and not two_machines:
                raise self.error(key, f"[{near_ipu}, {far_ipu}] joins an IPU to itself")
            bundles.append(Bundle(name, near_ipu, far_ipu, self.whole(f"{prefix}{name}.links")))
        return tuple(bundles)


def _build(stack: _Stack, factors: Mapping[str, float] | None = None) -> Machine:
    reader = _Reader(stack)
    for key, factor in (factors or {}).items():
        reader.scale(key, factor)
    # A file that states no name gives its own to the machine.
    name = stack.machine_layers[-1].texts.get("name", Path(stack.file).stem)
    # The layers are read once more without the user's files and factors.
    chip, original = _chip(reader), _chip(_Reader(stack.of_presets()))
    # Reports compare a changed chip with the preset that it comes from.
    if chip != original:
        chip = replace(chip, original=original)
    ipu_machine = _ipu_machine(reader, chip)
    host = Host(
        name=reader.text("host.name"),
        run_seconds=reader.number("host.run_overhead"),
        call_seconds=reader.number("host.call_overhead"),
        first_run_seconds=reader.number("host.first_run"),
        process_spread_seconds=reader.number("host.process_spread"),
        sync_seconds=reader.number("host.sync_overhead"),
        callback_seconds=reader.number("host.callback_overhead"),
        answer_seconds=reader.number("host.answer_latency"),
        pcie_bandwidth_bytes_per_s=reader.whole("host.pcie_bandwidth"),
        stream_latency_seconds=reader.number("host.stream_latency"),
    )
    ipus, machines, wiring, racks = _system(reader, ipu_machine)
    figures = {key: figure for key, figure in reader.figures.items() if isinstance(figure, Figure)}
    absences = {key: figure for key, figure in reader.figures.items() if isinstance(figure, Absence)}
    machine = Machine(
        name=name,
        description=next(
            (layer.texts["description"] for layer in stack.machine_layers[::-1] if "description" in layer.texts), name
        ),
        chip=chip,
        ipu_machine=ipu_machine,
        host=host,
        num_ipus=ipus,
        num_ipu_machines=machines,
        wiring=wiring,
        topology=build_topology(name, ipu_machine, host, ipus, machines, wiring, racks),
        figures=FrozenMapping(figures),
        absences=FrozenMapping(absences),
        racks=racks,
    )
    return _with_faults(machine, stack)


def _with_faults(machine: Machine, stack: _Stack) -> Machine:
    """The machine with the faults of the last file that says any."""
    for layer in stack.machine_layers[::-1]:
        if layer.faults:
            try:
                return machine.with_only(parse_faults(layer.faults))
            except MachineError as error:
                raise MachineError(f"{layer.file}: faults: {error}") from None
        if layer.faults is not None:
            break
    return machine


def _chip(reader: _Reader) -> Chip:
    clock = reader.whole("chip.clock")
    chip = Chip(
        name=reader.text("chip.name"),
        architecture=reader.text("chip.architecture"),
        tiles=reader.whole("chip.tiles"),
        workers=reader.whole("chip.workers"),
        clock_hz=clock,
        bytes_per_tile=reader.whole("chip.bytes_per_tile"),
        non_interleaved_bytes=reader.whole("chip.non_interleaved"),
        interleaved_bytes=reader.whole("chip.interleaved"),
        memory_element_bytes=reader.whole("chip.memory_element"),
        data_path_bytes=reader.whole("chip.data_path"),
        exchange_bytes_per_cycle=reader.whole("chip.exchange_rate"),
        exchange_setup_cycles=reader.cycles("chip.exchange_setup", clock),
        sync_cycles=reader.cycles("chip.sync", clock),
        external_sync_cycles=reader.cycles("chip.external_sync", clock),
        launch_cycles=reader.cycles("chip.launch", clock),
        division_cycles=reader.cycles("chip.integer_division", clock),
        memcpy_bytes_per_cycle=reader.whole("chip.memcpy_rate"),
        amp_units_f16_f16=reader.whole("chip.amp_units_f16_f16"),
        amp_units_f16_f32=reader.whole("chip.amp_units_f16_f32"),
        amp_units_f32_f32=reader.whole("chip.amp_units_f32_f32"),
        amp_unit_bytes=reader.whole("chip.amp_unit_weights"),
        weight_load_bytes_per_cycle=reader.whole("chip.weight_load_rate"),
        alignment_bytes=reader.whole("chip.alignment"),
        copy_setup_cycles=reader.cycles("chip.copy_setup", clock),
        strided_copy_cycles_per_byte=reader.number("chip.strided_copy"),
        rearrangement=_rearrangement(reader, clock),
        code=_code_sizes(reader),
    )
    regions = chip.non_interleaved_bytes + chip.interleaved_bytes
    if regions != chip.bytes_per_tile:
        key = "chip.bytes_per_tile"
        raise reader.error(key, f"{chip.bytes_per_tile} bytes, but non_interleaved + interleaved make {regions}")
    return chip


def _rearrangement(reader: _Reader, clock: int) -> RearrangementRates:
    rates = (reader.number(f"chip.rearrangement.atoms_of_{atom}") for atom in (8, 4, 2))
    return RearrangementRates(reader.cycles("chip.rearrangement.setup", clock), *rates)


def _code_sizes(reader: _Reader) -> CodeSizes:
    return CodeSizes(
        stack_bytes=reader.whole("chip.code.stack"),
        control_bytes=reader.whole("chip.code.control"),
        host_exchange_bytes=reader.whole("chip.code.host_exchange"),
        instruction_bytes=reader.whole("chip.code.instruction"),
        send_bytes=reader.whole("chip.code.send"),
        exchange_instructions=reader.whole("chip.code.exchange_instructions"),
        step_instructions=reader.whole("chip.code.step_instructions"),
        packet_bytes=reader.whole("chip.code.packet"),
        packet_header_bytes=reader.whole("chip.code.packet_header"),
        vertex_bytes=reader.whole("chip.code.vertex"),
        large_vertex_bytes=reader.whole("chip.code.large_vertex"),
        vertex_state_bytes=reader.whole("chip.code.vertex_state"),
        copy_state_bytes=reader.whole("chip.code.copy_state"),
    )


def _ipu_machine(reader: _Reader, chip: Chip) -> IpuMachine:
    ipus = reader.whole("ipu_machine.ipus")
    memory, why = _streaming_memory(reader)
    ipu_machine = IpuMachine(
        name=reader.text("ipu_machine.name"),
        ipus=ipus,
        links_per_ipu=reader.whole("ipu_machine.links_per_ipu"),
        bundles=reader.bundles("bundles", ipus, two_machines=False),
        cables=reader.bundles("cables", ipus, two_machines=True),
        link_bandwidth_bytes_per_s=reader.whole("ipu_machine.link_bandwidth"),
        link_efficiency=reader.number("ipu_machine.link_efficiency"),
        link_latency_cycles=reader.cycles("ipu_machine.link_latency", chip.clock_hz),
        streaming_memory=memory,
        no_streaming_memory=why,
        global_sync_cycles=_global_sync(reader, chip),
        **_gateway_links(reader, chip),
    )
    joints = (*ipu_machine.bundles, *ipu_machine.cables)
    for ipu in range(ipus):
        # A cable joins an IPU of one machine to one of the next, so both ends count here.
        used = sum(joint.links * (joint.first, joint.second).count(ipu) for joint in joints)
        if used > ipu_machine.links_per_ipu:
            problem = f"{ipu_machine.links_per_ipu} links, but bundles and cables use {used} of IPU {ipu}"
            raise reader.error("ipu_machine.links_per_ipu", problem)
    return ipu_machine


def _global_sync(reader: _Reader, chip: Chip) -> int:
    """The sync of several IPU-Machines. A machine of one needs no figure for it."""
    if not reader.several_machines():
        return 0
    return reader.cycles("ipu_machine.global_sync", chip.clock_hz)


def _gateway_links(reader: _Reader, chip: Chip) -> dict[str, int]:
    """GW-Links of a machine with several racks. A machine of one rack needs no figures for them."""
    if reader.racks() == 1:
        return {}
    return {
        "gw_links": reader.whole("ipu_machine.gw_links"),
        "gw_link_bandwidth_bytes_per_s": reader.whole("ipu_machine.gw_link_bandwidth"),
        "gw_link_latency_cycles": reader.cycles("ipu_machine.gw_link_latency", chip.clock_hz),
    }


def _streaming_memory(reader: _Reader) -> tuple[StreamingMemory | None, str]:
    """The Streaming Memory, or None and the reason; all its figures have to be absent together."""
    absent = [key for key in STREAMING_MEMORY if reader.is_absent(key)]
    if len(absent) == len(STREAMING_MEMORY):
        figure = reader.figures["ipu_machine.ddr_bandwidth"]
        return None, figure.reason if isinstance(figure, Absence) else ""
    if absent:
        present_key = next(key for key in STREAMING_MEMORY if key not in absent)
        raise reader.error(
            absent[0], f"absent while {present_key} is not; Streaming Memory is there as a whole or not at all"
        )
    memory = StreamingMemory(
        gateway_bandwidth_bytes_per_s=reader.whole("ipu_machine.gateway_bandwidth"),
        host_link_bandwidth_bytes_per_s=reader.whole("ipu_machine.host_link_bandwidth"),
        ddr_bandwidth_bytes_per_s=reader.whole("ipu_machine.ddr_bandwidth"),
        ddr_store_rate=reader.number("ipu_machine.ddr_store_rate"),
        ddr_capacity_bytes=reader.whole("ipu_machine.ddr_capacity"),
        remote_transfer_seconds=reader.number("ipu_machine.remote_transfer"),
        remote_packet_bytes=reader.whole("ipu_machine.remote_packet"),
    )
    return memory, ""


def _system(reader: _Reader, ipu_machine: IpuMachine) -> tuple[int, int, str, int]:
    """Number of IPUs, of IPU-Machines, the wiring, and the number of racks, checked against each other."""
    ipus, machines = reader.whole("system.ipus"), reader.whole("system.ipu_machines")
    wiring = reader.text("system.wiring")
    # Only the last IPU-Machine may lack IPUs.
    least, most = (machines - 1) * ipu_machine.ipus + 1, machines * ipu_machine.ipus
    if not least <= ipus <= most:
        problem = f"{ipus} IPUs in {machines} IPU-Machines of {ipu_machine.ipus}, allowed: {least} to {most}"
        raise reader.error("system.ipus", problem)
    if (wiring == "single") != (machines == 1):
        problem = f"{wiring!r} with {machines} IPU-Machines; one takes 'single', more take 'ladder' or 'torus'"
        raise reader.error("system.wiring", problem)
    if machines > 1 and not ipu_machine.cables:
        raise reader.error("ipu_machine.cables", f"missing, {machines} IPU-Machines need cables between them")
    racks = reader.racks()
    if racks > 1:
        _check_racks(reader, ipu_machine, ipus, machines, racks)
    return ipus, machines, wiring, racks


def _check_racks(reader: _Reader, ipu_machine: IpuMachine, ipus: int, machines: int, racks: int) -> None:
    """Raise unless racks are full, alike and larger than an IPU-Machine, with enough GW-Links to join them."""
    if machines % racks or machines == racks or ipus != machines * ipu_machine.ipus:
        layout = f"{racks} racks for {ipus} IPUs in {machines} IPU-Machines"
        problem = f"{layout}, allowed: racks of equally many full ones, two or more"
        raise reader.error("system.racks", problem)
    if ipu_machine.streaming_memory is None:
        raise reader.error("system.racks", f"{racks} racks, but {ipu_machine.name} has no IPU-Gateway to join them")
    # With more than two racks a gateway has a neighbour each way.
    least = 1 if racks == 2 else 2
    if ipu_machine.gw_links < least:
        raise reader.error("ipu_machine.gw_links", f"{ipu_machine.gw_links}, {racks} racks need at least {least}")

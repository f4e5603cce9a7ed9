"""The machine as plain values: `Chip`, `IpuMachine`, `Host` and the `Machine` (one IPU up to a Pod) made of them.

Units: clocks in hertz, memory in bytes, bandwidth in bytes per second and one direction, fixed costs of host and DDR in
seconds, everything on a tile in cycles of the tile clock. The numbers come from ``data/*.toml``; `Machine.figures` has
the source and kind of each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ipuperf.machine.errors import MachineError, TooFewIpusError
from ipuperf.machine.faults import NO_FAULTS, Faults, parse_faults
from ipuperf.machine.figures import Absence, Figure
from ipuperf.machine.topology import Topology


@dataclass(frozen=True)
class CodeSizes:
    """Sizes of code, vertex state and packets on a tile.

    Attributes:
        stack_bytes, control_bytes, host_exchange_bytes: of a minimal program.
        instruction_bytes: one instruction.
        send_bytes: the most that one instruction sends.
        exchange_instructions: sync, calls and delays around an exchange.
        step_instructions: control code of a step.
        packet_bytes, packet_header_bytes: of packets of the host and of Streaming Memory.
        vertex_bytes, large_vertex_bytes: code of a vertex type (large: products, reductions, popnn).
        vertex_state_bytes: state of the vertices of a compute set.
        copy_state_bytes: state of an on-tile copy.
    """

    stack_bytes: int
    control_bytes: int
    host_exchange_bytes: int
    instruction_bytes: int
    send_bytes: int
    exchange_instructions: int
    step_instructions: int
    packet_bytes: int
    packet_header_bytes: int
    vertex_bytes: int
    large_vertex_bytes: int
    vertex_state_bytes: int
    copy_state_bytes: int


@dataclass(frozen=True)
class RearrangementRates:
    """Cycles for bringing a piece of an operand into another layout, exchange included.

    They are ``setup_cycles`` plus a number for each byte in atoms of 8, 4 or 2 bytes that stay together. PopLibs'
    regression has no atoms of one byte; they are taken to cost as much per atom as those of two bytes (low confidence).
    """

    setup_cycles: int
    cycles_per_byte_of_8: float
    cycles_per_byte_of_4: float
    cycles_per_byte_of_2: float

    def cycles(self, atoms: Mapping[int, int]) -> int:
        """Cycles for the given bytes of each size of atom. Each size takes whole cycles, rounded down."""
        rates = {8: self.cycles_per_byte_of_8, 4: self.cycles_per_byte_of_4, 2: self.cycles_per_byte_of_2}
        rates |= {1: 2 * self.cycles_per_byte_of_2}
        return self.setup_cycles + sum(int(rates[atom] * size) for atom, size in atoms.items())


@dataclass(frozen=True)
class Chip:
    """One IPU: its tiles, their memory, exchange, syncs and matrix units.

    ``non_interleaved_bytes + interleaved_bytes == bytes_per_tile``. ``exchange_setup_cycles`` is the fixed overhead of
    one exchange phase, ``sync_cycles`` an internal sync, ``external_sync_cycles`` one between IPUs or with the host. In
    each compute set a tile spends ``launch_cycles`` on launching its workers before their vertices run. A worker takes
    ``division_cycles`` for an integer division. ``amp_units_A_P`` counts the AMP units in use for inputs of type A and
    partials of type P; ``amp_unit_bytes`` are the weights that one of them holds. A variable's piece on a tile takes
    whole multiples of ``alignment_bytes``. ``copy_setup_cycles`` is the set-up of an on-tile copy;
    ``strided_copy_cycles_per_byte`` is what each byte takes where a tile gathers short pieces before it sends them.
    ``rearrangement`` and ``code`` hold the costs of rearranging operands and of code on a tile. ``original`` is the
    preset's chip where figures were changed (None: nothing was changed).
    """

    name: str
    architecture: str
    tiles: int
    workers: int
    clock_hz: int
    bytes_per_tile: int
    non_interleaved_bytes: int
    interleaved_bytes: int
    memory_element_bytes: int
    data_path_bytes: int
    exchange_bytes_per_cycle: int
    exchange_setup_cycles: int
    sync_cycles: int
    external_sync_cycles: int
    launch_cycles: int
    division_cycles: int
    memcpy_bytes_per_cycle: int
    amp_units_f16_f16: int
    amp_units_f16_f32: int
    amp_units_f32_f32: int
    amp_unit_bytes: int
    weight_load_bytes_per_cycle: int
    alignment_bytes: int
    copy_setup_cycles: int
    strided_copy_cycles_per_byte: float
    # Chips are keys of caches: the plain fields tell them apart well enough for a hash.
    rearrangement: RearrangementRates = field(hash=False)
    code: CodeSizes = field(hash=False)
    original: Chip | None = field(default=None, hash=False)

    def with_tiles(self, tiles: int) -> Chip:
        """This chip with ``tiles`` tiles. Its original gains or loses as many tiles as this chip does."""
        original = self.original
        if original is not None:
            # A preset with fewer tiles than are taken away keeps one, as a chip without tiles has no plan.
            original = replace(original, tiles=max(1, original.tiles + tiles - self.tiles))
        return replace(self, tiles=tiles, original=original)

    @property
    def memory_bytes(self) -> int:
        """In-Processor-Memory of the whole chip in bytes."""
        return self.tiles * self.bytes_per_tile

    @property
    def exchange_bandwidth_bytes_per_s(self) -> int:
        """Bytes that all tiles together can receive in one second."""
        return self.tiles * self.exchange_bytes_per_cycle * self.clock_hz

    def vector_width(self, dtype_bytes: int) -> int:
        """Elements of ``dtype_bytes`` bytes that fit the data path: 2 for float32, 4 for float16."""
        if dtype_bytes not in (1, 2, 4, 8):
            raise MachineError(
                f"{self.name}: an element of {dtype_bytes} bytes has no vector width, allowed: 1, 2, 4, 8"
            )
        return max(1, self.data_path_bytes // dtype_bytes)

    def peak_flops_per_cycle(self, dtype_bytes: int) -> int:
        """Floating-point operations that the AMP units of all tiles can do in a cycle with elements of ``dtype_bytes``
        bytes.

        In float16 a unit multiplies and adds four elements at once, in float32 one (``docs/reference/cycles.md`` 7). 8
        bits give twice as many operations as 16; 64 bits as many as 32.
        """
        if dtype_bytes >= 4:
            # 2 = a multiplication and an addition per unit and cycle.
            return 2 * self.amp_units_f32_f32 * self.tiles
        # 8 = four multiplications and four additions per unit and cycle.
        return (2 if dtype_bytes == 1 else 1) * 8 * self.amp_units_f16_f16 * self.tiles

    def cycles(self, seconds: float) -> int:
        """Whole tile clock cycles that cover this time; ``cycles(seconds(n)) == n``."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise MachineError(f"{self.name}: {seconds!r} seconds cannot be turned into cycles, it must be >= 0")
        exact = seconds * self.clock_hz
        nearest = round(exact)
        # Turning n cycles into seconds and back rounds a float twice, which must not add a cycle.
        return nearest if abs(exact - nearest) <= 4 * sys.float_info.epsilon * exact else math.ceil(exact)

    def seconds(self, cycles: float) -> float:
        """The time this many tile clock cycles take."""
        return cycles / self.clock_hz


@dataclass(frozen=True)
class Bundle:
    """``links`` physical IPU-Links between two IPUs of an IPU-Machine.

    As a cable it goes from IPU ``first`` of one IPU-Machine up to IPU ``second`` of the next one.
    """

    name: str
    first: int
    second: int
    links: int


@dataclass(frozen=True)
class StreamingMemory:
    """The IPU-Gateway of one IPU-Machine and the DDR behind it.

    ``gateway_bandwidth_bytes_per_s`` holds between one IPU and the gateway, per direction.
    ``ddr_bandwidth_bytes_per_s`` is the total of the IPU-Machine, shared by its IPUs and by loads and stores; stores
    reach no more than ``ddr_store_rate`` (a ratio) of it.
    ``host_link_bandwidth_bytes_per_s`` is the bandwidth of the gateway's network card, per direction, shared by the
    IPUs of the machine.
    """

    gateway_bandwidth_bytes_per_s: int
    host_link_bandwidth_bytes_per_s: int
    ddr_bandwidth_bytes_per_s: int
    ddr_store_rate: float
    ddr_capacity_bytes: int
    remote_transfer_seconds: float
    remote_packet_bytes: int


@dataclass(frozen=True)
class IpuMachine:
    """One IPU-Machine: its IPUs, the IPU-Links between them and to the next one, and its Streaming Memory.

    ``link_bandwidth_bytes_per_s`` is the bandwidth of one physical link and direction before ``link_efficiency``.
    ``streaming_memory`` is None where the data file says that there is none; a query for one of its figures then raises
    `MachineError`. ``global_sync_cycles`` is a sync of IPUs of several IPU-Machines. ``gw_links`` are the GW-Link ports
    of the gateway. Both are 0 on a machine of one IPU-Machine or rack, which has no use for them.
    """

    name: str
    ipus: int
    links_per_ipu: int
    bundles: tuple[Bundle, ...]
    cables: tuple[Bundle, ...]
    link_bandwidth_bytes_per_s: int
    link_efficiency: float
    link_latency_cycles: int
    streaming_memory: StreamingMemory | None
    no_streaming_memory: str = ""
    global_sync_cycles: int = 0
    gw_links: int = 0
    gw_link_bandwidth_bytes_per_s: int = 0
    gw_link_latency_cycles: int = 0

    def require_streaming_memory(self) -> StreamingMemory:
        """The Streaming Memory, or `MachineError` with the reason there is none."""
        if self.streaming_memory is None:
            raise MachineError(
                f"{self.name}: no Streaming Memory, so no remote buffers: {self.no_streaming_memory}; "
                "use a machine with an IPU-Gateway or keep the variables in In-Processor-Memory"
            )
        return self.streaming_memory

    @property
    def ddr_bandwidth_bytes_per_s(self) -> int:
        """DDR bandwidth of the IPU-Machine, in total for both directions and all its IPUs."""
        return self.require_streaming_memory().ddr_bandwidth_bytes_per_s

    @property
    def ddr_capacity_bytes(self) -> int:
        """DDR of the IPU-Machine in bytes."""
        return self.require_streaming_memory().ddr_capacity_bytes

    @property
    def remote_transfer_seconds(self) -> float:
        """Fixed latency of one remote transfer."""
        return self.require_streaming_memory().remote_transfer_seconds

    @property
    def remote_packet_bytes(self) -> int:
        """Smallest DDR access that is efficient."""
        return self.require_streaming_memory().remote_packet_bytes


@dataclass(frozen=True)
class Host:
    """The host and the software that runs on it.

    Attributes:
        run_seconds: of each run of Poplar's engine.
        call_seconds: further time of a front end for a run (checking and converting data, connecting streams).
        first_run_seconds: further time of the first run.
        process_spread_seconds: mean of the time that varies between processes of one program before they begin a run.
        sync_seconds: of each host sync in which the host has work to do.
        callback_seconds: for each stream and replica in such a sync.
        answer_seconds: until IPUs see an answer that they wait for, where nothing is prefetched.
        pcie_bandwidth_bytes_per_s: of one IPU (of a card where there is no gateway) and direction, to the network card
            of its IPU-Machine.
        stream_latency_seconds: of each stream copy.
        script_seconds: what the user's script does between two calls of a front end, where the user says it.
    """

    name: str
    run_seconds: float
    call_seconds: float
    first_run_seconds: float
    process_spread_seconds: float
    sync_seconds: float
    callback_seconds: float
    answer_seconds: float
    pcie_bandwidth_bytes_per_s: int
    stream_latency_seconds: float
    script_seconds: float = 0.0

    def start_seconds(self, front_end: bool = True, processes: int = 1) -> float:
        """Time before the IPUs begin a run: a call of a front end, or of Poplar's engine alone.

        IPUs of ``processes`` that work on one program begin when the last of these does. The time that varies in a
        process before that (data, logging, results averaged over processes) is taken as exponentially distributed
        around the same mean. The last of ``n`` processes then comes ``1/2 + ... + 1/n`` means after the average one
        (the expected maximum, a harmonic number). Simplification: each run takes the expected time.
        """
        run_seconds = self.run_seconds + (self.call_seconds + self.script_seconds if front_end else 0.0)
        return run_seconds + self.process_spread_seconds * sum(1 / rank for rank in range(2, processes + 1))


@dataclass(frozen=True)
class Machine:
    """Everything the simulation knows about the hardware: ``num_ipus`` IPUs in ``num_ipu_machines`` IPU-Machines.

    ``wiring`` is "single", "ladder" or "torus" (see `ipuperf.machine.wiring`) and holds for each of the ``racks``.
    ``figures`` maps the dotted key of every number to its provenance. ``absences`` holds what the machine explicitly
    does not have. ``faults`` are what is wrong with it; no other field knows of them, as programs are compiled for a
    machine that works.
    """

    name: str
    description: str
    chip: Chip
    ipu_machine: IpuMachine
    host: Host
    num_ipus: int
    num_ipu_machines: int
    wiring: str
    topology: Topology
    figures: Mapping[str, Figure] = field(compare=False, repr=False)
    absences: Mapping[str, Absence] = field(compare=False, repr=False)
    racks: int = 1
    faults: Faults = NO_FAULTS

    @cached_property
    def faulty_topology(self) -> Topology:
        """The links as :attr:`faults` leave them; :attr:`topology` itself where no link is concerned."""
        return self.faults.on_links(self.topology)

    def with_faults(self, *texts: str) -> Machine:
        """This machine with these faults besides its own (:mod:`ipuperf.machine.faults` says how they are written).

        Raises:
            MachineError: a text says no fault; an IPU, tile or link that does not exist; no route is left.
        """
        return self.with_only(Faults((*self.faults.faults, *parse_faults(texts).faults)))

    def with_only(self, faults: Faults) -> Machine:
        """This machine with ``faults`` and no others.

        Raises:
            MachineError: as for :meth:`with_faults`.
        """
        faults.check(self.num_ipus, self.chip.tiles)
        machine = replace(self, faults=faults)
        _ = machine.faulty_topology  # raises where there is no such link, or no route
        return machine

    def with_script(self, seconds: float) -> Machine:
        """This machine with a script that takes ``seconds`` between two calls."""
        return replace(self, host=replace(self.host, script_seconds=seconds))

    def place(self, replicas: int, ipus_per_replica: int) -> tuple[tuple[int, ...], ...]:
        """The IPUs of each replica: replica r has ``ipus_per_replica`` consecutive IPUs from ``r * ipus_per_replica``.

        The number of IPUs acquired is rounded up to a power of two, as upstream does when it acquires a device. So 3
        replicas of 1 IPU need a machine of 4. Raises `MachineError` when the machine is too small, with the presets
        that are large enough.
        """
        for quantity, number in (("replicas", replicas), ("IPUs per replica", ipus_per_replica)):
            if number < 1:
                raise MachineError(f"{self.name}: {number} {quantity} cannot be placed, it must be 1 or more")
        used = replicas * ipus_per_replica
        # The smallest power of two that is not below ``used``.
        acquired = 1 << (used - 1).bit_length()
        if acquired > self.num_ipus:
            raise TooFewIpusError(self._too_small(replicas, ipus_per_replica, used, acquired))
        starts = range(0, used, ipus_per_replica)
        return tuple(tuple(range(start, start + ipus_per_replica)) for start in starts)

    def _too_small(self, replicas: int, ipus_per_replica: int, used: int, acquired: int) -> str:
        # Imported here, as the loader imports this module.
        from ipuperf.machine.loader import preset_ipus

        sizes = preset_ipus()
        fitting = [name for name, ipus in sizes.items() if ipus >= acquired]
        advice = (
            f"presets that fit: {', '.join(fitting)}"
            if fitting
            else f"the largest preset has {max(sizes.values())} IPUs"
        )
        rounded = f"{used}, rounded up to a power of two {acquired}" if acquired != used else f"{used}"
        return (
            f"{self.name}: {replicas} replicas x {ipus_per_replica} IPUs per replica need {rounded} IPUs, "
            f"there are {self.num_ipus}; {advice}"
        )

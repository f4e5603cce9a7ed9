"""``simulate(program, machine) -> Trace``: one ``session.run`` of a compiled program."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ipuperf.base.collector import collector_paused
from ipuperf.base.kinds import checked
from ipuperf.ir import ALL_DTYPES
from ipuperf.lowering.steps import LocalStep

from .algorithms import collective_syncs
from .classes import ReplicaClasses, by_servers
from .errors import Asymmetric, SimulationError
from .event_loop import EventLoop
from .folding import Folder, Unfolding
from .host import HostCycles, HostServer, callbacks_at
from .instructions import MOST_CYCLES, count_instances
from .ipu import IpuProcess
from .jitter import Draw, HostJitter
from .kinds import SharedKind, shared_kinds
from .memory_rows import MemoryTables
from .network import Network
from .recorder import Recorder, RunBefore
from .rows import ExecutedRows, host_rows, link_rows, op_rows, plan_rows, program_rows
from .symmetry import may_be_alike
from .tiles import Tiles
from .transfers import transfer_rows
from .trips import Block, Trips
from .validate import check_length, check_placement, check_steps
from .walk import ProgramTree
from .world import Delays, World

if TYPE_CHECKING:
    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.lowering.steps import Step
    from ipuperf.machine import Machine
    from ipuperf.trace import Trace

Fidelity = Literal["phase", "tile"]
T = TypeVar("T")

TOLD_EVERY = 1_000
"""Instants of simulated time between two reports of progress."""

PACKED_EVERY = 100
"""Instants of simulated time from one packing of rows to the next; few, so that the rows are still in the cache."""

MOST_BEGINNINGS = 8
"""How often a simulation begins with classes of replicas, before each replica is simulated by itself."""


class _Enough(Exception):
    """A simulation may stop."""


class HostWork(NamedTuple):
    """How a program uses the host; see :func:`simulate`."""

    depth: int
    front_end: bool
    threads: int | None
    processes: int
    run_before: RunBefore | None
    draw: Draw = Draw()


@checked(skipped=["fidelity", "prefetch_depth", "callback_threads", "host_processes"])
@collector_paused()
def simulate(
    program: DeviceProgram,
    machine: Machine,
    *,
    fidelity: Fidelity = "phase",
    fold: bool = True,
    symmetry: bool = True,
    seed: int | None = None,
    prefetch_depth: int = 1,
    front_end: bool = True,
    callback_threads: int | None = 1,
    host_processes: int = 1,
    before: RunBefore | None = None,
    draw: tuple[int, int] = (0, 0),
    progress: Callable[[int], object] | None = None,
) -> Trace:
    """Simulate one run of ``program`` on ``machine``.

    Time is in whole cycles of the tile clock, from the call of the host (0) to its return.

    Args:
        program: the result of :func:`ipuperf.lowering.lower`.
        machine: the machine on which it runs. It may differ in links, DDR and host from the machine for which the
            program was lowered; the cycles of local steps are the program's.
        fidelity: ``phase`` simulates one process per IPU, ``tile`` the single tiles (slow, and only local loops are
            folded). Both give the same trace.
        fold: add loop iterations in steady state instead of simulating them. The trace says the same either way, but
            without folding each trip of a local loop is a separate instance.
        symmetry: let one replica stand for all that do the same (:mod:`.symmetry`). The trace says the same either way.
        seed: shuffles the order in which the events of a cycle are handled; the trace does not depend on it.
        prefetch_depth: how many slices the host prepares ahead of the IPU, for each host-to-device stream and replica.
            1 is upstream's default (prefetching on, buffering depth 1), 0 means no prefetching.
        front_end: whether a front end makes the call (PopXL, PopTorch, TensorFlow); its own work for a call then counts
            (``host.call_overhead``). False is for a Poplar program.
        callback_threads: how many threads of a host server run the callbacks of streams; None: as many as it has
            replicas. 1 is Poplar's default.
        host_processes: instances of ``poprun``, which share the replicas (``host.process_spread``).
        before: a run of the engine that the host makes first, within the same call (new values for an optimiser). The
            trace begins with it.
        draw: seed and number of the sample, where times of the host are distributed (:mod:`ipuperf.machine.faults`).
        progress: is told the present cycle after every :data:`TOLD_EVERY` instants of simulated time. Cycles begin
            again at 0 where replicas turn out to differ.

    Raises:
        SimulationError: the program does not fit the machine; it waits for ever (the message says who waits for what);
            the run takes more cycles than can be counted; or it has more executions than a trace can hold
            (:data:`~.instructions.MOST_INSTANCES`, where folded executions count once).
        MachineError: a remote transfer on a machine without Streaming Memory, or IPUs without a route between them.
    """
    if fidelity not in ("phase", "tile"):
        raise SimulationError(f"fidelity is {fidelity!r}, allowed: phase, tile")
    options = HostWork(prefetch_depth, front_end, callback_threads, host_processes, before, Draw(*draw))
    check_host_options(options, program.replicas)
    tree = checked_tree(program, machine, fold, fidelity)
    outcome = partial(_trace, program, machine, tree, fidelity, options)
    folds = fold and fidelity == "phase"
    run = partial(played, program, machine, tree, options, seed, folds, fidelity, progress, outcome)
    if not symmetry:
        return run(ReplicaClasses.all_apart(program.replicas))
    return with_classes(run, tree, first_classes(program, machine, host_processes))


def with_classes(run: Callable[[ReplicaClasses], T], tree: ProgramTree, classes: ReplicaClasses) -> T:
    """What a simulation gives with as few classes of replicas as possible, beginning with ``classes``."""
    if may_be_alike(tree):
        # An error is raised again by the run below, whose message then speaks of all replicas.
        with contextlib.suppress(SimulationError):
            return _with_few_classes(run, classes)
    return run(ReplicaClasses.all_apart(tree.program.replicas))


def checked_tree(program: DeviceProgram, machine: Machine, fold: bool, fidelity: Fidelity) -> ProgramTree:
    """The program as instructions; `SimulationError` where it does not fit the machine."""
    check_placement(program, machine)
    tree = ProgramTree(program, fold=fold, tiles_per_ipu=machine.chip.tiles)
    check_steps(tree, machine)
    # Where each execution is a row, the length of the trace is known beforehand.
    if not fold or fidelity == "tile":
        check_length(tree, program.replicas * sum(count_instances(instructions) for _, instructions in tree.lists()))
    return tree


def played(
    program: DeviceProgram,
    machine: Machine,
    tree: ProgramTree,
    options: HostWork,
    seed: int | None,
    folds: bool,
    fidelity: Fidelity,
    progress: Callable[[int], object] | None,
    outcome: Callable[[World, Sequence[IpuProcess], Unfolding], T],
    classes: ReplicaClasses,
    enough: Callable[[World, Sequence[IpuProcess], Folder, int], bool] | None = None,
    blocks: dict[Hashable, Block] | None = None,
) -> T:
    """The outcome of a run in which one replica stands for each of ``classes``.

    ``enough`` is asked at the end of each instant, with its number, whether the simulation may stop there. Trips that
    are in ``blocks`` are not simulated, and new ones are added; rows then lack them.
    """
    world = _build(program, machine, tree, seed, options, classes, folds)
    kinds = shared_kinds(world)
    processes = _processes(world, tree, kinds, _tiles_used(tree) if fidelity == "tile" else 0)
    folder = Folder(world, processes, kinds.values()) if world.folds else None
    try:
        if blocks is not None:
            world.host.trips = Trips(world, processes, tree.groups, blocks)
        if enough is None:
            _run(world, processes, folder, tree, progress)
        else:
            with contextlib.suppress(_Enough):
                _run(world, processes, folder, tree, progress, enough)
        return outcome(world, processes, Unfolding(folder.folds if folder else []))
    finally:
        for kind in kinds.values():
            kind.forget()
        for participant in (*processes, world.network, world.host, world.events):
            vars(participant).clear()  # they and their world refer to each other; see SharedKind.forget


def check_host_options(options: HostWork, replicas: int) -> None:
    """Raise :class:`SimulationError` for an option that is no whole number or too small or too large."""
    depth = options.depth
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise SimulationError(f"prefetch_depth is {depth!r}, it must be a whole number, 0 or more")
    if options.threads is not None and (type(options.threads) is not int or options.threads < 1):
        raise SimulationError(f"callback_threads is {options.threads!r}, it must be a whole number above 0 or None")
    if type(options.processes) is not int or not 1 <= options.processes <= replicas:
        raise SimulationError(
            f"host_processes is {options.processes!r}, it must be a whole number from 1 to {replicas} (replicas)"
        )
    if options.run_before is not None and options.run_before.cycles < 0:
        raise SimulationError(f"before.cycles is {options.run_before.cycles}, it must not be negative")


def first_classes(program: DeviceProgram, machine: Machine, processes: int) -> ReplicaClasses:
    """The first classes of replicas: all are alike but for the faults of their IPUs, and of their hosts."""
    faults, alike = machine.faults, ReplicaClasses.all_alike(program.replicas)
    if not faults:
        return alike
    slow = [tuple(map(faults.of_ipu, ipus)) for ipus in program.placement]
    servers = host_servers(program, machine, processes) if faults.jitters else [0] * program.replicas
    members: dict[tuple[object, ...], list[int]] = {}
    for replica, key in enumerate(zip(slow, servers, strict=True)):
        members.setdefault(key, []).append(replica)
    return alike.split(list(members.values()))


def _with_few_classes(run: Callable[[ReplicaClasses], T], classes: ReplicaClasses) -> T:
    """What a simulation with classes of replicas gives; they become smaller until the members of each do the same.

    Args:
        run: simulates with certain classes.
        classes: the first ones.

    Raises:
        Asymmetric: the classes would hold hardly more than one replica each, or there were too many beginnings.
    """
    for _ in range(MOST_BEGINNINGS):
        if 2 * len(classes.members) > len(classes.of) + 1:
            break
        try:
            return run(classes)
        except Asymmetric as difference:
            classes = classes.split(difference.apart)
    raise Asymmetric("the replicas come to differ again and again")


def _build(
    program: DeviceProgram,
    machine: Machine,
    tree: ProgramTree,
    seed: int | None,
    options: HostWork,
    classes: ReplicaClasses,
    folds: bool,
) -> World:
    chip, host = machine.chip, machine.host
    memory = machine.ipu_machine.streaming_memory
    events = EventLoop(seed)
    # I/O tiles are a process of their own, but only where they have something to do.
    lanes = sum(bool(instructions) for instructions in tree.io_instructions) + len(program.ipus)
    # Replicas of one class must also be served alike, so the servers divide the classes further.
    servers = host_servers(program, machine, options.processes)
    faults = machine.faults
    jitter = HostJitter(faults, options.draw, chip.cycles, servers, options.threads) if faults.jitters else None
    classes = by_servers(classes, servers, callbacks_at(servers, options.threads))
    recorder = Recorder(len(classes.members) * lanes)
    network = Network(events, machine.faulty_topology.links, chip.clock_hz, recorder)
    streams = _streams(program, tree.copies)
    delays = Delays(
        external_sync=chip.external_sync_cycles,
        collective_syncs=collective_syncs(machine, program.placement),
        remote=chip.cycles(memory.remote_transfer_seconds) if memory else 0,
        stream=chip.cycles(host.stream_latency_seconds),
        run=_begin(options, machine) + (jitter.run(options.processes) if jitter else 0),
    )
    totals = _totals(tree.copies, streams)
    work = HostCycles(*map(chip.cycles, (host.sync_seconds, host.callback_seconds, host.answer_seconds)))
    return World(
        events=events,
        network=network,
        host=HostServer(events, work, options.depth, totals, recorder, servers, classes, options.threads, jitter),
        recorder=recorder,
        topology=machine.faulty_topology,
        planned=machine.topology,
        faults=machine.faults,
        placement=program.placement,
        clock_hz=chip.clock_hz,
        delays=delays,
        streams=streams,
        # Sums over all processes have to stay below the limit as well.
        most=MOST_CYCLES // (program.replicas * lanes),
        stride=lanes,
        folds=folds,
        classes=classes,
    )


def _begin(options: HostWork, machine: Machine) -> int:
    """When the IPUs begin: after the run before, and after the host's work at the start of this one."""
    start_cycles = machine.chip.cycles(machine.host.start_seconds(options.front_end, options.processes))
    return start_cycles + (options.run_before.cycles if options.run_before else 0)


def host_servers(program: DeviceProgram, machine: Machine, processes: int) -> list[int]:
    """The number of each replica's host server. Replicas of the same rack and process share one."""
    server_numbers: dict[tuple[int, int], int] = {}
    servers = []
    for replica, ipus in enumerate(program.placement):
        rack = machine.topology.rack(ipus[0]) if machine.racks > 1 else 0
        servers.append(server_numbers.setdefault((rack, replica * processes // program.replicas), len(server_numbers)))
    return servers


_Copied = Sequence[Mapping[tuple[str, str], int]]
"""How many slices of each (direction, stream) each list of instructions copies."""


def _streams(program: DeviceProgram, copied: _Copied) -> dict[tuple[str, str], int]:
    """The number of each (direction, stream): first those that the program lists, in its order, then the others."""
    used = dict.fromkeys(key for counts in copied for key in counts)
    listed = [(direction, name) for name, (direction, _) in program.streams.items() if (direction, name) in used]
    return {key: number for number, key in enumerate(dict.fromkeys([*listed, *used]))}


def _totals(copied: _Copied, streams: dict[tuple[str, str], int]) -> dict[int, int]:
    """How many slices of each host-to-device stream a replica takes in the run."""
    slices: dict[int, int] = {}
    for counts in copied:
        for key, number in counts.items():
            if key[0] == "h2d":
                slices[streams[key]] = slices.get(streams[key], 0) + number
    return slices


def _tiles_used(tree: ProgramTree) -> int:
    return max((step.tiles for step in tree.leaves.steps if isinstance(step, LocalStep)), default=1)


def _processes(
    world: World, tree: ProgramTree, kinds: Mapping[type[Step], SharedKind[Any]], tiles: int
) -> list[IpuProcess]:
    processes: list[IpuProcess] = []
    for replica, *_ in world.classes.members:
        for index in range(len(tree.instructions)):
            for lane, instructions in enumerate((tree.instructions[index], tree.io_instructions[index])):
                if lane == 0 or instructions:
                    tile_set = Tiles(tiles) if tiles else None
                    processes.append(IpuProcess(world, tree, kinds, len(processes), replica, index, tile_set, lane))
    return processes


def _run(
    world: World,
    processes: Sequence[IpuProcess],
    folder: Folder | None,
    tree: ProgramTree,
    progress: Callable[[int], object] | None,
    enough: Callable[[World, Sequence[IpuProcess], Folder, int], bool] | None = None,
) -> None:
    """Run the simulation to its end.

    Raises:
        SimulationError: some processes wait for ever, or the trace would be too long.
    """
    events, instants = world.events, itertools.count(1)
    for process in processes:
        process.begin()
    events.after(world.delays.run, world.host.start)

    def look() -> None:
        instant = next(instants)
        if instant % PACKED_EVERY == 0:
            world.recorder.pack()
        if instant % TOLD_EVERY == 0:
            check_length(tree, world.recorder.executions)
            if progress is not None:
                progress(events.now)
        # A steady state can only show where an iteration has begun.
        if world.looped:
            world.looped = False
            if folder is not None:
                folder.look()
        if enough is not None and folder is not None and enough(world, processes, folder, instant):
            raise _Enough

    # The events end when all processes have finished, or when all that are left wait for ever.
    events.exhaust(look)
    stuck = [process for process in processes if process.finish < 0]
    if stuck:
        time = max(process.arrive() for process in processes)
        raise SimulationError(_deadlock(tree.program, stuck, processes, time))


def _deadlock(program: DeviceProgram, stuck: Sequence[IpuProcess], processes: Sequence[IpuProcess], time: int) -> str:
    lines = [f"{program.name}: deadlock at cycle {time:,}, nothing can happen any more"]
    lines += [f"  {process.name} waits in step {process.step_name!r} for {process.open_wait}" for process in stuck]
    finished = [process.name for process in processes if process.finish >= 0]
    if finished:
        lines.append(
            f"  finished: {', '.join(finished[:8])}{f' and {len(finished) - 8} more' if len(finished) > 8 else ''}"
        )
    return "\n".join(lines)


def _trace(
    program: DeviceProgram,
    machine: Machine,
    tree: ProgramTree,
    fidelity: str,
    options: HostWork,
    world: World,
    processes: Sequence[IpuProcess],
    unfolding: Unfolding,
) -> Trace:
    from ipuperf.trace import Trace

    recorder, run, streams = (
        world.recorder,
        world.delays.run,
        list(world.streams),
    )  # the tables made later must not hold the world
    run_before = options.run_before
    executed = ExecutedRows(
        tree, program.placement, world.classes, processes, recorder, unfolding, world.host.busy_until, run, run_before
    )
    first_ipus = program.placement[0]
    memory, programs = MemoryTables(program.memory, first_ipus), tree.programs
    tables: dict[str, Any] = {
        "ops": lambda: op_rows(program),  # tables that restate the program are made when somebody asks for them
        "plans": lambda: plan_rows(program),
        "programs": lambda: program_rows(programs, first_ipus),
        "steps": lambda: executed.steps(machine.chip.tiles, program.io_tiles),
        "loops": executed.loops(),
        "instances": executed.instances,
        **memory.makers(),
        "links": link_rows(machine.faulty_topology.links),
        "transfers": lambda: transfer_rows(recorder, unfolding),
        "host_events": lambda: host_rows(recorder.host, unfolding, streams, run, run_before),
        "runs": {"run": [0], "name": [program.name], "start": [0], "dur": [executed.end]},
    }
    meta = {**_meta(program, machine, fidelity, options.depth), "oom": memory.oom()}
    # Tables are made when the simulation is long over, so each pauses the collector by itself.
    delayed_tables = {name: collector_paused()(table) if callable(table) else table for name, table in tables.items()}
    return Trace(meta, delayed_tables, copy=False)


def _meta(program: DeviceProgram, machine: Machine, fidelity: str, prefetch_depth: int) -> dict[str, Any]:
    placed = max(ipu for ipus in program.placement for ipu in ipus) + 1
    warnings = [warning.text for warning in program.warnings]
    if program.machine != machine.name:
        warnings.append(f"lowered for {program.machine}, simulated on {machine.name}")
    return {
        "machine": machine.name,
        "program": program.name,
        "clock_hz": machine.chip.clock_hz,
        "tiles_per_ipu": machine.chip.tiles,
        "bytes_per_tile": machine.chip.bytes_per_tile,
        "peak_flops_per_cycle": {
            name: machine.chip.peak_flops_per_cycle(ALL_DTYPES[name].size)
            for name in sorted({op.dtype for op in program.ops if op.dtype})
        },
        "peak_exchange_bytes_per_cycle": machine.chip.tiles * machine.chip.exchange_bytes_per_cycle,
        "num_ipus": -(-placed // program.replicas) * program.replicas,
        "replicas": program.replicas,
        "fidelity": fidelity,
        "prefetch_depth": prefetch_depth,
        "memory_of": "replica 0, which stands for all",
        "assumptions": [
            f"{key} ({figure.kind})"
            for key, figure in machine.figures.items()
            if figure.kind in ("calibrated", "assumed")
        ],
        **({"faults": {"texts": machine.faults.texts}} if machine.faults else {}),
        "warnings": warnings,
    }

"""An executable program: the evaluator of its values and its simulated time. Both are made on first use and kept.

Timing does not depend on values, so a program is lowered and simulated once. Each run then costs one numeric step, and
the active :class:`~ipuperf.runtime.clock.SimulatedClock` advances by the simulated duration of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from time import perf_counter  # the real one, also where a script sees simulated time
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.base.progress import timed
from ipuperf.ir import Ir, Stream, Variable
from ipuperf.machine import Machine
from ipuperf.numerics import Evaluator, StreamedInput
from ipuperf.ops.products.float8 import needed_architecture
from ipuperf.runtime.auto_report import write_auto_report
from ipuperf.runtime.clock import active_clock
from ipuperf.runtime.live import RunLine, simulating
from ipuperf.runtime.reports import keep_finished
from ipuperf.runtime.run_context import RUN
from ipuperf.runtime.settings import AUTO, AUTO_IPU21_MACHINES, AUTO_MACHINES, RunSettings, current_settings
from ipuperf.runtime.weight_copies import Direction, control_run_cycles, weight_copy_cycles
from ipuperf.trace import Trace

if TYPE_CHECKING:
    from ipuperf.lowering import CollectiveMerging, DeviceProgram, NewValues
    from ipuperf.simulation import RunBefore


def choose_machine(
    machine: str | Machine | None, replicas: int, ipus: int, candidates: Sequence[str] = AUTO_MACHINES
) -> Machine:
    """The machine to simulate.

    Args:
        machine: a machine, the name of a preset or path of a file, or None / ``auto``: the smallest of ``candidates``
            with enough IPUs.

    Raises:
        MachineError: unknown machine, or the replicas do not fit (the message says what would).
    """
    from ipuperf.machine import Machine, MachineError, load_machine

    if isinstance(machine, Machine):
        chosen_machine = machine
    elif machine is not None and machine != AUTO:
        chosen_machine = load_machine(machine)
    else:
        # Candidates come smallest first. If none fits, the largest one gives the error below.
        for name in candidates:
            chosen_machine = load_machine(name)
            try:
                chosen_machine.place(replicas, ipus)
                break
            except MachineError:
                continue
    chosen_machine.place(replicas, ipus)
    return chosen_machine


_LARGE = 1_000
"""Programs of so many ops are kept for other processes; smaller ones are lowered as fast as they are read."""

_PAUSES = 1_000
"""Pauses between calls that are remembered, the last ones."""


@dataclass(frozen=True)
class LoweringOptions:
    """How a program is lowered.

    Attributes:
        sync_pattern, merging, outlining: see :func:`ipuperf.lowering.lower`; None: its default.
        again: a program that an earlier one of the process differs from in counts alone is not lowered anew
            (:mod:`ipuperf.lowering.again`).
        kept_in: folder where lowered programs are kept for other processes, if ``again``; None: large ones in the
            user's cache (:mod:`.cache`).
    """

    sync_pattern: str = "single_pipeline"
    merging: CollectiveMerging | None = None
    outlining: float | None = None
    again: bool = False
    kept_in: str | None = None


@dataclass(frozen=True)
class HostOptions:
    """How a program uses the host.

    Attributes:
        prefetch_depth, front_end, callback_threads, host_processes: see :func:`ipuperf.simulation.simulate`.
        copies_weights: False where host and IPUs exchange nothing (synthetic data).
    """

    prefetch_depth: int = 1
    front_end: bool = True
    callback_threads: int | None = 1
    host_processes: int = 1
    copies_weights: bool = True

    def arguments(self) -> dict[str, Any]:
        """Arguments of :func:`ipuperf.simulation.simulate`."""
        names = ("prefetch_depth", "front_end", "callback_threads", "host_processes")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class RunOptions:
    """What a run of a program is.

    Attributes:
        samples_per_run: how many samples one run takes, over all replicas; None: unknown.
        new_values: what the host can change between two runs, by a run of the engine of its own
            (:meth:`Executable.bring_values`).
        values_each_run: each run comes after one that brings new values, which its trace and its times then hold.
        floating_point_exceptions: whether an op that makes infinity or NaN of numbers ends a run
            (:class:`~ipuperf.numerics.FloatingPointException`), or for which kinds (``numerics.exceptions.KINDS``).
    """

    samples_per_run: int | None = None
    new_values: NewValues | None = None
    values_each_run: bool = False
    floating_point_exceptions: bool | frozenset[str] = False


class Executable:
    """A program on a machine.

    Args:
        ir: the program. It must not change after the first use of :attr:`evaluator` or :attr:`trace`.
        machine: see :func:`choose_machine`; None takes the machine of the settings in force.
        name: name in reports.
        report_name: folder of its report below the one that ``POPLAR_ENGINE_OPTIONS`` names.
        settings: settings to use (default: those in force); the executable is added to their list.
        lowering, host, options: how it is lowered, how it uses the host, and what a run is.

    Raises:
        MachineError: the program's replicas do not fit the machine; the settings have faults that it cannot have, or
            ask for samples of a machine without any.
    """

    def __init__(
        self,
        ir: Ir,
        machine: str | Machine | None = None,
        *,
        name: str = "program",
        report_name: str = "",
        settings: RunSettings | None = None,
        lowering: LoweringOptions = LoweringOptions(),
        host: HostOptions = HostOptions(),
        options: RunOptions = RunOptions(),
    ) -> None:
        from ipuperf.lowering import ipus_per_replica

        self.ir = ir
        self.name = name
        self.report_name = report_name
        self.settings = current_settings() if settings is None else settings
        self.lowering = lowering
        # A process without a replica would have nothing to serve.
        self.host = replace(host, host_processes=min(host.host_processes, ir.replication_factor))
        self.options = options
        self._begin()
        requested_machine = self.settings.machine if machine is None else machine
        candidates = AUTO_MACHINES if needed_architecture(ir) is None else AUTO_IPU21_MACHINES
        self.machine: Machine = choose_machine(
            requested_machine, ir.replication_factor, ipus_per_replica(ir), candidates
        )
        if self.settings.between_calls:
            self.machine = self.machine.with_script(self.settings.between_calls)
        if self.settings.faults:
            self.machine = self.machine.with_faults(*self.settings.faults)
        if self.settings.samples and not self.machine.faults:
            from ipuperf.machine import MachineError

            raise MachineError(f"{self.machine.name} has no faults, so all {self.settings.samples:,} samples are equal")
        # Sessions that have run are saved before another begins (:mod:`.reports`).
        keep_finished(self.settings)
        self.settings.executables.append(self)

    def _begin(self) -> None:
        """Nothing has been run yet."""
        self.runs = 0
        self._loaded = False
        self._line = RunLine(self.name)
        self._has_new_values = False
        self._value_runs = 0
        self._weight_copies: dict[tuple[Direction, tuple[Variable, ...]], int] = {}
        self._returned = 0.0
        self._pauses: deque[float] = deque(maxlen=_PAUSES)

    def changed(
        self,
        *,
        lowering: LoweringOptions | None = None,
        options: RunOptions | None = None,
    ) -> Executable:
        """Return the same program, not run yet, with other options. It takes the place of this one in the list of the
        settings."""
        executable = self._fresh_copy(lowering, None, options)
        listed = self.settings.executables
        listed[:] = [executable if member is self else member for member in listed]
        return executable

    def _fresh_copy(
        self, lowering: LoweringOptions | None, host: HostOptions | None, options: RunOptions | None
    ) -> Executable:
        """A copy that has worked out nothing and has not run. It is added to no list of executables."""
        executable = copy(self)
        executable.lowering, executable.host = lowering or self.lowering, host or self.host
        executable.options = options or self.options
        # Cached results follow from the old options, so the copy starts without them.
        for name, attribute in vars(Executable).items():
            if isinstance(attribute, cached_property):
                executable.__dict__.pop(name, None)
        executable._begin()
        return executable

    def on(
        self,
        machine: Machine,
        *,
        lowered_alike: bool = False,
        lowering: LoweringOptions | None = None,
        host: HostOptions | None = None,
        options: RunOptions | None = None,
    ) -> Executable:
        """Return the same program on another machine. It is added to no list of executables.

        Args:
            machine: the machine it runs on.
            lowered_alike: lowering would give the same program on both machines, so it is not repeated.
            lowering, host, options: other options.

        Raises:
            MachineError: the program's replicas, or its remote buffers, do not fit the machine.
        """
        from ipuperf.lowering import check_capacity, ipus_per_replica

        machine.place(self.ir.replication_factor, ipus_per_replica(self.ir))
        check_capacity(self.ir, machine)
        executable = self._fresh_copy(lowering, host, options)
        executable.machine = machine
        if lowered_alike:
            executable.device_program = self.device_program
        return executable

    # -- the two halves --------------------------------------------------------------------------------------------

    @cached_property
    def evaluator(self) -> Evaluator:
        """The numeric half.

        Raises:
            MachineError: the remote buffers are larger than the machine's Streaming Memory.
            HostMemoryError: the values are more than the host has memory for.
            SystemExit: the settings want no numbers.
        """
        if not self.settings.numbers:
            raise SystemExit(0)
        if self.settings.before_values is not None:
            self.settings.before_values(self)
        from ipuperf.lowering import check_capacity
        from ipuperf.numerics import Evaluator
        from ipuperf.numerics.exceptions import KINDS

        check_capacity(self.ir, self.machine)
        asked = self.options.floating_point_exceptions

        return Evaluator(self.ir, exceptions=(KINDS if asked else ()) if isinstance(asked, bool) else asked)

    @cached_property
    def device_program(self) -> DeviceProgram:
        """The program lowered for the machine."""
        from ipuperf.lowering import NO_MERGING, Again, check_capacity, lower

        from .cache import cache_folder
        from .program_store import ProgramStore

        check_capacity(self.ir, self.machine)  # a stored program may be for a machine with more memory

        arguments: dict[str, Any] = {
            "strict_memory": self.settings.strict_memory,
            "sync_pattern": self.lowering.sync_pattern,
            "merging": self.lowering.merging or NO_MERGING,
            "outlining": self.lowering.outlining,
        }

        def lowered() -> DeviceProgram:
            with timed(f"{self.name}: lowered for {self.machine.name}"):
                return lower(self.ir, self.machine, name=self.name, **arguments)

        folder, store = self.lowering.kept_in, None
        if folder is not None:
            store = ProgramStore(folder)
        elif sum(len(graph.ops) for graph in self.ir.all_graphs()) >= _LARGE:
            cache = cache_folder()
            store = None if cache is None else ProgramStore(cache, trimmed=True)
        if store is None and not self.lowering.again:
            return lowered()
        again = RUN.of(Again) if self.lowering.again else Again()
        return again.lowered(self.ir, self.machine, self.name, tuple(arguments.values()), lowered, store)

    @cached_property
    def trace(self) -> Trace:
        """The trace of one simulated run."""
        from ipuperf.simulation import simulate

        program = self.device_program
        with self.ir.deep_calls(), simulating(self.name) as progress, timed(f"{self.name}: simulated one run"):
            trace = simulate(
                program, self.machine, progress=progress, draw=(self.settings.seed, 0), **self.host_options
            )
        if self.machine.faults:
            trace.meta["faults"] = self._sampled(program)
        if self.options.samples_per_run is not None:
            trace.meta["samples_per_run"] = self.options.samples_per_run
        return trace

    def _sampled(self, program: DeviceProgram) -> dict[str, Any]:
        from ipuperf.simulation import sampled

        samples = max(1, self.settings.samples)
        with timed(f"{self.name}: sampled {samples:,} runs on a machine with faults"):
            return sampled(program, self.machine, samples, self.settings.seed, **self.host_options)

    @cached_property
    def simulated_run_cycles(self) -> int:
        """Cycles of the tile clock that one run takes, host included."""
        durations = self.trace.columns("runs")["dur"]
        return int(durations[0]) if len(durations) else int(self.trace.summary()["total_cycles"])

    @property
    def simulated_run_seconds(self) -> float:
        """Seconds that one run takes."""
        return float(self.trace.seconds(self.simulated_run_cycles))

    @cached_property
    def value_run_cycles(self) -> int:
        """Cycles of the tile clock of a run that brings new values, host included."""
        from ipuperf.lowering import new_values_program

        assert self.options.new_values is not None
        program = new_values_program(self.options.new_values, self.device_program)
        return control_run_cycles(program, self.machine, self.host.arguments())

    @property
    def value_run_seconds(self) -> float:
        """Seconds of :attr:`value_run_cycles`."""
        return self.machine.chip.seconds(self.value_run_cycles)

    @property
    def _value_run_before(self) -> RunBefore | None:
        from ipuperf.simulation import RunBefore

        values = self.options.new_values
        if values is None or not self.options.values_each_run:
            return None
        return RunBefore(values.name, self.value_run_cycles)

    @property
    def _brings_values_each_run(self) -> bool:
        return self.options.values_each_run and self.options.new_values is not None

    @property
    def host_options(self) -> dict[str, Any]:
        """How the program uses the host: arguments of :func:`ipuperf.simulation.simulate`."""
        return {**self.host.arguments(), "before": self._value_run_before}

    @property
    def host_start_cycles(self) -> int:
        """Cycles of the tile clock at the start of a run in which only the host works."""
        value_run = self._value_run_before
        start_cycles = self.machine.chip.cycles(
            self.machine.host.start_seconds(self.host.front_end, self.host.host_processes)
        )
        return start_cycles + (value_run.cycles if value_run else 0)

    @property
    def first_run_seconds(self) -> float:
        """Seconds by which the first run of all, or after :meth:`unload`, exceeds :attr:`simulated_run_seconds`."""
        return self.machine.host.first_run_seconds

    @property
    def is_compiled(self) -> bool:
        """Whether the program has run or been simulated."""
        return self.runs > 0 or self.is_simulated

    @property
    def is_simulated(self) -> bool:
        """Whether :attr:`trace` has been made."""
        return "trace" in self.__dict__

    def memory_problems(self) -> list[str]:
        """One line for each IPU that the program does not fit; empty if it fits or was never lowered."""
        lowered: DeviceProgram | None = self.__dict__.get("device_program")
        return [] if lowered is None else lowered.texts("does not fit")

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, inputs: Mapping[Stream, np.ndarray | StreamedInput] | None = None) -> dict[Stream, np.ndarray]:
        """Execute the main graph once: see :meth:`ipuperf.numerics.Evaluator.run`.

        The active clock advances, by more in the first run after the program was loaded.
        """
        if not self.runs:
            keep_finished(self.settings)
        else:
            self._pauses.append(perf_counter() - self._returned)
        # On the wall clock nothing else would lower the program.
        if self.settings.strict_memory:
            _ = self.device_program  # raises when the program does not fit, whatever the clock
        outputs = self.evaluator.run({} if inputs is None else inputs)
        self.runs += 1
        self._value_runs += self._has_new_values
        self._has_new_values = False
        if self.runs == 1:
            write_auto_report(self)
        clock = active_clock()
        if clock is not None:
            # Engines take longer in the first run after loading (``host.first_run_seconds``).
            seconds = self.simulated_run_seconds + (0.0 if self._loaded else self.first_run_seconds)
            if self._brings_values_each_run:
                seconds -= self.value_run_seconds  # bring_values has advanced the clock by these already
            clock.advance(seconds)
            self._line.ran(seconds, self.options.samples_per_run, outputs)
        self._loaded = True
        self._returned = perf_counter()
        return outputs

    @property
    def seconds_between_calls(self) -> float:
        """Seconds of this computer between two calls, the median of the last ones: data, logging, the front end.

        No simulated figure depends on it. It is 0 before there are three.
        """
        return median(self._pauses) if len(self._pauses) >= 3 else 0.0

    def bring_values(self) -> None:
        """Run the program that brings new values from the host; the active clock advances.

        Before the first run after loading, this is part of loading and takes no time of its own.
        """
        if not self._loaded or self.options.new_values is None:
            return
        self._has_new_values = True
        clock = active_clock()
        if clock is not None:
            clock.advance(self.value_run_seconds)

    def copied_weights(self, direction: Direction, only: Sequence[Variable] | None = None) -> None:
        """Record that variables (default: all) were copied, ``h2d`` to the IPUs or ``d2h`` to the host.

        The active clock advances. Before the first run after loading, this is part of loading and takes no time of its
        own.
        """
        clock = active_clock()
        if self._loaded and self.host.copies_weights and clock is not None:
            clock.advance(self.weight_copy_seconds(direction, only))

    def weight_copy_seconds(self, direction: Direction, only: Sequence[Variable] | None = None) -> float:
        """Seconds that copying variables (default: all) takes between two runs, ``h2d`` to the IPUs or ``d2h`` to the
        host: see :mod:`ipuperf.runtime.weight_copies`."""
        # The cache needs a key that can be hashed.
        variables = tuple(self.ir.variables() if only is None else only)
        cycles = self._weight_copies.get((direction, variables))
        if cycles is None:
            cycles = weight_copy_cycles(variables, direction, self.device_program, self.machine, self.host.arguments())
            self._weight_copies[direction, variables] = cycles
        return self.machine.chip.seconds(cycles)

    def as_called(self) -> Executable:
        """Return this program as most of its runs, other than the first, were called.

        If most came after a run that brings new values, the trace of the returned program holds such a run.
        """
        # New values before the first run are part of loading, so that run does not count.
        options = self.options
        if options.values_each_run or options.new_values is None or 2 * self._value_runs <= max(self.runs - 1, 0):
            return self
        return self._with_values_each_run

    @cached_property
    def _with_values_each_run(self) -> Executable:
        options = replace(self.options, values_each_run=True)
        return self.on(self.machine, lowered_alike=True, options=options)

    def unload(self) -> None:
        """Give up the device, so that the next run counts as a first one."""
        self._loaded = False
        self._line.close()
        keep_finished(self.settings)

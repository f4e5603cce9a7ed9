"""Figures of a case's simulated run: the case may be a micro-benchmark, a program of a front end, or a model."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.base.requirements import pip_install
from ipuperf.lowering import Phase, Step, ipus_per_replica
from ipuperf.machine import Machine, load_machine
from ipuperf.report import weight_update_windows
from ipuperf.report.intervals import RunProfile, profile
from ipuperf.runtime.executable import Executable, HostOptions
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.tools.errors import CaseError, NotAvailable, UnknownOption
from ipuperf.tools.validation.benchmarks import BENCHMARKS, HOST_BENCHMARKS, Benchmark, Recipe
from ipuperf.tools.validation.cases import Case
from ipuperf.tools.validation.roofline import seconds_at_peak
from ipuperf.tools.validation.units import QUANTITIES, UNITS
from ipuperf.trace import Trace


@dataclass(frozen=True)
class Program:
    """A program of a model, made for a case. A module ``ipuperf.models.NAME`` offers it for validation with::

        def validation_program(case: Case) -> Program: ...

    The function builds the program from ``case`` (micro_batch, accumulation, replicas, pipeline, precision, optimiser,
    recompute, offload, sharding, io, config) and raises :class:`CaseError` for a value it does not support. It runs
    with the front ends installed (``import popxl`` works) and the case's machine in force.

    Attributes:
        executable: lowered and simulated later; its numbers are never computed.
        samples: number of samples of one run.
        steps: weight updates of one run; times and cycles are given for one update.
        runs: number of runs that those times span (for an epoch).
        loads: part of the name of the program step that loads the input, for ``memory: baseline``.
        updates: whether a run is a pipeline's weight updates; ``cycles of an update`` is then one of its quantities.
    """

    executable: Executable
    samples: float
    steps: int = 1
    runs: int = 1
    loads: str = ""
    updates: bool = False


@dataclass(frozen=True)
class Figures:
    """The quantities of a simulated run, in base units: see :data:`~ipuperf.validation.units.QUANTITIES`.

    Attributes:
        values: quantity -> value; a quantity that the program does not have is absent.
        cycles_per_second: the tile clock.
        low_confidence: vertices whose cost has no primary source.
        remarks: the IPUs that the program does not fit.
        demand: bytes on the fullest tile of each IPU of a replica.
        bytes_per_tile: the memory of a tile.
        profile: what the run spends its time on; None unless asked for.
        peak_seconds: seconds that each resource needs at its peak for what ``values["time"]`` spans
            (:func:`~.roofline.seconds_at_peak`); empty unless asked for.
    """

    values: Mapping[str, float]
    cycles_per_second: float
    low_confidence: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    demand: tuple[int, ...] = ()
    bytes_per_tile: int = 0
    profile: RunProfile | None = None
    peak_seconds: Mapping[str, float] = field(default_factory=dict)

    def predicted(self, case: Case) -> float:
        """Return the measured quantity in the unit of the measurement, including what the measuring itself adds.

        Raises:
            CaseError: the program does not have this quantity.
        """
        measured = case.measured
        if measured.quantity not in self.values:
            raise CaseError(
                f"{case.file}: case {case.id!r}: measured.quantity: {measured.quantity!r} is not defined for model "
                f"{case.model!r}{instead_of(measured.quantity, self.values)}"
            )
        value = self.values[measured.quantity]
        if QUANTITIES[measured.quantity].dimension == "cycles":
            value += measured.harness_cycles
        else:
            value += measured.harness_cycles / self.cycles_per_second
        return value / UNITS[measured.unit][1]

    def bounds(self, case: Case) -> dict[str, float]:
        """Return the measured quantity, in its unit, if each resource alone bound the run; empty for memory."""
        quantity, (_, unit) = case.measured.quantity, UNITS[case.measured.unit]
        dimension = QUANTITIES[quantity].dimension
        if dimension == "bytes" or not self.peak_seconds:
            return {}
        if QUANTITIES[quantity].less_is_faster:
            scale = self.cycles_per_second if dimension == "cycles" else 1.0
            return {name: scale * seconds / unit for name, seconds in self.peak_seconds.items()}
        # A rate is work over time, and the work is the same.
        work = self.values[quantity] * self.values["time" if dimension == "rate" else "device time"]
        return {name: work / seconds / unit for name, seconds in self.peak_seconds.items()}


def figures(case: Case) -> Figures:
    """Build, lower and simulate the program of a case.

    Raises:
        CaseError: the model does not support the case.
        NotAvailable: a package is not installed.
        Errors of building and lowering pass through.
    """
    return prepared(case, peaks=True)(load_machine(case.machine), False)


def prepared(case: Case, *, peaks: bool = False) -> Callable[[Machine, bool], Figures]:
    """Build the program of a case and return a function that gives its figures on a machine.

    The machine is the case's own or one with some figures changed. The function's second argument says that lowering
    gives the same program as for the case's own machine. The program is then lowered once for all such machines.

    Args:
        peaks: whether the figures have :attr:`Figures.peak_seconds` and :attr:`Figures.profile`.

    Raises:
        As :func:`figures`; lowering raises when the returned function is called.
    """
    if case.model in BENCHMARKS:
        return lambda machine, lowered_alike: _benchmark_figures(case, machine, peaks)
    return on_machines(program_of(case), case.calls, overlapped=case.overlapped_calls, peaks=peaks)


def on_machines(
    program: Program, calls: int, *, overlapped: bool = False, peaks: bool = False
) -> Callable[[Machine, bool], Figures]:
    """As :func:`prepared`, for a program that is built; ``calls`` and ``overlapped`` as in :class:`~.cases.Case`."""

    def on(machine: Machine, lowered_alike: bool) -> Figures:
        executable = program.executable.on(machine, lowered_alike=lowered_alike)
        figures = _program_figures(replace(program, executable=executable), calls, overlapped)
        return _with_peaks(figures, executable, program.runs / program.steps) if peaks else figures

    return on


def program_of(case: Case, machine: Machine | None = None) -> Program:
    """Build, but do not lower, the program of a case whose model is a program.

    Args:
        machine: the machine it runs on; default: the machine of the case.

    Raises:
        As :func:`figures`.
    """
    with front_ends(), use_settings(RunSettings(machine=machine or case.machine)):
        return _maker(case.model)(case)


@checked()
def problem(case: Case) -> str | None:
    """Say what is wrong with the model or config of a case; None if nothing is (see :func:`~.cases.read_cases`)."""
    if case.model in BENCHMARKS:
        return _config_problem(case, BENCHMARKS[case.model])
    if case.prefetch < 1:
        return f"prefetch: {case.prefetch}, allowed: a whole number of 1 or more (0 for micro-benchmarks of the host)"
    named = case.model.isidentifier() and importlib.util.find_spec(f"ipuperf.models.{case.model}") is not None
    if case.model in PROGRAMS or named:
        return None
    known = (*BENCHMARKS, *PROGRAMS, *model_names())
    return (
        f"model: unknown model {case.model!r}{did_you_mean(case.model, known)}, allowed: micro-benchmarks "
        f"{', '.join(BENCHMARKS)}; programs {', '.join(PROGRAMS)}; "
        "or the name of a module ipuperf.models.NAME with a function validation_program"
    )


# -- micro-benchmarks --------------------------------------------------------------------------------------------------


_LARGEST_SIZE = 10**9


def _config_problem(case: Case, builder: Recipe) -> str | None:
    """Check a micro-benchmark's config: its parameters are whole numbers above 0, small enough for 64 bits of bytes."""
    # The first two parameters are the case and the machine, which every micro-benchmark takes.
    parameters = list(inspect.signature(builder).parameters.values())[2:]
    names = [parameter.name for parameter in parameters]
    for name, value in case.config.items():
        if name not in names:
            return f"config: unknown key {name!r} for {case.model!r}{instead_of(name, names)}"
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"config.{name}: {value!r}, allowed: a whole number of 1 or more"
        if value > _LARGEST_SIZE:
            return f"config.{name}: {value!r:.20}, allowed: {_LARGEST_SIZE} at most"
    for parameter in parameters:
        if parameter.default is inspect.Parameter.empty and parameter.name not in case.config:
            return f"config: key {parameter.name!r} is missing, {case.model!r} needs: {', '.join(names)}"
    return _unused(case)


#: Keys that only programs of models use, with the value that means "not stated".
_STEP_KEYS: Mapping[str, Any] = MappingProxyType(
    {"mode": "kernel", "micro_batch": 1, "accumulation": 1, "pipeline": (), "optimiser": "none", "recompute": "none",
     "offload": (), "sharding": 0, "io": "none", "io_tiles": 0, "prefetch": 1}
)  # fmt: skip


def _unused(case: Case) -> str | None:
    """Refuse a key that a micro-benchmark would ignore."""
    for key, value in _STEP_KEYS.items():
        if getattr(case, key) != value and not (key == "prefetch" and case.model in HOST_BENCHMARKS):
            return f"{key}: {getattr(case, key)!r} means nothing to micro-benchmark {case.model!r}, leave it out"
    return None


def _benchmark_figures(case: Case, machine: Machine, peaks: bool) -> Figures:
    if case.precision == "f8.16":
        raise CaseError(f"{case.file}: case {case.id!r}: precision: 'f8.16' has no data type here, allowed: f32, f16.*")
    try:
        built = BENCHMARKS[case.model](case, machine, **case.config)
        machine.place(case.replicas, ipus_per_replica(built.ir))
        return _built_figures(built, case, machine, peaks)
    except ValueError as error:  # no plan exists for the size, or the machine is too small
        raise CaseError(f"{case.file}: case {case.id!r}: {error}") from error


def _built_figures(built: Benchmark, case: Case, machine: Machine, peaks: bool) -> Figures:
    executable = Executable(
        built.ir, machine, name=case.model, settings=RunSettings(), host=HostOptions(case.prefetch, front_end=False)
    )
    figures = _measured_part(built, case, executable)
    return _with_peaks(figures, executable, 1 / built.times) if peaks else figures


def _measured_part(built: Benchmark, case: Case, executable: Executable) -> Figures:
    """Return the figures of what a micro-benchmark counts."""
    if not built.counted and not built.part:
        return _figures(executable, built.work, built.rate, built.times, case.calls, case.overlapped_calls)
    # Parts of a host transfer are only in the trace; vertices are only in the lowered program.
    if built.part:
        steps = executable.trace.expand()
        cycles = int(steps.loc[steps["kind"] == built.part, "dur"].sum())
    else:
        cycles = sum(_counted(built, step) for step in executable.device_program.walk())
    return _rates(
        {"cycles": cycles / built.times, "device time": executable.machine.chip.seconds(cycles) / built.times},
        built.work / built.times,
        built.rate,
        executable,
    )


def _counted(built: Benchmark, step: Step) -> int:
    """Return the cycles of a step that a micro-benchmark counts; 0 for any other step."""
    if not isinstance(step, Phase):
        return 0
    counts = step.kind == "exchange" if built.counted == "exchange" else step.vertex.startswith(built.counted)
    # ``slowest`` leaves out the launch of the workers.
    return (step.cycles.max if built.launched else step.slowest) if counts else 0


# -- models ------------------------------------------------------------------------------------------------------------


@contextmanager
def front_ends() -> Iterator[None]:
    """Let ``import popxl`` and the like find ipuperf within the block."""
    from ipuperf.runtime.install import install, installed_names, uninstall

    # Front ends that the caller installed must stay after the block.
    names_before = set(installed_names())
    install()
    try:
        yield
    finally:
        uninstall(set(installed_names()) - names_before)


def mnist_mlp(case: Case) -> Program:
    """The MNIST classifier of the PopXL tutorials (:mod:`ipuperf.models.mnist_mlp`): data-parallel, Adam or SGD."""
    from ipuperf.models.mnist_mlp import TrainingOptions, inference_session, training_session

    require(case, precision=("f32",), recompute=("none",), io=("streams",), prefetch=(1,), pipeline=((),))
    if case.config:
        raise UnknownOption(str(_unsupported(case, "config", dict(case.config), "an empty table")))
    if case.mode == "inference":
        require(case, optimiser=("none",), offload=((),), accumulation=(1,), replicas=(1,))
        session = inference_session(case.micro_batch, TrainingOptions()).session
        return Program(session.executable, case.samples, loads="image")
    offloads = ((), ("optimiser",)) if case.optimiser == "adam" else ((),)
    require(case, mode=("training",), optimiser=("adam", "sgd"), offload=offloads)
    # Without sharding, no tensor reaches an infinite threshold.
    threshold = None if not case.offload else float(case.sharding) if case.sharding else math.inf
    if threshold is None and case.sharding:
        raise _unsupported(case, "sharding", case.sharding, "0 unless offload names the optimiser")
    options = TrainingOptions(
        micro_batch_size=case.micro_batch,
        gradient_accumulation=case.accumulation,
        replicas=case.replicas,
        threshold=threshold,
        optimiser=case.optimiser,
    )
    return Program(training_session(options).session.executable, case.samples, loads="image")


PROGRAMS: Mapping[str, Callable[[Case], Program]] = MappingProxyType({"mnist_mlp": mnist_mlp})
"""Programs that this room builds itself, by name."""
_OFFERED = re.compile(r"^(def )?validation_program\b", re.MULTILINE)
"""The line of a module ``ipuperf.models.NAME`` that offers it for validation."""


def model_names() -> list[str]:
    """Return the models that cases, sweeps and tunings may name. No model is imported: some need PyTorch."""
    places = importlib.util.find_spec("ipuperf.models")
    folders = (places.submodule_search_locations if places else None) or ()
    files = [file for folder in folders for file in Path(folder).glob("*.py")]
    modules = (file.stem for file in files if _OFFERED.search(file.read_text(encoding="utf-8")))
    return sorted({*PROGRAMS, *modules})


def _maker(name: str) -> Callable[[Case], Program]:
    if name in PROGRAMS:
        return PROGRAMS[name]
    try:
        module = importlib.import_module(f"ipuperf.models.{name}")
    except ModuleNotFoundError as error:
        # Any other missing module is a defect of the model.
        if error.name != "torch":
            raise
        raise NotAvailable(f"needs PyTorch: {pip_install('torch')}") from error
    if not hasattr(module, "validation_program"):
        raise CaseError(f"model: ipuperf.models.{name} has no function validation_program(case) -> Program")
    maker: Callable[[Case], Program] = module.validation_program
    return maker


def require(case: Case, **allowed: tuple[Any, ...]) -> None:
    """Raise :class:`CaseError` unless each of the keys has one of the allowed values."""
    for key, values in allowed.items():
        if getattr(case, key) not in values:
            raise _unsupported(case, key, getattr(case, key), " or ".join(repr(v) for v in values))


def _unsupported(case: Case, key: str, value: object, allowed: str) -> CaseError:
    return CaseError(
        f"{case.file}: case {case.id!r}: {key}: {value!r} is not supported by model {case.model!r}, allowed: {allowed}"
    )


def _program_figures(program: Program, calls: int, overlapped: bool) -> Figures:
    executable = program.executable
    figures = _figures(executable, program.samples, "rate", 1, calls, overlapped)
    values = dict(figures.values)
    values["run rate"] = 1 / values["time"]
    for key in ("time", "device time", "cycles"):
        values[key] *= program.runs / program.steps
    values.update(_memory(executable.trace, program.loads))
    if program.updates:
        # The quantity is the second update's: the first one follows the start of the run.
        begin, end = weight_update_windows(executable.trace)[1]
        values["cycles of an update"] = float(end - begin)
    return replace(figures, values=values)


def _memory(trace: Trace, loads: str) -> dict[str, float]:
    """Bytes of IPU 0 by quantity."""
    live = trace.table("liveness")
    live = live[live["ipu"] == 0]
    bytes_by_quantity = {
        "memory: always live": float(live["always_live"].iloc[0]),
        "memory: peak": float(live["not_always_live"].max()),
    }
    if loads:
        bytes_by_quantity["memory: baseline"] = float(
            live[live["program"].astype(str).str.contains(loads)]["not_always_live"].min()
        )
    return bytes_by_quantity


# -- figures of a run --------------------------------------------------------------------------------------------------


def _figures(executable: Executable, work: float, rate: str, times: int, calls: int, overlapped: bool) -> Figures:
    """``calls`` and ``overlapped`` as in :class:`~ipuperf.validation.cases.Case`: each of the calls has its share of
    what the first one takes more."""
    # Seconds of one cycle.
    clock = executable.trace.seconds(1)
    # Device time leaves out the stretch at the start in which only the host works.
    whole = executable.simulated_run_cycles
    start = executable.host_start_cycles
    device = whole - start
    if overlapped:
        # The start of one call and the run of the one before go on side by side, and the longer one sets the pace.
        whole = max(device, start)
    seconds = whole * clock + (executable.first_run_seconds / calls if calls else 0.0)
    values = {"time": seconds / times, "device time": device * clock / times, "cycles": device / times}
    return _rates(values, work / times, rate, executable)


def _with_peaks(figures: Figures, executable: Executable, times: float) -> Figures:
    """Add the seconds at peak of ``times`` runs, and what they spend their time on."""
    peaks = {name: times * value for name, value in seconds_at_peak(executable.trace).items()}
    return replace(figures, peak_seconds=peaks, profile=profile(executable.trace))


def _rates(values: dict[str, float], work: float, rate: str, executable: Executable) -> Figures:
    if rate:
        # A rate includes the host's part of a run. Bandwidths and FLOP rates are those of the device.
        values[rate] = work / values["time" if rate == "rate" else "device time"]
    program = executable.device_program
    low, fits = program.texts("low confidence"), program.texts("does not fit")
    memory = program.memory
    demand = tuple(int(series.max(initial=0)) for series in memory.max_tile.values())
    clock_hz = executable.machine.chip.clock_hz
    return Figures(values, clock_hz, tuple(low), tuple(fits), demand, memory.bytes_per_tile)

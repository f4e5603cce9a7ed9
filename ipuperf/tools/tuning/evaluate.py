"""Evaluate one configuration: build and lower it, and simulate it if that can still change the choice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ipuperf.base.version import __version__
from ipuperf.lowering import Again, DeviceProgram
from ipuperf.lowering.fitting import Moment
from ipuperf.report import interval
from ipuperf.runtime.run_context import RUN
from ipuperf.tools.errors import UnknownOption
from ipuperf.tools.sweep import Sweep
from ipuperf.tools.sweep.programs import Built, SweepPrograms
from ipuperf.tools.sweep.store import Store
from ipuperf.tools.sweep.table import FORMAT
from ipuperf.tools.sweep.work import error_text

from .local_time import local_cycles
from .quiet import quiet
from .space import Configuration
from .workers import Workers

_KEPT = 16
"""The number of lowered programs that are kept for configurations that share them."""


@dataclass(frozen=True)
class Fullest:
    """The fullest tile of a program: its IPU, its bytes in all and by category, and the largest single variables."""

    ipu: int = 0
    bytes: int = 0
    of: int = 0
    categories: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[str, ...] = ()

    @property
    def over(self) -> int:
        """Bytes by which it exceeds the memory of a tile."""
        return max(0, self.bytes - self.of)


@dataclass(frozen=True)
class Outcome:
    """What is known about a configuration.

    Attributes:
        place: its index in the space.
        failure: why it could not be built; "" if it could.
        fullest: its fullest tile.
        seconds: time of a weight update with the whole global batch, host included; None if it was not simulated.
        interval: seconds between which the measured time lies nine times of ten.
        least_seconds: a lower bound of that time.
        cycles: cycles of one run.
        ipus: number of IPUs of all replicas.
        busiest: the IPU of a replica with the most local work.
        took_seconds: wall time of the evaluation.
    """

    place: int
    failure: str = ""
    fullest: Fullest = Fullest()
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    least_seconds: float = 0.0
    cycles: int | None = None
    ipus: int = 0
    busiest: int = 0
    took_seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it could be built and every tile has enough memory."""
        return not self.failure and not self.fullest.over

    def row(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The outcome and its configuration as plain values."""
        figures = {name: value for name, value in asdict(self).items() if name != "place"}
        return {**configuration, "outcome": figures, "ipuperf": __version__, "format": FORMAT}

    @classmethod
    def of_row(cls, place: int, row: Mapping[str, Any]) -> Outcome | None:
        """An outcome from plain values; None if they are not those of an outcome."""
        figures = row.get("outcome")
        if not isinstance(figures, dict) or {*figures} != {column.name for column in fields(cls)} - {"place"}:
            return None
        fullest = {**figures["fullest"], "largest": tuple(figures["fullest"]["largest"])}
        interval = figures["interval"] and tuple(figures["interval"])
        return cls(place, **{**figures, "fullest": Fullest(**fullest), "interval": interval})


class Outcomes:
    """Gives outcomes. Each is made once, and those in the folder of an earlier tuning are read from there.

    Args:
        sweep: the script or model that runs.
        global_batch: samples of a weight update.
        folder: the folder that keeps outcomes; None: they are not kept.
        workers: the processes that evaluate configurations.
    """

    def __init__(
        self, sweep: Sweep, global_batch: int, folder: Path | None = None, workers: Workers | None = None
    ) -> None:
        self.sweep = sweep
        self.global_batch = global_batch
        self.store = None if folder is None else Store(folder)
        self.workers = workers or Workers()

    def of(self, configurations: Mapping[int, Configuration], best: float) -> Iterator[Outcome]:
        """The outcomes of configurations by place, in their order.

        A configuration is simulated if it fits and its least time is below ``best`` seconds.
        """
        stored = {place: self._kept(place, configuration, best) for place, configuration in configurations.items()}
        calls = [
            (self.sweep, self.global_batch, place, configuration, best)
            for place, configuration in configurations.items()
            if stored[place] is None
        ]
        evaluated = self.workers.results(outcome_of, calls)
        for place, configuration in configurations.items():
            outcome = stored[place]
            if outcome is None:
                outcome = next(evaluated)
                if self.store is not None:
                    self.store.write(self.sweep.key(configuration), outcome.row(configuration))
            yield outcome

    def _kept(self, place: int, configuration: Configuration, best: float) -> Outcome | None:
        """The outcome of an earlier tuning, if it says enough."""
        row = None if self.store is None else self.store.row(self.sweep.key(configuration))
        outcome = None if row is None else Outcome.of_row(place, row)
        # An outcome without a simulation is not enough if ``best`` is now so slow that this one may beat it.
        if outcome is None or (outcome.seconds is None and outcome.fits and outcome.least_seconds < best):
            return None
        return outcome


def check_options(sweep: Sweep, configuration: Configuration) -> None:
    """Build the program of a configuration, to raise `UnknownOption` if it has an option that the model does not have.

    Other failures are left to those who need the program.
    """
    try:
        with quiet():
            SweepPrograms(sweep).of(configuration)
    except UnknownOption:
        raise
    except Exception:  # trying the configuration reports it
        return


def outcome_of(sweep: Sweep, global_batch: int, place: int, configuration: Configuration, best: float) -> Outcome:
    """Build and lower a configuration, and simulate it if it fits and its least time is below ``best`` seconds.

    Raises:
        UnknownOption: the model has no such ``config.NAME``; other failures stand in the outcome.
    """
    begin, folder = time.perf_counter(), os.getcwd()
    RUN.of(Again).keep(_KEPT)
    # Relative paths of a sweep begin in its folder.
    os.chdir(sweep.folder)
    try:
        with quiet():
            built = SweepPrograms(sweep).of(configuration)
            figures = _figures(built, _updates(sweep, global_batch, built, configuration), best)
    except UnknownOption:
        raise
    except Exception as error:
        figures = {"failure": " ".join(error_text(error).split())}
    finally:
        os.chdir(folder)
    return Outcome(place, took_seconds=time.perf_counter() - begin, **figures)


def _figures(built: Built, updates: float, best: float) -> dict[str, Any]:
    executable = built.executable
    program = executable.device_program
    local = [local_cycles(program, ipu).total.total() for ipu in range(len(program.ipus))]
    # A run takes no less than the local steps of its busiest IPU.
    least = executable.machine.chip.seconds(max(local)) / updates
    figures: dict[str, Any] = {"fullest": _fullest(program), "least_seconds": least}
    figures |= {"ipus": program.replicas * len(program.ipus), "busiest": local.index(max(local))}
    if not figures["fullest"].over and least < best:
        figures["cycles"] = executable.simulated_run_cycles
        figures["seconds"] = executable.simulated_run_seconds / updates
        figures["interval"] = interval(executable.trace).around(figures["seconds"])
    return figures


def _updates(sweep: Sweep, global_batch: int, built: Built, configuration: Configuration) -> float:
    """The number of weight updates in a run."""
    if sweep.model:
        return float(configuration.get("config.device_iterations", 1))
    # A script that does not say its samples counts as one weight update in a run.
    return (built.samples or global_batch) / global_batch


def _fullest(program: DeviceProgram) -> Fullest:
    """The fullest tile of a replica, at the step at which it is fullest."""
    memory = program.memory
    peaks = {ipu: int(series.max(initial=0)) for ipu, series in memory.max_tile.items()}
    if not peaks:
        return Fullest(of=memory.bytes_per_tile)
    # If several IPUs are equally full, the lowest one counts.
    ipu = max(peaks, key=lambda candidate: (peaks[candidate], -candidate))
    step = int(memory.max_tile[ipu].argmax())
    moment = Moment(memory, ipu, step, int(memory.argmax_tile[ipu][step]))
    categories = {name: int(size) for name, size in moment.by_category().items() if size}
    return Fullest(ipu, peaks[ipu], memory.bytes_per_tile, categories, tuple(moment.largest_contributors()))

"""One configuration: built, lowered, and simulated where that can still change the choice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ipuperf.lowering import Again, DeviceProgram
from ipuperf.lowering.fitting import Moment
from ipuperf.runtime.run_context import RUN
from ipuperf.sweep import Sweep
from ipuperf.sweep.programs import Built, SweepPrograms
from ipuperf.sweep.store import Store
from ipuperf.sweep.table import FORMAT
from ipuperf.sweep.work import said
from ipuperf.validation.errors import UnknownOption
from ipuperf.version import __version__

from .local_time import local_cycles
from .quiet import quiet
from .space import Configuration
from .workers import Workers

_KEPT = 16
"""Lowered programs that are kept."""


@dataclass(frozen=True)
class Fullest:
    """The fullest tile of a program: its IPU, bytes, what they are by category, and the largest single things."""

    ipu: int = 0
    bytes: int = 0
    of: int = 0
    categories: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[str, ...] = ()

    @property
    def over(self) -> int:
        """Bytes that it has too many."""
        return max(0, self.bytes - self.of)


@dataclass(frozen=True)
class Outcome:
    """What is known of a configuration.

    Attributes:
        place: its number in the space.
        failure: why it could not be built; "" if it could.
        fullest: its fullest tile.
        seconds: of a weight update with the whole global batch, host included; None where it was not simulated.
        least_seconds: what that takes at least.
        cycles: of one run; ``ipus``: of all replicas.
        busiest: the IPU of a replica with most to do on its own.
        took_seconds: wall time.
    """

    place: int
    failure: str = ""
    fullest: Fullest = Fullest()
    seconds: float | None = None
    least_seconds: float = 0.0
    cycles: int | None = None
    ipus: int = 0
    busiest: int = 0
    took_seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """It could be built, and no tile is too small."""
        return not self.failure and not self.fullest.over

    def row(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """As plain values."""
        said = {name: value for name, value in asdict(self).items() if name != "place"}
        return {**configuration, "outcome": said, "ipuperf": __version__, "format": FORMAT}

    @classmethod
    def of_row(cls, place: int, row: Mapping[str, Any]) -> Outcome | None:
        """From plain values; None where they are not of an outcome."""
        said = row.get("outcome")
        if not isinstance(said, dict) or {*said} != {item.name for item in fields(cls)} - {"place"}:
            return None
        fullest = {**said["fullest"], "largest": tuple(said["fullest"]["largest"])}
        return cls(place, **{**said, "fullest": Fullest(**fullest)})


class Outcomes:
    """Gives outcomes, each made once; what is in the folder of an earlier tuning is taken from there.

    Args:
        sweep: what runs.
        global_batch: samples of a weight update.
        folder: where outcomes are kept; None: nowhere.
        workers: what makes them.
    """

    def __init__(
        self, sweep: Sweep, global_batch: int, folder: Path | None = None, workers: Workers | None = None
    ) -> None:
        self.sweep = sweep
        self.global_batch = global_batch
        self.store = None if folder is None else Store(folder)
        self.workers = workers or Workers()

    def of(self, configurations: Mapping[int, Configuration], best: float) -> Iterator[Outcome]:
        """The outcomes of configurations by place, in their order; what fits and has a least time below ``best``
        seconds is simulated."""
        kept = {place: self._kept(place, configuration, best) for place, configuration in configurations.items()}
        calls = [
            (self.sweep, self.global_batch, place, each, best)
            for place, each in configurations.items()
            if kept[place] is None
        ]
        made = self.workers.results(outcome_of, calls)
        for place, configuration in configurations.items():
            found = kept[place]
            if found is None:
                found = next(made)
                if self.store is not None:
                    self.store.write(self.sweep.key(configuration), found.row(configuration))
            yield found

    def _kept(self, place: int, configuration: Configuration, best: float) -> Outcome | None:
        """What an earlier tuning found out, if that is enough."""
        row = None if self.store is None else self.store.row(self.sweep.key(configuration))
        found = None if row is None else Outcome.of_row(place, row)
        if found is None or (found.seconds is None and found.fits and found.least_seconds < best):
            return None
        return found


def outcome_of(sweep: Sweep, global_batch: int, place: int, configuration: Configuration, best: float) -> Outcome:
    """Build and lower a configuration, and simulate it where it fits and its least time is below ``best`` seconds.

    Raises:
        UnknownOption: the model has no such ``config.NAME``; other failures stand in the outcome.
    """
    begin, before = time.perf_counter(), os.getcwd()
    RUN.of(Again).keep(_KEPT)
    os.chdir(sweep.folder)
    try:
        with quiet():
            built = SweepPrograms(sweep).of(configuration)
            found = _figures(built, _updates(sweep, global_batch, built, configuration), best)
    except UnknownOption:
        raise
    except Exception as error:
        found = {"failure": " ".join(said(error).split())}
    finally:
        os.chdir(before)
    return Outcome(place, took_seconds=time.perf_counter() - begin, **found)


def _figures(built: Built, updates: float, best: float) -> dict[str, Any]:
    executable = built.executable
    program = executable.device_program
    local = [local_cycles(program, ipu).total.total() for ipu in range(len(program.ipus))]
    least = executable.machine.chip.seconds(max(local)) / updates
    found: dict[str, Any] = {
        "fullest": _fullest(program), "least_seconds": least, "ipus": program.replicas * len(program.ipus),
        "busiest": local.index(max(local)),
    }  # fmt: skip
    if not found["fullest"].over and least < best:
        found["cycles"] = executable.simulated_run_cycles
        found["seconds"] = executable.simulated_run_seconds / updates
    return found


def _updates(sweep: Sweep, global_batch: int, built: Built, configuration: Configuration) -> float:
    """Weight updates of a run."""
    if sweep.model:
        return float(configuration.get("config.device_iterations", 1))
    return (built.samples or global_batch) / global_batch


def _fullest(program: DeviceProgram) -> Fullest:
    """The fullest tile of a replica at its fullest step."""
    memory = program.memory
    peaks = {ipu: int(series.max(initial=0)) for ipu, series in memory.max_tile.items()}
    if not peaks:
        return Fullest(of=memory.bytes_per_tile)
    ipu = max(peaks, key=lambda each: (peaks[each], -each))
    step = int(memory.max_tile[ipu].argmax())
    moment = Moment(memory, ipu, step, int(memory.argmax_tile[ipu][step]))
    categories = {name: int(size) for name, size in moment.by_category().items() if size}
    return Fullest(ipu, peaks[ipu], memory.bytes_per_tile, categories, tuple(moment.largest_contributors()))

"""The work of a worker: run configurations and give their rows."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ipuperf.base.version import __version__
from ipuperf.lowering import Again
from ipuperf.report import interval
from ipuperf.runtime.run_context import RUN

from .programs import Built, SweepPrograms
from .spec import SEED, Configuration, Sweep
from .table import FORMAT

_KEPT = 16
"""The number of lowered programs that a worker keeps."""
_LONGEST = 2_000
"""The largest number of characters of a failure's text."""
_ONE_AT_A_TIME = threading.Lock()
"""A program needs the process for itself: its arguments, its folder, its output. Dask's workers have threads."""


def rows(sweep: Sweep, configurations: Sequence[Configuration]) -> Iterator[dict[str, Any]]:
    """The row of each configuration, in order. An error of a configuration is recorded in its row."""
    RUN.of(Again).keep(_KEPT)
    programs = SweepPrograms(sweep)
    previous_folder = os.getcwd()
    # Relative paths of a sweep begin in its folder.
    os.chdir(sweep.folder)
    try:
        for configuration in configurations:
            yield _row(programs, configuration)
    finally:
        os.chdir(previous_folder)


def all_rows(sweep: Sweep, configurations: Sequence[Configuration]) -> list[dict[str, Any]]:
    """The rows of :func:`rows` as a list. Calls in one process wait for each other."""
    with _ONE_AT_A_TIME:
        return list(rows(sweep, configurations))


def failed(configuration: Configuration, failure: str, seconds: float = 0.0) -> dict[str, Any]:
    """The row of a configuration that failed."""
    error_text = " ".join(failure.split())[:_LONGEST]
    return {**configuration, "failure": error_text, "took_seconds": seconds, "ipuperf": __version__, "format": FORMAT}


def _row(programs: SweepPrograms, configuration: Configuration) -> dict[str, Any]:
    begin = time.perf_counter()
    _seed(configuration[SEED])
    try:
        figures = _figures(programs.of(configuration))
    except Exception as error:
        return failed(configuration, error_text(error), time.perf_counter() - begin)
    took = time.perf_counter() - begin
    return {**configuration, **figures, "took_seconds": took, "ipuperf": __version__, "format": FORMAT}


def _seed(seed: int) -> None:
    """Seed the generators that programs draw from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - programs draw from NumPy's global generator
    # A program that has not loaded PyTorch does not draw from it.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def error_text(error: Exception) -> str:
    """The text of an error, with its type unless it is one of ipuperf's own."""
    text = str(error)
    return text if text and type(error).__module__.startswith("ipuperf.") else f"{type(error).__name__}: {text}"


def _figures(built: Built) -> dict[str, Any]:
    """The columns of :data:`.table.RESULTS` for one run, host included."""
    executable = built.executable
    trace, memory = executable.trace, executable.device_program.memory
    cycles, seconds = executable.simulated_run_cycles, executable.simulated_run_seconds
    fullest = max((int(series.max(initial=0)) for series in memory.max_tile.values()), default=0)
    problems = executable.memory_problems()
    rate = 1 / seconds if seconds else 0.0
    return {
        "fits": not problems and not trace.meta["oom"],
        "reason": "; ".join(problems) or None,
        "samples": built.samples,
        "cycles": cycles,
        "seconds": seconds,
        **dict(zip(("seconds_low", "seconds_high"), interval(trace).around(seconds), strict=True)),
        "samples_per_second": None if built.samples is None else built.samples * rate,
        "runs_per_second": rate,
        "ipus": int(trace.meta["num_ipus"]),
        "max_tile_bytes": fullest,
        "bytes_per_tile": memory.bytes_per_tile,
    }

"""Settings of a run, such as the machine to simulate and the folder of the reports.

Sessions of all threads read them through :data:`.run_context.RUN`. The command line (or a notebook) sets them with
:func:`use_settings`. A program without settings gets the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .origin import Origin
from .run_context import RUN

if TYPE_CHECKING:
    from ipuperf.machine import Machine

    from .executable import Executable
    from .reports import Journal

AUTO = "auto"
#: Machines that ``auto`` chooses from, smallest first.
AUTO_MACHINES = ("gc200-1", "pod4", "pod16", "pod64", "pod128", "pod256")
#: Machines for programs with ops of 8-bit floats, which IPUs of architecture ``ipu2`` do not have.
AUTO_IPU21_MACHINES = ("bow-1", "bow-pod4", "bow-pod16", "bow-pod64", "bow-pod128", "bow-pod256")


@dataclass
class RunSettings:
    """One run of a program.

    Attributes: machine: a machine, the name of a built-in one, path of a machine file, or ``auto``: the smallest of
    :data:`AUTO_MACHINES` with enough IPUs. report_directory: the folder in which
    :func:`ipuperf.runtime.reports.write_reports` makes one folder per session; None: no reports. strict_memory: whether
    a program that does not fit into In-Processor-Memory is an error. executables: every executable made under these
    settings, in order of creation. origin: how the program was started, for the folders of reports; None: unknown.
    journal: keeps finished sessions on disk while the program runs; None: nothing does. numbers: whether values are
    computed; if not, a program ends where it needs the first of them. before_values: called with each executable before
    the first of its values is needed; an exception it raises ends the program. between_calls: seconds that the script
    takes between two calls, such as loading data; they count as part of each call. faults: what is wrong with the
    machine besides what its file says (:mod:`ipuperf.machine.faults`). samples: how many runs are drawn on a machine
    with faults; 0: none are asked for. seed: of their draws.
    """

    machine: str | Machine = AUTO
    report_directory: Path | None = None
    strict_memory: bool = False
    executables: list[Executable] = field(default_factory=list)
    origin: Origin | None = None
    journal: Journal | None = None
    numbers: bool = True
    before_values: Callable[[Executable], None] | None = None
    between_calls: float = 0.0
    faults: tuple[str, ...] = ()
    samples: int = 0
    seed: int = 0


def current_settings() -> RunSettings:
    """Return the settings in force. Outside of :func:`use_settings` these are new defaults, which nothing keeps."""
    return RUN.settings[-1] if RUN.settings else RunSettings()


def use_settings(settings: RunSettings) -> AbstractContextManager[RunSettings]:
    """Put ``settings`` in force within the block, in all threads of the process."""
    return RUN.entered(RUN.settings, settings)

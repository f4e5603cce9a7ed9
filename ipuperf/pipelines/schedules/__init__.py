"""Pipeline schedules: stages x micro-batches -> time steps, as pure functions that know no cycles.

TensorFlow's and PopART's schedules are different families and stay apart: ``tensorflow_family`` (grouped, with
overlapped I/O, interleaved, sequential), ``popart_family`` (pipeline, sharded), ``phased`` (serial, parallel). Those
that can be chosen by name stand in ``registry``; ``docs/how-to/adding-a-schedule.md`` says how one gets there.
"""

import importlib
import pkgutil

from .checks import Devices
from .equal_stages import bubble_fraction, closed_form_time, equal_stage_time
from .figure import timetable_figure
from .legality import check_order
from .phased import Liveness, PhaseNumbers, phase_numbers, phased_parallel, phased_serial
from .registry import SCHEDULES, Schedule, copies_of, schedule, timetable_of
from .tensorflow_family import RecomputationMode, grouped, grouped_overlapped, interleaved, sequential
from .timetable import Cell, ScheduleError, Timetable

# isort: split
from .popart_family import popart_pipeline, sharded, tutorial_columns_before_full

for _module in pkgutil.iter_modules(__path__):  # a schedule in a module of its own registers itself
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "SCHEDULES",
    "Cell",
    "Devices",
    "Liveness",
    "PhaseNumbers",
    "RecomputationMode",
    "Schedule",
    "ScheduleError",
    "Timetable",
    "bubble_fraction",
    "check_order",
    "closed_form_time",
    "copies_of",
    "equal_stage_time",
    "grouped",
    "grouped_overlapped",
    "interleaved",
    "phase_numbers",
    "phased_parallel",
    "phased_serial",
    "popart_pipeline",
    "schedule",
    "sequential",
    "sharded",
    "timetable_figure",
    "timetable_of",
    "tutorial_columns_before_full",
]

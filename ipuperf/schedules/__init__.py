"""Pipeline schedules: stages x micro-batches -> time steps, as pure functions that know no cycles.

TensorFlow's and PopART's schedules are different families and stay apart: ``tensorflow_family`` (grouped, with
overlapped I/O, interleaved, sequential), ``popart_family`` (pipeline, sharded), ``phased`` (serial, parallel).
"""

from .checks import Devices
from .equal_stages import bubble_fraction, closed_form_time, equal_stage_time
from .figure import timetable_figure
from .phased import Liveness, PhaseNumbers, phase_numbers, phased_parallel, phased_serial
from .popart_family import popart_pipeline, sharded, tutorial_columns_before_full
from .tensorflow_family import RecomputationMode, grouped, grouped_overlapped, interleaved, sequential
from .timetable import Cell, ScheduleError, Timetable

__all__ = [
    "Cell",
    "Devices",
    "Liveness",
    "PhaseNumbers",
    "RecomputationMode",
    "ScheduleError",
    "Timetable",
    "bubble_fraction",
    "closed_form_time",
    "equal_stage_time",
    "grouped",
    "grouped_overlapped",
    "interleaved",
    "phase_numbers",
    "phased_parallel",
    "phased_serial",
    "popart_pipeline",
    "sequential",
    "sharded",
    "timetable_figure",
    "tutorial_columns_before_full",
]

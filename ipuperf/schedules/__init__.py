"""Pipeline schedules: stages x micro-batches -> time steps, as pure functions that know no cycles."""

from .timetable import Cell, ScheduleError, Timetable, grouped, interleaved, popart_pipeline, sequential

__all__ = ["Cell", "ScheduleError", "Timetable", "grouped", "interleaved", "popart_pipeline", "sequential"]

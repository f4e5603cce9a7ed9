"""The figures that the views of a page show. Each is computed from the trace when a view first asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ipuperf.report.breakdown import breakdown_cycles, pace
from ipuperf.report.critical_path import CriticalPath, critical_path, path_cycles
from ipuperf.report.live import Series, link_use, live_memory
from ipuperf.report.page.encoding import Tables
from ipuperf.report.step_time import StepTime, followable, step_time
from ipuperf.report.text import verdicts
from ipuperf.trace import TABLES, Trace, Window, fitting_window
from ipuperf.trace.variables import VariableRows, variable_rows

if TYPE_CHECKING:
    import pandas as pd


_FOLLOWED = 400_000
"""The number of slices up to which live bytes are followed over time. Longer traces show a window from the start."""
_FOLDED = ("instances", "transfers", "host_events", "variables", "code")
"""The tables that are never made in full: those that grow with the run, and those that share runs of tiles."""


@dataclass(frozen=True)
class Figures:
    """The figures of a trace for the views of its page."""

    trace: Trace

    @cached_property
    def tables(self) -> Tables:
        """The trace's tables by name, except for those of :data:`_FOLDED`."""
        return {name: self.trace.columns(name) for name in TABLES if name not in _FOLDED}

    @cached_property
    def variables(self) -> VariableRows:
        """The variables of the trace."""
        return variable_rows(self.trace)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of the trace."""
        return self.trace.summary()

    @cached_property
    def verdicts(self) -> list[str]:
        """The warnings about IPUs that the program does not fit."""
        return verdicts(self.trace)

    @cached_property
    def executed(self) -> bool:
        """Whether anything was executed."""
        return self.trace.rows("instances") > 0

    @cached_property
    def followed(self) -> bool:
        """Whether the trace has few enough steps for waits and the critical path."""
        return self.executed and followable(self.trace)

    @cached_property
    def time(self) -> StepTime:
        """The time of the last run, with its waits."""
        return step_time(self.trace)

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path of the last run."""
        return critical_path(self.trace)

    @property
    def path_cycles(self) -> pd.DataFrame:
        """The cycles of the critical path by IPU, kind and op."""
        return path_cycles(self.trace, self.path)

    @property
    def breakdown(self) -> dict[str, int]:
        """The cycles of the last run by kind of step."""
        return breakdown_cycles(self.trace)

    @property
    def pace(self) -> tuple[int, int]:
        """The (replica, ipu) that sets the pace of the last run."""
        return pace(self.trace)

    @cached_property
    def operations(self) -> pd.DataFrame:
        """The cost of each op on one IPU of those that do the same."""
        return self.trace.operations_by_ipu(of_each_class=True)

    @property
    def code(self) -> pd.DataFrame:
        """What is always live on tiles, by op, IPU and category."""
        return self.trace.code()

    @property
    def modules(self) -> pd.DataFrame:
        """The tree of the program's modules."""
        return self.trace.modules()

    @cached_property
    def live_window(self) -> Window | None:
        """The window in which live bytes are followed over time; None: everything."""
        return fitting_window(self.trace, _FOLLOWED)

    @property
    def live(self) -> dict[tuple[int, int], Series]:
        """Live bytes of each (replica, ipu) over time, of one replica of each class."""
        window, trace = self.live_window, self.trace.of_each_class()
        return live_memory(trace if window is None else trace.within(window), window)

    @property
    def link_use(self) -> dict[str, Series]:
        """The percentage of each link's bandwidth in use, in time of the shortened trace."""
        return link_use(self.trace.short.trace)

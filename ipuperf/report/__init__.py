"""Views of a trace: text, figures, exports for interactive viewers, and a folder with all of them.

Figures are separate ``matplotlib.figure.Figure`` objects. They never touch the global state of pyplot, so they work
without a display and in any thread.
"""

from __future__ import annotations

from ipuperf.report.aligned import timelines_figure
from ipuperf.report.breakdown import PARTS, breakdown, breakdown_cycles, critical_ipu
from ipuperf.report.chakra import to_chakra
from ipuperf.report.chrome import to_chrome_json
from ipuperf.report.comparison import Comparison, compare
from ipuperf.report.comparison_text import comparison_text, comparison_values
from ipuperf.report.critical_path import CriticalPath, critical_path, path_cycles
from ipuperf.report.folder import View, save_figure, write_report
from ipuperf.report.intervals import Interval, Throughput, interval, ratio_interval, throughput
from ipuperf.report.live import link_use, live_memory
from ipuperf.report.memory import liveness_figure, tile_memory_figure
from ipuperf.report.page import report_page
from ipuperf.report.page.comparison import comparison_page
from ipuperf.report.perfetto import to_perfetto
from ipuperf.report.pipeline import (
    PIPELINE_PARTS,
    pipeline_split,
    pipeline_timeline_figure,
    weight_update_windows,
)
from ipuperf.report.split import time_split_figure
from ipuperf.report.staging import folder_kept
from ipuperf.report.step_time import TIME_PARTS, StepTime, step_time
from ipuperf.report.text import duration, summary_text
from ipuperf.report.timeline import timeline_figure
from ipuperf.report.waiting import OWNERS, Waits, waits
from ipuperf.report.why import why_text

__all__ = [
    "OWNERS",
    "PARTS",
    "PIPELINE_PARTS",
    "TIME_PARTS",
    "Comparison",
    "CriticalPath",
    "Interval",
    "StepTime",
    "Throughput",
    "View",
    "Waits",
    "breakdown",
    "breakdown_cycles",
    "compare",
    "comparison_page",
    "comparison_text",
    "comparison_values",
    "critical_ipu",
    "critical_path",
    "duration",
    "folder_kept",
    "interval",
    "link_use",
    "live_memory",
    "liveness_figure",
    "path_cycles",
    "pipeline_split",
    "pipeline_timeline_figure",
    "ratio_interval",
    "report_page",
    "save_figure",
    "step_time",
    "summary_text",
    "throughput",
    "tile_memory_figure",
    "time_split_figure",
    "timeline_figure",
    "timelines_figure",
    "to_chakra",
    "to_chrome_json",
    "to_perfetto",
    "waits",
    "weight_update_windows",
    "why_text",
    "write_report",
]

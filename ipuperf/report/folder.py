"""The folder of a report, with all views of a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuperf.report import excerpt
from ipuperf.report.advice import ADVICE
from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import breakdown
from ipuperf.report.excerpt import Excerpt
from ipuperf.report.intervals import throughput
from ipuperf.report.memory import liveness_figure, tile_memory_figure
from ipuperf.report.page import report_page
from ipuperf.report.perfetto import to_perfetto
from ipuperf.report.pipeline import is_pipeline, pipeline_timeline_figure, shown_window
from ipuperf.report.staging import remove_if_empty, staged
from ipuperf.report.step_time import followable, step_time
from ipuperf.report.text import summary_text
from ipuperf.report.timeline import timeline_figure
from ipuperf.trace import Trace, replacing
from ipuperf.trace.printable import in_cell, in_markdown, with_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INDEX = "index.md"
"""The name of the file that lists the files of a report."""
DPI = 130
"""The resolution of the figures, in dots per inch."""


@checked
def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the suffix. The file is written completely or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI)


def _text(trace: Trace, path: Path) -> None:
    path.write_text(summary_text(trace), encoding="utf-8")


def _page(trace: Trace, path: Path) -> None:
    path.write_text(report_page(trace), encoding="utf-8")


def _bound(trace: Trace) -> dict[str, Any]:
    """What bounds the last run, and the parts of its time and waiting."""
    time = step_time(trace)
    return {
        "step_time": {"ipu": time.ipu, "replica": time.replica, "cycles": time.parts},
        "waiting_cycles": {str(ipu): cycles for ipu, cycles in time.waits.by_ipu().items()},
        "bound_by": time.sentence(),
    }


def _json(trace: Trace, path: Path) -> None:
    summary = trace.summary()
    if trace.rows("instances"):
        summary["breakdown_seconds"] = breakdown(trace)
        summary["throughput"] = asdict(throughput(trace))
        summary.update(_bound(trace) if followable(trace) else {})
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _operations(trace: Trace, path: Path) -> None:
    with_texts(trace.operations_by_ipu(of_each_class=True), in_cell).to_csv(path, index=False, float_format="%.6g")


def _modules(trace: Trace, path: Path) -> None:
    with_texts(trace.modules(), in_cell).to_csv(path, index=False)


def _code(trace: Trace, path: Path) -> None:
    with_texts(trace.code(), in_cell).to_csv(path, index=False)


def drawn(draw: Callable[[Trace], Figure]) -> Callable[[Trace, Path], None]:
    """A function that writes the figure that ``draw`` makes."""
    return lambda trace, path: draw(trace).savefig(path, dpi=DPI)


def _pipeline(trace: Trace) -> Figure:
    replica = min(trace.replicas)
    trace, window = trace.of_each_class(), shown_window(trace, excerpt.MAX_SLICES)
    return pipeline_timeline_figure(trace if window is None else trace.within(window), window, replica)


def _cut(trace: Trace) -> str:
    sentence = Excerpt.default(trace).sentence()
    return f", {sentence}" if sentence else ""


@dataclass(frozen=True)
class View:
    """A file of a report.

    Attributes:
        name: the name of the file.
        holds: its contents in words.
        write: writes the file.
        needs: a table of the trace. If the table has no rows, the file is left out ("": it is always written).
        remark: a remark on the file for a trace, or "".
        of: whether the file is useful for a trace that has those rows.
    """

    name: str
    holds: str
    write: Callable[[Trace, Path], None]
    needs: str = ""
    remark: Callable[[Trace], str] = lambda trace: ""
    of: Callable[[Trace], bool] = lambda trace: True

    def there(self, trace: Trace) -> bool:
        """Whether the trace has data for it."""
        return not self.needs or trace.rows(self.needs) > 0

    def possible(self, trace: Trace) -> bool:
        """Whether the file is written for a trace."""
        return self.there(trace) and self.of(trace)


VIEWS: tuple[View, ...] = (
    View("report.html", "everything below in one page for a browser, offline", _page),
    View("summary.txt", "summary in words", _text),
    View("summary.json", "summary as JSON, seconds of the breakdown included", _json),
    View("trace.ipt", "the trace itself; read it with `ipuperf.trace.Trace.load`", lambda t, p: t.save(p)),
    View("operations.csv", "cycles of each op by kind of step, waiting apart, on one of `ipus` that do the same",
         _operations),
    View("modules.csv", "the tree of modules: cycles by phase, waiting, FLOP and bytes, alone and with all inside",
         _modules),
    View("code.csv", "bytes that are always live on tiles (code, vertex state, constants, ...) by op, IPU and category",
         _code, "code"),
    View("timeline.png", "execution timeline of every IPU", drawn(timeline_figure), "instances"),
    View("pipeline.png", "one weight update: forward, backward, copies and waiting of each IPU",
         drawn(_pipeline), "instances", of=is_pipeline),
    View("trace.pftrace", "interactive timeline; open it at https://ui.perfetto.dev",
         lambda t, p: to_perfetto(t, p), "instances", _cut),
    View("liveness.png", "live memory over program steps", drawn(liveness_figure), "liveness"),
    View("tile_memory.png", "bytes on every tile by category", drawn(tile_memory_figure), "tile_memory"),
)  # fmt: skip
"""The files of a report, in the order of its index. This table is the only place that lists them."""


def _index(trace: Trace, views: Sequence[View]) -> str:
    state = "**The program does not fit in memory.**\n\n" if trace.meta["oom"] else ""
    rows = "\n".join(f"| [{view.name}]({view.name}) | {view.holds}{view.remark(trace)} |" for view in views)
    # A view that is of no use for a trace is not missing.
    missing = [view.name for view in VIEWS if not view.there(trace)]
    left_out = f"\n\nNot written, the trace has no data for it: {', '.join(missing)}." if missing else ""
    title = f"# Report of a simulated program on {in_markdown(trace.meta['machine'])}"
    version = in_markdown(str(trace.meta["ipuperf_version"]))
    origin = f"Written by ipuperf {version}. The figures are simulated, not measured."
    return f"{title}\n\n{state}{origin}\n\n| File | Holds |\n|---|---|\n{rows}{left_out}\n"


@checked
def write_report(trace: Trace, directory: str | os.PathLike[str], also: Sequence[View] = ()) -> list[Path]:
    """Write the report files into ``directory`` (made if missing) and return their paths, ``index.md`` last.

    The files are those of :data:`VIEWS` and ``also``, which may replace a view of the same name, and index.md, which
    describes each. Files without data in the trace are left out, and the index says so. All files are written into a
    temporary folder beside ``directory`` that is then renamed, so that a report is complete or not there at all (see
    :func:`~.staging.staged`). Files of an earlier report that no longer apply are removed.

    Raises:
        OSError: the folder cannot be written; its contents are then unchanged.
    """
    folder = Path(directory)
    views = [view for view in {view.name: view for view in (*VIEWS, *also)}.values() if view.possible(trace)]
    with staged(folder) as temporary:
        for view in views:
            view.write(trace, temporary / view.name)
        (temporary / INDEX).write_text(_index(trace, views), encoding="utf-8")
        # An earlier report may have files for which this trace has no data, and advice on another run.
        for name in (ADVICE, *(view.name for view in VIEWS if not view.possible(trace))):
            (folder / name).unlink(missing_ok=True)
    return [folder / name for name in (*(view.name for view in views), INDEX)]


def remove_report(folder: Path, also: Sequence[str]) -> None:
    """Remove the files of a report and those of ``also``. The folder is removed too unless it has other files."""
    for name in (*(view.name for view in VIEWS), INDEX, ADVICE, *also):
        (folder / name).unlink(missing_ok=True)
    remove_if_empty(folder)

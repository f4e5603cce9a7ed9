"""Every output of a report, line by line, of a few programs.

Traces of real programs are kept in ``tests/golden/report``, so that a report stays as it is when a cost changes; one
that is deleted is simulated anew. Each test draws or writes one view.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import digest
import numpy as np
import programs
import pytest
from rows import Golden

import ipuperf.report as report
from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.report import folder as report_folder
from ipuperf.report.aligned import aligned
from ipuperf.report.excerpt import Excerpt
from ipuperf.report.instances import instance_work
from ipuperf.report.marks import arrows
from ipuperf.report.memory import MAX_IPUS
from ipuperf.report.page.facts import page_facts
from ipuperf.report.pipeline import is_pipeline, shown_window, stage_work
from ipuperf.trace import TABLES, Trace

HERE = Path(__file__).parents[1] / "golden" / "report"


def overlapped() -> Any:
    """Two steps whose host I/O runs on I/O tiles."""
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence():
        weight = popxl.variable(np.ones((64, 64), np.float32), name="weight")
        source, sink = popxl.h2d_stream((16, 64), popxl.float32), popxl.d2h_stream((16, 64), popxl.float32)
        for _ in range(2):
            with popxl.io_tiles():
                loaded = ops.io_tile_copy(ops.host_load(source))
            result = ops.io_tile_copy(ops.matmul(loaded, weight))
            with popxl.io_tiles():
                ops.host_store(sink, result)
    return popxl.Session(ir, "ipu_hw").executable


REAL: Mapping[str, Callable[[], Any]] = {
    "loop": programs.POPXL["loop"],
    "pipeline": partial(programs.encoder, "grouped", 2),
    "sharded": partial(programs.perceptron, "pod4", replicas=4, threshold=512),
    "overlapped": overlapped,
}
MADE_UP: Mapping[str, dict[str, Any]] = {
    "rich": {},
    "stages": {"ipus": 3, "micro_batches": 3, "layers": 2},
    "too-large": {"ipus": MAX_IPUS + 2, "micro_batches": 2, "runs": 10, "layers": 1, "scale": 1.6},
    "without-memory": {"ipus": 2, "micro_batches": 2, "layers": 1, "memory": False},
}
NOTES = {"warnings": ["does not fit: IPU 0 tile 3; largest: w 9; would help: z", "low confidence: v | w"]}


@pytest.fixture(scope="session")
def known(synthetic: ModuleType, installed_front_ends: Callable) -> Callable[[str], Trace]:
    """Traces by name."""

    @cache
    def give(name: str) -> Trace:
        if name in MADE_UP:
            trace = synthetic.pipeline_trace(**MADE_UP[name]) if MADE_UP[name] else synthetic.rich_trace()
        else:
            if not (HERE / f"{name}.ipt").exists():
                with installed_front_ends():
                    made = REAL[name]().trace
                lines = [line.replace(f"{HERE.parents[2]}/", "") for line in made.columns("ops")["line"].tolist()]
                tables = {table: partial(made._table, table) for table in TABLES}
                ops = {**made.columns("ops"), "line": lines}
                Trace(made.meta, {**tables, "ops": ops}).save(HERE / f"{name}.ipt")
            trace = Trace.load(HERE / f"{name}.ipt")
        trace.meta.update({"ipuperf_version": "1.0", **(NOTES if name in MADE_UP else {})})
        return trace

    return give


def part(trace: Trace) -> tuple[int, int]:
    """A window inside a trace."""
    runs = trace.columns("runs")
    begin, length = int(runs["start"][-1]), int(runs["dur"][-1])
    return begin + length // 7, begin + length // 2


def written(name: str, trace: Trace, folder: Path) -> str:
    (view,) = (view for view in report_folder.VIEWS if view.name == name)
    view.write(trace, folder / name)
    return (folder / name).read_text(encoding="utf-8")


def index(trace: Trace, folder: Path) -> Any:
    """The index alone, and what the folder would hold."""
    views = [
        report_folder.View(v.name, v.holds, lambda t, p: p.write_text(""), v.needs, v.remark, v.of)
        for v in report_folder.VIEWS
    ]
    with mock.patch.object(report_folder, "VIEWS", views):
        names = [path.name for path in report.write_report(trace, folder / "report")]
    return [*names, *(folder / "report" / "index.md").read_text().splitlines()]


def perfetto(trace: Trace, folder: Path, **options: Any) -> list[str]:
    report.to_perfetto(trace, folder / "x", **options)
    return digest.protobuf((folder / "x").read_bytes())


def chrome(trace: Trace, folder: Path, **options: Any) -> list[str]:
    """Events by what they are, with a check sum, and the last of them."""
    report.to_chrome_json(trace, folder / "x.json", **options)
    kinds: dict[tuple[str, ...], list[str]] = {}
    for event in json.loads((folder / "x.json").read_text())["traceEvents"]:
        key = (event["ph"], event.get("cat", ""), *map(str, event.get("args", {})))
        kinds.setdefault(key, []).append(json.dumps(event))
    return [
        f"{len(said)} events, check {zlib.crc32(chr(10).join(said).encode()):08x}, the last {said[-1]}"
        for said in kinds.values()
    ]


def excerpt(trace: Trace, folder: Path) -> Any:
    """What viewers get of a trace that is too long for them."""
    with mock.patch("ipuperf.report.excerpt.MAX_SLICES", 60):
        cut = Excerpt.default(trace, 60)
        return {"sentence": cut.sentence(), "window": str(cut.window), "file": perfetto(trace, folder)}


def pipelines(trace: Trace, _: Path) -> Any:
    if not is_pipeline(trace):
        return "no pipeline"
    windows = report.weight_update_windows(trace)
    return {
        "windows": [str(window) for window in windows],
        "shown": [str(shown_window(trace, most)) for most in (1, 30, 10**6)],
        "work": [str(stage_work(trace, 0, window)) for window in windows[-1:]],
        "split": {str(ipu): parts for ipu, parts in report.pipeline_split(trace).items()},
        "inside": {str(ipu): parts for ipu, parts in report.pipeline_split(trace, part(trace)).items()},
    }


def timed(trace: Trace, _: Path) -> Any:
    waits = report.waits(trace)
    path = report.critical_path(trace)
    return {
        "step": {"parts": report.step_time(trace).parts, "bound": str(report.step_time(trace).bound)},
        "breakdown": report.breakdown(trace),
        "cycles": report.breakdown_cycles(trace),
        "waits": waits.table(),
        "by ipu": {str(k): v for k, v in waits.by_ipu().items()},
        "path": report.path_cycles(trace, path),
        "arrows": [str(arrow) for arrow in arrows(trace, None)],
        "arrows inside": [str(arrow) for arrow in arrows(trace, part(trace))],
        "work": instance_work(trace),
    }


def live(trace: Trace, _: Path) -> Any:
    return {
        f"{name} {window}": [column for series in one(trace, window).values() for column in series]
        for name, one in (("memory", report.live_memory), ("links", report.link_use))
        for window in (None, part(trace))
    }


VIEWS: Mapping[str, Callable[[Trace, Path], Any]] = {
    **{name: partial(written, name) for name in ("summary.txt", "summary.json", "operations.csv")},
    "index": index,
    "why": lambda t, p: report.why_text(t),
    "facts": lambda t, p: page_facts(t, 10**6),
    "facts-cut": lambda t, p: {**page_facts(t, 20), "kinds": "", "phases": "", "categories": ""},
    "perfetto": perfetto,
    "perfetto-window": lambda t, p: perfetto(t, p, window=part(t), unit="cycles"),
    "chrome": chrome,
    "chrome-window": lambda t, p: chrome(t, p, window=part(t)),
    "excerpt": excerpt,
    "times": timed,
    "live": live,
    "pipeline": pipelines,
    "timeline-figure": lambda t, p: report.timeline_figure(t),
    "timeline-window-figure": lambda t, p: report.timeline_figure(t, part(t)),
    "pipeline-figure": lambda t, p: report.pipeline_timeline_figure(t) if is_pipeline(t) else "",
    "pipeline-window-figure": lambda t, p: report.pipeline_timeline_figure(t, part(t)) if is_pipeline(t) else "",
    "liveness-figure": lambda t, p: report.liveness_figure(t),
    "liveness-varying-figure": lambda t, p: report.liveness_figure(t, always_live=False, ipu=0),
    "tiles-figure": lambda t, p: report.tile_memory_figure(t),
    "tiles-ipu-figure": lambda t, p: report.tile_memory_figure(t, ipu=0),
}
TOO_MUCH = {
    ("too-large", view) for view in ("perfetto-window", "chrome", "chrome-window", "live", "timeline-window-figure")
}
NO_MEMORY = {("without-memory", view) for view in VIEWS if view.startswith(("live", "tiles"))}
PAIRS = [(name, view) for name in (*REAL, *MADE_UP) for view in VIEWS if (name, view) not in TOO_MUCH | NO_MEMORY]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "view"), PAIRS, ids=lambda word: word)
def test_view(name: str, view: str, known: Callable, golden: Golden, tmp_path: Path) -> None:
    golden(digest.lines(VIEWS[view](known(name), tmp_path)))


SIDE_BY_SIDE: Mapping[str, tuple[str, ...]] = {
    "alike": ("loop", "loop"),
    "others": ("stages", "too-large", "without-memory"),
    "real": ("pipeline", "sharded"),
}
TOGETHER: Mapping[str, Callable[[Mapping[str, Trace]], Any]] = {
    "table": lambda traces: report.compare(traces).table,
    "text": lambda traces: report.comparison_text(report.compare(traces)),
    "values": lambda traces: {**report.comparison_values(report.compare(traces)), "figures": ""},
    "page": lambda traces: report.comparison_page(report.compare(traces)).partition("</style>")[2],
    "split-figure": report.time_split_figure,
    "measured-figure": lambda traces: report.time_split_figure(traces, dict.fromkeys(list(traces)[:2], 5e-4)),
    "timelines-figure": report.timelines_figure,
    "aligned": aligned,
    "liveness-figure": lambda traces: report.liveness_figure(
        {name: trace for name, trace in traces.items() if trace.columns("liveness")["ipu"].size}
    ),
}


@pytest.mark.parametrize("view", TOGETHER)
@pytest.mark.parametrize("names", SIDE_BY_SIDE)
def test_runs_side_by_side(names: str, view: str, known: Callable, golden: Golden) -> None:
    traces = {f"{place} {name}": known(name) for place, name in enumerate(SIDE_BY_SIDE[names], 1)}
    golden(digest.lines(TOGETHER[view](traces)))


@pytest.mark.heavy
@pytest.mark.parametrize("view", ["timeline.png", "pipeline.png", "liveness.png", "tile_memory.png"])
def test_picture(view: str, known: Callable, tmp_path: Path) -> None:
    (row,) = (one for one in report_folder.VIEWS if one.name == view)
    with mock.patch.object(report_folder, "DPI", 13):
        row.write(known("without-memory" if "line" in view else "stages"), tmp_path / view)
    assert digest.png(tmp_path / view)

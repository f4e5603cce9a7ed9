"""What reports show where there is more than they list, at every limit; what their helpers say of edges and units."""

import itertools
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import digest
import numpy as np
import pytest
from answers import answer, asked, listed, together
from programtext import checksum
from rows import Golden

import ipuperf.report as report
from ipuperf.trace import TABLES, LoopCuts, Trace, slice_count
from ipuperf.trace.traffic import LinkTraffic


def room(*names: str) -> list[ModuleType]:
    """Modules of the room: functions have the names of some of them."""
    return [import_module(f"ipuperf.report.{name}") for name in names]


aligned, comparison_text, excerpt, marks, memory = room("aligned", "comparison_text", "excerpt", "marks", "memory")
perfetto, chrome_json, pipeline, raster, step_time = room("perfetto", "chrome", "pipeline", "raster", "step_time")
text, timeline, tracks, waiting, why = room("text", "timeline", "tracks", "waiting", "why")
compared, facts, link_facts = room("page.comparison", "page.facts", "page.link_facts")
memory_facts, op_facts, run_facts = room("page.memory_facts", "page.op_facts", "page.run_facts")
time_facts = room("page.time_facts")[0]


def both(trace: Trace) -> Any:
    """The run beside one that takes half as long and has no memory."""
    steps = trace.columns("steps")
    tables = {name: trace.folded(name) or trace.columns(name) for name in TABLES}
    tables["steps"] = {**steps, "dur": np.maximum(steps["dur"] // 2, 0), "dur_mean": steps["dur_mean"] / 2}
    empty = {name: {} for name in ("tile_memory", "liveness", "variables", "live_intervals")}
    return report.compare({"one": trace, "two": Trace({**trace.meta, "num_ipus": 12}, {**tables, **empty})})


def fonts(figure: Any) -> list[str]:
    """Sizes of the labels of the rows, and the texts in the picture."""
    axes = figure.axes[0]
    sizes = [label.get_fontsize() for label in axes.get_yticklabels()]
    return [f"{len(sizes)} rows {sorted(set(sizes))}, {len(axes.texts)} texts"]


def on_page(trace: Trace, *names: str) -> Any:
    """The facts of these names on a page that shows the whole trace."""
    shown = facts.page_facts(trace, 10**9)
    for name in names:
        shown = shown[name]
    return shown


# -- more than is listed -----------------------------------------------------------------------------------------------

LISTS: Mapping[str, tuple[ModuleType, str, Callable[[Trace], Any]]] = {
    "lines of a summary": (text, "_LISTED", report.summary_text),
    "reasons": (why, "_LISTED", report.why_text),
    "rows of a comparison": (comparison_text, "LISTED", lambda t: report.comparison_text(both(t))),
    "rows of a compared page": (compared, "SHOWN_ROWS", lambda t: compared._changes(both(t), "time")),
    "points of a compared curve": (
        compared,
        "_POINTS",
        lambda t: compared._path(np.array([3, 9, 1, 0, 5]), 9, 6, "#123456", "2 1"),
    ),
    "IPUs of compared timelines": (aligned, "MOST_IPUS", lambda t: aligned.aligned({"a": t, "b": t})),
    "ops of a page": (op_facts, "SHOWN_OPS", lambda t: on_page(t, "operations")),
    "variables of a page": (memory_facts, "SHOWN_VARIABLES", lambda t: on_page(t, "variables")),
    "tiles of a variable": (memory_facts, "_PIECES", lambda t: on_page(t, "variables")),
    "points of a curve": (memory_facts, "_POINTS", lambda t: on_page(t, "liveness")),
    "lanes of links": (time_facts, "_LINKS", lambda t: on_page(t, "timeline", "lanes")),
    "links of a page": (link_facts, "_SHOWN", lambda t: on_page(t, "links", "used")),
    "pieces of a path": (run_facts, "_POINTS", lambda t: on_page(t, "time", "path")),
    "IPUs of liveness": (memory, "MAX_IPUS", lambda t: report.liveness_figure(t)),
    "IPUs of tiles": (memory, "MAX_IPUS", lambda t: report.tile_memory_figure(t)),
    "points of liveness": (memory, "MAX_POINTS", lambda t: report.liveness_figure(t, ipu=0)),
    "rows of a timeline": (timeline, "MAX_ROWS", report.timeline_figure),
    "rows before a timeline is low": (timeline, "_MANY", lambda t: fonts(report.timeline_figure(t))),
    "labels of a timeline": (timeline, "MAX_LABELS", report.timeline_figure),
    "steps drawn at once": (timeline, "_AT_ONCE", report.timeline_figure),
}


@pytest.mark.parametrize("name", LISTS)
def test_more_than_is_listed(name: str, rich: Trace, golden: Golden) -> None:
    """With one place more each time: what is said changes up to the last that there is, and then no more."""
    module, constant, view = LISTS[name]
    lines = []
    for most in (1, 2, 6):
        with mock.patch.object(module, constant, most):
            lines += [f"with {most}", *digest.lines(view(rich))]
    golden(lines)


# -- too much to be shown ----------------------------------------------------------------------------------------------


def shown(trace: Trace, most: int) -> list[Any]:
    found = excerpt.Excerpt.default(trace, most)
    tracked = [
        (t.name, t.start.tolist(), t.dur.tolist(), [t.describe(key) for key in t.key.tolist()])
        for t in excerpt.repeat_tracks(found)
    ]
    return [found.window, found.replicas, found.sentence(), found.repeats, tracked, found.shown.rows("instances")]


def asked_for(trace: Trace, stretch: Any, most: int | None, allowed: int) -> str:
    return answer(lambda: excerpt.Excerpt.of(trace, stretch, most, allowed, allowed).sentence())


def exported(trace: Trace, module: ModuleType, write: Any, folder: Path) -> str:
    def act() -> int:
        write(trace, folder / "x", max_slices=module.MAX_SLICES)
        return (folder / "x").stat().st_size > 0

    return answer(act)


EDGES: Mapping[str, Callable[[Trace, int, Path], Any]] = {
    "excerpt": lambda t, n, _: shown(t, n),
    "excerpt of this trace": lambda t, n, _: _patched(excerpt, "MAX_SLICES", n, lambda: shown(t, 0)),
    "excerpt, asked for": lambda t, n, _: [asked_for(t, None, n, 3), asked_for(t, None, None, n)],
    "excerpt of a window": lambda t, n, _: [asked_for(t, (0, 10**4), n, 1), asked_for(t, (0, 10**4), None, n)],
    "limit": lambda t, n, _: answer(lambda: tracks.check_limit(t, None, n)),
    "waits": lambda t, n, _: _patched(marks, "MOST_SLICES", n, lambda: len(marks.run_waits(t, None))),
    "whole trace": lambda t, n, _: _patched(excerpt, "MOST_SLICES", n, lambda: excerpt._followed(t, (0, 9)) is t),
    "followable": lambda t, n, _: _patched(
        step_time, "MOST_SLICES", n - slice_count(t) + slice_count(t.short.trace), lambda: step_time.followable(t)
    ),
    "timeline": lambda t, n, _: _patched(timeline, "MOST_EXPANDED", n, lambda: report.timeline_figure(t)),
    "pipeline": lambda t, n, _: _patched(pipeline, "_MOST_SLICES", n, lambda: pipeline.shown_window(t, 40)),
    "chrome": lambda t, n, p: _patched(
        chrome_json, "MAX_SLICES", n, lambda: exported(t, chrome_json, report.to_chrome_json, p)
    ),
    "perfetto": lambda t, n, p: _patched(
        perfetto, "MAX_SLICES", n, lambda: exported(t, perfetto, report.to_perfetto, p)
    ),
}


def _patched(module: ModuleType, name: str, value: int, act: Callable[[], Any]) -> Any:
    with mock.patch.object(module, name, value):
        return act()


@pytest.mark.parametrize("name", EDGES)
def test_as_much_as_is_allowed_and_one_less(name: str, rich: Trace, golden: Golden, tmp_path: Path) -> None:
    count = slice_count(rich)
    golden([digest.lines(EDGES[name](rich, count - less, tmp_path)) for less in (-1, 0, 1)])


def test_windows_from_the_start(rich: Trace) -> None:
    """A page's time line has as many beginnings as it may, all where they are no more."""
    begins = [rich.columns(name)["start"] for name in ("instances", "transfers")]
    courses = [time_facts.RepeatedRows.of(None, start, np.full(len(start), -1), {}) for start in begins]
    starts = sorted(np.concatenate(begins).tolist())
    for most in range(len(starts) + 2):
        expected = None if most >= len(starts) else (starts[0], max(starts[most], starts[0] + 1))
        assert time_facts.page_window(courses, most) == expected


def test_a_page_takes_what_is_allowed_and_holds_no_nan(rich: Trace) -> None:
    module = import_module("ipuperf.report.page")
    text = report.report_page(rich)
    with mock.patch.object(module, "MOST_BYTES", len(text.encode())):
        assert report.report_page(rich) == text
    with (
        mock.patch.object(module, "page_facts", return_value={"x": float("nan")}),
        pytest.raises(ValueError, match="JSON"),
    ):
        report.report_page(rich)


# -- helpers -----------------------------------------------------------------------------------------------------------


def collective(start, dur):
    """The only collective of transfers over two links that carry the same."""
    rows = len(start)
    columns = (np.array(start), np.array(dur), np.arange(rows) + 8, np.full(rows, 3), np.full(rows, "all_reduce"))
    carried = LinkTraffic(np.array([4, 6]), *columns, np.full(rows, -1))
    ops = {"op_id": np.array([3]), "name": np.array(["sum"], dtype=object)}
    return link_facts._collectives([carried], ops, LoopCuts())


def curve(*points: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    time, value = zip(*points, strict=True)
    return np.array(time), np.array(value, dtype=float)


CALLS = """
[text.size(n) for n in (None, 0, 999, 1000, 999_949, 10 ** 6, 10 ** 9, 10 ** 12, -10 ** 6)]
[report.duration(s) for s in (0, 1e-10, 9.999e-7, 1e-6, 9.9994e-4, 1e-3, 0.5, 1, 123456, -2e-3)]
[comparison_text.number(n) for n in (0, 1234, 1234.5, 0.00012345, -3.0, 1e15)]
[row_of("x" * n, a, b) for n in (44, 45, 46, 60) for a, b in ((0, 5), (4, 3))]
[comparison_text._plain(n) for n in (3.0, 3.5, np.int64(4))]
[comparison._growth(a, b) for a, b in ((0, 0), (0, 1), (2, 3), (4, 1))]
[comparison._signed(s) for s in (0.0, 1e-6, -1e-6)]
comparison._same_op(["a", "a.1", "b.2", "a.1.3", "a.x"])
[text._owned(o, t) for o, t in (({}, 0), ({"host": 3, "sync": 5, "ddr": 0}, 10))]
[why._through(*p) for p in (([3], 0), ([3], 0), ([1, 3], 2), ([1, 2], 1))]
[protobuf.varint(n).hex() for n in (0, 1, 127, 128, 255, 300, 16383, 16384, 2 ** 63, 2 ** 64 - 1, -1, -2 ** 63)]
protobuf.varint(2 ** 64)
protobuf.varint(-2 ** 63 - 1)
[protobuf.uint(11, 300).hex(), protobuf.blob(2, b"ab").hex(), protobuf.text(17, "é").hex(), protobuf.fixed64(3, 258).hex(), protobuf.double(5, 0.5).hex()]
[encoding.runs_of(np.array(v)) for v in ([], [4], [4, 4, 5, 4], [0, 0])]
[encoding.steps_up(np.array(v, dtype=int)) for v in ([], [4], [4, 9, 7])]
[encoding.thinned(n, np.arange(5), np.array([1, 9, 2, 8, 3]), np.arange(5) * 2) for n in (1, 2, 3, 4, 5, 6)]
[[a.tolist() for a in encoding.grouped(np.array(v, dtype=int))] for v in ([], [3], [3, 1, 3, 2])]
[collective(s, d) for s, d in (([0], [5]), ([0, 5, 6, 20], [5, 3, 1, 0]), ([9, 0, 2, 2], [1, 3, 4, 1]))]
link_facts._binned(*curve((2, 50), (4, 100), (7, 0)), 10, 5)
link_facts._binned(*curve((0, 30), (10, 0)), 10, 4)
link_facts._binned(*curve((0, 30), (12, 10)), 8, 3)
link_facts._binned(*curve((0, 1)), 0, 2)
[[a.tolist() for a in live._changes(np.array(t), np.array(v))] for t, v in (([], []), ([1, 1, 2, 3], [5, 6, 6, 7]), ([0, 1], [2, 2]))]
[tracks.pack(np.array(s), np.array(d)).tolist() for s, d in (([], []), ([0, 0, 5], [5, 9, 1]), ([0, 5, 5], [5, 0, 0]), ([0, 1, 2, 3, 9], [9, 1, 1, 9, 1]), ([4, 0], [1, 4]))]
covered(2, (0, 10), 5, [(0, 0, 10), (1, 1, 2), (1, 3, 4)])
covered(1, (10, 30), 4, [(0, 0, 12), (0, 29, 40), (0, 15, 15)])
covered(1, (0, 3), 2, [(0, 0, 1), (0, 1, 3)], share=0.5)
added(2, (0, 8), 4, [(0, 0, 0.5), (1, 3, 1.0), (0, 3, 0.25)])
raster.colours(["a", "b"], {"a": "#010aff", "b": "102030"}).tolist(), raster.colours([], {}).shape
raster.stacked(np.array([[0.5, 1.0, 0.2], [0.25, 1.0, 0.0]]), np.array([[1, 2, 3], [4, 5, 6]], np.uint8), 4).tolist()
raster.stacked(np.array([[0.0, 0.26]]), np.array([[9, 9, 9]], np.uint8), 2, 7).tolist()
[marks.owner(np.array(c)) for c in ([0] * 7, [0, 3, 3, 0, 0, 0, 0], [0] * 6 + [1])]
[answer(lambda: window.check_inside(rich, w)) for w in (None, (0, 1), (999, 1000), (1000, 1001), (-5, 0), (-5, 1), (3, 3), "ab")]
doing(0, 10), doing(5, 25), doing(-3, 0), doing(29, 40)
[worked(t) for t in (0, 1, 10, 11, 20, 30, 31)]
[a.tolist() for a in line().waits()]
[a.tolist() for a in idle().waits()], [a.tolist() for a in idle().last_work(np.array([5]))]
[alike(n) for n in (1, 2, 3, 4)]
flushed(1), flushed(10 ** 6)
[[a.tolist() for a in pipeline._recomputed(np.array(p, dtype=int))] for p in ([], [0, 1, 0, 2], [1, 0, 2, 1, 2], [0, 2, 1, 1, 2, 0], [1, 0, 1, 2, 1], [2, 0, 1, 0])]
[said(report.pipeline_split(rich, part, replica=r)) for part in (None, (100, 300)) for r in (0, 1, 2)]
report.pipeline_split(rich, replica=3)
report.pipeline_split(rich, (2000, 3000))
[report.weight_update_windows(rich, r) for r in (0, 1, 2)]
report.weight_update_windows(rich, 3)
[said(report.pipeline_timeline_figure(rich, replica=r)) for r in (1, 2)]
said(report.pipeline_timeline_figure(rich, (100, 300), 2))
report.pipeline_timeline_figure(rich, replica=-1)
said(report.waits(rich, 0).table()) == said(report.waits(rich).table())
report.waits(rich, 1)
report.breakdown(rich, 0) == report.breakdown(rich), report.breakdown_cycles(rich, 0)
report.breakdown(rich, 1)
report.breakdown_cycles(rich, -1)
report.step_time(rich, 0).parts == report.step_time(rich).parts
report.step_time(rich, 7)
report.critical_path(rich, 1)
said(report.path_cycles(rich, report.critical_path(rich, 0))) == said(report.path_cycles(rich, report.critical_path(rich)))
[said(report.liveness_figure(rich, always_live=a, ipu=i)) for a in (True, False) for i in (None, 1)]
report.liveness_figure(rich, ipu=2)
[said(report.liveness_figure({"a": rich, "b": rich}, a, i)) for a in (True, False) for i in (None, 1)]
report.liveness_figure({"a": rich}, ipu=2)
report.liveness_figure({})
said(report.tile_memory_figure(rich, ipu=1))
report.tile_memory_figure(rich, ipu=2)
[said(report.timeline_figure(rich, w)) for w in ((0, 1), (100, 101), (999, 1200), (-50, 40))]
report.timeline_figure(rich, (1000, 1200))
said(report.time_split_figure({"a": rich, "b": rich}, {"b": 2e-6, "a": 1e-7}))
report.time_split_figure({"a": rich}, {"c": 1.0})
report.time_split_figure({})
report.timelines_figure({})
[said(live.live_memory(rich, w)) for w in ((0, 81), (226, 227), (2000, 3000))]
[said(live.link_use(rich, w)) for w in ((57, 58), (56, 57), (77, 100), (2000, 3000))]
[marks.arrows(rich, w) == [a for a in marks.arrows(rich, None) if w[0] <= a.start < w[1]] for w in ((177, 178), (0, 177), (271, 900), (900, 901))]
[sorted(live.link_use(changed("links", "bandwidth_bytes_per_s", row, rate))) for row, rate in ((0, 0.0), (2, 1.0))]
[link["utilisation"] for link in changed("links", "bandwidth_bytes_per_s", 0, 0.0).summary()["links"]]
[said(draw(changed("runs", "dur", 0, 10 ** 6))) for draw in (report.timeline_figure, report.pipeline_timeline_figure, report.summary_text, report.why_text)]
[said(report.pipeline_timeline_figure(rich, (80, 80 + n))) for n in (19_999, 20_000)]
[[tuple(m) for m in marks.loop_marks(rich, np.array(rows))] for rows in ([], [0], [3, 4])]
empty("breakdown"), empty("summary_text"), empty("why_text"), empty("step_time"), empty("waits"), empty("weight_update_windows")
empty("timeline_figure"), empty("liveness_figure"), empty("tile_memory_figure"), empty("pipeline_timeline_figure"), empty("live_memory"), empty("link_use")
"""  # noqa: E501


def _row_of(name: str, old: float, new: float) -> str:
    """The line of a figure of this name in a comparison of two runs."""
    runs = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    ratio = new / old if old else float("nan")
    row = {"group": "op", "key": name, "unit": "ns", "a": old, "b": new, "diff": new - old, "ratio": ratio}
    return comparison_text._row(SimpleNamespace(runs=runs), row)


def _covered(rows: int, span: Any, width: int, slices: list[Any], share: float = 1.0) -> Any:
    one = raster.Raster(rows, span, width)
    row, start, end = (np.array(part) for part in zip(*slices, strict=True))
    one.add(row, start, end - start, share)
    return np.round(one.fractions(), 6).tolist()


def _added(rows: int, span: Any, width: int, pixels: list[Any]) -> Any:
    one = raster.Raster(rows, span, width)
    one.cover(*(np.array(part) for part in zip(*pixels, strict=True)))
    return np.round(one.fractions(), 6).tolist()


def _line() -> waiting.IpuLine:
    """Works until 10, waits until 20, is at a link until 25, and works until 30."""
    activity = np.array([0, waiting.WAITS, 1, 0])
    return waiting.IpuLine(0, 1, np.array([0, 10, 20, 25, 30]), activity, np.array([7, -1, 8, 9]))


def _idle() -> waiting.IpuLine:
    return waiting.IpuLine(0, 1, np.array([3, 9]), np.array([waiting.WAITS]), np.array([-1]))


def _alike(common: int, synthetic: ModuleType) -> list[str]:
    """What is said of two programs of four types of ops of which some are of both."""
    runs = {}
    for name, types in (("p", "ABCD"), ("q", "ABCD"[:common] + "WXYZ"[common:])):
        build = synthetic.Builder()
        dur = synthetic.add_segment(build, 0, 0, "fwd", [(f"{one.lower()}/{one}", "compute", 5) for one in types])
        build.add("instances", 0, 0, 0, 0, 0, 0, 0, dur, 0)
        build.add("runs", 0, "run", 0, dur)
        runs[name] = build.trace()
    return list(report.compare(runs).models_differ)


def _said(value: Any) -> str:
    lines = digest.lines(value)
    return f"{len(lines)} lines {checksum(chr(10).join(lines))}"


def _changed(trace: Trace, table: str, column: str, row: int, value: Any) -> Trace:
    """The trace with one cell changed."""
    tables = {name: trace.folded(name) or trace.columns(name) for name in TABLES}
    values = tables[table][column].copy()
    values[row] = value
    return Trace(trace.meta, {**tables, table: {**tables[table], column: values}})


def _empty(name: str, synthetic: ModuleType) -> str:
    """What a report says of a trace of nothing."""
    return answer(lambda: _said(getattr(report, name)(synthetic.Builder().trace(ipuperf_version="1.0"))))


def _flushed(most: int, trace: Trace, folder: Path) -> Any:
    """Whether pieces written one by one are the file written at once."""
    report.to_perfetto(trace, folder / "whole")
    pieces: list[int] = []
    with mock.patch.object(perfetto, "_FLUSH_BYTES", most):
        report.to_perfetto(trace, folder / "pieces")
        writer = perfetto._Writer(mock.Mock(write=lambda data: pieces.append(len(data))))
        writer.packet(b"abc")
    return [(folder / "whole").read_bytes() == (folder / "pieces").read_bytes(), pieces]


ASKED = {"comparison": "comparison", "live": "live", "protobuf": "protobuf", "window": "arguments"}


@together(listed(CALLS))
def test_every_answer(cases: list[str], rich: Trace, synthetic: ModuleType, golden: Golden, tmp_path: Path) -> None:
    names = {name: value for name, value in globals().items() if isinstance(value, ModuleType)}
    names |= dict(zip(ASKED, room(*ASKED.values()), strict=True))
    names |= {
        "answer": answer, "collective": collective, "curve": curve, "encoding": room("page.encoding")[0], "rich": rich,
        "covered": _covered, "row_of": _row_of, "added": _added, "line": _line, "idle": _idle,
        "doing": lambda a, b: _line().doing(np.array([a]), np.array([b])).tolist(),
        "worked": lambda t: [a.tolist() for a in _line().last_work(np.array([t]))],
        "report": report, "said": _said, "changed": lambda *cell: _changed(rich, *cell),
        "empty": lambda name: _empty(name, synthetic),
        "alike": lambda n: _alike(n, synthetic), "flushed": lambda n: _flushed(n, rich, tmp_path),
    }  # fmt: skip
    golden({case: asked(case, names) for case in cases})


def test_cover_is_the_mean_over_the_pixel() -> None:
    """Each cycle of a slice counts in its pixel, whatever the scale."""
    pick = np.random.default_rng(5)
    for width, length in itertools.product((3, 8), (6, 24)):
        start = pick.integers(-4, length + 4, 30)
        dur = pick.integers(0, 9, 30)
        row = pick.integers(0, 2, 30)
        one = raster.Raster(2, (0, length), width)
        one.add(row, start, dur)
        fine = np.zeros((2, length * width))
        for r, s, d in zip(row, start, dur, strict=True):
            fine[r, max(s, 0) * width : max(min(s + d, length), 0) * width] += 1
        np.testing.assert_allclose(one.fractions(), fine.reshape(2, width, length).mean(axis=2), atol=1e-9)

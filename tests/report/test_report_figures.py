"""Figures: the pixels, curves and words that must be in them."""

import importlib
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ipuperf.report import (
    liveness_figure,
    save_figure,
    tile_memory_figure,
    time_split_figure,
    timeline,
    timeline_figure,
)
from ipuperf.report.instances import instance_work
from ipuperf.report.memory import MAX_POINTS
from ipuperf.report.palette import PHASE_COLOURS, WAITING_COLOUR
from ipuperf.report.timeline import kind_cover
from ipuperf.report.tracks import slice_tracks
from ipuperf.trace import PHASES


def words(figure: Figure) -> str:
    """All text of a figure."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def seen(figure: Figure) -> set[str]:
    """Colours of the picture of a timeline."""
    image = figure.axes[0].images[0].get_array()
    return {to_hex(pixel / 255) for pixel in np.unique(np.asarray(image).reshape(-1, 3), axis=0)}


@pytest.mark.heavy
def test_the_timeline_shows_what_was_executed(trace, tmp_path):
    figure = timeline_figure(trace)
    assert isinstance(figure, Figure)
    assert {"#f66271", "#b1e0e7", "#95a595", "#f0b093", "#8f7ac6"} <= seen(figure)
    text = words(figure)
    for word in ("IPU 0", "IPU 3", "time (µs)", "cycles", "StreamCopyMid", "global exchange", "fwd", "update"):
        assert word in text
    left, right = figure.axes[0].get_xlim()
    assert (left, right) == pytest.approx((0, 1e6 * trace.summary()["seconds"]))
    save_figure(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


def test_a_window_of_one_phase_has_its_colours_only(trace):
    # IPU 3 computes, nobody else does anything
    frame = trace.expand()
    row = frame[(frame.ipu == 3) & (frame.kind == "compute")].iloc[0]
    window = (int(row.start) + 10, int(row.start) + 2000)
    present = set(trace.expand(window).kind)
    figure = timeline_figure(trace, window)
    assert ("#b1e0e7" in seen(figure)) == ("exchange" in present)
    assert "F0" in words(figure)
    with pytest.raises(ValueError, match="start < stop"):
        timeline_figure(trace, (5, 5))


def waiting_program(synthetic):
    """IPU 0 waits in a copy of phase bwd for 800 of 1000 cycles, IPU 1 does nothing else."""
    build = synthetic.Builder()
    build.add("ops", 0, "copy", "IpuCopy", "main", "bwd", 0, "", "")
    build.add("ops", 1, "layer", "MatMul", "main", "fwd", 0, "", "float32")
    build.add("steps", 0, 0, -1, 0, "sync_external", 0, 800, 800.0, 1, 0, 0, 0, 0, 0, -1)
    build.add("steps", 0, 1, -1, 1, "compute", 800, 200, 200.0, 1, 0, 0, 0, 0, 0, -1)
    build.add("steps", 1, 0, -1, 0, "sync_external", 0, 1000, 1000.0, 1, 0, 0, 0, 0, 0, -1)
    for ipu in (0, 1):
        build.add("instances", ipu, ipu, ipu, 0, 3, 0, 0, 1000, -1)
    return build.trace(num_ipus=2)


def test_waiting_is_no_pass_of_a_micro_batch(synthetic):
    one = waiting_program(synthetic)
    figure = timeline_figure(one)
    image = np.asarray(figure.axes[0].images[0].get_array())
    strip = [to_hex(pixel / 255) for pixel in image[2]]  # what the work of IPU 0 is for
    assert set(strip) == {PHASE_COLOURS["fwd"], WAITING_COLOUR}
    assert strip.count(PHASE_COLOURS["fwd"]) == pytest.approx(0.2 * len(strip), abs=1)
    assert PHASE_COLOURS["bwd"] not in seen(figure)
    (label,) = [text for text in figure.axes[0].texts if text.get_text()]
    assert (label.get_text(), label.get_position()[0]) == ("F3", pytest.approx(900e6 / one.meta["clock_hz"]))
    assert "waiting for other IPUs" in words(figure)
    work = instance_work(one)
    assert [PHASES[phase] for phase in work.phase] == ["fwd", "other"]
    assert (work.start.tolist()[0], work.dur.tolist(), work.waiting.tolist()) == (800, [200, 0], [800, 1000])
    micro_batches = [track for track in slice_tracks(one) if track.name == "micro-batches"]
    assert [(track.start.tolist(), track.dur.tolist()) for track in micro_batches] == [([800], [200])]
    name, _, args = micro_batches[0].describe(int(micro_batches[0].key[0]))
    assert (name, args["cycles"], args["waiting_cycles"]) == ("fwd mb 3", 200, 800)


def test_instances_narrower_than_a_pixel_are_drawn_in_one_go_and_look_the_same(synthetic, monkeypatch):
    one = synthetic.pipeline_trace(runs=6)
    ipus, window = [(0, 0), (0, 3)], (0, int(one.summary()["total_cycles"]))
    exact = kind_cover(one, ipus, window, width=40)
    monkeypatch.setattr(timeline, "MOST_EXPANDED", 1_000)
    coarse = kind_cover(one, ipus, window, width=40)
    np.testing.assert_allclose(coarse.sum(axis=2), exact.sum(axis=2), rtol=1e-9)
    assert np.abs(np.cumsum(coarse - exact, axis=2)).max() <= 1  # nothing is drawn more than a pixel away
    assert (coarse != exact).any()


def test_many_ipus_are_cut_and_it_is_said(synthetic):
    figure = timeline_figure(synthetic.pipeline_trace(ipus=66, micro_batches=2, runs=1, layers=1, memory=False))
    assert "2 more IPUs not shown" in words(figure)


def test_other_lanes_have_a_strip(synthetic):
    build = synthetic.Builder()
    build.add("steps", 0, 0, -1, -1, "compute", 0, 50, 50.0, 1, 0, 0, 0, 0, 0, -1)
    build.add("steps", 0, 1, -1, -1, "host_mid", 10, 20, 20.0, 1, 0, 0, 0, 0, 1, -1)
    build.add("instances", 0, 0, 0, 0, -1, 0, 0, 50, 0)
    figure = timeline_figure(build.trace())
    assert {"#f66271", "#f0b093"} <= seen(figure)
    assert "lower strip: I/O tiles" in words(figure)
    with pytest.raises(ValueError, match="no timeline"):
        timeline_figure(synthetic.Builder().trace())


def test_liveness_of_one_trace(trace):
    figure = liveness_figure(trace)
    assert len(figure.axes) == 4
    curve = figure.axes[0].lines[0]
    frame = trace.table("liveness").query("ipu == 0")
    np.testing.assert_allclose(curve.get_ydata()[:-1], (frame.always_live + frame.not_always_live) / 1e6)
    assert curve.get_xdata()[-1] == 200
    alone = liveness_figure(trace, always_live=False, ipu=2).axes[0]
    assert max(alone.lines[0].get_ydata()) == pytest.approx(
        trace.table("liveness").query("ipu == 2").not_always_live.max() / 1e6
    )
    with pytest.raises(ValueError, match="IPU 9 has no rows"):
        liveness_figure(trace, ipu=9)


def test_liveness_of_ipus_of_unequal_length_shows_all_steps(synthetic):
    build = synthetic.Builder()
    for ipu, steps in ((0, 20), (1, 3)):
        for step in range(steps):
            build.add("liveness", ipu, step, "p", 10, 1_000_000 + step, 5_000_000, 0)
    assert {axes.get_xlim() for axes in liveness_figure(build.trace()).axes} == {(0, 20)}


def test_liveness_compared(trace, synthetic):
    other = synthetic.pipeline_trace(scale=1.5, runs=1)
    figure = liveness_figure({"on-chip": trace, "off-chip": other})
    lines = {line.get_label(): to_hex(line.get_color()) for line in figure.axes[0].lines}
    assert list(lines.values()) == ["#6f6ffe", "#f66271", "#209b00", "#f7aa67"]
    assert any(label.startswith("off-chip (IPU 0), not always live, peak 220.5 MB") for label in lines), lines
    assert len(liveness_figure({"a": trace}, always_live=False).axes[0].lines) == 1
    for bad, text in (({}, "no traces"), ({"x": synthetic.Builder().trace()}, "liveness of x")):
        with pytest.raises(ValueError, match=text):
            liveness_figure(bad)


def test_long_liveness_keeps_its_peak(synthetic):
    build = synthetic.Builder()
    steps = 3 * MAX_POINTS + 5
    for step in range(steps):
        build.add("liveness", 0, step, "p", 10, 5_000_000 if step == 777 else 1_000_000, 5_000_000, 0)
    curve = liveness_figure(build.trace(), always_live=False).axes[0].lines[0]
    assert len(curve.get_ydata()) <= MAX_POINTS + 1
    assert max(curve.get_ydata()) == 5.0


def test_tile_memory(trace, synthetic):
    figure = tile_memory_figure(trace)
    assert len(figure.axes) == 4
    assert "OUT OF MEMORY" not in words(figure)
    assert "fullest tile 699 holds 524.6 of 639.0 kB" in words(figure)
    large = tile_memory_figure(synthetic.pipeline_trace(scale=1.6, runs=1), ipu=3)
    assert "OUT OF MEMORY on 1,472 tiles, by 200.4 kB" in words(large)
    assert "over the limit" in words(large)
    assert any(to_hex(patch.get_facecolor()) == "#d40000" for patch in large.axes[0].patches)
    with pytest.raises(ValueError, match="IPU 9 has no rows"):
        tile_memory_figure(trace, ipu=9)
    with pytest.raises(ValueError, match="no rows in table 'tile_memory'"):
        tile_memory_figure(synthetic.Builder().trace())


def test_the_axis_of_tile_memory_fits_what_is_held_and_says_the_limit(synthetic):
    build = synthetic.Builder()
    for tile, held in ((700, 41_000), (701, 20_000)):
        build.add("tile_memory", 0, tile, "vertexCode", held)
    figure = tile_memory_figure(build.trace())
    (axes,) = figure.axes
    assert axes.get_ylim() == pytest.approx((0, 41.0 * 1.12))
    assert "limit 639.0 kB, above this axis" in words(figure)
    full = tile_memory_figure(synthetic.pipeline_trace(runs=1), ipu=0)
    assert full.axes[0].get_ylim()[1] == pytest.approx(639.0 * 1.06, rel=1e-3)
    assert "above this axis" not in words(full)


def test_one_tile_alone_is_seen(synthetic):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    build = synthetic.Builder()
    for tile in range(1472):
        build.add("tile_memory", 0, tile, "vertexCode", 300_000 if tile == 1003 else 100_000)
    figure = tile_memory_figure(build.trace())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    (axes,) = figure.axes
    _, y = axes.transData.transform((1003.5, 200.0))
    row = pixels[len(pixels) - int(y)]
    close = np.abs(row - (0x20, 0x9B, 0x00)).max(axis=1) < 60
    assert close.any(), "its colour is there at half its height"


def test_liveness_names_the_step_of_the_peak_and_the_memory_of_the_tiles(trace):
    live = trace.table("liveness").query("ipu == 0")
    row = live.loc[(live["always_live"] + live["not_always_live"]).idxmax()]
    assert f"at step {row['step']} ({row['program']}); its tiles have 940.6 MB" in words(liveness_figure(trace))


def test_a_window_outside_of_the_trace_is_refused(trace):
    end = int(trace.summary()["total_cycles"])
    for window in ((end, end + 10), (-10, 0)):
        with pytest.raises(ValueError, match=rf"lies outside of the trace, cycles 0 to {end:,}"):
            timeline_figure(trace, window)


def test_only_the_fullest_ipus_are_drawn(synthetic):
    build = synthetic.Builder()
    synthetic.add_memory(build, 6, 0.5, tiles=3)
    figure = tile_memory_figure(build.trace(num_ipus=6, tiles_per_ipu=3))
    assert "the 4 fullest of 6 IPUs" in words(figure)
    assert "IPU 5: fullest" in words(figure)
    assert "IPU 1: fullest" not in words(figure)


def test_time_split(trace, synthetic):
    fast = synthetic.pipeline_trace(speed=2)
    figure = time_split_figure({"slow": trace, "fast": fast}, {"slow": 1e-3})
    axes = figure.axes[0]
    widths = np.array([patch.get_width() for patch in axes.patches]).reshape(6, 2).sum(axis=0)
    expected = [t.table("runs").dur.iloc[-1] / 1.85e9 * 1e3 for t in (trace, fast)]
    np.testing.assert_allclose(widths, expected)
    assert axes.lines[0].get_xdata()[0] == pytest.approx(1.0)
    assert "measured" in words(figure)
    assert "0.8142 ms (measured 1)" in words(figure)
    with pytest.raises(ValueError, match="'medium' is none of slow"):
        time_split_figure({"slow": trace}, {"medium": 1.0})
    with pytest.raises(ValueError, match="no traces"):
        time_split_figure({})


def test_pyplot_is_never_touched(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    with pytest.raises(ImportError):
        importlib.import_module("matplotlib.pyplot")
    figures = timeline_figure(trace), liveness_figure(trace), tile_memory_figure(trace), time_split_figure({"a": trace})
    assert [len(figure.axes) > 0 for figure in figures] == [True] * 4
    assert [type(figure.canvas).__name__ for figure in figures] == ["FigureCanvasBase"] * 4, "pyplot gives others"

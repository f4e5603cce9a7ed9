"""The split and the figure of a pipeline, on a trace written by hand and on the made-up program."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from ipuperf.report import PIPELINE_PARTS, pipeline_split, pipeline_timeline_figure, save_figure, weight_update_windows
from ipuperf.report.pipeline import PIPELINE_COLOURS, is_pipeline

#: (op, type, graph, phase)
OPS = (
    ("stash", "DynamicUpdateInplace", "stage_fwd", "fwd"),
    ("layer", "MatMul", "encoder_bwd_recompute", "fwd"),
    ("take", "DynamicSlice", "my_bwd_again", "recompute"),
    ("grad", "MatMul", "encoder_bwd", "bwd"),
    ("accumulate", "Accumulate", "stage_bwd_pass", "bwd"),
    ("keep", "CopyVarUpdate", "main", "other"),
    ("adam", "AdamVarUpdate", "update_ipu", "update"),
    ("zero", "Init", "main", "io"),
    ("load", "HostLoad", "main", "io"),
    ("pass/MatMul.7", "MatMul", "pass", "recompute"),
)
NUMBERS = {name: number for number, (name, *_) in enumerate(OPS)}
NUMBERS["again"] = len(OPS) - 1
#: one weight update on IPU 0 and IPU 1: (op, kind, cycles)
FIRST = (("load", "host_mid", 40), ("layer", "exchange", 10), ("layer", "compute", 90), ("stash", "compute", 20))
FIRST += (("take", "compute", 5), ("layer", "exchange", 10), ("layer", "compute", 90), ("grad", "compute", 150))
FIRST += (("accumulate", "sync", 3), ("accumulate", "compute", 7), ("", "sync_external", 35), ("", "link", 15))
FIRST += (("", "remote_load", 11), ("adam", "compute", 14))
SECOND = (("load", "host_end", 40), ("", "sync_external", 60), ("layer", "compute", 120), ("keep", "compute", 4))
SECOND += (("grad", "compute", 236), ("", "link", 15), ("adam", "compute", 25))
LENGTH = 500
#: an IPU that computes stretches of the forward again in the midst of its backward
MIXED = (("layer", "compute", 100), ("", "sync_external", 20), ("again", "exchange", 5), ("again", "compute", 45))
MIXED += (("grad", "compute", 110), ("again", "sync", 2), ("again", "compute", 48), ("grad", "compute", 120))
MIXED += (("accumulate", "compute", 20), ("adam", "compute", 30))


def handmade(synthetic, updates: int, begin: int = 100, work=(FIRST, SECOND)):
    """``updates`` weight updates after a host cost of ``begin`` cycles."""
    build = synthetic.Builder()
    for number, (name, type_, graph, phase) in enumerate(OPS):
        build.add("ops", number, name, type_, graph, phase, 0, "", "")
    for ipu, steps in enumerate(work):
        assert sum(dur for *_, dur in steps) == LENGTH
        for segment, rows in ((2 * ipu, [("", "host_run", begin)]), (2 * ipu + 1, steps)):
            at = 0
            for seq, (op, kind, dur) in enumerate(rows):
                op_id = NUMBERS.get(op, -1)
                build.add("steps", segment, seq, -1, op_id, kind, at, dur, float(dur), 1472, -1, 0, 0, 0, 0, -1)
                at += dur
        build.add("instances", 100 * ipu, 2 * ipu, ipu, 0, -1, -1, 0, begin, 0)
        for update in range(updates):
            start = begin + update * LENGTH
            build.add("instances", 100 * ipu + update + 1, 2 * ipu + 1, ipu, 0, -1, update, start, LENGTH, 0)
    build.add("runs", 0, "run", 0, begin + updates * LENGTH)
    return build.trace(num_ipus=len(work))


def test_every_cycle_of_a_weight_update_has_its_part(synthetic):
    split = pipeline_split(handmade(synthetic, 3))
    none = dict.fromkeys(PIPELINE_PARTS, 0)
    assert split == {
        0: {**none, "io": 51, "fwd": 120, "recompute": 105, "bwd": 160, "waiting": 35, "link": 15, "update": 14},
        1: {**none, "io": 40, "fwd": 120, "bwd": 236, "waiting": 60, "link": 15, "update": 25, "other": 4},
    }
    assert all(sum(parts.values()) == LENGTH for parts in split.values())


def test_what_is_recomputed_within_the_backward_is_told_apart(synthetic):
    """5 + 45 + 2 + 48 cycles of 350; the micro-batch still has one backward."""
    trace = handmade(synthetic, 1, work=(MIXED,))
    none = dict.fromkeys(PIPELINE_PARTS, 0)
    assert pipeline_split(trace) == {0: {**none, "fwd": 100, "waiting": 20, "recompute": 100, "bwd": 250, "update": 30}}
    texts = [text.get_text() for text in pipeline_timeline_figure(trace).findobj(Text)]
    assert [text for text in texts if text[:1] in "FB" and text[1:].isdigit()] == ["F1", "B1"]


def test_weight_updates_follow_each_other(synthetic):
    assert weight_update_windows(handmade(synthetic, 3)) == [(100, 600), (600, 1100), (1100, 1600)]


def test_a_given_window_cuts_steps(synthetic):
    split = pipeline_split(handmade(synthetic, 2), window=(120, 190))
    assert split[0] == {**dict.fromkeys(PIPELINE_PARTS, 0), "io": 20, "fwd": 50}
    after = pipeline_split(handmade(synthetic, 1), window=(590, 700))
    assert after[0]["waiting"] == 100


def test_bad_windows_and_replicas(synthetic):
    trace = handmade(synthetic, 1)
    with pytest.raises(ValueError, match=r"window \(5, 5\): expected \(start, stop\)"):
        pipeline_split(trace, window=(5, 5))
    with pytest.raises(ValueError, match=r"replica 3: nothing of it was executed; the trace has replicas \[0\]"):
        pipeline_timeline_figure(trace, replica=3)


def test_ipus_that_update_unequally_often_need_a_window(synthetic):
    trace = handmade(synthetic, 2)
    tables = {name: trace.columns(name) for name in ("ops", "steps", "instances", "runs")}
    keep = tables["instances"]["instance"] != 102
    tables["instances"] = {name: values[keep] for name, values in tables["instances"].items()}
    less = type(trace)(trace.meta, tables)
    with pytest.raises(ValueError, match=r"do not update their weights equally often \(\[1, 2\] times\)"):
        weight_update_windows(less)
    assert pipeline_split(less, window=(100, 600)) == pipeline_split(trace, window=(100, 600))


def test_the_figure_has_a_bar_per_ipu_in_the_colours_of_its_parts(synthetic, tmp_path):
    figure = pipeline_timeline_figure(handmade(synthetic, 3))
    axes = figure.axes[0]
    image = np.asarray(axes.images[0].get_array())
    seen = {to_hex(pixel / 255) for pixel in np.unique(image.reshape(-1, 3), axis=0)}
    assert seen == {"#ffffff", *PIPELINE_COLOURS.values()}
    middle = image[image.shape[0] // 4]  # of IPU 0
    forward = (middle == [int(PIPELINE_COLOURS["fwd"][k : k + 2], 16) for k in (1, 3, 5)]).all(axis=1)
    assert forward.mean() == pytest.approx(120 / LENGTH, abs=0.005)
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert {"IPU 0", "IPU 1", "F1", "B1", "recomputation", "weight update", "cycles of the tile clock"} <= set(texts)
    assert any(text.startswith("500 cycles") and "first micro-batch framed" in text for text in texts)
    assert axes.get_xlim() == (0, LENGTH)
    save_figure(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


def test_bars_too_narrow_for_their_number_have_it_above(synthetic):
    axes = pipeline_timeline_figure(handmade(synthetic, 3), window=(0, 20_000)).axes[0]
    found = [(text.get_text(), text.get_position()[1]) for text in axes.texts]
    rows = [7, 55]  # where the bars of the IPUs begin
    for row in rows:
        (forward,) = {y for name, y in found if name == "F2" and abs(y - row) < 20}
        assert forward < row
    assert {y for name, y in found if name == "B2"} == {rows[0] - 1, rows[1] + 17}  # 13 and 19 pixels wide


def test_a_pipeline_is_several_ipus_that_work_on_micro_batches(synthetic, trace):
    assert is_pipeline(handmade(synthetic, 2))
    assert is_pipeline(trace)
    assert not is_pipeline(synthetic.pipeline_trace(ipus=1))
    idle = (("load", "host_end", 40), ("", "sync_external", 460))
    assert not is_pipeline(handmade(synthetic, 1, work=(FIRST, idle)))


def test_the_made_up_program(trace):
    windows = weight_update_windows(trace)
    assert len(windows) == 2  # runs
    split = pipeline_split(trace, windows[0])
    assert list(split) == [0, 1, 2, 3]
    assert {sum(parts.values()) for parts in split.values()} == {windows[0][1] - windows[0][0]}
    assert split[0]["io"] > split[1]["io"] > 0
    assert all(parts["recompute"] == 0 and parts["bwd"] > parts["fwd"] > 0 for parts in split.values())
    texts = {text.get_text() for text in pipeline_timeline_figure(trace).findobj(Text)}
    assert {"IPU 3", "forward", "backward", "host I/O, Streaming Memory"} <= texts
    assert "F1" not in texts  # forwards follow each other without a gap: they cannot be counted

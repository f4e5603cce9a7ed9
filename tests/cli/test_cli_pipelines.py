"""``scenarios/pipeline_schedules.py`` and ``scenarios/pipeline_mnist.py``: what they print and the rows they write."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.scenarios import pipeline_schedules

UPSTREAM = {"grouped": 23, "interleaved": 38, "sequential": 128, "popart_pipeline": 22, "sharded": 128}
"""Time steps of 4 stages and 16 micro-batches: M + 2N - 1, 2(M + N - 1), 2NM, M + 2N - 2, 2NM."""

STEPS = {**UPSTREAM, "1f1b": 38, "interleaved_1f1b": 66, "zb_h1": 51}
"""2(M + N - 1), 2(2M + N/2 - 1) on half the IPUs, 3M + N - 1."""

BUBBLES = {"grouped": 3 / 19, "popart_pipeline": 3 / 19, "sequential": 3 / 4, "sharded": 3 / 4}
"""(N - 1) / (M + N - 1) and (N - 1) / N; that of interleaved depends on the stages."""

AGREEMENT = 0.01
"""Simulated bubble against the one from the timetable and the lowered stages."""


def _run(folder: Path, *args: object) -> tuple[str, list[dict]]:
    path = folder / "rows.json"
    done = CliRunner().invoke(pipeline_schedules.main, [*map(str, args), "--json", str(path)])
    assert done.exit_code == 0, done.output
    return done.output, json.loads(path.read_text())


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict]]:
    text, rows = _run(tmp_path_factory.mktemp("schedules"), "--stages", 4, "--micro-batches", 16)
    assert [row["schedule"] for row in rows] == list(STEPS)
    return text, {row["schedule"]: row for row in rows}


@pytest.mark.heavy
def test_steps_and_theory(schedules) -> None:
    _, rows = schedules
    assert {name: row["steps"] for name, row in rows.items()} == STEPS
    for name, expected in BUBBLES.items():
        assert rows[name]["bubble_equal"] == pytest.approx(expected, abs=1e-12)
    f, b = (sum(rows["interleaved"]["stage_cycles"][kind]) / 4 for kind in "FB")
    assert b > f
    assert rows["interleaved"]["bubble_equal"] == pytest.approx(1 - 16 * (f + b) / (4 * f + 34 * b), abs=1e-12)


def test_the_simulated_bubble_is_that_of_the_timetable_with_the_stages_own_cycles(schedules) -> None:
    _, rows = schedules
    for name, row in rows.items():
        if name == "interleaved_1f1b":  # a step in which nothing is copied ends for each IPU by itself
            assert row["bubble_simulated"] < row["bubble_stages"]
        else:
            assert row["bubble_simulated"] == pytest.approx(row["bubble_stages"], abs=AGREEMENT), name
        assert row["bubble_waiting"] >= row["bubble_simulated"], name


def test_the_split_is_all_of_the_time(schedules) -> None:
    _, rows = schedules
    for name, row in rows.items():
        assert sum(row["split"].values()) == pytest.approx(row["cycles"], rel=1e-9)
        assert all(part > 0 for part in row["split"].values())
        work = 16 * sum(sum(cycles) for cycles in row["stage_cycles"].values()) / row["ipus"]
        waiting = 0.02 if name == "interleaved_1f1b" else 0  # what has arrived and waits is put into rings
        assert 0.999 * work < row["split"]["stages"] < (1.001 + waiting) * work  # trace and program say the same


def test_the_order_of_times_and_stashes(schedules) -> None:
    _, rows = schedules
    cycles = {name: row["cycles"] for name, row in rows.items()}
    assert cycles["popart_pipeline"] < cycles["grouped"] < cycles["interleaved"] < cycles["sharded"]
    assert cycles["sharded"] < cycles["sequential"]  # which copies in every step
    stash = {name: row["stash_bytes"] for name, row in rows.items()}
    for ipu in range(3):
        assert stash["grouped"][ipu] > stash["interleaved"][ipu] > stash["sequential"][ipu] == 0
    assert stash["grouped"] == stash["popart_pipeline"]
    assert stash["grouped"][1] / stash["grouped"][2] == pytest.approx(5 / 3, rel=0.001)  # micro-batches in flight
    assert [stash[name][3] for name in UPSTREAM] == [0] * 5
    peaks = {name: row["peak_tile_bytes"] for name, row in rows.items()}
    assert peaks["grouped"] > peaks["interleaved"] > peaks["sequential"] > 0
    assert max(peaks.values()) < rows["grouped"]["bytes_per_tile"]


def test_schedules_with_flush(schedules) -> None:
    """1F1B waits as Interleaved does and keeps as much. ZB-H1 waits less and keeps on no IPU much more than 1F1B on its
    fullest: the gradients of products that the gradients of weights are made of."""
    _, rows = schedules
    interleaved, flushed, zero = (rows[name] for name in ("interleaved", "1f1b", "zb_h1"))
    assert flushed["bubble_simulated"] == pytest.approx(interleaved["bubble_simulated"], abs=AGREEMENT)
    assert flushed["stash_bytes"] == interleaved["stash_bytes"]
    assert zero["bubble_simulated"] < 0.75 * flushed["bubble_simulated"]
    assert zero["cycles"] < flushed["cycles"] < interleaved["cycles"]  # which copies in every step
    assert max(zero["stash_bytes"]) < 1.25 * max(flushed["stash_bytes"]) < rows["grouped"]["stash_bytes"][0]
    assert rows["interleaved_1f1b"]["bubble_simulated"] < flushed["bubble_simulated"]


def test_the_table_shows_the_rows(schedules) -> None:
    text, rows = schedules
    for name, row in rows.items():
        line = next(line for line in text.splitlines() if line.startswith(name))
        for value in (f"{row['cycles']:,}", f"{row['bubble_simulated']:.1%}", f"{row['bubble_stages']:.1%}"):
            assert value in line.split()


@pytest.mark.heavy
def test_recomputation_keeps_inputs_only(tmp_path: Path) -> None:
    text, rows = _run(tmp_path, "--recompute", "--stages", 3, "--micro-batches", 6)
    size = 2 * 64 * 256 * 2  # bytes of a stage's input
    flying = {"grouped": 3, "interleaved": 2, "popart_pipeline": 3, "sequential": 0, "sharded": 0}
    for row in rows:
        name = row["schedule"]
        if name not in flying:  # those of the literature do not recompute
            assert not row.get("recompute")
            continue
        assert row["recompute"] == (name != "sharded")
        assert row["bubble_simulated"] == pytest.approx(row["bubble_stages"], abs=AGREEMENT), name
        assert row["stash_bytes"] == [0, flying[name] * size, 0]  # the first stage's input lies on chip anyway
    assert "popart_pipeline+R" in text


@pytest.mark.heavy
def test_numbers_a_schedule_cannot_run_are_a_row(tmp_path: Path) -> None:
    text, rows = _run(tmp_path, "--stages", 2, "--micro-batches", 3)
    errors = {row["schedule"]: row["error"] for row in rows if "error" in row}
    assert list(errors) == ["grouped", "interleaved"]
    assert "must be a multiple of 4, but it is 3" in errors["grouped"]
    assert errors["interleaved"] in text
    assert next(row for row in rows if row["schedule"] == "popart_pipeline")["steps"] == 5


def test_bad_options() -> None:
    run = CliRunner().invoke
    for args, words in (
        (["--stages", "0"], "--stages"),
        (["--micro-batches", "-1"], "--micro-batches"),
        (["--machine", "nosuch"], "unknown machine 'nosuch'"),
        (["--stages", "100", "--machine", "pod4"], "need 100"),
    ):
        done = run(pipeline_schedules.main, args)
        assert done.exit_code in (1, 2)
        assert words in done.output
        assert "Traceback" not in done.output


def test_when_nothing_can_run_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: pipeline_schedules.SCHEDULES[name] for name in ("grouped", "popart_pipeline")}
    monkeypatch.setattr(pipeline_schedules, "SCHEDULES", some)
    done = CliRunner().invoke(pipeline_schedules.main, ["--micro-batches", "3"])
    assert done.exit_code == 1
    assert "must be a multiple of 8" in done.output
    assert "at least 7 (2N - 1)" in done.output


# -- the tutorial's network --------------------------------------------------------------------------------------------


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ipuperf.scenarios import pipeline_mnist

    monkeypatch.setitem(sys.modules, "torch", None)
    done = CliRunner().invoke(pipeline_mnist.main, [])
    assert done.exit_code == 1
    assert done.output.startswith("Error: this scenario needs PyTorch: pip install 'torch<")


@pytest.fixture(scope="module")
def mnist(installed_front_ends, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict]]:
    """The scenario's text, and its rows by name."""
    pytest.importorskip("torch")
    from ipuperf.scenarios import pipeline_mnist

    path = tmp_path_factory.mktemp("mnist") / "rows.json"
    with installed_front_ends():
        done = CliRunner().invoke(pipeline_mnist.main, ["--json", str(path)])
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())
    return done.output, {row["name"]: row for row in rows}


@pytest.mark.heavy
def test_the_four_variants(mnist) -> None:
    text, rows = mnist
    assert [(row["strategy"], row["offload_optimiser"]) for row in rows.values()] == [
        ("pipelined", False),
        ("pipelined", True),
        ("sharded", False),
        ("sharded", True),
    ]
    for name, row in rows.items():
        assert name in text
        assert row["longest_ipu"] == 1
        assert sum(v for k, v in row["cycle"].items() if k != "cycles") == pytest.approx(row["cycle"]["cycles"])
    near, far, serial, serial_far = rows.values()
    assert near["cycles"] < serial["cycles"] < far["cycles"] < serial_far["cycles"]
    assert [row["measured"] is not None for row in rows.values()] == [True, False, False, False]


def test_the_tutorials_profile_is_near(mnist) -> None:
    """The measured figures of the tutorial's execution trace."""
    _, rows = mnist
    row = next(iter(rows.values()))
    assert row["cycles"] == pytest.approx(1_211_970, rel=0.1)
    assert row["cycle"]["cycles"] == pytest.approx(100_150, rel=0.15)
    assert row["cycle"]["host"] == pytest.approx(39_000, rel=0.25)
    assert row["cycle"]["links"] == pytest.approx(7_500, rel=0.25)
    assert row["link_bytes_sent"]["3"] == row["link_bytes_received"]["3"] == 16 * 40 * 256 * 4
    assert row["link_bytes_sent"]["2"] == 16 * (51_200 + 40_960)


def test_what_lies_where(mnist) -> None:
    """Stashes are inputs times micro-batches in flight; the optimiser state is two moments per parameter."""
    _, rows = mnist
    near, far, serial, _ = rows.values()
    inputs = (40 * 28 * 28 * 4, 40 * 10 * 12 * 12 * 4, 40 * 320 * 4)
    assert [ipu["stash"] for ipu in near["memory"]] == [slots * size for slots, size in zip((7, 5, 3), inputs)] + [0]
    assert [ipu["stash"] for ipu in serial["memory"]] == [0] * 4
    parameters = (260, 5020, 82_176, 2570)
    for ipu, count in zip(near["memory"], parameters):
        assert 8 * count <= ipu["optimiser_state"] <= 8 * count + 2500
    assert all(ipu["optimiser_state"] < 100 for ipu in far["memory"])
    assert far["cycle"]["ddr"] == 0  # Streaming Memory only at the weight update

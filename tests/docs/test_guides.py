"""The guides for a machine, a schedule and a report view, followed to the letter: blocks run, files exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pipelinecases import ROWS, WIDTH, network, plain, run_once

from ipuperf.cli import cli
from ipuperf.machine import load_machine
from ipuperf.pipelines import build_pipeline
from ipuperf.report import folder, write_report
from ipuperf.runtime.executable import Executable
from ipuperf.scenarios import pipeline_schedules
from ipuperf.schedules import SCHEDULES, bubble_fraction, timetable_of

ROOT = Path(__file__).parents[2]
GUIDES = sorted(path.stem for path in (ROOT / "docs" / "how-to").glob("adding-*.md"))


def text_of(guide: str) -> str:
    return (ROOT / "docs" / "how-to" / f"{guide}.md").read_text(encoding="utf-8")


def block(guide: str, language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text_of(guide), flags=re.S | re.M)
    return found


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_short_and_every_file_it_names_is_there(guide: str) -> None:
    text = text_of(guide)
    assert len(text.splitlines()) <= 40
    for path in re.findall(r"`((?:ipuperf|docs|tests|scenarios)/[\w/.-]*)`", text):
        assert (ROOT / path).exists(), path


# -- a machine ---------------------------------------------------------------------------------------------------------


def test_the_machine_of_the_guide(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(block("adding-a-machine", "toml"), encoding="utf-8")
    machine, base = load_machine(path), load_machine("pod4")
    assert (machine.name, machine.num_ipus) == ("my-pod", 4)
    assert machine.ipu_machine.ddr_bandwidth_bytes_per_s == 20_000_000_000 != base.ipu_machine.ddr_bandwidth_bytes_per_s
    assert (machine.chip.code.vertex_bytes, base.chip.code.vertex_bytes) == (200, 240)
    shown = CliRunner().invoke(cli, ["machines", str(path)]).output
    assert re.search(r"chip\.code\.vertex +200 +bytes +measured +a report of my compiler", shown)


# -- a schedule --------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The schedule of the guide, registered for one test."""
    exec(block("adding-a-schedule", "python"), {})
    yield
    del SCHEDULES["gpipe"]


@pytest.mark.usefixtures("gpipe")
def test_the_schedule_of_the_guide_by_hand() -> None:
    assert timetable_of("gpipe", 2, 3).text().splitlines() == [
        "IPU0|F1|F2|F3|  |  |B1|B2|B3|",
        "IPU1|  |F1|F2|F3|B1|B2|B3|  |",
    ]
    for stages, micro_batches in ((1, 1), (2, 5), (4, 16)):
        table = timetable_of("gpipe", stages, micro_batches)
        assert len(table.steps) == 2 * (micro_batches + stages - 1)
        assert table.in_flight == table.stash == (micro_batches,) * stages
        idle = (stages - 1) / (micro_batches + stages - 1)
        assert bubble_fraction(table, 1, 2) == pytest.approx(idle)


@pytest.mark.usefixtures("gpipe")
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (3, 5)])
def test_a_pipeline_of_it_trains_as_plain_accumulation(stages: int, micro_batches: int) -> None:
    net = network(stages)
    start = [weights.data.copy() for weights in net.weights]
    table = timetable_of("gpipe", stages, micro_batches)
    build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training, repeats=2)
    x, target = np.random.default_rng(1).normal(size=(2, 2 * micro_batches, 1, ROWS, WIDTH)).astype("f4")
    found = run_once(net, x, target)
    weights, losses = plain(start, [], x[:, 0], target[:, 0], 2, factor=1 / micro_batches)
    np.testing.assert_allclose(found.reshape(-1), losses, rtol=1e-5)
    for variable, expected in zip(net.weights, weights, strict=True):
        np.testing.assert_allclose(variable.data, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("gpipe")
def test_the_scenario_compares_it_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ["grouped", "interleaved", "sequential", "popart_pipeline", "sharded"]
    assert list(SCHEDULES) == [*upstream, "1f1b", "interleaved_1f1b", "zb_h1", "gpipe"]
    monkeypatch.setattr(pipeline_schedules, "SCHEDULES", {name: SCHEDULES[name] for name in ("sharded", "gpipe")})
    rows, _ = pipeline_schedules.run(2, 3)
    assert [(row["schedule"], row["steps"]) for row in rows] == [("sharded", 12), ("gpipe", 8)]
    assert rows[1]["cycles"] < rows[0]["cycles"]


# -- a report view -----------------------------------------------------------------------------------------------------


def test_the_view_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(block("adding-a-report-view", "python"), names)
    table = timetable_of("sharded", 2, 1)
    pipeline, _ = pipeline_schedules.built(table)
    trace = Executable(pipeline.ir, None, name="guide").trace
    moved = trace.table("transfers")["bytes"].sum()
    (axes,) = names["links_figure"](trace).axes
    assert sum(bar.get_width() for bar in axes.patches) == moved > 0
    monkeypatch.setattr(folder, "VIEWS", (names["view"],))
    assert [path.name for path in write_report(trace, tmp_path)] == ["links.png", "index.md"]
    assert (tmp_path / "links.png").read_bytes().startswith(b"\x89PNG")

"""The search against brute force: bounds hold, nothing ruled out could have won, the choice is the best."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ipuperf.sweep import read_sweep
from ipuperf.sweep.work import rows
from ipuperf.tuning import TuningError, TuningSpace, model_space, text_of, tune
from ipuperf.tuning.bounds import Bounds, machine_of
from ipuperf.tuning.files import json_of
from ipuperf.tuning.workers import Workers

from .conftest import GLOBAL_BATCH, encoder_space

optuna = pytest.importorskip("optuna")


def fastest(brute_force: list[dict[str, Any]]) -> float:
    return min(float(row["seconds"]) for row in brute_force if row.get("fits"))


def learnt(space: TuningSpace) -> Bounds:
    """All bounds there are."""
    bounds = Bounds(space.sweep, machine_of(space.sweep))
    assert list(bounds.learn(space.configurations, Workers()))[-1] == 0
    return bounds


@pytest.mark.heavy
def test_bounds_hold_and_rule_out_no_winner(space: TuningSpace, brute_force: list[dict[str, Any]]) -> None:
    bounds = learnt(space)
    assert bounds.built > 0
    best, tight = fastest(brute_force), 0.0
    for configuration, row in zip(space.configurations, brute_force, strict=True):
        bound = bounds.of(configuration)
        if row.get("failure"):
            continue
        assert not bound.refused
        assert bound.seconds <= row["seconds"]
        assert bound.bytes <= row["max_tile_bytes"]
        assert bound.seconds < best or row["seconds"] > best or not row["fits"]
        tight = max(tight, bound.seconds / row["seconds"])
    assert tight > 0.05


@pytest.mark.heavy
def test_as_fast_as_brute_force_with_a_tenth(space: TuningSpace, brute_force: list[dict[str, Any]]) -> None:
    answer = tune(space, trials=len(space.configurations) // 10)
    configuration, outcome = answer.choice
    assert outcome.seconds == pytest.approx(fastest(brute_force), rel=1e-12)
    assert answer.simulated <= answer.lowered <= len(space.configurations) // 10
    assert answer.configurations == answer.lowered + answer.ruled_out + answer.left
    row = next(row for each, row in zip(space.configurations, brute_force) if each == configuration)
    assert outcome.seconds == row["seconds"]
    assert outcome.cycles == row["cycles"]
    for step in answer.steps:
        if step.effect == "simulated":
            changed = {**configuration, step.factor: step.after, **step.others}
            wanted = next(row for each, row in zip(space.configurations, brute_force) if each == changed)
            assert step.times == pytest.approx(wanted["seconds"] / row["seconds"])


@pytest.mark.heavy
def test_deterministic_and_resumed(tmp_path: Path) -> None:
    space = encoder_space(**{"config.schedule": ("popart_pipeline",), "micro_batch": (4, 8), "recompute": ("none",)})
    first = tune(space, tmp_path / "a", seed=3, trials=3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("a/runs/*/row.json")}
    assert len(before) == 3
    again = tune(space, tmp_path / "a", seed=3, trials=3)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("a/runs/*/row.json")} == before
    other = tune(space, seed=3, trials=3)
    assert again.choice == first.choice
    assert (other.choice[0], other.choice[1].seconds) == (first.choice[0], first.choice[1].seconds)
    assert [step.times for step in other.steps] == [step.times for step in first.steps]
    assert "one step of each factor" in text_of(first, space.names)
    written = {path.name for path in (tmp_path / "a" / "answer").iterdir()}
    assert written == {"answer.json", "popxl_settings.py", "poptorch_options.py", "scenario.toml"}
    assert not list((tmp_path / "a").glob(".*"))


@pytest.mark.heavy
def test_scenario_is_a_sweep_of_the_choice(tmp_path: Path) -> None:
    space = encoder_space(**{"config.schedule": ("popart_pipeline",), "micro_batch": (4,), "config.stages": (2,)})
    answer = tune(space, tmp_path / "out")
    sweep = read_sweep(tmp_path / "out" / "answer" / "scenario.toml")
    (configuration,) = sweep.configurations()
    (row,) = rows(sweep, [configuration])
    assert row["seconds"] == answer.choice[1].seconds
    assert '"samples_per_second"' in json_of(answer)
    assert answer.samples_per_second == pytest.approx(GLOBAL_BATCH / row["seconds"])


def test_nothing_fits(tmp_path: Path) -> None:
    large = {"config.schedule": ("popart_pipeline",), "micro_batch": (4, 8), "config.hidden": (2048,)}
    large |= {"config.feed_forward": (65536,), "config.stages": (2,), "recompute": ("none",)}
    with pytest.raises(
        TuningError, match=r"none of 4 .* 4 ruled out .*IPU \d: at least .* over the 638,976 .*variables [\d,]+, "
    ):
        tune(encoder_space(**large))


@pytest.mark.heavy
def test_schedules_that_cannot_run_are_ruled_out(tmp_path: Path) -> None:
    """PopART's pipeline takes 2N - 1 micro-batches or more: 7 of 4 stages."""
    shape = {"config.schedule": ("popart_pipeline",), "micro_batch": (16, 32), "config.stages": (4,), "replicas": (1,)}
    with pytest.raises(TuningError, match=r"none of 4 .*0 tried, 4 ruled out .*at least 7 \(2N - 1\)"):
        tune(encoder_space(**shape))


@pytest.mark.parametrize("name", ["config.feedforward", "config.Hidden"])
def test_an_option_that_the_model_does_not_have(tmp_path: Path, name: str) -> None:
    space = encoder_space(**{name: (1,), "micro_batch": (4,), "config.stages": (2,)})
    with pytest.raises(
        TuningError, match=rf"^model 'encoder': {name}: no such option .did you mean .*; allowed: .*feed_forward"
    ):
        tune(space, tmp_path / "out")
    assert not list(tmp_path.glob("out/runs/*"))


def test_refused(monkeypatch: pytest.MonkeyPatch, space: TuningSpace) -> None:
    with pytest.raises(TuningError, match="0 trials"):
        tune(space, trials=0)
    with pytest.raises(TuningError, match="begin with"):
        tune(space, start={"micro_batch": 3})
    with pytest.raises(TuningError, match="0 jobs"):
        tune(space, jobs=0)
    unknown = model_space("mnist_mlp", "pod4", 64, {"micro_batch": (8, 16), "optimiser": ("adam",)})
    for module, package in (("optuna", "Optuna"), ("sklearn", "scikit-learn")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(TuningError, match=rf"needs {package}: pip install 'optuna<.*'scikit-learn<"):
            tune(unknown)


@pytest.mark.heavy
def test_jobs(tmp_path: Path) -> None:
    """Two at a time, in processes: the outcomes of one alone."""
    small = encoder_space(**{"config.schedule": ("grouped",), "micro_batch": (4,), "config.stages": (2,)})
    count = len(small.configurations)
    alone, both = tune(small, trials=count), tune(small, tmp_path, trials=count, jobs=2)
    assert both.choice[0] == alone.choice[0]
    assert both.choice[1].seconds == alone.choice[1].seconds
    assert len(list(tmp_path.glob("runs/*"))) == both.lowered


def test_a_killed_worker_is_an_error_the_second_time() -> None:
    workers = Workers(2)
    with workers.running(), pytest.raises(TuningError, match="worker process was killed twice"):
        list(workers.results(os._exit, [(1,)]))
    with workers.running():
        assert list(workers.results(divmod, [(7, 2), (9, 4)])) == [(3, 1), (2, 1)]

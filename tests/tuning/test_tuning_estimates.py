"""Forecasts, what is learnt of them, and bounds of a model of PyTorch."""

import math
from typing import Any

import numpy as np
import pytest

from ipuperf.sweep.work import rows
from ipuperf.tuning import TuningSpace, model_space
from ipuperf.tuning.bounds import Bounds, machine_of
from ipuperf.tuning.estimates import Estimates, Forecast, forecast, worth
from ipuperf.tuning.splits import units_of
from ipuperf.tuning.workers import Workers

from .conftest import encoder_space


def test_a_common_error_of_forecasts_is_learnt(space: TuningSpace) -> None:
    """All take 1.2 times their forecast: after two outcomes that is what is expected of a third."""
    estimates = Estimates(space)
    for place in range(len(space.configurations)):
        estimates.expect(place, Forecast(1.0 + place, 1000.0))
    before, wide = estimates.seconds()
    assert np.exp(before) == pytest.approx(1.0 + np.arange(len(before)))
    for place in (0, 20):
        estimates.tell(place, 1.2 * (1.0 + place), 1000)
    after, narrow = estimates.seconds()
    assert np.all(np.exp(after - before) > 1.1)
    assert np.exp(after[0]) == pytest.approx(1.2, rel=1e-3)
    assert np.all(narrow < wide)


def test_errors_that_follow_a_factor_are_learnt(space: TuningSpace) -> None:
    """One schedule takes 1.5 times its forecast: after a fifth of the outcomes all others are expected so."""
    estimates, column = Estimates(space), space.names.index("config.schedule")
    times = np.where(space.levels[:, column] == 1, 1.5, 1.0)
    for place, factor in enumerate(times):
        estimates.expect(place, Forecast(1.0, 1000.0))
        if place % 5 == 0:
            estimates.tell(place, factor, 1000)
    assert np.exp(estimates.seconds()[0]) == pytest.approx(times, rel=0.02)


def test_what_is_under_way_is_not_worth_as_much(space: TuningSpace) -> None:
    estimates = Estimates(space)
    for place in range(len(space.configurations)):
        estimates.expect(place, Forecast(1.0, 1000.0))
    mean, spread = estimates.seconds()
    same, less = estimates.seconds(pending=[3])
    assert same == pytest.approx(mean)
    assert less[3] < 0.1 * spread[3]


def test_worth_is_expected_gain_times_chance_to_fit() -> None:
    """A sure gain of 0.1 (in logarithms), with even odds to fit: 0.05; none where it is sure to be slower."""
    sure = np.full(2, 1e-6)
    seconds = (np.array([-0.1, 0.1]), sure)
    gains = worth(seconds, (np.full(2, math.log(500.0)), sure), 1.0, 500)
    assert gains == pytest.approx([0.05, 0.0], abs=1e-6)


def test_units_of_probes() -> None:
    """Where layers are alike three stand for all; a model that says its layers by groups has each."""
    bert = units_of("encoder", {"config.layers": 8})
    assert bert is not None
    assert (bert.seen, bert.ipus) == ((0, 1, 1, 1, 1, 1, 1, 2), 3)
    pytest.importorskip("torch")
    gpt2 = units_of("gpt2", {"pipeline": (0, 4, 4, 4), "config.preset": "small"})
    swin = units_of("swin", {"pipeline": (2, 2), "config.preset": "tiny"})
    assert gpt2 is not None
    assert swin is not None
    assert (gpt2.seen, gpt2.probe["pipeline"]) == ((0, 1, *(2,) * 10, 3), (0, 1, 1, 1))
    assert (swin.seen, swin.probe["pipeline"]) == ((0, 1, 2, 3, 4), (0, 1, 1, 1, 1))


SMALL: dict[str, tuple[Any, ...]] = {"config.preset": ("small",), "config.layers": (4,), "config.hidden": (64,)}
SMALL |= {"config.heads": (2,), "config.sequence": (32,), "config.vocabulary": (512,), "sharding": (0,)}
SMALL |= {"micro_batch": (4,), "replicas": (1,), "recompute": ("checkpoints",), "config.memory_proportions": ((0.2,),)}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "factors"),
    [
        ("gpt2", {"pipeline": ((0, 2, 2),), "offload": (("optimiser",), ())}),
        ("roformer", {"pipeline": ((4,), (2, 2)), "offload": ((),)}),  # its embedding stands with the first layer
    ],
)
def test_bounds_and_forecasts(model: str, factors: dict[str, tuple[Any, ...]]) -> None:
    pytest.importorskip("torch")
    space = model_space(model, "bow-pod4", 256, {**SMALL, **factors})
    bounds = Bounds(space.sweep, machine_of(space.sweep))
    assert list(bounds.learn(space.configurations, Workers()))[-1] == 0
    assert bounds.built == 2  # with the optimiser's state in Streaming Memory, and on chip
    for configuration, row in zip(space.configurations, rows(space.sweep, space.configurations), strict=True):
        bound, about = bounds.of(configuration), forecast(bounds, configuration)
        assert 0.02 * row["seconds"] < bound.seconds <= row["seconds"]
        assert 0.1 * row["max_tile_bytes"] < bound.bytes <= row["max_tile_bytes"]
        assert about.seconds >= bound.seconds
        assert about.bytes == pytest.approx(row["max_tile_bytes"], rel=0.4)


@pytest.mark.heavy
def test_bounds_and_forecasts_of_schedules_with_flush() -> None:
    """Also where backwards are in two; nothing is known of stages that share an IPU."""
    names = ("1f1b", "zb_h1", "interleaved_1f1b")
    space = encoder_space(**{"config.schedule": names, "micro_batch": (4,), "config.stages": (2, 4), "replicas": (1,)})
    bounds = Bounds(space.sweep, machine_of(space.sweep))
    list(bounds.learn(space.configurations, Workers()))
    for configuration, row in zip(space.configurations, rows(space.sweep, space.configurations), strict=True):
        bound, about = bounds.of(configuration), forecast(bounds, configuration)
        assert bound.seconds <= row["seconds"]
        assert bound.bytes <= row["max_tile_bytes"]
        known = configuration["config.schedule"] != "interleaved_1f1b"
        assert known == (bound.seconds > 0) == (about.seconds >= bound.seconds)


def test_a_schedule_that_refuses_is_said(space: TuningSpace) -> None:
    few = encoder_space(**{"config.schedule": ("popart_pipeline",), "micro_batch": (32,), "config.stages": (4,)})
    bounds = Bounds(few.sweep, machine_of(few.sweep))
    list(bounds.learn(few.configurations, Workers()))
    bound = bounds.of(few.configurations[0])
    assert bound.seconds == math.inf
    assert "at least 7 (2N - 1)" in bound.refused

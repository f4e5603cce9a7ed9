"""Workers that are killed, what Optuna is told, and outcomes of real configurations."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest
from rows import Golden

from ipuperf.tuning import TuningError, TuningSpace, workers
from ipuperf.tuning.evaluate import Fullest, Outcome, outcome_of
from ipuperf.tuning.workers import Workers

from .conftest import encoder_space


class Pool:
    """An executor of this process in which some calls end their worker."""

    made: list[Pool]

    def __init__(self, jobs: int, mp_context: Any) -> None:
        self.jobs, self.ended = jobs, None
        Pool.made.append(self)

    def submit(self, function: Callable[..., Any], *call: Any) -> Future[Any]:
        future: Future[Any] = Future()
        deaths = call[-1]
        if len(Pool.made) <= deaths:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(function(*call))
        return future

    def shutdown(self, cancel_futures: bool) -> None:
        self.ended = cancel_futures


def test_a_call_whose_process_is_killed_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Pool.made = []
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    found = Workers(3)
    with found.running():
        assert list(found.results(divmod, [(7, 1), (9, 1)])) == [(7, 0), (9, 0)]
        assert [pool.jobs for pool in Pool.made] == [3, 3, 3]  # both calls had been given to the one that died
        with pytest.raises(TuningError, match="worker process was killed twice"):
            list(found.results(divmod, [(7, 9)]))
        assert found._pool is None
    with found.running():
        assert list(found.results(max, [(1, 2), (3, 0)])) == [2, 3]
        last = Pool.made[-1]
    assert (last.ended, found._pool) == (True, None)
    with Workers(1).running():
        assert list(Workers(1).results(divmod, [(7, 2)])) == [(3, 1)]


def test_what_optuna_is_told() -> None:
    """Levels of what was tried, seconds or the least of them, the share of a tile that is too much."""
    optuna = pytest.importorskip("optuna")
    from ipuperf.tuning.proposals import Proposals

    space = encoder_space(micro_batch=(1, 2, 4), replicas=(1, 2), recompute=("none",))
    proposals, again = Proposals(space, 3), Proposals(space, 3)
    asked = [proposals.levels() for _ in range(6)]
    assert asked == [again.levels() for _ in range(6)]
    assert asked != [Proposals(space, 4).levels() for _ in range(6)]
    sizes = [len(space.sweep.factors[name]) for name in space.names]
    assert {max(each[n] for each in asked) < size for n, size in enumerate(sizes)} == {True}
    states = [trial.state for trial in proposals._study.trials]
    assert states == [optuna.trial.TrialState.FAIL] * 6
    full = Fullest(0, 900, 600)
    proposals.tell(Outcome(4, failure="x"))
    for outcome in (Outcome(5, fullest=full, least_seconds=2.0), Outcome(7, seconds=3.0, least_seconds=1.0)):
        proposals.tell(outcome)
        trial = proposals._study.trials[-1]
        assert list(trial.params) == list(space.names)
        assert list(trial.params.values()) == space.levels[outcome.place].tolist()
        assert trial.value == (outcome.seconds or 2.0)
        assert trial.user_attrs == {"over": 0.5 if outcome.seconds is None else -1.0}
    assert len(proposals._study.trials) == 8


@pytest.mark.heavy
@pytest.mark.parametrize("best", [math.inf, 1e-9])
def test_outcomes_are_kept(best: float, golden: Golden) -> None:
    """Of configurations that run, do not fit and cannot be built; simulated where they can be faster than the best."""
    said = []
    plain = {
        "config.schedule": ("popart_pipeline",),
        "micro_batch": (4,),
        "config.stages": (2,),
        "recompute": ("none",),
    }
    large = {"config.feed_forward": (65536,), "config.hidden": (2048,)}
    for changed in ({}, {"config.stages": (1,)}, {"micro_batch": (32,)}, large, {"recompute": ("sometimes",)}):
        space: TuningSpace = encoder_space(**{**plain, "replicas": (1,), **changed})
        found = outcome_of(space.sweep, 64, 3, space.configurations[0], best)
        assert found.took_seconds > 0
        row = {**found.row({}), "ipuperf": ""}
        assert Outcome.of_row(3, row) == found
        row["outcome"] |= {"took_seconds": 0, "interval": [f"{bound:.6g}" for bound in found.interval or ()]}
        said += [
            f"{changed} {found.fits}",
            *(f"  {k}: {f'{v:.6g}' if isinstance(v, float) else v}" for k, v in row["outcome"].items()),
        ]
    assert Outcome.of_row(0, {"outcome": {}}) is None
    golden(said)

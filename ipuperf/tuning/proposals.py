"""What Optuna proposes, where no probe says anything: of scripts, and of models whose layers nobody knows."""

from __future__ import annotations

import warnings
from typing import Any

from .errors import TuningError
from .evaluate import Outcome
from .space import TuningSpace

_STARTS = 4
"""Trials that are proposed at random."""
_OVER = "over"
"""Attribute of a trial: the share of a tile that the program needs too much."""


class Proposals:
    """Optuna's tree-structured Parzen estimator over the factors of a space; it draws from ``seed`` alone."""

    def __init__(self, space: TuningSpace, seed: int) -> None:
        import optuna

        self._space = space
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=_STARTS,
                multivariate=True,
                constraints_func=lambda trial: (trial.user_attrs.get(_OVER, 0.0),),
            )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        sizes = {name: len(space.sweep.factors[name]) for name in space.names}
        self._ranges: dict[str, Any] = {
            name: optuna.distributions.IntDistribution(0, size - 1) for name, size in sizes.items()
        }

    def levels(self) -> list[int]:
        """A value of each factor, as its place among the values."""
        from optuna.trial import TrialState

        asked = self._study.ask(self._ranges)
        self._study.tell(asked, state=TrialState.FAIL)  # it is told of the one that is tried instead
        return [asked.params[name] for name in self._space.names]

    def tell(self, outcome: Outcome) -> None:
        """An outcome in Optuna's words; bytes that are too many are a broken constraint."""
        if outcome.failure:
            return
        levels = (int(level) for level in self._space.levels[outcome.place])
        self._study.enqueue_trial(dict(zip(self._space.names, levels)))
        trial = self._study.ask(self._ranges)
        trial.set_user_attr(_OVER, outcome.fullest.bytes / max(1, outcome.fullest.of) - 1.0)
        self._study.tell(trial, outcome.least_seconds if outcome.seconds is None else outcome.seconds)


def check_installed() -> None:
    """Raise :class:`TuningError` without Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise TuningError("a tuning without probes needs Optuna: pip install 'ipuperf[tune]'") from error

"""Optuna's proposals for scripts and for models whose layers are not known, which have no probes."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from ipuperf.base.requirements import pip_install
from ipuperf.tools.errors import TuningError

from .evaluate import Outcome
from .space import TuningSpace

_STARTS = 4
"""The number of trials that are proposed at random."""
_OVER = "over"
"""The attribute of a trial for the memory over the limit, as a share of a tile."""


class Proposals:
    """Optuna's tree-structured Parzen estimator over the factors of a space. All its randomness is from ``seed``."""

    def __init__(self, space: TuningSpace, seed: int) -> None:
        import optuna

        self._space = space
        # Options of the sampler, `multivariate` for one, give this warning.
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
        # Factors are given as indices of their values, because values may be lists.
        self._ranges: dict[str, Any] = {
            name: optuna.distributions.IntDistribution(0, size - 1) for name, size in sizes.items()
        }

    def levels(self) -> list[int]:
        """A proposed value of each factor, as its index among the values."""
        from optuna.trial import TrialState

        proposed = self._study.ask(self._ranges)
        self._study.tell(
            proposed, state=TrialState.FAIL
        )  # the search tries the nearest open configuration and tells that
        return [proposed.params[name] for name in self._space.names]

    def tell(self, outcome: Outcome) -> None:
        """Tell Optuna an outcome. Too many bytes are a violated constraint."""
        # A configuration that cannot be built has no figures to tell.
        if outcome.failure:
            return
        levels = (int(level) for level in self._space.levels[outcome.place])
        # The outcome may be of another configuration than the proposed one, so it is a trial of its own.
        self._study.enqueue_trial(dict(zip(self._space.names, levels)))
        trial = self._study.ask(self._ranges)
        trial.set_user_attr(_OVER, outcome.fullest.bytes / max(1, outcome.fullest.of) - 1.0)
        self._study.tell(trial, outcome.least_seconds if outcome.seconds is None else outcome.seconds)


def check_installed(module: str, need: str) -> None:
    """Raise :class:`TuningError` without a module of the extra; ``need`` says who needs what."""
    try:
        import_module(module)
    except ImportError as error:
        raise TuningError(f"{need}: {pip_install('tune')}") from error

"""The gains of the levers as data (:mod:`ipuperf.report.advice` says what is in them)."""

from __future__ import annotations

from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.trace import Trace

from .measure import LeverResults
from .text import main_effect
from .trial import Trial


@checked()
def lever_values(trace: Trace, results: LeverResults) -> dict[str, Any]:
    """The results of all levers, ready for JSON."""
    trials = sorted((*results.trials, *results.together), key=lambda trial: (bool(trial.change.training), trial.cycles))
    return {
        "cycles": results.cycles,
        "fullest": results.fullest,
        "fits": results.fits,
        "trials": [_values(trace, results, trial) for trial in trials],
        "untried": [{"what": untried.what, "why": untried.why} for untried in results.untried],
    }


def _values(trace: Trace, results: LeverResults, trial: Trial) -> dict[str, Any]:
    change = trial.change
    return {
        "what": change.what,
        "together": trial in results.together,
        "cycles": round(trial.cycles),
        "seconds": trace.seconds(round(trial.cycles)),
        "gain": float(results.gain(trial) / results.cycles),
        "fullest": trial.fullest,
        "trades_memory": change.trades_memory,
        "training": change.training,
        "effect": main_effect(trace, trial),
        "diff": list(change.diff),
    }

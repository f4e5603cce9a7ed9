"""The gains of the levers in words."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.base.kinds import checked
from ipuperf.report import TIME_PARTS, duration, step_time
from ipuperf.report.advice import LEAST_GAIN
from ipuperf.trace import Trace, TraceError

from .measure import LEVERS, LeverResults
from .trial import Trial

LISTED = 3
"""The number of levers that are listed of each kind, largest gain first."""


@checked()
def levers_text(trace: Trace, results: LeverResults) -> str:
    """The largest gains, each with the part of the time that it changes most and its diff. Ends with a newline.

    Changes of the training, changes that cost memory, several together, and those that were not tried are listed apart.
    """
    worth = [trial for trial in results.trials if results.worth(trial)]
    same = [trial for trial in worth if not trial.change.training]
    free = [trial for trial in same if not trial.change.trades_memory]
    titles = {
        "Together:": [trial for trial in results.together if not trial.change.training],
        "At the price of memory:": [trial for trial in same if trial.change.trades_memory],
        "These change the training:": [trial for trial in worth if trial.change.training],
        "Together, with a change of the training:": [trial for trial in results.together if trial.change.training],
    }
    others = "; ".join(trial.what for trial in results.trials if trial not in worth)
    lines = [] if results.fits else ["The program does not fit in memory. It does with each of the changes below."]
    lines += ["What would change it, each simulated, as time for the samples of this run:"]
    lines += _lines(trace, results, free) or ["  nothing that was tried"]
    for title, trials in titles.items():
        lines += ["", title, *_lines(trace, results, trials)] if trials else []
    lines += ["", f"Tried, with less than {100 * LEAST_GAIN:.1f} % to gain: {others}."] if others else []
    if results.untried:
        lines += ["", "Not tried, or refused:", *(f"  {untried.what}: {untried.why}" for untried in results.untried)]
    return "\n".join(lines) + "\n"


def _lines(trace: Trace, results: LeverResults, trials: Sequence[Trial]) -> list[str]:
    lines = []
    for trial in trials[:LISTED]:
        lines += [_line(trace, results, trial), *(f"{'':22}{line}" for line in trial.change.diff)]
    return lines


def _line(trace: Trace, results: LeverResults, trial: Trial) -> str:
    gain = results.gain(trial)
    time = f"{'-' if gain > 0 else '+'}{duration(trace.seconds(round(abs(gain))))}"
    text = f"  {time:>10}  {-100 * float(gain) / results.cycles:5.1f} %  {trial.what}"
    training = f"changes the training: {trial.change.training}" if trial.change.training else ""
    effects = [effect for effect in (training, main_effect(trace, trial), _memory(results, trial)) if effect]
    return text + (f" ({'; '.join(effects)})" if effects else "")


def main_effect(trace: Trace, trial: Trial) -> str:
    """The part of the time that a change shortens most, before and after it."""
    try:
        old_time, new_time = step_time(trace), step_time(trial.trace)
    except TraceError:
        return ""
    # A changed program may process more samples; dividing by ``work`` gives its time for the samples of the run.
    saved = {part: old_time.parts[part] - new_time.parts[part] / trial.change.work for part in TIME_PARTS}
    part = max(saved, key=lambda part: saved[part])
    cycles = old_time.parts[part], round(new_time.parts[part] / trial.change.work)
    shares = [100 * time.parts[part] / max(time.total, 1) for time in (old_time, new_time)]
    old_text, new_text = (
        f"{duration(trace.seconds(part_cycles))} ({share:.0f} %)" if part_cycles else "none"
        for part_cycles, share in zip(cycles, shares, strict=True)
    )
    return f"{TIME_PARTS[part]} {old_text} -> {new_text}"


def _memory(results: LeverResults, trial: Trial) -> str:
    return "" if trial.fullest == results.fullest else f"fullest tile {results.fullest:,} -> {trial.fullest:,} B"


def unsimulated_text(why: str) -> str:
    """The text for programs that cannot be run again. Ends with a newline."""
    names = ", ".join(lever.change for lever in LEVERS)
    return (
        f"What would change it was not simulated: {why}.\n"
        f"From the trace alone nothing can be changed; these need the program: {names}.\n"
    )

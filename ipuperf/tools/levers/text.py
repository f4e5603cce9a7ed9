"""The gains of the levers in words."""

from __future__ import annotations

from ipuperf.kinds import checked
from ipuperf.report import TIME_PARTS, duration, step_time
from ipuperf.trace import Trace, TraceError

from .measure import LEVERS, LeverResults
from .trial import Trial

LISTED = 3
"""The number of levers that are listed, largest gain first."""

LEAST = 0.005
"""The share of the run that a lever must gain to be listed."""


@checked()
def levers_text(trace: Trace, results: LeverResults) -> str:
    """The largest gains, each with the part of the time that it changes most. Ends with a newline.

    Changes that cost memory are listed apart, and so are those that were not tried.
    """
    worth = [trial for trial in results.trials if results.gain(trial) >= LEAST * results.cycles]
    free = [trial for trial in worth if not trial.trades_memory]
    traded = [trial for trial in worth if trial.trades_memory]
    others = "; ".join(trial.what for trial in results.trials if trial not in worth)
    lines = ["What would change it, each simulated, as time for the samples of this run:"]
    lines += [_line(trace, results, trial) for trial in free[:LISTED]] or ["  nothing that was tried"]
    lines += ["", f"Tried, with less than {100 * LEAST:.1f} % to gain: {others}."] if others else []
    if traded:
        lines += ["", "At the price of memory:", *(_line(trace, results, trial) for trial in traded[:LISTED])]
    if results.untried:
        lines += ["", "Not tried, or refused:", *(f"  {untried.what}: {untried.why}" for untried in results.untried)]
    return "\n".join(lines) + "\n"


def _line(trace: Trace, results: LeverResults, trial: Trial) -> str:
    gain = results.gain(trial)
    time = f"-{duration(trace.seconds(round(gain)))}"
    text = f"  {time:>10}  {-100 * float(gain) / results.cycles:5.1f} %  {trial.what}"
    effects = [effect for effect in (_effect(trace, trial), _memory(results, trial)) if effect]
    return text + (f" ({'; '.join(effects)})" if effects else "")


def _effect(trace: Trace, trial: Trial) -> str:
    """The part of the time that a change shortens most, before and after it."""
    try:
        old_time, new_time = step_time(trace), step_time(trial.trace)
    except TraceError:
        return ""
    # A changed program may process more samples; dividing by ``work`` gives its time for the samples of the run.
    saved = {part: old_time.parts[part] - new_time.parts[part] / trial.work for part in TIME_PARTS}
    part = max(saved, key=lambda part: saved[part])
    cycles = old_time.parts[part], round(new_time.parts[part] / trial.work)
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

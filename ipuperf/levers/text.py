"""The levers in words."""

from __future__ import annotations

from ipuperf.kinds import checked
from ipuperf.report import TIME_PARTS, duration, step_time
from ipuperf.trace import Trace, TraceError

from .measure import LEVERS, LeverResults
from .trial import Trial

LISTED = 3
"""Levers named, the largest."""

LEAST = 0.005
"""Share of the run that a lever has to gain to be named."""


@checked()
def levers_text(trace: Trace, found: LeverResults) -> str:
    """The largest gains, each with what it changes most; what trades memory apart; what was not tried. Ends with a
    newline."""
    worth = [trial for trial in found.trials if found.gain(trial) >= LEAST * found.cycles]
    free = [trial for trial in worth if not trial.trades_memory]
    traded = [trial for trial in worth if trial.trades_memory]
    others = "; ".join(trial.what for trial in found.trials if trial not in worth)
    lines = ["What would change it, each simulated, as time for the samples of this run:"]
    lines += [_line(trace, found, trial) for trial in free[:LISTED]] or ["  nothing that was tried"]
    lines += ["", f"Tried, with less than {100 * LEAST:.1f} % to gain: {others}."] if others else []
    if traded:
        lines += ["", "At the price of memory:", *(_line(trace, found, trial) for trial in traded[:LISTED])]
    if found.untried:
        lines += ["", "Not tried, or refused:", *(f"  {untried.what}: {untried.why}" for untried in found.untried)]
    return "\n".join(lines) + "\n"


def _line(trace: Trace, found: LeverResults, trial: Trial) -> str:
    gain = found.gain(trial)
    time = f"-{duration(trace.seconds(round(gain)))}"
    text = f"  {time:>10}  {-100 * float(gain) / found.cycles:5.1f} %  {trial.what}"
    effects = [effect for effect in (_effect(trace, trial), _memory(found, trial)) if effect]
    return text + (f" ({'; '.join(effects)})" if effects else "")


def _effect(before: Trace, trial: Trial) -> str:
    """The part of the time that it makes smallest, before and after, as shares of the run."""
    try:
        old, new = step_time(before), step_time(trial.trace)
    except TraceError:
        return ""
    saved = {part: old.parts[part] - new.parts[part] / trial.work for part in TIME_PARTS}
    part = max(saved, key=lambda part: saved[part])
    cycles = old.parts[part], round(new.parts[part] / trial.work)
    shares = [100 * time.parts[part] / max(time.total, 1) for time in (old, new)]
    then, now = (
        f"{duration(before.seconds(own))} ({share:.0f} %)" if own else "none"
        for own, share in zip(cycles, shares, strict=True)
    )
    return f"{TIME_PARTS[part]} {then} -> {now}"


def _memory(found: LeverResults, trial: Trial) -> str:
    return "" if trial.fullest == found.fullest else f"fullest tile {found.fullest:,} -> {trial.fullest:,} B"


def unsimulated_text(why: str) -> str:
    """What is said where the program cannot be run again. Ends with a newline."""
    names = ", ".join(lever.what for lever in LEVERS)
    return (
        f"What would change it was not simulated: {why}.\n"
        f"From the trace alone nothing can be changed; these need the program: {names}.\n"
    )

"""What a tuning says: the choice, the runner-up, what binds it, and what one step of each factor costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipuperf.kinds import checked

from .errors import TuningError
from .evaluate import Outcome
from .search import TuningSearch
from .space import Configuration

_WAITS = 0.25
"""Share of a run from which on waiting is named as what binds."""


@dataclass(frozen=True)
class StepTaken:
    """One step of a factor away from the choice.

    Attributes:
        factor, before, after: what was changed; ``others``: what had to change with it, with the new values.
        effect: ``simulated``; ``at least`` (its bound; it was not simulated); ``does not fit``; ``cannot be built``;
            ``about`` (an estimate; no trials were left for it); ``not tried``.
        times: how many times the choice's time it takes, at least or about where it was not simulated; None where
            unknown.
        why: what stands in the way.
    """

    factor: str
    before: Any
    after: Any
    others: Mapping[str, Any]
    effect: str
    times: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        global_batch: samples of a weight update.
        choice, runner_up: configuration and outcome; no runner-up where nothing else was simulated.
        start: what the search began with, if somebody said.
        binding: what keeps it from being faster, in words.
        steps: the sensitivity.
        configurations: how many there are; of those ``lowered`` (built, memory known), ``simulated``, ``ruled_out`` by
            bounds without being built, and ``left``: those that may still be faster.
        probes: probes that were lowered for bounds and forecasts.
    """

    global_batch: int
    choice: tuple[Configuration, Outcome]
    runner_up: tuple[Configuration, Outcome] | None
    start: tuple[Configuration, Outcome] | None
    binding: tuple[str, ...]
    steps: tuple[StepTaken, ...]
    configurations: int
    lowered: int
    simulated: int
    ruled_out: int
    left: int
    probes: int

    @property
    def samples_per_second(self) -> float:
        """Of the choice."""
        assert self.choice[1].seconds is not None
        return self.global_batch / self.choice[1].seconds


def answer_of(search: TuningSearch) -> Answer:
    """The answer of a search that ended.

    Raises:
        TuningError: nothing fits; the message says which constraint is broken, and by how much at the least.
    """
    if search.best is None:
        raise TuningError(_nothing(search))
    space, best = search.space, search.best
    ranked = sorted(
        (found for found in search.outcomes.values() if found.fits and found.seconds is not None and found is not best),
        key=lambda found: (found.seconds, found.place),
    )
    steps = tuple(_step(search, best, *each) for each in space.steps(best.place))
    outcomes = search.outcomes.values()
    known = len(search.outcomes)
    left = len(search.open)
    first = search.outcomes.get(search.first[0]) if search.first else None
    return Answer(
        global_batch=space.global_batch,
        choice=(space.configurations[best.place], best),
        runner_up=(space.configurations[ranked[0].place], ranked[0]) if ranked else None,
        start=None if first is None else (space.configurations[first.place], first),
        binding=_binding(search, best, steps),
        steps=steps,
        configurations=len(space.configurations),
        lowered=known,
        simulated=sum(found.seconds is not None for found in outcomes),
        ruled_out=len(space.configurations) - known - left,
        left=left,
        probes=search.bounds.built,
    )


def _nothing(search: TuningSearch) -> str:
    """Why there is no choice."""
    space, count = search.space, len(search.space.configurations)
    limit = search.bounds.machine.chip.bytes_per_tile
    tried = list(search.outcomes.values())
    small = [found for found in tried if found.fullest.over]
    head = f"none of {count:,} configurations fits ({len(tried):,} tried, {count - len(tried) - len(search.open):,} "
    head += f"ruled out by bounds, {len(search.open):,} left)"
    if small:
        near = min(small, key=lambda found: (found.fullest.bytes, found.place))
        full = near.fullest
        return (
            f"{head}: the nearest is {full.over:,} bytes per tile over the {limit:,} there are, on IPU {full.ipu} "
            f"(largest: {', '.join(full.largest)}); it is {_words(space.configurations[near.place], space.names)}"
        )
    if tried:
        why, times = Counter(found.failure for found in tried).most_common(1)[0]
        return f"{head}: {times:,} of those tried cannot be built: {why}"
    place = int(search.least_bytes.argmin())
    bound, words = search.bound(place), _words(space.configurations[place], space.names)
    return f"{head}: {bound.refused or bound.over(limit)} in {words}"


def _step(search: TuningSearch, best: Outcome, factor: str, way: int, place: int) -> StepTaken:
    """What is known of a step."""
    before, after = (search.space.configurations[each] for each in (best.place, place))
    others = {name: value for name, value in after.items() if value != before[name] and name != factor}
    about: dict[str, Any] = {"factor": factor, "before": before[factor], "after": after[factor], "others": others}
    assert best.seconds is not None
    found = search.outcomes.get(place)
    if found is None:
        return _untried(search, best.seconds, place, about)
    if found.failure:
        return StepTaken(**about, effect="cannot be built", why=found.failure)
    if found.fullest.over:
        full = found.fullest
        why = f"IPU {full.ipu}: {full.over:,} bytes per tile over (largest: {', '.join(full.largest[:3])})"
        return StepTaken(**about, effect="does not fit", times=found.least_seconds / best.seconds, why=why)
    if found.seconds is None:
        return StepTaken(**about, effect="at least", times=found.least_seconds / best.seconds)
    return StepTaken(**about, effect="simulated", times=found.seconds / best.seconds)


def _untried(search: TuningSearch, best: float, place: int, about: dict[str, Any]) -> StepTaken:
    """What is known of a step that was not tried."""
    bound, limit = search.bound(place), search.bounds.machine.chip.bytes_per_tile
    if bound.refused:
        return StepTaken(**about, effect="cannot be built", why=bound.refused)
    times = bound.seconds / best or None
    if bound.bytes > limit:
        return StepTaken(**about, effect="does not fit", times=times, why=bound.over(limit))
    if bound.seconds >= best:
        return StepTaken(**about, effect="at least", times=times)
    expected = search.expected(place)
    if expected is None:
        return StepTaken(**about, effect="not tried", times=times)
    return StepTaken(**about, effect="about", times=expected / best)


def _binding(search: TuningSearch, best: Outcome, steps: tuple[StepTaken, ...]) -> tuple[str, ...]:
    """What keeps the choice from being faster."""
    assert best.seconds is not None
    found = []
    for step in steps:
        if step.effect == "does not fit" and step.times is not None and step.times < 1:
            found.append(f"memory: {step.factor} {step.after} could take {step.times:.3f} of the time, but {step.why}")
    for name, values in search.space.impossible.items():
        found.append(f"divisibility and constraints: no configuration has {name} of {', '.join(map(str, values))}")
    share = 1 - best.least_seconds / best.seconds
    if share >= _WAITS:
        found.append(
            f"waiting: {share:.0%} of a run the busiest IPU waits for other IPUs, Streaming Memory or the host"
        )
    else:
        found.append(f"compute: IPU {best.busiest} of each replica works {1 - share:.0%} of a run on its own")
    return tuple(found)


def _words(configuration: Configuration, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {_plain(configuration[name])}" for name in names)


def _plain(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


@checked()
def text_of(answer: Answer, names: tuple[str, ...]) -> str:
    """The answer for people."""
    configuration, outcome = answer.choice
    full = outcome.fullest
    rate = f"{answer.samples_per_second:,.1f} samples/s"
    lines = [f"choice: {rate}, {outcome.seconds:.6g} s for {answer.global_batch:,} samples"]
    lines += [f"  {name}: {_plain(value)}" for name, value in configuration.items() if name != "seed"]
    share = full.bytes / max(1, full.of)
    held = f"(largest: {', '.join(full.largest[:3])})"
    lines.append(f"  fullest tile: IPU {full.ipu}, {full.bytes:,} of {full.of:,} bytes, {share:.0%} {held}")
    for title, other in (("runner-up", answer.runner_up), ("start", answer.start)):
        if other is not None:
            lines += [f"{title}: {_result(answer, other)}", f"  {_differs(configuration, other[0], names)}"]
    lines += ["binding:", *(f"  {text}" for text in answer.binding)]
    lines += ["one step of each factor (times the choice's time):", *(f"  {_line(step)}" for step in answer.steps)]
    proof = "nothing left can be faster" if not answer.left else f"{answer.left:,} left that may be faster"
    lines.append(
        f"{answer.configurations:,} configurations: {answer.lowered:,} lowered, {answer.simulated:,} simulated; "
        f"{answer.probes:,} probes lowered, {answer.ruled_out:,} ruled out by bounds; {proof}"
    )
    return "\n".join(lines)


def _result(answer: Answer, other: tuple[Configuration, Outcome]) -> str:
    outcome = other[1]
    if outcome.failure:
        return f"cannot be built: {outcome.failure}"
    if outcome.fullest.over:
        return f"does not fit, {outcome.fullest.over:,} bytes per tile over on IPU {outcome.fullest.ipu}"
    if outcome.seconds is None:
        return f"at least {outcome.least_seconds:.6g} s"
    assert answer.choice[1].seconds is not None
    times = outcome.seconds / answer.choice[1].seconds
    return f"{answer.global_batch / outcome.seconds:,.1f} samples/s, {times:.4f} times the choice's time"


def _differs(choice: Configuration, other: Configuration, names: tuple[str, ...]) -> str:
    changed = [name for name in other if other[name] != choice[name]]
    return _words(other, tuple(changed)) if changed else "the choice itself"


def _line(step: StepTaken) -> str:
    others = f" (with {', '.join(f'{n} {_plain(v)}' for n, v in step.others.items())})" if step.others else ""
    times = "" if step.times is None else f" {step.times:.4f}"
    said = {"simulated": times, "at least": f" at least{times}", "about": f" about{times} (estimate)"}.get(
        step.effect, f" {step.effect}"
    )
    why = f": {step.why}" if step.why else ""
    return f"{step.factor} {_plain(step.before)} -> {_plain(step.after)}{others}:{said}{why}"

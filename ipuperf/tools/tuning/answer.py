"""The answer of a tuning: the choice, the runner-up, what limits the choice, and what one step of each factor costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.tools.errors import TuningError

from .evaluate import Outcome
from .search import TuningSearch
from .space import Configuration

_WAITS = 0.25
"""The share of a run from which waiting is named as the limit of the choice."""


@dataclass(frozen=True)
class StepTaken:
    """One step of a factor away from the choice.

    Attributes:
        factor, before, after: the changed factor with its old and new value.
        others: the new values of factors that had to change with it.
        effect: ``simulated``; ``at least`` (its bound; it was not simulated); ``does not fit``; ``cannot be built``;
            ``about`` (an estimate; no trials were left for it); ``not tried``.
        times: its time as a multiple of the choice's time, at least or about if it was not simulated; None: unknown.
        why: the reason why it is impossible.
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
    """The answer of a tuning.

    Attributes:
        global_batch: samples of a weight update.
        choice, runner_up: configuration and outcome; there is no runner-up if nothing else was simulated.
        start: the configuration that the search began with, if the user named one.
        binding: what keeps the choice from being faster, in words.
        steps: the sensitivity: one step of each factor.
        configurations: how many there are. Of those some were ``lowered`` (built, memory known), ``simulated``, and
            ``ruled_out`` by bounds without being built; those ``left`` may still be faster.
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
        """Throughput of the choice."""
        assert self.choice[1].seconds is not None
        return self.global_batch / self.choice[1].seconds


def answer_of(search: TuningSearch) -> Answer:
    """The answer of a search that ended.

    Raises:
        TuningError: nothing fits; the message says which constraint is broken, and by how much at least.
    """
    if search.best is None:
        raise TuningError(_nothing(search))
    space, best = search.space, search.best
    ranked = sorted(
        (
            outcome
            for outcome in search.outcomes.values()
            if outcome.fits and outcome.seconds is not None and outcome is not best
        ),
        key=lambda outcome: (outcome.seconds, outcome.place),
    )
    steps = tuple(_step(search, best, *step) for step in space.steps(best.place))
    outcomes = search.outcomes.values()
    lowered = len(search.outcomes)
    left = len(search.open)
    start = search.outcomes.get(search.start_places[0]) if search.start_places else None
    return Answer(
        global_batch=space.global_batch,
        choice=(space.configurations[best.place], best),
        runner_up=(space.configurations[ranked[0].place], ranked[0]) if ranked else None,
        start=None if start is None else (space.configurations[start.place], start),
        binding=_binding(search, best, steps),
        steps=steps,
        configurations=len(space.configurations),
        lowered=lowered,
        simulated=sum(outcome.seconds is not None for outcome in outcomes),
        # What was neither lowered nor is open was ruled out by its bound alone.
        ruled_out=len(space.configurations) - lowered - left,
        left=left,
        probes=search.bounds.built,
    )


def _nothing(search: TuningSearch) -> str:
    """Why there is no choice, in words."""
    space, count = search.space, len(search.space.configurations)
    limit = search.bounds.machine.chip.bytes_per_tile
    outcomes = list(search.outcomes.values())
    too_large = [outcome for outcome in outcomes if outcome.fullest.over]
    head = (
        f"none of {count:,} configurations fits ({len(outcomes):,} tried, {count - len(outcomes) - len(search.open):,} "
    )
    head += f"ruled out by bounds, {len(search.open):,} left)"
    if too_large:
        nearest = min(too_large, key=lambda outcome: (outcome.fullest.bytes, outcome.place))
        fullest = nearest.fullest
        return (
            f"{head}: the nearest is {fullest.over:,} bytes per tile over the {limit:,} there are, on IPU "
            f"{fullest.ipu} (largest: {', '.join(fullest.largest)}); it is "
            f"{_words(space.configurations[nearest.place], space.names)}"
        )
    if outcomes:
        why, times = Counter(outcome.failure for outcome in outcomes).most_common(1)[0]
        return f"{head}: {times:,} of those tried cannot be built: {why}"
    # Bounds alone ruled out everything, so the nearest of them is named.
    place = int(search.least_bytes.argmin())
    bound, words = search.bound(place), _words(space.configurations[place], space.names)
    return f"{head}: {bound.refused or bound.over(limit)} in {words}"


def _step(search: TuningSearch, best: Outcome, factor: str, way: int, place: int) -> StepTaken:
    """What is known about a step away from the choice."""
    chosen, changed = (search.space.configurations[index] for index in (best.place, place))
    other_changes = {name: value for name, value in changed.items() if value != chosen[name] and name != factor}
    about: dict[str, Any] = {
        "factor": factor,
        "before": chosen[factor],
        "after": changed[factor],
        "others": other_changes,
    }
    assert best.seconds is not None
    outcome = search.outcomes.get(place)
    if outcome is None:
        return _untried(search, best.seconds, place, about)
    if outcome.failure:
        return StepTaken(**about, effect="cannot be built", why=outcome.failure)
    if outcome.fullest.over:
        fullest = outcome.fullest
        why = f"IPU {fullest.ipu}: {fullest.over:,} bytes per tile over (largest: {', '.join(fullest.largest[:3])})"
        return StepTaken(**about, effect="does not fit", times=outcome.least_seconds / best.seconds, why=why)
    if outcome.seconds is None:
        return StepTaken(**about, effect="at least", times=outcome.least_seconds / best.seconds)
    return StepTaken(**about, effect="simulated", times=outcome.seconds / best.seconds)


def _untried(search: TuningSearch, best: float, place: int, about: dict[str, Any]) -> StepTaken:
    """What bounds and estimates say about a step that was not tried."""
    bound, limit = search.bound(place), search.bounds.machine.chip.bytes_per_tile
    if bound.refused:
        return StepTaken(**about, effect="cannot be built", why=bound.refused)
    # A bound of 0 seconds says nothing.
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
    """What keeps the choice from being faster, in words."""
    assert best.seconds is not None
    limits = []
    for step in steps:
        # A step is held back by memory only if it could be faster.
        if step.effect == "does not fit" and step.times is not None and step.times < 1:
            limits.append(f"memory: {step.factor} {step.after} could take {step.times:.3f} of the time, but {step.why}")
    for name, values in search.space.impossible.items():
        limits.append(f"divisibility and constraints: no configuration has {name} of {', '.join(map(str, values))}")
    # The least time is that of the busiest IPU's own steps. The rest of a run is waiting.
    share = 1 - best.least_seconds / best.seconds
    if share >= _WAITS:
        limits.append(
            f"waiting: {share:.0%} of a run the busiest IPU waits for other IPUs, Streaming Memory or the host"
        )
    else:
        limits.append(f"compute: IPU {best.busiest} of each replica works {1 - share:.0%} of a run on its own")
    return tuple(limits)


def _words(configuration: Configuration, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {_plain(configuration[name])}" for name in names)


def _plain(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


@checked()
def text_of(answer: Answer, names: tuple[str, ...]) -> str:
    """The answer as text for a terminal."""
    configuration, outcome = answer.choice
    fullest = outcome.fullest
    rate = f"{answer.samples_per_second:,.1f} samples/s"
    lines = [f"choice: {rate}, {outcome.seconds:.6g} s for {answer.global_batch:,} samples"]
    if outcome.interval is not None:
        low, high = outcome.interval
        lines.append(f"  measured nine times of ten from {low:.4g} to {high:.4g} s")
    lines += [f"  {name}: {_plain(value)}" for name, value in configuration.items() if name != "seed"]
    share = fullest.bytes / max(1, fullest.of)
    largest = f"(largest: {', '.join(fullest.largest[:3])})"
    lines.append(f"  fullest tile: IPU {fullest.ipu}, {fullest.bytes:,} of {fullest.of:,} bytes, {share:.0%} {largest}")
    for title, alternative in (("runner-up", answer.runner_up), ("start", answer.start)):
        if alternative is not None:
            lines += [f"{title}: {_result(answer, alternative)}", f"  {_differs(configuration, alternative[0], names)}"]
    lines += ["binding:", *(f"  {text}" for text in answer.binding)]
    lines += ["one step of each factor (times the choice's time):", *(f"  {_line(step)}" for step in answer.steps)]
    proof = "nothing left can be faster" if not answer.left else f"{answer.left:,} left that may be faster"
    lines.append(
        f"{answer.configurations:,} configurations: {answer.lowered:,} lowered, {answer.simulated:,} simulated; "
        f"{answer.probes:,} probes lowered, {answer.ruled_out:,} ruled out by bounds; {proof}"
    )
    return "\n".join(lines)


def _result(answer: Answer, alternative: tuple[Configuration, Outcome]) -> str:
    outcome = alternative[1]
    if outcome.failure:
        return f"cannot be built: {outcome.failure}"
    if outcome.fullest.over:
        return f"does not fit, {outcome.fullest.over:,} bytes per tile over on IPU {outcome.fullest.ipu}"
    if outcome.seconds is None:
        return f"at least {outcome.least_seconds:.6g} s"
    assert answer.choice[1].seconds is not None
    times = outcome.seconds / answer.choice[1].seconds
    return f"{answer.global_batch / outcome.seconds:,.1f} samples/s, {times:.4f} times the choice's time"


def _differs(choice: Configuration, alternative: Configuration, names: tuple[str, ...]) -> str:
    changed = [name for name in alternative if alternative[name] != choice[name]]
    return _words(alternative, tuple(changed)) if changed else "the choice itself"


def _line(step: StepTaken) -> str:
    others = f" (with {', '.join(f'{n} {_plain(v)}' for n, v in step.others.items())})" if step.others else ""
    times = "" if step.times is None else f" {step.times:.4f}"
    effect = {"simulated": times, "at least": f" at least{times}", "about": f" about{times} (estimate)"}.get(
        step.effect, f" {step.effect}"
    )
    why = f": {step.why}" if step.why else ""
    return f"{step.factor} {_plain(step.before)} -> {_plain(step.after)}{others}:{effect}{why}"

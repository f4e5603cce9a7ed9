"""Sequences in which stretches are repeated, without a copy for each repetition."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Repeat(NamedTuple):
    """A stretch that follows itself, ``times`` in all."""

    parts: tuple[int | Repeat, ...]
    times: int


class Runs(NamedTuple):
    """How often a key changes along a sequence: its first and last key, and the number of stretches of equal keys."""

    first: Hashable
    last: Hashable
    number: int


def flat(parts: Iterable[int | Repeat]) -> Iterator[int]:
    """The numbers of a sequence, one by one."""
    for part in parts:
        if isinstance(part, Repeat):
            for _ in range(part.times):
                yield from flat(part.parts)
        else:
            yield part


def backwards(parts: Sequence[int | Repeat]) -> tuple[int | Repeat, ...]:
    """The sequence from its end to its begin."""
    return tuple(
        Repeat(backwards(part.parts), part.times) if isinstance(part, Repeat) else part for part in reversed(parts)
    )


def add_times(parts: Iterable[int | Repeat], times: list[int], repeated: int = 1) -> None:
    """Add to ``times`` how often each number occurs in a sequence that is itself ``repeated``."""
    for part in parts:
        if isinstance(part, Repeat):
            add_times(part.parts, times, repeated * part.times)
        else:
            times[part] += repeated


def runs(parts: Iterable[int | Repeat], of: Sequence[Runs]) -> Runs:
    """The stretches of equal keys of a sequence; ``of`` has those of each number."""
    whole = None
    for part in parts:
        if isinstance(part, Repeat):
            first, last, number = runs(part.parts, of)
            each = Runs(first, last, part.times * number - (part.times - 1) * (first == last))
        else:
            each = of[part]
        # Where a stretch goes on, it is not counted again.
        whole = (
            each
            if whole is None
            else Runs(whole.first, each.last, whole.number + each.number - (whole.last == each.first))
        )
    assert whole is not None, "an empty sequence"
    return whole

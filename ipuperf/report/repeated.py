"""Sequences in which stretches are repeated, without a copy for each repetition."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple


class RepeatedStretch(NamedTuple):
    """A stretch that follows itself, ``times`` in all."""

    parts: tuple[int | RepeatedStretch, ...]
    times: int


class KeyChanges(NamedTuple):
    """How often a key changes along a sequence: its first and last key, and the number of stretches of equal keys."""

    first: Hashable
    last: Hashable
    number: int


def flat(parts: Iterable[int | RepeatedStretch]) -> Iterator[int]:
    """The numbers of a sequence, one by one."""
    for part in parts:
        if isinstance(part, RepeatedStretch):
            for _ in range(part.times):
                yield from flat(part.parts)
        else:
            yield part


def backwards(parts: Sequence[int | RepeatedStretch]) -> tuple[int | RepeatedStretch, ...]:
    """The sequence from its end to its begin."""
    return tuple(
        RepeatedStretch(backwards(part.parts), part.times) if isinstance(part, RepeatedStretch) else part
        for part in reversed(parts)
    )


def add_times(parts: Iterable[int | RepeatedStretch], times: list[int], repeated: int = 1) -> None:
    """Add to ``times`` how often each number occurs in a sequence that is itself ``repeated``."""
    for part in parts:
        if isinstance(part, RepeatedStretch):
            add_times(part.parts, times, repeated * part.times)
        else:
            times[part] += repeated


def runs(parts: Iterable[int | RepeatedStretch], of: Sequence[KeyChanges]) -> KeyChanges:
    """The stretches of equal keys of a sequence; ``of`` has those of each number."""
    begin: Hashable = None
    before: Hashable = None
    total = 0
    for part in parts:
        if isinstance(part, RepeatedStretch):
            first, last, number = runs(part.parts, of)
            number = part.times * number - (part.times - 1) * (first == last)
        else:
            first, last, number = of[part]
        if not total:
            begin = first
        # Where a stretch goes on, it is not counted again.
        total += number - (total > 0 and before == first)
        before = last
    assert total, "an empty sequence"
    return KeyChanges(begin, before, total)

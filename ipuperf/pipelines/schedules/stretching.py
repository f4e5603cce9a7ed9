"""Timetables of any number of micro-batches at the price of a few: one period of the steady part counts many times.

A micro-batch lives for as many steps as lie between its first cell and its last one. Where the steps repeat themselves
for that long and a period more, one more period changes nothing but the number of micro-batches: each cell has what
it has one period earlier before it and after it. So order, stashes and what waits are those of the short table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .timetable import FoldedSteps, Timetable, moved


def stretched(make: Callable[[int], Timetable], micro_batches: int, advance: int = 1) -> Timetable:
    """``make(micro_batches)``, made from a table of few micro-batches if that has a steady part.

    Args:
        make: the tables of a schedule by their number of micro-batches. A table with ``advance`` more is to have one
            period more.
        micro_batches: M.
        advance: how many micro-batches a period of the table has.
    """
    alone = make(min(advance, micro_batches))
    # A micro-batch lives for about as many steps as it takes alone: ramps and steady part are each that long.
    periods = 3 + 2 * -(-len(alone.steps) // alone.period)
    while (count := periods * advance + micro_batches % advance) < micro_batches:
        table = make(count)
        begin = _steady(table, advance)
        if begin is not None:
            more = (micro_batches - count) // advance
            steps = FoldedSteps(tuple(table.steps), begin, table.period, advance, more)
            return replace(table, micro_batches=micro_batches, steps=steps)
        periods *= 2
    return make(micro_batches)


def _steady(table: Timetable, advance: int) -> int | None:
    """Where steps begin to repeat themselves, ``advance`` micro-batches later, for long enough; None: nowhere."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for cell, step in table.when.items():
        first.setdefault(cell.micro_batch, step)
        last[cell.micro_batch] = step
    enough = max(last[number] - first[number] + 1 for number in first)
    # Steps that equal those a period later, one after the other.
    equal = 0
    for step in range(len(table.steps) - table.period):
        equal = equal + 1 if moved(table.steps[step], advance) == table.steps[step + table.period] else 0
        if equal == enough + table.period:
            return step + 1 - equal
    return None

"""What moved between two records: figures by name, ops by their place in the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, TypeVar

from ipuperf.testing.record import SECTIONS, OpFigures, Record

Pair = tuple[OpFigures | None, OpFigures | None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Tolerance:
    """How far a figure may be from its baseline: at most ``rtol`` times the baseline plus ``atol`` (in the unit of the
    figure, cycles or bytes).

    Raises:
        ValueError: a tolerance that is negative or no finite number.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            at_least_zero(name, getattr(self, name))

    def holds(self, before: float, after: float) -> bool:
        """Whether ``after`` is close enough to the baseline ``before``."""
        return abs(after - before) <= self.rtol * abs(before) + self.atol

    def __str__(self) -> str:
        return f"rtol={self.rtol:g}" + (f", atol={self.atol:g}" if self.atol else "")


def at_least_zero(name: str, value: Any) -> float:
    """``value`` if it is a finite number of at least 0; ``ValueError`` naming it otherwise."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: {value!r}, expected a number of at least 0")
    return float(value)


@dataclass(frozen=True)
class Moved:
    """A figure before and after. ``label`` and ``kind`` name it (``kind`` is the type of an op, else ""), ``note`` says
    what numbers do not: new, gone, other calls."""

    label: str
    kind: str
    before: int
    after: int
    note: str = ""

    @property
    def change(self) -> int:
        """After minus before."""
        return self.after - self.before


def moved_sections(
    before: Record, after: Record, tolerance: Tolerance, only: Iterable[str] | None = None
) -> dict[str, list[Moved]]:
    """What moved in each section, the largest absolute change first (the total cycles before all); sections in which
    nothing moved are left out.

    Args:
        only: the sections to compare; None compares all. ``system`` is always compared.

    Raises:
        ValueError: an unknown section.
    """
    chosen = {"system", *check_sections(only)}
    found: dict[str, list[Moved]] = {}
    for section in SECTIONS:
        if section in chosen:
            found[section] = _moved_figures(before.figures[section], after.figures[section], tolerance)
    if "operations" in chosen:
        found["operations"] = _moved_operations(before.operations, after.operations, tolerance)
    order = ("system", "cycles", "operations", "memory", "transfers")
    return {section: found[section] for section in order if found.get(section)}


def check_sections(only: Iterable[str] | None) -> tuple[str, ...]:
    """The sections asked for; ``ValueError`` for an unknown one."""
    allowed = (*SECTIONS, "operations")
    if only is None:
        return allowed
    wanted = (only,) if isinstance(only, str) else tuple(only)
    for name in wanted:
        if name not in allowed:
            raise ValueError(f"only: unknown section {name!r}, the sections are {', '.join(allowed)}")
    if not wanted:
        raise ValueError(f"only: no section, the sections are {', '.join(allowed)}")
    return wanted


def _by_change(rows: Iterable[Moved]) -> list[Moved]:
    return sorted(rows, key=lambda row: (row.label != "total", -abs(row.change), row.label))


def _moved_figures(before: dict[str, int], after: dict[str, int], tolerance: Tolerance) -> list[Moved]:
    rows = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, 0), after.get(name, 0)
        if not tolerance.holds(old, new):
            rows.append(Moved(name, "", old, new))
    return _by_change(rows)


def _moved_operations(before: Sequence[OpFigures], after: Sequence[OpFigures], tolerance: Tolerance) -> list[Moved]:
    rows = []
    for old, new in paired_operations(before, after):
        if old is None or new is None:
            only = old or new
            assert only is not None
            note = "new" if old is None else "gone"
            cycles = (0, only.cycles) if old is None else (only.cycles, 0)
            rows.append(Moved(only.path, only.type, *cycles, note))
        elif old.calls != new.calls or not tolerance.holds(old.cycles, new.cycles):
            note = f"calls {old.calls:,} -> {new.calls:,}" if old.calls != new.calls else ""
            rows.append(Moved(new.path, new.type, old.cycles, new.cycles, note))
    return _by_change(rows)


# -- which op is which -------------------------------------------------------------------------------------------------


def paired_operations(before: Sequence[OpFigures], after: Sequence[OpFigures]) -> Iterator[Pair]:
    """Ops of two programs that correspond, scope by scope; None stands for an op that is new or gone.

    Where the types of a scope come in the same order, ops correspond by place. Otherwise those that are alike in type,
    calls and cycles and stand in the same order correspond, then, between them, those of one type, and last what is
    left of each type in order. So one op more in the middle of a program is one new op, not a change in all that
    follow.
    """
    old, new = _by_scope(before), _by_scope(after)
    for scope in dict.fromkeys([*old, *new]):
        yield from _paired_in_scope(old.get(scope, []), new.get(scope, []))


def _by_scope(operations: Sequence[OpFigures]) -> dict[str, list[OpFigures]]:
    found: dict[str, list[OpFigures]] = {}
    for op in operations:
        found.setdefault(op.scope, []).append(op)
    return found


def _paired_in_scope(old: Sequence[OpFigures], new: Sequence[OpFigures]) -> Iterator[Pair]:
    if [op.type for op in old] == [op.type for op in new]:
        yield from zip(old, new, strict=True)
        return
    left: list[OpFigures] = []
    right: list[OpFigures] = []
    for some, others in _aligned(old, new, lambda op: (op.type, op.calls, op.cycles)):
        for ours, theirs in _aligned(some, others, lambda op: op.type):
            if len(ours) == len(theirs) == 1 and ours[0].type == theirs[0].type:
                yield ours[0], theirs[0]
            else:
                left += ours
                right += theirs
    for kind in dict.fromkeys(op.type for op in [*left, *right]):
        yield from zip_longest((op for op in left if op.type == kind), (op for op in right if op.type == kind))


def _aligned(
    old: Sequence[Item], new: Sequence[Item], key: Callable[[Item], Any]
) -> Iterator[tuple[Sequence[Item], Sequence[Item]]]:
    """Pairs of one item each where the keys agree, and the stretches between them."""
    left, right = [key(item) for item in old], [key(item) for item in new]
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (([one], [other]) for one, other in zip(old[a:b], new[c:d], strict=True))
        else:
            yield old[a:b], new[c:d]

"""Differences between two records: figures by name, ops by their place in the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, TypeVar

from ipuperf.tools.testing.record import SECTIONS, OpFigures, Record

Pair = tuple[OpFigures | None, OpFigures | None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Tolerance:
    """The allowed distance of a figure from its baseline: ``rtol`` times the baseline plus ``atol``.

    ``atol`` is in the unit of the figure, cycles or bytes.

    Raises:
        ValueError: a tolerance is negative or no finite number.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            at_least_zero(name, getattr(self, name))

    def holds(self, baseline: float, current: float) -> bool:
        """Whether ``current`` is close enough to ``baseline``."""
        return abs(current - baseline) <= self.rtol * abs(baseline) + self.atol

    def __str__(self) -> str:
        return f"rtol={self.rtol:g}" + (f", atol={self.atol:g}" if self.atol else "")


def at_least_zero(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number of at least 0; raise ``ValueError`` with its name otherwise."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: {value!r}, expected a number of at least 0")
    return float(value)


@dataclass(frozen=True)
class Moved:
    """A figure before and after.

    ``label`` and ``kind`` name it; ``kind`` is the type of an op, else "". ``note`` adds what numbers do not show: new,
    gone, other calls.
    """

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
    baseline: Record, current: Record, tolerance: Tolerance, only: Iterable[str] | None = None
) -> dict[str, list[Moved]]:
    """Return the figures that moved in each section, the largest absolute change first.

    The total cycles come before all other figures. Sections in which nothing moved are left out.

    Args:
        only: the sections to compare; None compares all. ``system`` is always compared.

    Raises:
        ValueError: a section is unknown.
    """
    # Figures of different numbers of IPUs cannot be compared.
    chosen = {"system", *check_sections(only)}
    moved: dict[str, list[Moved]] = {}
    for section in SECTIONS:
        if section in chosen:
            moved[section] = _moved_figures(baseline.figures[section], current.figures[section], tolerance)
    if "operations" in chosen:
        moved["operations"] = _moved_operations(baseline.operations, current.operations, tolerance)
    order = ("system", "cycles", "operations", "memory", "transfers")
    return {section: moved[section] for section in order if moved.get(section)}


def check_sections(only: Iterable[str] | None) -> tuple[str, ...]:
    """Return the sections to compare; raise ``ValueError`` for an unknown one."""
    allowed = (*SECTIONS, "operations")
    if only is None:
        return allowed
    sections = (only,) if isinstance(only, str) else tuple(only)
    for name in sections:
        if name not in allowed:
            raise ValueError(f"only: unknown section {name!r}, the sections are {', '.join(allowed)}")
    if not sections:
        raise ValueError(f"only: no section, the sections are {', '.join(allowed)}")
    return sections


def _by_change(rows: Iterable[Moved]) -> list[Moved]:
    return sorted(rows, key=lambda row: (row.label != "total", -abs(row.change), row.label))


def _moved_figures(baseline: dict[str, int], current: dict[str, int], tolerance: Tolerance) -> list[Moved]:
    rows = []
    for name in dict.fromkeys([*baseline, *current]):
        old, new = baseline.get(name, 0), current.get(name, 0)
        if not tolerance.holds(old, new):
            rows.append(Moved(name, "", old, new))
    return _by_change(rows)


def _moved_operations(baseline: Sequence[OpFigures], current: Sequence[OpFigures], tolerance: Tolerance) -> list[Moved]:
    rows = []
    for old, new in paired_operations(baseline, current):
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


def paired_operations(baseline: Sequence[OpFigures], current: Sequence[OpFigures]) -> Iterator[Pair]:
    """Pair the ops of two programs that correspond, scope by scope; None stands for an op that is new or gone.

    If the types of a scope come in the same order, ops correspond by place. Otherwise ops that agree in type, calls and
    cycles and stand in the same order correspond first. Between those, ops of one type do, and finally the remaining
    ops of each type in order. An additional op in the middle of a program is therefore one new op, not a change in all
    ops after it.
    """
    old, new = _by_scope(baseline), _by_scope(current)
    for scope in dict.fromkeys([*old, *new]):
        yield from _paired_in_scope(old.get(scope, []), new.get(scope, []))


def _by_scope(operations: Sequence[OpFigures]) -> dict[str, list[OpFigures]]:
    scopes: dict[str, list[OpFigures]] = {}
    for op in operations:
        scopes.setdefault(op.scope, []).append(op)
    return scopes


def _paired_in_scope(old: Sequence[OpFigures], new: Sequence[OpFigures]) -> Iterator[Pair]:
    if [op.type for op in old] == [op.type for op in new]:
        yield from zip(old, new, strict=True)
        return
    # Stretches without a one-to-one match; their ops are paired by type below.
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
    """Yield pairs of one op each where the keys agree, and the stretches between them."""
    left, right = [key(op) for op in old], [key(op) for op in new]
    # autojunk would ignore keys that are frequent in a long sequence, as types of ops are.
    for tag, old_start, old_end, new_start, new_end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (
                ([old_op], [new_op])
                for old_op, new_op in zip(old[old_start:old_end], new[new_start:new_end], strict=True)
            )
        else:
            yield old[old_start:old_end], new[new_start:new_end]

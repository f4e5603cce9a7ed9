"""Memory over program steps as templates: what a called graph does is kept once, however often it is called.

A :class:`Block` is one graph on one IPU, with steps counted from the begin of a call. A call in it is another block and
an offset. Names of steps, bytes and live intervals are made of such parts. They unroll when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Timeline:
    """One value for each program step, as ``parts`` in a row.

    A part is a tuple, an ``int64`` array or another timeline, and the same one may stand at many places.
    """

    parts: tuple[Any, ...]

    @cached_property
    def stops(self) -> np.ndarray:
        """The step after each part."""
        return np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    @cached_property
    def _size(self) -> int:
        # Inner ones first, as calls may be nested deeper than Python's stack.
        for inner in reversed(self._inside()[1:]):
            len(inner)
        return int(self.stops[-1]) if self.parts else 0

    def _inside(self) -> list[Timeline]:
        """This timeline and those in it, each once, outer ones first."""
        timelines, waiting = {id(self): self}, [self]
        for timeline in waiting:
            for part in timeline.parts:
                if isinstance(part, Timeline) and id(part) not in timelines:
                    timelines[id(part)] = part
                    waiting.append(part)
        return list(timelines.values())

    def leaves(self) -> Iterator[Any]:
        """The tuples or arrays of all steps, in order."""
        stack = [iter(self.parts)]
        while stack:
            for part in stack[-1]:
                if isinstance(part, Timeline):
                    stack.append(iter(part.parts))
                    break
                yield part
            else:
                stack.pop()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, step: int) -> Any:
        step += self._size if step < 0 else 0
        if not 0 <= step < self._size:
            raise IndexError(f"step {step} of {self._size}")
        part: Any = self
        while isinstance(part, Timeline):
            number = int(np.searchsorted(part.stops, step, "right"))
            step -= int(part.stops[number - 1]) if number else 0
            part = part.parts[number]
        return part[step]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.leaves())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True)))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        flat: np.ndarray = np.concatenate([np.empty(0, np.int64), *self.leaves()])
        return flat if dtype is None else flat.astype(dtype)

    def tolist(self) -> list[Any]:
        """The values of all steps."""
        return list(np.asarray(self).tolist())

    def max(self, initial: int | None = None) -> int:
        """The largest value of a timeline of numbers; of an empty one ``initial``."""
        parts = {id(part): part for timeline in self._inside() for part in timeline.parts}.values()
        most = [int(part.max()) for part in parts if not isinstance(part, Timeline) and len(part)]
        return max(most if initial is None else [initial, *most])

    def argmax(self) -> int:
        """The first step with the largest value."""
        most, first, known = self.max(), 0, dict[int, bool]()
        for leaf in self.leaves():
            if id(leaf) not in known:
                known[id(leaf)] = len(leaf) > 0 and int(leaf.max()) == most
            if known[id(leaf)]:
                break
            first += len(leaf)
        return first + int(leaf.argmax())


@dataclass(frozen=True, eq=False)
class LiveIntervals:
    """Half-open ranges of program steps, sorted and each once.

    Attributes:
        parts: sorted ranges relative to the begin of a call, and the sorted steps at which the calls begin (``int64``).
    """

    parts: tuple[tuple[tuple[tuple[int, int], ...], np.ndarray], ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        table = interval_rows([self])[1]
        return table if dtype is None else table.astype(dtype)

    def __len__(self) -> int:
        return len(np.asarray(self))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(tuple, np.asarray(self).tolist())

    def __getitem__(self, number: int) -> tuple[int, int]:
        return tuple(np.asarray(self)[number].tolist())

    def live_at(self, step: int) -> bool:
        """Whether ``step`` lies in one of the ranges."""
        return any(
            bool(((begins + begin <= step) & (step < begins + end)).any())
            for spans, begins in self.parts
            for begin, end in spans
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveIntervals):
            return NotImplemented
        alike = len(self.parts) == len(other.parts) and all(
            one[0] == two[0] and np.array_equal(one[1], two[1])
            for one, two in zip(self.parts, other.parts, strict=True)
        )
        return alike or np.array_equal(np.asarray(self), np.asarray(other))

    def __hash__(self) -> int:
        # Equal ranges may be made of other parts, but the first and last begins and ends stay.
        begins = [spans[edge][0] + int(at.take(edge)) for spans, at in self.parts for edge in (0, -1)]
        ends = [
            pick(end for _, end in spans) + int(at.take(edge))
            for spans, at in self.parts
            for pick, edge in ((min, 0), (max, -1))
        ]
        return hash((min(begins, default=0), max(begins, default=0), min(ends, default=0), max(ends, default=0)))


def interval_rows(lists: Sequence[LiveIntervals]) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of all of these, list by list: the number of the list of each row, and the rows (begin, end)."""
    parts = [(number, *part) for number, intervals in enumerate(lists) for part in intervals.parts]
    owners, begins = np.array([number for number, _, _ in parts], dtype=np.int64), [at for _, _, at in parts]
    spans = np.array([edge for _, ranges, _ in parts for span in ranges for edge in span], dtype=np.int64)
    spans, widths = spans.reshape(-1, 2), np.array([len(ranges) for _, ranges, _ in parts], dtype=np.int64)
    calls = np.array(list(map(len, begins)), dtype=np.int64)
    # Each call of a part has all ranges of the part.
    sizes = widths * calls
    part = np.repeat(np.arange(len(parts)), sizes)
    place = np.arange(len(part)) - (np.cumsum(sizes) - sizes)[part]
    call = (np.cumsum(calls) - calls)[part] + place // widths[part]
    rows = spans[(np.cumsum(widths) - widths)[part] + place % widths[part]]
    rows = rows + np.concatenate([np.empty(0, np.int64), *begins])[call][:, None]
    # Parts may meet, and a range is listed once.
    order = np.lexsort((rows[:, 1], rows[:, 0], owners[part]))
    number, rows = owners[part][order], rows[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (number[1:] != number[:-1]) | (rows[1:] != rows[:-1]).any(axis=1)
    return number[new], rows[new]


@dataclass(eq=False, slots=True)
class Storage:
    """One live stretch of one storage root on ``ipu``.

    ``kind`` is a number of :attr:`.liveness.LivenessWalk.kinds` (-1: an operand of the graph, which the caller holds).
    """

    kind: int
    ipu: int
    begin: int
    end: int


@dataclass(eq=False, slots=True)
class Placed:
    """A call of ``block`` that begins at the step ``offset``.

    ``open`` has the storages that the callee hands over, with how long the caller uses each.
    """

    block: Block
    offset: int
    open: dict[Storage, Storage] = field(default_factory=dict)


class Block:
    """One graph on one IPU.

    Attributes:
        names, ops: of each program step its name, and its op ("" for none).
        entries: storages and calls, in order of creation.
        handed: storages that the graph hands to its caller.
    """

    def __init__(self) -> None:
        self.entries: list[Storage | Placed] = []
        self.handed: frozenset[Storage] = frozenset()
        self.length = 0
        self._name_parts: list[Any] = []
        self._op_parts: list[Any] = []
        self._names: list[str] = []
        self._ops: list[str] = []

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(self, names: list[str], op: str = "") -> None:
        """Append the steps of one op."""
        self._names += names
        self._ops += [op] * len(names)
        self.length += len(names)

    def place(self, block: Block) -> Placed:
        """Append a call of ``block``."""
        placed = Placed(block, self.length)
        self.entries.append(placed)
        if block.length:
            self._end_run()
            self._name_parts.append(block.names)
            self._op_parts.append(block.ops)
            self.length += block.length
        return placed

    def _end_run(self) -> None:
        if self._names:
            self._name_parts.append(tuple(self._names))
            self._op_parts.append(tuple(self._ops))
            self._names, self._ops = [], []

    # -- reading, when everything is there ---------------------------------------------------------------------------

    @cached_property
    def names(self) -> Timeline:
        """The names of the program steps."""
        self._end_run()
        return Timeline(tuple(self._name_parts))

    @cached_property
    def ops(self) -> Timeline:
        """The op of each program step."""
        self._end_run()
        return Timeline(tuple(self._op_parts))

    @cached_property
    def calls(self) -> list[Placed]:
        """The calls, in order."""
        return [entry for entry in self.entries if isinstance(entry, Placed)]

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of all storages, those of calls included, in the order in which they first live."""
        kinds: dict[int, None] = {}
        seen: set[Block] = set()
        for entry in self.entries:
            if isinstance(entry, Storage):
                kinds[entry.kind] = None
            elif entry.block not in seen:
                seen.add(entry.block)
                kinds.update(dict.fromkeys(entry.block.kinds))
        return tuple(kinds)

    @cached_property
    def lives(self) -> np.ndarray:
        """``int64[n, 3]``: kind, begin and end of the storages that this graph makes or gets from a call, and ends."""
        handed = self.handed
        rows = [(s.kind, s.begin, s.end) for s in self._storages() if s not in handed and s.begin < s.end]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def own(self) -> np.ndarray:
        """``int64[n, 3]``: like :attr:`lives`, without the steps of the calls that make them.

        What is handed over lives to the end.
        """
        rows = [(s.kind, s.begin, s.end) for s in self.entries if isinstance(s, Storage) and s not in self.handed]
        rows += [(s.kind, s.begin, self.length) for s in self.entries if isinstance(s, Storage) and s in self.handed]
        for call in self.calls:
            end = call.offset + call.block.length
            rows += [(s.kind, end, self.length if s in self.handed else s.end) for s in call.open.values()]
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[table[:, 1] < table[:, 2]]

    def _storages(self) -> Iterator[Storage]:
        for entry in self.entries:
            if isinstance(entry, Storage):
                yield entry
            else:
                yield from entry.open.values()

    def blocks(self) -> list[Block]:
        """This block and all that it calls, each once, callers first."""
        blocks: dict[Block, None] = {}
        self._note(blocks)
        return list(reversed(blocks))

    def _note(self, blocks: dict[Block, None]) -> None:
        if self not in blocks:
            for block in dict.fromkeys(call.block for call in self.calls):
                block._note(blocks)
            blocks[self] = None

    def begins(self) -> dict[Block, np.ndarray]:
        """For each block, the steps at which it is called, from the begin of this one."""
        begins: dict[Block, list[np.ndarray]] = {self: [np.zeros(1, np.int64)]}
        joined: dict[Block, np.ndarray] = {}
        for block in self.blocks():
            joined[block] = np.sort(np.concatenate(begins[block]))
            offsets: dict[Block, list[int]] = {}
            for call in block.calls:
                offsets.setdefault(call.block, []).append(call.offset)
            for callee, steps in offsets.items():
                at = (joined[block][:, None] + np.array(steps, np.int64)).ravel()
                begins.setdefault(callee, []).append(at)
        return joined

    @cached_property
    def stretches(self) -> list[tuple[int, int, Block | None]]:
        """Begin and end of each call that takes steps, and of what lies between (None), in order."""
        stretches: list[tuple[int, int, Block | None]] = []
        calls = [(call.offset, call.offset + call.block.length, call.block) for call in self.calls if call.block.length]
        edges = [(0, 0, None), *calls, (self.length, self.length, None)]
        for (_, begin, _), (end, stop, block) in pairwise(edges):
            if begin < end:
                stretches.append((begin, end, None))
            if block is not None:
                stretches.append((end, stop, block))
        return stretches

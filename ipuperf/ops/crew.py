"""Large steps of kernels on all cores: each is cut into pieces that several threads take.

NumPy lets other threads run while it computes. A step over large arrays is therefore cut along an axis of its result
(:func:`divided`), or a kernel says itself which of its steps are independent (:func:`together`). The bits of the result
do not depend on the number of threads. An element of an elementwise step has the same bits wherever the step is cut.
That is not so for sums and matrix products, whose libraries choose an order by the shape. Their cuts follow from their
arrays alone, and each piece is the same call with one thread and with many.

Threads help while a program runs (:func:`working`). The caller takes pieces too, and waits only for those that another
thread has begun. So a step may be cut within a piece of another one, and a forked process goes on alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from ipuperf.base.cores import cores
from ipuperf.ir import IrError

Step = Callable[[], Any]
Arrays = Sequence[np.ndarray]
Parts = list[list[np.ndarray]]

FEWEST = 1 << 16
"""Elements of the smallest piece: some 20 to 60 us of work, a few times what it takes to hand a piece over."""
PIECES_PER_THREAD = 2
"""Pieces of an elementwise step at most, so that a thread that the system lets wait keeps the others less."""
MOST = 16
"""Pieces of a sum or a matrix product at most."""
FEWEST_PRODUCTS = 1 << 22
"""Multiplications in the smallest piece of a batch of matrix products, some 50 us of work."""
GROUP = 16
"""Rows and columns of a matrix product are cut at multiples of this, the width of its library's vectors."""
SLOTS = 32
"""Slots of temporary memory that a piece may use; those of piece ``n`` begin at ``n * SLOTS``."""

VARIABLE = "IPUPERF_THREADS"

# -- threads -----------------------------------------------------------------------------------------------------------

_Outcomes = SimpleQueue[tuple[int, BaseException | None]]
_Todo = deque[tuple[int, Step]]
_Ticket = tuple[Context, _Todo, _Outcomes]


class Crew:
    """The calling thread and those that help it. Helpers start when there is work for them and stay, idle in between.

    Args:
        threads: how many, with the calling one.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._process = os.getpid()
        self._tickets: SimpleQueue[_Ticket] = SimpleQueue()
        self._helpers = 0

    def run(self, pieces: Sequence[Step]) -> None:
        """Run independent pieces, of which helpers take those that the caller has not begun.

        Helpers see the caller's context variables (NumPy's error state among them).

        Raises:
            The error of the first piece that has one, when no piece is under way any more.
        """
        # A forked process has the caller's thread only.
        if self._process != os.getpid():
            self.__init__(self.threads)  # type: ignore[misc]
        todo: _Todo = deque(enumerate(pieces))
        outcomes: _Outcomes = SimpleQueue()
        for number in range(min(self.threads, len(pieces)) - 1):
            if number == self._helpers:
                self._helpers += 1
                Thread(target=_help, args=(self._tickets,), name="ipuperf numbers", daemon=True).start()
            # A context is entered by one thread at a time, so each gets a copy.
            self._tickets.put((copy_context(), todo, outcomes))
        _take(todo, outcomes)
        errors = {number: error for number, error in (outcomes.get() for _ in pieces) if error is not None}
        if errors:
            raise errors[min(errors)]


def _take(todo: _Todo, outcomes: _Outcomes) -> None:
    """Run pieces until none is left."""
    while True:
        try:
            number, piece = todo.popleft()
        except IndexError:
            return
        error = None
        try:
            piece()
        except BaseException as raised:  # the caller raises it
            error = raised
        outcomes.put((number, error))


def _help(tickets: SimpleQueue[_Ticket]) -> None:
    """The life of a helper."""
    while True:
        context, todo, outcomes = tickets.get()
        context.run(_take, todo, outcomes)
        # An idle helper keeps no arrays alive.
        del context, todo, outcomes


_CREW: ContextVar[Crew | None] = ContextVar("crew", default=None)
_crew = cache(Crew)


def threads() -> int:
    """How many threads compute numbers: ``IPUPERF_THREADS``, by default one for each core that the process may use.

    Raises:
        IrError: the variable holds no positive integer.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return cores()
    if not text.isdecimal() or int(text) < 1:
        raise IrError(f"environment variable {VARIABLE}={text!r}; a positive integer is needed")
    return int(text)


@contextmanager
def working(count: int) -> Iterator[None]:
    """A block in which ``count`` threads take the pieces of steps."""
    token = _CREW.set(_crew(count) if count > 1 else None)
    try:
        yield
    finally:
        _CREW.reset(token)


class _Together:
    """A step of independent pieces."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[Step]) -> None:
        self.pieces = pieces

    def __call__(self) -> None:
        crew = _CREW.get()
        if crew is not None:
            crew.run(self.pieces)
            return
        for piece in self.pieces:
            piece()


def together(pieces: Sequence[Step]) -> Step:
    """A step that runs independent pieces, on all threads."""
    return pieces[0] if len(pieces) == 1 else _Together(pieces)


# -- cuts --------------------------------------------------------------------------------------------------------------


def ranges(length: int, pieces: int, unit: int = 1) -> list[slice]:
    """``length`` elements in at most so many ranges, cut at multiples of ``unit``."""
    step = max(-(-length // (max(pieces, 1) * unit)) * unit, 1)
    return [slice(at, min(at + step, length)) for at in range(0, length, step)]


def share(size: int) -> int:
    """Pieces for an elementwise step over so many elements."""
    crew = _CREW.get()
    return 1 if crew is None else max(min(PIECES_PER_THREAD * crew.threads, size // FEWEST), 1)


def cut(out: np.ndarray, operands: Arrays, pieces: int) -> Parts:
    """``out`` and the operands that broadcast to it in parts along one axis; one part where they cannot be cut."""
    axis = _axis(out.shape, pieces) if pieces > 1 else None
    if axis is None or not all(_apart(out, operand) for operand in operands):
        return [[out, *operands]]
    behind = out.ndim - axis
    return [
        [_slice(array, array.ndim - behind, part) for array in (out, *operands)]
        for part in ranges(out.shape[axis], pieces)
    ]


def _axis(shape: Sequence[int], pieces: int) -> int | None:
    """The first axis that is long enough for all pieces, or else the longest one."""
    long = [axis for axis, length in enumerate(shape) if length >= pieces]
    if long:
        return long[0]
    return max(range(len(shape)), key=lambda axis: (shape[axis], -axis), default=None)


def _slice(array: np.ndarray, axis: int, part: slice) -> np.ndarray:
    """A part of an operand along an axis: all of it where it has not got the axis or repeats along it."""
    if axis < 0 or array.shape[axis] == 1:
        return array
    index = (slice(None),) * axis + (part,)
    return array[index]


def _apart(out: np.ndarray, operand: np.ndarray) -> bool:
    """Whether pieces of ``out`` may be written while others of ``operand`` are yet to be read."""
    if not np.may_share_memory(out, operand):
        return True
    same = (out.ctypes.data, out.strides, out.shape, out.dtype)
    return same == (operand.ctypes.data, operand.strides, operand.shape, operand.dtype)


def divided(step: Step) -> Step:
    """A call of NumPy with its result given, in pieces if it is large; any other step as it is."""
    if not isinstance(step, partial):
        return step
    function, arguments, options = step.func, step.args, step.keywords
    if function is np.matmul:
        out = arguments[2] if len(arguments) > 2 else options.get("out")
        return _divided_product(step, arguments[0], arguments[1], out) if isinstance(out, np.ndarray) else step
    if function is np.copyto and isinstance(arguments[1], np.ndarray) and not options.keys() - {"casting"}:
        parts = cut(arguments[0], arguments[1:], share(arguments[0].size))
        return step if len(parts) == 1 else together([partial(np.copyto, a, b, **options) for a, b in parts])
    if isinstance(function, np.ufunc) and function.nout == 1 and function.signature is None:
        return _divided_ufunc(step, function)
    reduced = getattr(function, "__self__", None)
    if isinstance(reduced, np.ufunc) and function == reduced.reduce:
        return _divided_reduction(step)
    return step


def _divided_ufunc(step: partial[Any], function: np.ufunc) -> Step:
    operands, options = step.args[: function.nin], dict(step.keywords)
    out = step.args[function.nin] if len(step.args) > function.nin else options.pop("out", None)
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if not isinstance(out, np.ndarray) or len(operands) < function.nin or options.keys() - {"casting"}:
        return step
    # Numbers among the operands are rare and stay out of it.
    parts = cut(out, arrays, share(out.size)) if len(arrays) == len(operands) else []
    if len(parts) < 2:
        return step
    return together([partial(function, *inputs, out=part, **options) for part, *inputs in parts])


def _divided_reduction(step: partial[Any]) -> Step:
    """``(array, axes, None, out[, keepdims])``, cut along an axis that stays."""
    if len(step.args) < 4 or step.keywords or not isinstance(step.args[1], (int, tuple)):
        return step
    array, axes, dtype, out = step.args[:4]
    if not isinstance(out, np.ndarray) or np.may_share_memory(array, out):
        return step
    gone = {axis % array.ndim for axis in ((axes,) if isinstance(axes, int) else axes)}
    pieces = min(MOST, array.size // FEWEST)
    axis = _axis([1 if number in gone else length for number, length in enumerate(array.shape)], pieces)
    if pieces < 2 or axis is None or axis in gone or array.shape[axis] < 2:
        return step
    keep = step.args[4:]
    of_out = axis if any(keep) else axis - sum(number < axis for number in gone)
    return together(
        [
            partial(step.func, _slice(array, axis, part), axes, dtype, _slice(out, of_out, part), *keep)
            for part in ranges(array.shape[axis], pieces)
        ]
    )


def _divided_product(step: Step, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> Step:
    """Matrix products, cut along a batch axis. A single one is cut along its rows or columns.

    The library rearranges an operand again for each piece of a single product. With four times the work it has
    twice the pieces, so that this stays below some 15 % of the time.
    """
    products = out.size * left.shape[-1]
    if min(left.ndim, right.ndim, out.ndim) < 2 or products < 2 * FEWEST_PRODUCTS:
        return step
    pieces = min(MOST, products // FEWEST_PRODUCTS)
    axis = _axis(out.shape[:-2], 2)
    if axis is None or out.shape[axis] < 2:
        pieces = min(MOST, 1 << (products // (2 * FEWEST_PRODUCTS)).bit_length() // 2)
        axis = out.ndim - (2 if out.shape[-2] >= out.shape[-1] else 1)
    if pieces < 2 or np.may_share_memory(out, left) or np.may_share_memory(out, right):
        return step
    behind = out.ndim - axis
    ways = []
    for part in ranges(out.shape[axis], pieces, GROUP if behind <= 2 else 1):
        # Rows are those of the left operand, columns those of the right one.
        a = left if behind == 1 else _slice(left, left.ndim - behind, part)
        b = right if behind == 2 else _slice(right, right.ndim - behind, part)
        ways.append(partial(np.matmul, a, b, _slice(out, axis, part)))
    return together(ways)

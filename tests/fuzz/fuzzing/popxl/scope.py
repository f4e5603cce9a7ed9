"""What a graph under construction offers to the next random instruction."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .program import Body, Buffer, Instruction

FLOATS = ("float32", "float16", "float64")
SIGNED = ("int32", "int8", "int16")
UNSIGNED = ("uint32", "uint8", "uint16")
INTS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTS
DTYPES = ("float32",) * 8 + ("float16",) * 5 + ("int32",) * 3 + ("uint32",) * 2 + ("bool",) * 2 + (
    "float64", "int8", "uint8", "int16", "uint16",
)  # fmt: skip
LARGEST = 3000
"""Elements of the largest tensor."""


@dataclass
class Root:
    """Storage: whether its values are free of roundings that another implementation may do differently, and whether it
    may not be written (what shares storage with an in-place concatenation)."""

    exact: bool = True
    frozen: bool = False


@dataclass(frozen=True)
class Spec:
    """A tensor of the graph. ``strided``: a view that is not contiguous; ``meta``: the whole shape of a shard, -1 when
    the shard was computed from one."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    root: Root
    changeable: bool = True
    strided: bool = False
    ipu: int = 0
    meta: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def mutable(self) -> bool:
        """Whether in-place ops may write it."""
        return self.changeable and not self.root.frozen

    @property
    def exact(self) -> bool:
        """Whether ops that jump (rounding, comparison) may read it: both sides must see the same bits."""
        return self.root.exact or self.dtype not in FLOATS


@dataclass
class Traits:
    """Of a function: shape and dtype of its tensors by number, and how deep it stands (it may be called from above)."""

    kinds: dict[int, tuple[list[int], str]]
    depth: int


@dataclass
class Shared:
    """What all graphs of a program under construction share."""

    random: random.Random
    replicas: int
    ipus: int
    io_tiles: int
    functions: list[Body] = field(default_factory=list)
    traits: list[Traits] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    filled: set[tuple[int, int]] = field(default_factory=set)
    remote: list[Spec] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)


class Scope:
    """A graph under construction: its tensors and instructions; ``depth`` 0 is the main graph."""

    def __init__(self, shared: Shared, depth: int = 0, ipu: int = 0) -> None:
        self.shared, self.depth, self.ipu = shared, depth, ipu
        self.random = shared.random
        self.specs: dict[int, Spec] = {}
        self.instructions: list[Instruction] = []

    def pick(self, wanted: Callable[[Spec], bool] = lambda s: True) -> Spec | None:
        """A tensor on the current IPU that is wanted; recent ones are likelier. None if there is none."""
        found = [s for s in self.specs.values() if s.ipu == self.ipu and wanted(s)]
        return recent(self.random, found)

    def pick_of(self, dtypes: Iterable[str], *, exact: bool = False, mutable: bool = False) -> Spec | None:
        """A tensor of one of these dtypes."""
        return self.pick(lambda s: s.dtype in dtypes and (s.exact or not exact) and (s.mutable or not mutable))

    def add(self, shape: Sequence[int], dtype: str, **more: Any) -> int:
        """A new tensor of the graph."""
        number = next(self.shared.numbers)
        more = {"root": Root(), "ipu": self.ipu, **more}
        self.specs[number] = Spec(number, tuple(int(n) for n in shape), dtype, **more)
        return number

    def emit(self, kind: str, inputs: Sequence[Spec], outputs: Sequence[int] = (), /, **attributes: Any) -> None:
        """Append an instruction."""
        numbers = [s.id for s in inputs]
        self.instructions.append(Instruction(kind, numbers, list(outputs), self.ipu, attributes))

    def make(
        self,
        kind: str,
        inputs: Sequence[Spec],
        shape: Sequence[int],
        dtype: str,
        exact: bool = False,
        /,
        **attributes: Any,
    ) -> int:
        """Append an instruction with one new result on storage of its own; inexact operands make it inexact."""
        root = Root(exact and all(s.exact for s in inputs))
        meta = (-1,) if any(s.meta for s in inputs) else ()
        made = self.add(shape, dtype, root=root, changeable=kind != "constant", meta=meta)
        self.emit(kind, inputs, [made], **attributes)
        return made

    def change(self, kind: str, target: Spec, others: Sequence[Spec] = (), exact: bool = False, /, **more: Any) -> int:
        """Append an in-place instruction: its result shares the storage of ``target``."""
        target.root.exact = target.root.exact and exact and all(s.exact for s in others)
        made = self.add(target.shape, target.dtype, root=target.root, strided=target.strided, meta=target.meta)
        self.emit(kind, [target, *others], [made], **more)
        return made

    def shape(self, *, empty: bool = False) -> tuple[int, ...]:
        """A random shape; 0-d and, on request, empty ones among them."""
        r = self.random
        lengths = [1, 2, 3, 4, 5, 8] + [0] * empty
        return tuple(r.choice(lengths) for _ in range(r.choice([0, 0, 1, 1, 2, 2, 2, 3])))

    def seed(self) -> int:
        """A number that gives the data of a constant."""
        return self.random.randrange(1 << 20)


Thing = TypeVar("Thing")


def recent(r: random.Random, found: Sequence[Thing]) -> Thing | None:
    """One of them, a late one likelier; None of none."""
    return found[-1 - int(min(r.expovariate(0.3), len(found) - 1))] if found else None


def data(shape: Sequence[int], dtype: str, seed: int) -> np.ndarray:
    """Host data: small numbers; for even seeds floats are multiples of 1/8, so that equal ones and zeros occur."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in INTS:
        return rng.integers(0 if dtype in UNSIGNED else -4, 5, shape).astype(dtype)
    values = rng.normal(size=shape)
    return np.asarray(np.round(values * 8) / 8 if seed % 2 == 0 else values).astype(dtype)


def broadcasts(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The broadcast shape, None when there is none or it is too large."""
    try:
        found = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        return None
    return found if math.prod(found) <= LARGEST else None

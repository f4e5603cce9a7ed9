"""Shapes, slices and concatenations, as copies and as views; slices at positions that are known at run time."""

import math
from typing import Any

import numpy as np

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from ..program import Instruction
from ..scope import LARGEST, Root, Scope, Spec
from ..storage import Shadow
from .base import Kind


def _made(scope: Scope, kind: str, x: Spec, shape: Any, view: bool, strided: bool, /, **more: Any) -> bool:
    """A copy of parts of ``x``, or a view on them."""
    if not view:
        scope.make(kind, [x], shape, x.dtype, True, view=False, **more)
        return True
    number = scope.add(shape, x.dtype, root=x.root, changeable=x.changeable, strided=x.strided or strided,
                       meta=(-1,) if x.meta else ())  # fmt: skip
    scope.emit(kind, [x], [number], view=True, **more)
    return True


class _Shaped(Kind, family=True):
    """A selection of elements; ``addresses`` gives it for an array of addresses."""

    weight = 2

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        """The selection."""
        raise NotImplementedError

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        view = operands[0].view(self.addresses(ins, operands[0].addresses))
        return view if ins.attributes["view"] else view.copy()


class Reshape(_Shaped):
    """Another shape; as a view only of what is contiguous (ipuperf says so of others)."""

    def draw(self, scope: Scope) -> bool:
        view = scope.random.random() < 0.5
        x = scope.pick(lambda s: not (view and s.strided))
        if x is None:
            return False
        n = x.elements
        part = scope.random.choice([k for k in range(1, n + 1) if n % k == 0]) if n else 1
        shape = scope.random.choice([(n,), (part, n // part), (1, n), (n // part, part, 1)] + [()] * (n == 1))
        return _made(scope, "reshape", x, shape, view, False, shape=list(shape))

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return (ops.reshape_ if ins.attributes["view"] else ops.reshape)(operands[0], ins.attributes["shape"])

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        return array.reshape(ins.attributes["shape"])


class Squeeze(_Shaped):
    """Without axes of length 1, or flat: copies."""

    weight = 0.7

    def draw(self, scope: Scope) -> bool:
        x = scope.pick()
        if x is None:
            return False
        flat = scope.random.random() < 0.4
        shape = [x.elements] if flat else [n for n in x.shape if n != 1]
        return _made(scope, "squeeze", x, shape, False, False, flat=flat)

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return (ops.flatten if ins.attributes["flat"] else ops.squeeze)(operands[0])

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1) if ins.attributes["flat"] else np.squeeze(array)


class Transpose(_Shaped):
    """Axes in another order."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: len(s.shape) > 1) or scope.pick()
        if x is None:
            return False
        order = list(range(len(x.shape)))
        scope.random.shuffle(order)
        shape = [x.shape[a] for a in order]
        return _made(scope, "transpose", x, shape, scope.random.random() < 0.5, True, order=order)

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return (ops.transpose_ if ins.attributes["view"] else ops.transpose)(operands[0], ins.attributes["order"])

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        return array.transpose(ins.attributes["order"])


class Slice(_Shaped):
    """``start:stop:step`` along an axis; empty and backward ones too."""

    def draw(self, scope: Scope) -> bool:
        r = scope.random
        x = scope.pick(lambda s: s.elements > 0 and bool(s.shape))
        if x is None:
            return False
        axis = r.randrange(len(x.shape))
        start, stop, step = _range(r, x.shape[axis])
        shape = list(x.shape)
        shape[axis] = len(range(*slice(start, stop, step).indices(x.shape[axis])))
        cut = {"start": start, "stop": stop, "step": step, "axis": axis}
        return _made(scope, "slice", x, shape, r.random() < 0.5, True, **cut)

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        a = ins.attributes
        return (ops.slice_ if a["view"] else ops.slice)(operands[0], a["start"], a["stop"], a["step"], a["axis"])

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        a = ins.attributes
        return array[(slice(None),) * a["axis"] + (slice(a["start"], a["stop"], a["step"]),)]


def _range(r: Any, n: int) -> tuple[int | None, int | None, int]:
    """A slice of an axis, now and then empty or backwards."""
    if r.random() < 0.15:
        return r.choice([(None, None, -1), (n - 1, 0, -1), (-1, None, -2)])
    start = r.randrange(n)
    stop = start if r.random() < 0.06 else r.randint(start + 1, n)
    return start, stop, r.choice([1, 1, 2])


class Getitem(_Shaped):
    """``x[...]`` of integers, slices and ``...``: a copy, also ``x[:]``."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.elements > 0)
        if x is None:
            return False
        key = [self._part(scope.random, n) for n in x.shape]
        if scope.random.random() < 0.2:
            key = [[], *key[1:]] if key else [[]]
        shape = np.empty(x.shape, np.int8)[_key(key)].shape
        return _made(scope, "getitem", x, shape, False, False, key=key)

    def _part(self, r: Any, n: int) -> Any:
        return r.choice([r.randrange(-n, n), [None, None, None], [None, None, None], list(_range(r, n))])

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return operands[0][_key(ins.attributes["key"])]

    def addresses(self, ins: Instruction, array: np.ndarray) -> np.ndarray:
        return np.asarray(array[_key(ins.attributes["key"])])


def _key(key: list[Any]) -> tuple[Any, ...]:
    """Python's index: numbers, ``[start, stop, step]``, and ``[]`` for ``...``."""
    return tuple(k if isinstance(k, int) else slice(*k) if k else Ellipsis for k in key)


class Concat(Kind):
    """Tensors behind each other, as a copy."""

    weight = 1.5
    function = staticmethod(ops.concat)

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: bool(s.shape) and s.elements > 0)
        if x is None:
            return False
        axis = scope.random.randrange(len(x.shape))
        parts = [x]
        for _ in range(scope.random.randint(1, 2)):
            found = scope.pick(lambda s: s.dtype == x.dtype and _fits(s.shape, x.shape, axis))
            parts.append(found or x)
        length = sum(p.shape[axis] for p in parts)
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        if math.prod(shape) > LARGEST:
            return False
        self.finish(scope, parts, shape, axis)
        return True

    def finish(self, scope: Scope, parts: list[Spec], shape: tuple[int, ...], axis: int) -> None:
        """Append the instruction."""
        scope.make("concat", parts, shape, parts[0].dtype, True, axis=axis)

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return self.function(operands, ins.attributes["axis"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        addresses = np.concatenate([o.addresses for o in operands], axis=ins.attributes["axis"])
        return operands[0].view(addresses).copy()


class Concatview(Concat):
    """Tensors behind each other, sharing their storage, which nothing may write (ipuperf says so)."""

    weight = 0.5
    function = staticmethod(ops.concat_)

    def finish(self, scope: Scope, parts: list[Spec], shape: tuple[int, ...], axis: int) -> None:
        for part in parts:
            part.root.frozen = True
        root = Root(all(p.exact for p in parts), frozen=True)
        made = scope.add(shape, parts[0].dtype, root=root, strided=True)
        scope.emit("concatview", parts, [made], axis=axis)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        addresses = np.concatenate([o.addresses for o in operands], axis=ins.attributes["axis"])
        return operands[0].view(addresses)


def _fits(shape: tuple[int, ...], other: tuple[int, ...], axis: int) -> bool:
    return len(shape) == len(other) and all(a == b for i, (a, b) in enumerate(zip(shape, other)) if i != axis)


class Dynamic(Kind):
    """A slice at a position in a tensor, read (``slice``) or replaced (``update``, ``update_``)."""

    weight = 1.5

    def draw(self, scope: Scope) -> bool:
        r, how = scope.random, scope.random.choice(["slice", "update", "update_"])
        x = scope.pick(lambda s: bool(s.shape) and s.elements > 0 and (s.mutable or how != "update_"))
        if x is None:
            return False
        axis = r.randrange(len(x.shape))
        size = r.randint(1, x.shape[axis])
        cut = {"how": how, "axis": axis, "size": size, "at": r.randint(0, x.shape[axis] - size),
               "index": r.choice(["int32", "uint32"])}  # fmt: skip
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        if how == "slice":
            scope.make("dynamic", [x], shape, x.dtype, True, **cut)
            return True
        y = scope.pick(lambda s: s.dtype == x.dtype and s.shape == shape and s.root is not x.root)
        if y is None:
            return False
        if how == "update":
            scope.make("dynamic", [x, y], x.shape, x.dtype, True, **cut)
        else:
            scope.change("dynamic", x, [y], True, **cut)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        a = ins.attributes
        index = popxl.constant(np.array([a["at"]]), getattr(popxl, a["index"]))
        function = getattr(ops, f"dynamic_{a['how']}")
        return function(operands[0], index, *operands[1:], [a["axis"]], [a["size"]], True)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        a, x = ins.attributes, operands[0]
        cut = (slice(None),) * a["axis"] + (slice(a["at"], a["at"] + a["size"]),)
        if a["how"] == "slice":
            return x.view(x.addresses[cut]).copy()
        made = x.copy() if a["how"] == "update" else x
        made.view(made.addresses[cut]).write(operands[1].read())
        return made.view(made.addresses)

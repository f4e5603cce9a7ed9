"""Operands of the catalogue's rows, by the kinds that the column ``operands`` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipuperf.frontends.catalogue import Row

SHAPE = (3, 4)


class Kind:
    """A kind of tensor: of shape :data:`SHAPE`, or of the shape that a row gives."""

    def __init__(self, draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> None:
        self._draw = draw

    def __call__(self, *shape: int) -> Kind:
        return Kind(lambda rng, _: self._draw(rng, shape))

    def drawn(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of this kind."""
        return np.asarray(self._draw(rng, shape))


KINDS = {
    "any": Kind(lambda rng, shape: rng.standard_normal(shape) * 2),
    "positive": Kind(lambda rng, shape: rng.uniform(0.3, 3, shape)),
    "above": Kind(lambda rng, shape: rng.uniform(1.1, 9, shape)),
    "inside": Kind(lambda rng, shape: rng.uniform(-0.9, 0.9, shape)),
    "whole": Kind(lambda rng, shape: rng.integers(-9, 10, shape).astype(np.int32)),
    "natural": Kind(lambda rng, shape: rng.integers(1, 5, shape).astype(np.int32)),
    "flags": Kind(lambda rng, shape: rng.random(shape) < 0.5),
}


def arguments(row: Row, shape: tuple[int, ...] = SHAPE) -> list[Any]:
    """The arguments of a row: arrays, by default of ``shape``, lists of arrays, and whatever is no tensor."""
    rng = np.random.default_rng(len(row.function))

    def drawn(value: Any) -> Any:
        if isinstance(value, list):
            return [drawn(item) for item in value]
        return value.drawn(rng, shape) if isinstance(value, Kind) else value

    return [drawn(value) for value in eval(f"[{row.operands}]", dict(KINDS))]


def flat(values: list[Any]) -> list[np.ndarray]:
    """The arrays among arguments, in order."""
    inner = (item for value in values for item in (value if isinstance(value, list) else [value]))
    return [value for value in inner if isinstance(value, np.ndarray)]


def replaced(values: list[Any], tensors: Any) -> list[Any]:
    """Arguments with other tensors in place of their arrays, in order."""
    rest = iter(tensors)
    return [
        [next(rest) for _ in value]
        if isinstance(value, list)
        else next(rest)
        if isinstance(value, np.ndarray)
        else value
        for value in values
    ]


def element_by_element(row: Row) -> bool:
    """Whether a row takes tensors of any shape: one operand without axes or sizes beside it."""
    return row.operands in KINDS and not row.function.startswith("shapes")

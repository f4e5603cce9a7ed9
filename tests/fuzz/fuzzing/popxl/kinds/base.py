"""The kinds of instructions. Each says three things side by side: how to draw one, what it is in PopXL, its value."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..program import Instruction
from ..scope import Scope
from ..storage import Memory, Shadow

KINDS: dict[str, Kind] = {}
"""All kinds by name."""


class Kind:
    """A kind of instruction; subclasses register an instance under the name of the class in lower case, bases of a
    family of kinds do not.

    ``draw`` appends an instruction to a scope and says whether it could. ``build`` makes the PopXL tensors from PopXL
    tensors, ``value`` the shadows from shadows; both give None, one, or a list.
    """

    weight: ClassVar[float] = 1

    def __init_subclass__(cls, *, family: bool = False) -> None:
        if not family:
            KINDS[cls.__name__.lower()] = cls()

    def draw(self, scope: Scope) -> bool:
        """Append an instruction; False when nothing in the scope fits."""
        raise NotImplementedError

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        """The PopXL tensors."""
        raise NotImplementedError

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        """The NumPy value."""
        raise NotImplementedError


def memory(operands: list[Shadow]) -> Memory:
    """The storage of the operands."""
    return operands[0].memory


def read_all(operands: list[Shadow]) -> list[np.ndarray]:
    """Values ``(rows, *shape)`` of operands, with axes of length 1 after the rows so that they broadcast."""
    values = [s.read() for s in operands]
    rank = max(v.ndim for v in values)
    return [v.reshape(v.shape[0], *(1,) * (rank - v.ndim), *v.shape[1:]) for v in values]

"""A call of a function of the host in the middle of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ipuperf.ir import TensorSpec
from ipuperf.ir.attributes import ANYTHING, REQUIRED, Attribute

from .base import Arrays
from .custom import CustomOp
from .work import HostTransfer, Work


class HostCall(CustomOp):
    """``(*x) -> (*y)``: the results of a Python function, which the host calls for each replica.

    Cost: the operands go to the host and the results come back, each like a slice of a stream of its own, callbacks
    included; what the function takes the host is not known and left out. No gradient.

    Attributes:
        title: names it in reports.
        function: gets one replica's operands and gives a sequence of results, arrays of the outputs' types.
        specs: of the outputs.
    """

    type: ClassVar[str] = "HostCall"
    waited_for = True

    title = Attribute(ANYTHING, REQUIRED)
    function: Attribute[Callable[..., Arrays]] = Attribute(ANYTHING, REQUIRED)
    specs: Attribute[tuple[TensorSpec, ...]] = Attribute(ANYTHING, REQUIRED)

    def infer(self) -> list[TensorSpec]:
        """As stated."""
        return list(self.specs)

    def value(self, *operands: np.ndarray) -> Arrays:
        """What the function gives."""
        return self.function(*operands)

    def seen(self) -> bool:
        """The function may do more than give results."""
        return True

    def work(self) -> Sequence[Work]:
        """To the host and back."""
        there: list[Any] = [HostTransfer(f"{self.title} operand {i}", "d2h", t.spec.bytes)
                            for i, t in enumerate(self.inputs)]  # fmt: skip
        back = [HostTransfer(f"{self.title} result {i}", "h2d", t.spec.bytes) for i, t in enumerate(self.outputs)]
        return [*there, *back]

"""An op that calls a function of the host in the middle of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipuperf.ir import TensorSpec
from ipuperf.ir.attributes import ANYTHING, REQUIRED, Attribute

from ..base import Arrays
from ..custom import CustomOp
from ..work import HostTransfer, Work


class HostCall(CustomOp):
    """``(*x) -> (*y)``: the results of a Python function, which the host calls for each replica.

    Cost: the operands go to the host and the results come back, each like a slice of a stream of its own, callbacks
    included. The time that the function takes on the host is unknown and left out. No gradient.

    Attributes:
        title: the name in reports.
        function: takes one replica's operands and returns a sequence of results, arrays of the outputs' types.
        specs: the specs of the outputs.
    """

    waited_for = True

    title = Attribute(ANYTHING, REQUIRED)
    function: Attribute[Callable[..., Arrays]] = Attribute(ANYTHING, REQUIRED)
    specs: Attribute[tuple[TensorSpec, ...]] = Attribute(ANYTHING, REQUIRED)

    def infer(self) -> list[TensorSpec]:
        """The attribute ``specs``."""
        return list(self.specs)

    def value(self, *operands: np.ndarray) -> Arrays:
        """Call the function."""
        return self.function(*operands)

    def seen(self) -> bool:
        """True: the function may have effects besides its results."""
        return True

    def work(self) -> Sequence[Work]:
        """The transfers to the host and back."""
        to_host: list[Any] = [
            HostTransfer(f"{self.title} operand {i}", "d2h", t.spec.bytes) for i, t in enumerate(self.inputs)
        ]
        from_host = [HostTransfer(f"{self.title} result {i}", "h2d", t.spec.bytes) for i, t in enumerate(self.outputs)]
        return [*to_host, *from_host]

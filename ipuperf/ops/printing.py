"""Printing of tensors while a program runs.

Upstream: PopART ``willow/src/op/printtensor.cpp``; ``poplar/PrintTensor.hpp`` has the formats. As there, the text
goes to the standard error stream.
"""

from __future__ import annotations

import sys

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ir.attributes import ANYTHING, FLAG, INTEGER, Attribute, choice

from .base import Arrays, Environment, Gradients, Kernel
from .binding import sequence
from .elementwise.unary import Identity
from .work import HostTransfer, Work

FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


FORMAT = (
    "summarise_threshold",
    "edge_items",
    "max_line_width",
    "digits",
    "float_format",
    "separator",
    "open_bracket",
    "close_bracket",
)
"""What decides how a tensor is written: attributes of :class:`PrintTensor`, arguments of :func:`text_of`."""


def text_of(
    array: np.ndarray,
    *,
    summarise_threshold: int,
    edge_items: int,
    max_line_width: int,
    digits: int,
    float_format: str,
    separator: str,
    open_bracket: str,
    close_bracket: str,
) -> str:
    """A tensor as text; :class:`PrintTensor` says what the arguments do."""
    letter = {"fixed": "f", "scientific": "e"}.get(float_format)
    text = np.array2string(
        array,
        max_line_width=max_line_width or sys.maxsize,
        precision=None if float_format == "none" or digits == 0 else digits,
        separator=separator,
        threshold=summarise_threshold or sys.maxsize,
        edgeitems=edge_items,
        formatter={"float": lambda value: f"{value:.{digits}{letter}}"} if letter else None,
    )
    # NumPy has no option for brackets, so they are replaced afterwards.
    return text.translate({ord("["): open_bracket, ord("]"): close_bracket})


class PrintTensor(Identity):
    """A copy of the operand, which is printed (``print_self``), and whose gradient is printed (``print_gradient``).

    Cost: the printed tensor goes to the host like a slice of an output stream of its own, callback included. Making
    text of it takes the host no time. The copy follows, as upstream (popart: willow/src/popx/op/printtensorx.cpp). In
    a branch of a conditional that some replicas take, the tensors of all replicas are printed.

    Attributes:
        title: the text before the numbers; with several replicas the replica's number follows.
        summarise_threshold: above this many elements only ``edge_items`` at each end of an axis are shown; 0: all are.
        max_line_width: characters; 0 for no limit.
        digits: digits after the point; 0 with ``auto``: as many as there are.
        float_format: one of ``FLOAT_FORMATS``; ``none`` shows as many digits as there are.
        separator, open_bracket, close_bracket: the text between and around elements.
    """

    waited_for = True

    title = Attribute(ANYTHING, "")
    print_self = Attribute(FLAG, True)
    print_gradient = Attribute(FLAG, False)
    summarise_threshold = Attribute(INTEGER, 1000)
    edge_items = Attribute(INTEGER, 3)
    max_line_width = Attribute(INTEGER, 75)
    digits = Attribute(INTEGER, 8)
    float_format = Attribute(choice(*FLOAT_FORMATS), "auto")
    separator = Attribute(ANYTHING, " ")
    open_bracket = Attribute(ANYTHING, "[")
    close_bracket = Attribute(ANYTHING, "]")

    def seen(self) -> bool:
        """Whether it prints: then it counts even where nobody reads the copy."""
        return self.print_self

    def shown(self, array: np.ndarray) -> str:
        """The text for one replica's tensor."""
        return text_of(array, **{name: getattr(self, name) for name in FORMAT})

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy, then print a line or more per replica."""
        copy, source = super().kernel(inputs, outputs, env), inputs[0]

        def show() -> None:
            for replica in range(len(source)):
                where = f" (replica {replica})" if len(source) > 1 else ""
                print(f"{self.title}{where}: {self.shown(source[replica, ...])}", file=sys.stderr)

        return sequence(copy, show) if self.print_self else copy

    def work(self) -> list[Work]:
        """The transfer to the host, if the tensor is printed, and the copy."""
        size = self.inputs[0].spec.bytes
        sent = [HostTransfer(f"print {self.title}", "d2h", size)] if self.print_self else []
        return [*sent, *super().work()]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient itself, printed if ``print_gradient`` is set."""
        if not self.print_gradient:
            return super().gradient_from(builder, grad)
        changes = {"title": f"{self.title}_gradient", "print_self": True, "print_gradient": False}
        return [builder.op(PrintTensor, [grad], **{**self.attributes, **changes})]

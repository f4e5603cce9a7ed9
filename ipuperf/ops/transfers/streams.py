"""Host streams: a load takes the next slice of an input stream, a store appends one to an output stream.

Semantics: ``docs/reference/popxl.md`` 4. Each *execution* of the op moves one slice per replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ipuperf.ir import DTypeError, IrError, Stream, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, Attribute, instance

from ..base import Arrays, Environment, Kernel, Op
from ..work import HostTransfer, Work


class _StreamOp(Op):
    """Base of the two: attribute ``stream``, operand 0 is the tensor on the IPU."""

    own_phase = "io"
    waited_for = True
    direction: ClassVar[str] = ""
    verb: ClassVar[str] = ""

    stream = Attribute(instance(Stream))

    def check(self, tensor: Tensor) -> None:
        """Raise unless the stream has the right direction and the tensor its shape and type."""
        stream = self.stream
        if stream.direction != self.direction:
            raise IrError(
                f"{self.where()}: cannot {self.verb} stream {stream.id!r}, its direction is {stream.direction!r} and "
                f"{self.direction!r} is needed"
            )
        self.require(
            tensor.shape == stream.shape,
            f"stream {stream.id!r} has shape {stream.shape}, {tensor.id!r} has {tensor.shape}",
        )
        if tensor.dtype != stream.dtype:
            raise DTypeError(
                f"{self.where()}: stream {stream.id!r} has type {stream.dtype.name}, {tensor.id!r} has "
                f"{tensor.dtype.name}"
            )

    def work(self) -> Sequence[Work]:
        return [HostTransfer(self.stream.id, self.direction, self.inputs[0].spec.bytes)]


class HostLoad(_StreamOp):
    """Fill the Init'ed tensor (input 0, shared with the output) with the next slice of ``stream``.

    With the attribute ``in_place`` (default False) the operand is a buffer that others read later: it is changed.
    """

    direction: ClassVar[str] = "h2d"
    verb: ClassVar[str] = "load from"
    overwrites: ClassVar[bool] = True

    in_place = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; raises unless it fits the stream."""
        self.check(self.inputs[0])
        return [self.like(self.inputs[0])]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy of the stream's next slice."""
        # Names are looked up once here rather than in each run.
        read, out, copy = env.stream_reader(self.stream), outputs[0], np.copyto
        return lambda: copy(out, read())


class HostStore(_StreamOp):
    """Append the tensor to ``stream``. No outputs."""

    direction: ClassVar[str] = "d2h"
    verb: ClassVar[str] = "store to"

    def infer(self) -> list[TensorSpec]:
        """No output; raises unless the tensor fits the stream."""
        self.check(self.inputs[0])
        return []

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Write the next slice of the stream."""
        write, tensor = env.stream_writer(self.stream), inputs[0]
        return lambda: write(tensor)

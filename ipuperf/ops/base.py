"""The interface of ops: beside shape rule and gradient, an op has a NumPy value and states the work it asks for.

Arrays always have one leading axis over replicas: a tensor of shape ``s`` is an array of shape ``(R, *s)``. Kernels
are *bound once*. :meth:`Op.kernel` receives the arrays that hold operands and results for the whole life of a compiled
program, and returns a function without arguments that computes in place. A training step is therefore a list of calls,
with nothing to look up and nothing to allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, NoReturn, Protocol

import numpy as np

from ipuperf import ir
from ipuperf.ir import (
    DType,
    DTypeError,
    GradientBuilder,
    Graph,
    IrError,
    RemoteBuffer,
    ShapeError,
    Stream,
    Tensor,
    TensorSpec,
)

from .work import Work

Kernel = Callable[[], None]
#: Arrays of the operands or the results of an op.
Arrays = Sequence[np.ndarray]
#: Gradients of the operands or the results of an op; None: there is none.
Gradients = Sequence[Tensor | None]


class Environment(Protocol):
    """The services that kernels get from the evaluator that compiles them."""

    @property
    def replicas(self) -> int:
        """Length of the leading axis."""
        ...

    def scratch(self, shape: Sequence[int], dtype: np.dtype | type, slot: int = 0) -> np.ndarray:
        """Temporary memory that all kernels share; its contents are lost when another kernel runs. Different slots
        of one kernel do not overlap."""
        ...

    def stream_reader(self, stream: Stream) -> Callable[[], np.ndarray]:
        """A function that returns the next ``(R, *shape)`` slice of an input stream of the current run."""
        ...

    def stream_writer(self, stream: Stream) -> Callable[[np.ndarray], None]:
        """A function that stores (copies) the next ``(R, *shape)`` slice of an output stream of the current run."""
        ...

    def remote(self, buffer: RemoteBuffer) -> np.ndarray:
        """The contents of a remote buffer: ``(R, entries, *shape)``."""
        ...

    def compile(self, graph: Graph, inputs: Arrays) -> tuple[Kernel, list[np.ndarray]]:
        """A kernel that executes ``graph`` on the given input arrays, and the arrays that hold its outputs."""
        ...


def rows(array: np.ndarray) -> list[np.ndarray]:
    """A view of each replica's part of ``(R, *shape)``.

    Writing to a row writes to ``array``, also for shape ``()``. There ``array[replica]`` would be a NumPy scalar, a
    copy.
    """
    return [array[replica, ...] for replica in range(len(array))]


class Op(ir.Op, abstract=True):
    """Base of the ops: shape rule, value, gradient and cost stand together in each subclass.

    An op declares the options that it takes besides its operands. ``axis = Attribute(INTEGER, -1, settle=axis_of)``
    says which values are allowed, the default, and the form in which the op reads ``self.axis``
    (:mod:`ipuperf.ir.attributes`). Any other value is an error where the op is made. No method writes attributes. A
    gradient op with the same attributes is given ``**self.attributes``.

    A subclass has:

    * ``infer()``: the output specs. :meth:`require`, :meth:`same_dtype`, :meth:`floating` and :meth:`broadcast` name
      the op, its operands and the user's line in their errors.
    * ``in_place``, or ``modified_inputs()`` and ``aliases()``, when it works in place or gives views. An op that
      changes an operand has a row in the table of ``tests/ops/test_in_place.py``.
    * :meth:`kernel`, or :meth:`view` when it gives views.
    * ``gradient(builder, grads)``: ops in the gradient graph, as formulas of tensors; ``builder.forward(t)`` gives a
      forward value. They are backward ops. An op's phase follows from who makes it (:mod:`ipuperf.ir.phase`), unless
      its class can only be one thing (``own_phase``).
    * :meth:`work`, and :meth:`circumstances`.

    Class attributes:
        in_place: the op changes its first operand, and its output is that operand.
        flat: no gradient flows through the op: its result is made of steps, or does not depend on an operand's value.
        overwrites: the op overwrites all of its first operand, which is its output; the earlier contents do not
            matter.
        renames: the op's output is its first operand; it computes nothing.
        rearranges: the op's value is a view of its first operand, which :meth:`arrange` makes.
    """

    in_place: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    overwrites: ClassVar[bool] = False
    renames: ClassVar[bool] = False
    rearranges: ClassVar[bool] = False

    def modified_inputs(self) -> tuple[int, ...]:
        """The first operand, for in-place ops."""
        return (0,) if self.in_place else ()

    def aliases(self) -> dict[int, int]:
        """The output is the first operand, for ops that work in place, overwrite it or rename it."""
        return {0: 0} if self.in_place or self.overwrites or self.renames else {}

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """No gradient for a flat op. Others have a rule of their own, here or in :meth:`gradient_from`."""
        if self.flat:
            return [None] * len(self.inputs)
        return super().gradient(builder, grads) if grads[0] is None else self.gradient_from(builder, grads[0])

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """:meth:`gradient` for ops that need only the gradient of their first output, which for most ops is the
        only one."""
        return super().gradient(builder, [grad])

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A function that computes ``outputs`` from ``inputs``. The outputs are preallocated, and distinct from the
        inputs unless :meth:`aliases` says otherwise.

        Arrays have a leading replica axis (:func:`rows` loops over it) and are bound for the life of the program. The
        function allocates nothing: it uses ufuncs with ``out=`` and ``env.scratch``. It computes in the type of the
        operands; only fp16 is computed in float32 and rounded once. Tests also run kernels in float64 and compare at
        1e-9, so a float32 constant within them fails. Formulas (:mod:`.formula`) widen fp16 and run in blocks. Kernels
        that are no formula convert with ``half.copy`` and make constants with ``binding.scalar(value, out.dtype)``.
        """
        raise IrError(f"{self.where()}: no NumPy value for {type(self).__name__}")

    def view(self, inputs: Arrays, env: Environment) -> list[np.ndarray] | None:
        """The views, for ops whose outputs are views of inputs (then :meth:`kernel` is not used); otherwise None."""
        return [inputs[0]] if self.renames else None

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The result for an operand array of an op that :attr:`rearranges`: a view where the strides allow it."""
        raise IrError(f"{self.where()}: {type(self).__name__} is no rearrangement of its operand")

    def work(self) -> Sequence[Work]:
        """What the op asks of the machine, in order: values of :mod:`.work`, with cycle formulas of :mod:`.vertices`.

        A formula without a primary source sets ``low_confidence``, which reports show. An empty list means that the op
        moves and computes nothing, and has to be true: an op without a model is an error. The work may depend on the
        op's class and attributes, the specs of its operands and results, which operands are the same tensor, and on
        :meth:`circumstances`. Of several ops that agree in these only one is asked.
        """
        if self.renames:
            return []
        raise IrError(f"{self.where()}: no cost model for {type(self).__name__}")

    def views(self) -> dict[int, int]:
        """Outputs that are views of inputs, ``{output index: input index}``, where the op asks for no work."""
        return {}

    def circumstances(self) -> Hashable:
        """What else :meth:`work` depends on, besides the op itself: a property of the rest of the graph."""
        return None

    # -- helpers for shape rules -----------------------------------------------------------------------------------

    def require(self, condition: bool, message: str) -> None:
        """:meth:`refuse` unless ``condition``. (Frequent ops test the condition first, as making a message takes a
        while.)"""
        if not condition:
            self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        """Raise :class:`ShapeError` with the op's name and operands."""
        raise ShapeError(f"{self.where()}: {message}")

    def same_dtype(self, *tensors: Tensor) -> DType:
        """The common dtype of ``tensors`` or :class:`DTypeError`."""
        dtype = tensors[0].dtype
        for tensor in tensors:
            # Types are mostly the same object, which is the quicker test.
            if tensor.dtype is not dtype and tensor.dtype != dtype:
                names = ", ".join(sorted({t.dtype.name for t in tensors}))
                raise DTypeError(f"{self.where()}: operands have different dtypes ({names}); cast them first")
        return dtype

    def floating(self, *tensors: Tensor) -> None:
        """Raise :class:`DTypeError` unless all ``tensors`` are floating point."""
        for tensor in tensors:
            if not tensor.spec.dtype.is_floating_point:
                raise DTypeError(
                    f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; a floating-point type is needed"
                )

    def broadcast(self, *tensors: Tensor) -> tuple[int, ...]:
        """The NumPy broadcast of the shapes or :class:`ShapeError`."""
        shapes = [t.shape for t in tensors]
        # Most operands have equal shapes, and NumPy's general rule takes longer.
        if all(shape == shapes[0] for shape in shapes):
            return shapes[0]
        try:
            return tuple(np.broadcast_shapes(*shapes))
        except ValueError:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{self.where()}: shapes {listed} cannot be broadcast together") from None

    def like(self, tensor: Tensor) -> TensorSpec:
        """The spec of ``tensor``."""
        return tensor.spec

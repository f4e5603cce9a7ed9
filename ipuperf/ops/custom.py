"""The base of ops that users describe in Python, and that are C++ on the device.

``docs/how-to/adding-a-custom-op.md`` shows one.
"""

from __future__ import annotations

import numpy as np

from ipuperf.ir import IrError

from .base import Arrays, Environment, Kernel, Op
from .binding import contiguous


class CustomOp(Op, abstract=True):
    """An op whose value is a plain NumPy function of one replica's operands.

    Schedules and reports show the name of the subclass, or its class attribute ``type``. It has

    * ``infer()``: the output specs; :meth:`~ipuperf.ops.base.Op.require`, ``floating`` and ``same_dtype`` raise
      errors;
    * :meth:`value`;
    * ``gradient(builder, grads)``, where the op lies between a loss and a tensor that needs a gradient;
    * ``work()``: what it asks of the machine. Without it the op cannot run, not even for its values: a time that
      leaves the op out would be wrong.

    All of it is as in every op of ipuperf (:class:`~ipuperf.ops.base.Op`); this class only makes ``kernel``.
    """

    def value(self, *operands: np.ndarray) -> np.ndarray | Arrays:
        """The results for one replica's operands, which must not be changed.

        fp16 operands arrive as float32, and results are rounded once to the outputs' types.
        """
        raise IrError(
            f"{self.where()}: {type(self).__name__} has no `value`; docs/how-to/adding-a-custom-op.md says what it is"
        )

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Call :meth:`value` for each replica, and check its results against the shapes that ``infer`` gave."""
        bound = [contiguous(array, env, slot) for slot, array in enumerate(inputs)]
        operands, fills = [array for array, _ in bound], [step for _, fill in bound for step in fill]

        def run() -> None:
            for fill in fills:
                fill()
            for replica in range(env.replicas):
                # With the ellipsis, the entry of a scalar is an array and not a NumPy number.
                returned = self.value(*(array[replica, ...] for array in operands))
                # A single result need not be put into a list.
                results = [returned] if isinstance(returned, np.ndarray | np.generic) else list(returned)
                self._check_results(results)
                for target, result in zip(outputs, results, strict=True):
                    np.copyto(target[replica, ...], result, casting="same_kind")

        return run

    def _check_results(self, results: Arrays) -> None:
        """Raise ``IrError`` unless there is a result of the right shape and kind of type for each output."""
        if len(results) != len(self.outputs):
            raise IrError(f"{self.where()}: `value` gave {len(results)} results, `infer` {len(self.outputs)}")
        for output, result in zip(self.outputs, results, strict=True):
            if np.shape(result) != output.shape:
                raise IrError(
                    f"{self.where()}: `value` gave shape {np.shape(result)} for {output.id!r}, `infer` {output.shape}"
                )
            if not np.can_cast(np.asarray(result).dtype, output.dtype.numpy, "same_kind"):
                raise IrError(
                    f"{self.where()}: `value` gave {np.asarray(result).dtype} for {output.id!r}, which is "
                    f"{output.dtype.name}"
                )

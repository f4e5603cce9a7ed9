"""The base of ops that update variables with scalar factors.

Semantics: ``docs/reference/popxl.md`` 7. Arithmetic is in float32 and rounded once to the result's type. The kernels
work in cache-sized pieces (:mod:`ipuperf.ops.blocks`). An update runs the vertices of PopART's lowering
(``willow/src/popx/op/accumulatex.cpp``, ``adamupdaterx.cpp``); their cycle formulas are in
:mod:`ipuperf.ops.updates.update_vertices` and :mod:`ipuperf.ops.vertices`.

Scaled sums: :mod:`.scaled_add`; gradient accumulation and copies: :mod:`.accumulation`; the Adam family: :mod:`.adam`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ipuperf.ir import Phase, Tensor

from ..base import Arrays, Environment, Op


def scratch_of(env: Environment) -> Callable[[int, int], np.ndarray]:
    """Temporary float32 memory of a kernel: ``(elements, slot) -> array``."""
    return lambda elements, slot: env.scratch((elements,), np.float32, slot)


class UpdateOp(Op, abstract=True):
    """Base of updates with scalar factors that are either Python floats or scalar tensors.

    A factor ``f`` is the attribute ``f``, or, where a class has it, ``f_input``: the index of the input that holds it.
    """

    own_phase: ClassVar[Phase | None] = "update"

    def factor_index(self, name: str) -> int | None:
        """Index of the input that holds factor ``name``, or None when it is a float."""
        return getattr(self, f"{name}_input", None)

    def has_tensor_factor(self, *names: str) -> bool:
        """True when any of the factors is read from a tensor."""
        return any(self.factor_index(name) is not None for name in names)

    def check_factor(self, name: str) -> None:
        """Raise unless the factor is a number or one element of a floating-point or integer tensor."""
        index = self.factor_index(name)
        if index is None:
            return
        self.require(index < len(self.inputs), f"factor {name} is input {index}, which does not exist")
        tensor = self.inputs[index]
        self.require(
            tensor.spec.elements == 1, f"factor {name} ({tensor.id!r}) has shape {tensor.shape}; one element is needed"
        )

    def reader(self, name: str, inputs: Arrays, default: float = 1.0) -> Callable[[int], float]:
        """A function that returns the factor's value on a replica at the time of the call."""
        index = self.factor_index(name)
        if index is None:
            value = getattr(self, name)
            number = default if value is None else float(value)
            return lambda replica: number
        values = inputs[index]
        # A scalar has the axis of the replicas alone, so no run needs to reshape it.
        if values.ndim == 1:
            return lambda replica: float(values[replica])
        return lambda replica: float(values[replica].reshape(-1)[0])

    def same_shape(self, target: Tensor, source: Tensor) -> None:
        """Raise unless two tensors have the same shape."""
        if target.spec.shape != source.spec.shape:
            self.refuse(f"{target.id!r} {target.shape} and {source.id!r} {source.shape} must have equal shapes")

"""Accumulation of slices: add the gradient of a gather to an accumulator, without a tensor of the table's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import IrError, TensorSpec
from ipuperf.ir.attributes import NUMBER, Attribute, optional

from ..base import Arrays, Environment, Kernel
from ..binding import sequence
from ..selection.gather import Indexed, bind_indices, check_indices
from ..work import TableUpdate, Work


class SparseAccumulate(Indexed):
    """``t[..., indices[k], ...] += f * X[..., k, ...]`` along ``axis`` in place, as often as an index occurs.

    The output is ``t``. Inputs ``t, X, indices[, f]``; attributes ``axis`` and ``factor`` (1 by default). ``X`` has
    the shape of ``gather(t, indices, axis)``. Sums are in float32 and rounded once. Cost: popops MultiUpdateAdd
    (popart: willow/src/popx/op/sparseaccumulatex.cpp).
    """

    type: ClassVar[str] = "PopartSparseAccumulate"
    own_phase = "update"  # gradient accumulation is a part of it
    in_place = True

    factor = Attribute(optional(NUMBER), None)

    def infer(self) -> list[TensorSpec]:
        """The accumulator's spec. Raises for integers, indices of another type, and an X that cannot come from such
        a gather."""
        if len(self.inputs) not in (3, 4):
            raise IrError(f"{self.where()}: needs 3 or 4 operands, got {len(self.inputs)}")
        target, value, indices = self.inputs[:3]
        self.floating(target, value)
        check_indices(self, indices)
        shape = (*target.shape[: self.axis], *indices.shape, *target.shape[self.axis + 1 :])
        self.require(value.shape == shape, f"{value.id!r} is {value.shape}; {shape} is needed, as gather would give it")
        if len(self.inputs) == 4:
            self.require(self.inputs[3].spec.elements == 1, f"factor {self.inputs[3].id!r} has {self.inputs[3].shape}")
        return [self.like(target)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Replica by replica, unbuffered additions of the scaled slices in float32."""
        target, value = inputs[:2]
        rows, steps = bind_indices(self, inputs[2], self.inputs[0].shape[self.axis], env, 0, check=True)
        for replica in range(len(target)):
            factor = inputs[3][replica] if len(inputs) == 4 else np.float32(1.0 if self.factor is None else self.factor)
            steps.append(partial(self._add, target[replica], value[replica], rows[replica], factor))
        return sequence(*steps)

    def _add(self, target: np.ndarray, value: np.ndarray, rows: np.ndarray, factor: np.ndarray) -> None:
        """Update one replica."""
        table = np.moveaxis(target, self.axis, 0).astype(np.float32)
        moved = value.reshape((*target.shape[: self.axis], rows.size, *target.shape[self.axis + 1 :]))
        added = np.moveaxis(moved, self.axis, 0) * np.asarray(factor, np.float32).reshape(())
        # An index may occur several times; plain indexing would add only once.
        np.add.at(table, rows.reshape(-1), added)
        target[...] = np.moveaxis(table, 0, self.axis)

    def work(self) -> Sequence[Work]:
        """A planned update by addition of the slices."""
        target, indices = self.inputs[0].spec, self.inputs[2].spec
        rows = target.shape[self.axis]
        if not target.elements or not indices.elements:
            return []
        width, count = target.elements // rows, math.prod(indices.shape)
        return [TableUpdate(rows, width, count, target.dtype, available_memory_proportion=self.memory)]

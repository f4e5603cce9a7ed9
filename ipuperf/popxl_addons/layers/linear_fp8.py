"""A fully connected layer whose products are of 8-bit floats, forwards and backwards.

Source: popxl-addons: popxl_addons/layers/linear_fp8.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf.popxl import ReplicaGrouping, ops

from ..module import Module
from ..named_tensors import NamedTensors
from ..ops.fp8_amax_scale import fp8_amax_scale
from ..utils import WeightsDict
from .parameters import drawn, mapped

#: By how many powers of two gradients are scaled less than would fit, so that sums of their products do.
MARGIN = 3


class LinearFP8(Module):
    """:class:`Linear` of rows ``(N, features in)``: operands are scaled by powers of two and cast to ``float8_143``
    (gradients to ``float8_152``), products are float16, bias and result of the type of the input.

    Args:
        scale_metric: ``amax``: the largest scale with which the largest magnitude fits; ``manual_scale``: ``scale``.

    Raises:
        ValueError: another metric; ``mse`` is a C++ op upstream and not here.
    """

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        scale_metric: str = "amax",
        scale: int = 0,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if scale_metric not in ("amax", "manual_scale"):
            raise ValueError(f"LinearFP8: scale_metric {scale_metric!r}; allowed: amax, manual_scale")
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping
        self.scale_metric, self.scale = scale_metric, scale

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(N, features in) -> (N, out_features)``; ValueError for another number of axes."""
        if x.rank != 2:
            raise ValueError(f"LinearFP8: {x.id!r} has shape {x.shape}; (N, features) is needed")
        group, shape = self.replica_grouping, (x.shape[-1], self.out_features)
        weight = self.add_variable_input("weight", partial(drawn, shape), x.dtype, replica_grouping=group)
        operands = {"x": self._cast(x, popxl.float8_143), "w": self._cast(weight, popxl.float8_143)}
        for name, (eight, scale) in operands.items():
            self.aux[name], self.aux[f"{name}_scale"] = eight, scale
        y = _product(*operands["x"], *operands["w"], x.dtype)
        if not self.bias:
            return y
        zeros = partial(np.zeros, (self.out_features,))
        return y + self.add_variable_input("bias", zeros, x.dtype, replica_grouping=group)

    def build_grad(self, dy: popxl.Tensor) -> popxl.Tensor:
        """Gradients of the input and, in ``var_grad``, of weight and bias, of the type of ``dy``."""
        eight, scale = self._cast(dy, popxl.float8_152, MARGIN)
        weight, x = self.aux["w"], self.aux["x"]
        self.var_grad["weight"] = _product(x.T, self.aux["x_scale"], eight, scale, dy.dtype)
        if self.bias:
            self.var_grad["bias"] = ops.sum(dy, 0)
        return _product(eight, scale, weight.T, self.aux["w_scale"], dy.dtype)

    def _cast(self, t: popxl.Tensor, dtype: popxl.dtype, margin: int = 0) -> tuple[popxl.Tensor, popxl.Tensor]:
        """``t`` scaled and as 8-bit floats, and the scale less ``margin``: a power of two, int32, shape ()."""
        if self.scale_metric == "amax":
            scale = fp8_amax_scale(t, dtype)
        else:
            scale = popxl.constant(self.scale, popxl.int32)
        if margin:
            scale = scale - popxl.constant(margin, popxl.int32)
        return ops.pow2scale_cast_to_fp8(t, scale, dtype), scale

    @staticmethod
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.Linear``, whose weight is transposed."""
        return mapped(variables, nn_layer, dtype, transposed=True)


def _product(
    lhs: popxl.Tensor, lhs_scale: popxl.Tensor, rhs: popxl.Tensor, rhs_scale: popxl.Tensor, dtype: popxl.dtype
) -> popxl.Tensor:
    """The product of what was cast with these scales, as ``dtype``."""
    undo = popxl.constant(0, popxl.int32) - lhs_scale - rhs_scale
    return ops.cast(ops.matmul_pow2scaled(lhs, rhs, undo), dtype)

"""A fully connected layer whose products are of 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ipuperf.base.near_names import instead_of
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from ..named_tensors import NamedTensors
from ..ops.fp8_amax_scale import fp8_amax_scale
from ..ops.fp8_mse_scale import fp8_mse_scale
from ..utils import WeightsDict
from .parameters import drawn, mapped

#: Gradients are scaled by so many powers of two less than fit, a margin for the sums.
MARGIN = 3


class LinearFP8(Module):
    """``x @ weight + bias``, products of float8_143 forward, with gradients of float8_152 backward.

    Args:
        scale_metric: how operands are scaled: ``amax`` (by the largest element), ``mse`` (least error), or
            ``manual_scale``: by ``2**scale``.

    Raises:
        ValueError: another metric.
    """

    @checked_arguments
    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        scale_metric: str = "amax",
        scale: int = 0,
        replica_grouping: ReplicaGrouping | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping
        metrics: dict[str, Callable[[popxl.Tensor, popxl.dtype], popxl.Tensor]] = {
            "amax": fp8_amax_scale,
            "mse": fp8_mse_scale,
            "manual_scale": lambda t, dtype: popxl.constant(scale, popxl.int32),
        }
        if scale_metric not in metrics:
            raise ValueError(
                f"LinearFP8: scale_metric {scale_metric!r} is not available{instead_of(scale_metric, metrics)}"
            )
        self.fp8_scale = metrics[scale_metric]

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(rows, features in) -> (rows, out_features)``, in the type of x; ValueError for another rank."""
        if len(x.shape) != 2:
            raise ValueError(f"LinearFP8: the input has shape {x.shape}; (rows, features) is needed")
        draw = partial(drawn, (x.shape[-1], self.out_features))
        w = self.add_variable_input("weight", draw, x.dtype, replica_grouping=self.replica_grouping)
        scaled = {}
        for name, tensor in (("w", w), ("x", x)):
            scale = self.fp8_scale(tensor, popxl.float8_143)
            scaled[name] = ops.pow2scale_cast_to_fp8(tensor, scale, popxl.float8_143), scale
            self.aux[f"{name}_fp8"], self.aux[f"{name}_log2scale"] = scaled[name]
        (x8, x_scale), (w8, w_scale) = scaled["x"], scaled["w"]
        y = ops.matmul_pow2scaled(x8, w8, -w_scale - x_scale)
        if x.dtype == popxl.float32:
            y = ops.cast(y, popxl.float32)
        if not self.bias:
            return y
        zeros = partial(np.zeros, (self.out_features,))
        return y + self.add_variable_input("bias", zeros, x.dtype, replica_grouping=self.replica_grouping)

    @checked_arguments
    def build_grad(self, dy: popxl.Tensor) -> popxl.Tensor:
        """The gradients of x and, where they are variables' (``var_grad``), of weight and bias."""
        scale = self.fp8_scale(dy, popxl.float8_152) - popxl.constant(MARGIN, popxl.int32)
        dy8 = ops.pow2scale_cast_to_fp8(dy, scale, popxl.float8_152)
        dx = ops.matmul_pow2scaled(dy8, self.aux["w_fp8"].T, -self.aux["w_log2scale"] - scale)
        dw = ops.matmul_pow2scaled(dy8.T, self.aux["x_fp8"], -self.aux["x_log2scale"] - scale).T
        if dy.dtype == popxl.float32:
            dx, dw = ops.cast(dx, popxl.float32), ops.cast(dw, popxl.float32)
        self.var_grad["weight"] = dw
        if self.bias:
            self.var_grad["bias"] = ops.sum(dy, 0)
        return dx

    @staticmethod
    @checked_arguments
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.Linear``, whose weight is transposed."""
        return mapped(variables, nn_layer, dtype, transposed=True)

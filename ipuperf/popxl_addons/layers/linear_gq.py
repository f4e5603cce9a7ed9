"""A fully connected layer whose weight is stored in 4-bit numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf.popxl import ReplicaGrouping
from ipuperf.popxl.arguments import checked_arguments
from ipuperf.popxl.utils import to_numpy

from ..module import Module
from ..named_tensors import NamedTensors
from ..ops.group_quantize_decompress import group_quantize_compress_numpy, group_quantize_decompress
from ..utils import WeightsDict


class LinearGQ(Module):
    """``x @ w + bias`` with ``w`` decompressed from ``weight_compressed``, ``weight_decompression_scale`` and
    ``weight_decompression_bias``, all zeros at first (see :meth:`torch_mapping`).

    Args:
        group_size: neighbouring weights of a row with one scale and one bias: a multiple of 4 that divides
            ``out_features``.
    """

    @checked_arguments
    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        replica_grouping: ReplicaGrouping | None = None,
        group_size: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if group_size < 1 or group_size % 4 or out_features % group_size:
            raise ValueError(
                f"LinearGQ: group_size is {group_size}; a multiple of 4 that divides out_features {out_features} "
                "is needed"
            )
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping
        self.group_size = group_size

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(..., features in) -> (..., out_features)``."""
        rows, groups = x.shape[-1], self.out_features // self.group_size
        words = self._zeros("weight_compressed", (rows, groups, self.group_size // 4), popxl.uint16)
        scale = self._zeros("weight_decompression_scale", (rows, groups, 1), x.dtype)
        offset = self._zeros("weight_decompression_bias", (rows, groups, 1), x.dtype)
        y = x @ group_quantize_decompress(words, scale, offset)
        return y + self._zeros("bias", (self.out_features,), x.dtype) if self.bias else y

    def _zeros(self, name: str, shape: tuple[int, ...], dtype: popxl.dtype) -> popxl.Tensor:
        return self.add_variable_input(name, partial(np.zeros, shape), dtype, replica_grouping=self.replica_grouping)

    @staticmethod
    @checked_arguments
    def torch_mapping(
        variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32, group_size: int = 64
    ) -> WeightsDict:
        """The compressed weight of a ``torch.nn.Linear``, and its bias."""
        weight = nn_layer.weight.T.detach().numpy()
        names = ("weight_compressed", "weight_decompression_scale", "weight_decompression_bias")
        tensors, arrays = [variables[name] for name in names], group_quantize_compress_numpy(weight, group_size)
        found = WeightsDict({t: a.astype(t.dtype.as_numpy()) for t, a in zip(tensors, arrays, strict=True)})
        if "bias" in variables.to_dict():
            found[variables.bias] = to_numpy(nn_layer.bias.data, dtype)
        return found

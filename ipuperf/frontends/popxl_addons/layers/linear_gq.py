"""A fully connected layer whose weight is stored in 4-bit numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.utils import to_numpy

from ..module import Module
from ..named_tensors import NamedTensors
from ..ops.group_quantize_decompress import group_quantize_compress_numpy, group_quantize_decompress
from ..utils import WeightsDict


class LinearGQ(Module):
    """``x @ w + bias`` with ``w`` decompressed from ``weight_compressed``, ``weight_decompression_scale`` and
    ``weight_decompression_bias``, all zeros at first (see :meth:`torch_mapping`).

    Args:
        group_size: neighbouring weights with one scale and one bias: a multiple of 4 that divides that axis.
        dim: the axis of ``w`` along which they are neighbours: -1 or 1 (``out_features`` long), or 0 (features in).

    Raises:
        ValueError: another ``dim``, or a ``group_size`` that does not divide it (of features in: by :meth:`build`).
    """

    @checked_arguments
    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        replica_grouping: ReplicaGrouping | None = None,
        group_size: int = 0,
        dim: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if dim not in (-1, 0, 1):
            raise ValueError(f"LinearGQ: dim is {dim}; allowed: -1, 0, 1")
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping
        self.group_size, self.dim = group_size, dim
        self._groups(group_size if dim == 0 else out_features)

    def _groups(self, length: int) -> int:
        """Groups of a row; ValueError when its length is no multiple of theirs."""
        if self.group_size < 1 or self.group_size % 4 or length % self.group_size:
            name = "the features in" if self.dim == 0 else "out_features"
            raise ValueError(
                f"LinearGQ: group_size is {self.group_size}; a multiple of 4 that divides {name} {length} is needed"
            )
        return length // self.group_size

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(..., features in) -> (..., out_features)``."""
        rows, columns = (self.out_features, x.shape[-1]) if self.dim == 0 else (x.shape[-1], self.out_features)
        groups = self._groups(columns)
        words = self._zeros("weight_compressed", (rows, groups, self.group_size // 4), popxl.uint16)
        scale = self._zeros("weight_decompression_scale", (rows, groups, 1), x.dtype)
        offset = self._zeros("weight_decompression_bias", (rows, groups, 1), x.dtype)
        y = x @ group_quantize_decompress(words, scale, offset, self.dim)
        return y + self._zeros("bias", (self.out_features,), x.dtype) if self.bias else y

    def _zeros(self, name: str, shape: tuple[int, ...], dtype: popxl.dtype) -> popxl.Tensor:
        return self.add_variable_input(name, partial(np.zeros, shape), dtype, replica_grouping=self.replica_grouping)

    @staticmethod
    @checked_arguments
    def torch_mapping(
        variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32, group_size: int = 64, dim: int = -1
    ) -> WeightsDict:
        """The compressed weight of a ``torch.nn.Linear``, and its bias."""
        weight = nn_layer.weight.T.detach().numpy()
        names = ("weight_compressed", "weight_decompression_scale", "weight_decompression_bias")
        tensors, arrays = [variables[name] for name in names], group_quantize_compress_numpy(weight, group_size, dim)
        weights = WeightsDict({t: a.astype(t.dtype.as_numpy()) for t, a in zip(tensors, arrays, strict=True)})
        if "bias" in variables.to_dict():
            weights[variables.bias] = to_numpy(nn_layer.bias.data, dtype)
        return weights

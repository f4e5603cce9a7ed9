"""Layers as modules: Linear, LayerNorm, GroupNorm, Conv2D, Embedding.

Variables are named ``weight`` and ``bias``, of the type of the input. Source: popxl-addons: popxl_addons/layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf.popxl import ReplicaGrouping, ops

from .module import Module


class Linear(Module):
    """``x @ weight + bias``: ``weight`` is ``(features in, out_features)``, drawn from N(0, 0.02), the bias zero."""

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(..., features in) -> (..., out_features)``."""
        draw = partial(np.random.normal, 0, 0.02, (x.shape[-1], self.out_features))
        y = x @ self.add_variable_input("weight", draw, x.dtype, replica_grouping=self.replica_grouping)
        if not self.bias:
            return y
        zeros = partial(np.zeros, (self.out_features,))
        return y + self.add_variable_input("bias", zeros, x.dtype, replica_grouping=self.replica_grouping)


class LayerNorm(Module):
    """Layer norm of rows, with ``weight`` (ones) and ``bias`` (zeros)."""

    def __init__(self, replica_grouping: ReplicaGrouping | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replica_grouping = replica_grouping

    def build(self, x: popxl.Tensor, eps: float = 1e-5) -> popxl.Tensor:
        """``(N, features)``, the same shape."""
        shape, group = (x.shape[-1],), self.replica_grouping
        weight = self.add_variable_input("weight", partial(np.ones, shape), x.dtype, replica_grouping=group)
        bias = self.add_variable_input("bias", partial(np.zeros, shape), x.dtype, replica_grouping=group)
        return ops.layer_norm(x, weight, bias, eps)


class GroupNorm(Module):
    """Group norm over axis 1 in ``num_groups`` groups, with ``weight`` (ones) and ``bias`` (zeros)."""

    def __init__(self, num_groups: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_groups = num_groups

    def build(self, x: popxl.Tensor, eps: float = 1e-5) -> popxl.Tensor:
        """``(N, C, ...)``, the same shape."""
        shape = (x.shape[1],)
        weight = self.add_variable_input("weight", partial(np.ones, shape), x.dtype)
        bias = self.add_variable_input("bias", partial(np.zeros, shape), x.dtype)
        return ops.group_norm(x, weight, bias, self.num_groups, eps)


class Conv2D(Module):
    """Convolution ``(N, C, H, W)`` with ``weight`` ``(out_channels, C / groups, *kernel_size)`` and ``bias``."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Sequence[int] = (3, 3),
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out_channels, self.kernel_size, self.bias = out_channels, tuple(kernel_size), bias
        self.geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(N, C, H, W) -> (N, out_channels, H', W')``."""
        shape = (self.out_channels, x.shape[1] // int(str(self.geometry["groups"])), *self.kernel_size)
        draw = partial(np.random.normal, 0, 0.02, shape)
        y = ops.conv(x, self.add_variable_input("weight", draw, x.dtype), **self.geometry)  # type: ignore[arg-type]
        if not self.bias:
            return y
        bias = self.add_variable_input("bias", partial(np.zeros, (self.out_channels,)), x.dtype)
        return y + bias.reshape((self.out_channels, 1, 1))


class Embedding(Module):
    """Rows of ``weight`` ``(vocab_size, hidden_size)``, drawn from N(0, 0.02)."""

    def __init__(
        self,
        dtype: popxl.dtype,
        vocab_size: int,
        hidden_size: int,
        axis: int = 0,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dtype, self.vocab_size, self.hidden_size = dtype, vocab_size, hidden_size
        self.axis, self.replica_grouping = axis, replica_grouping

    def build(self, indices: popxl.Tensor) -> popxl.Tensor:
        """``indices.shape -> (*indices.shape, hidden_size)`` for axis 0."""
        draw = partial(np.random.normal, 0, 0.02, (self.vocab_size, self.hidden_size))
        weight = self.add_variable_input("weight", draw, self.dtype, replica_grouping=self.replica_grouping)
        return ops.gather(weight, indices, axis=self.axis)

    @staticmethod
    def get_vocab_shard_size(vocab_size: int, n_shards: int) -> int:
        """Rows of each shard, when the vocabulary is padded to divide."""
        return math.ceil(vocab_size / n_shards)

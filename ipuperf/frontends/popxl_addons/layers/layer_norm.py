"""Layer norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from ..named_tensors import NamedTensors
from ..utils import WeightsDict
from .parameters import mapped


class LayerNorm(Module):
    """Layer norm of rows, with ``weight`` (ones) and ``bias`` (zeros)."""

    @checked_arguments
    def __init__(self, replica_grouping: ReplicaGrouping | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replica_grouping = replica_grouping

    @checked_arguments
    def build(self, x: popxl.Tensor, eps: float = 1e-5) -> popxl.Tensor:
        """``(N, features)``, the same shape; ValueError for another rank."""
        if x.rank != 2:
            raise ValueError(f"LayerNorm: the input {x.id!r} {x.shape} must be of shape N x C; flatten all extra axes")
        shape, group = (x.shape[-1],), self.replica_grouping
        weight = self.add_variable_input("weight", partial(np.ones, shape), x.dtype, replica_grouping=group)
        bias = self.add_variable_input("bias", partial(np.zeros, shape), x.dtype, replica_grouping=group)
        return ops.layer_norm(x, weight, bias, eps)

    @staticmethod
    @checked_arguments
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.LayerNorm``, over several axes flattened."""
        return mapped(variables, nn_layer, dtype)

"""Group norm."""

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


class GroupNorm(Module):
    """Group norm over axis 1 in ``num_groups`` groups, with ``weight`` (ones) and ``bias`` (zeros)."""

    @checked_arguments
    def __init__(
        self, num_groups: int, replica_grouping: ReplicaGrouping | None = None, eps: float = 1e-5, cache: bool = False
    ) -> None:
        super().__init__(cache)
        self.num_groups, self.replica_grouping, self.eps = num_groups, replica_grouping, eps

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(N, C, ...)``, the same shape."""
        shape, group = (x.shape[1],), self.replica_grouping
        self.weight = self.add_variable_input("weight", partial(np.ones, shape), x.dtype, replica_grouping=group)
        self.bias = self.add_variable_input("bias", partial(np.zeros, shape), x.dtype, replica_grouping=group)
        return ops.group_norm(x, self.weight, self.bias, self.num_groups, self.eps)

    @staticmethod
    @checked_arguments
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.GroupNorm``."""
        return mapped(variables, nn_layer, dtype)

"""A fully connected layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from ..named_tensors import NamedTensors
from ..utils import WeightsDict
from .parameters import drawn, mapped


class Linear(Module):
    """``x @ weight + bias``: ``weight`` is ``(features in, out_features)``, drawn from N(0, 0.02), the bias zero."""

    @checked_arguments
    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out_features, self.bias, self.replica_grouping = out_features, bias, replica_grouping

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(..., features in) -> (..., out_features)``."""
        group, shape = self.replica_grouping, (x.shape[-1], self.out_features)
        y = x @ self.add_variable_input("weight", partial(drawn, shape), x.dtype, replica_grouping=group)
        if not self.bias:
            return y
        zeros = partial(np.zeros, (self.out_features,))
        return y + self.add_variable_input("bias", zeros, x.dtype, replica_grouping=group)

    @staticmethod
    @checked_arguments
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.Linear``, whose weight is transposed."""
        return mapped(variables, nn_layer, dtype, transposed=True)

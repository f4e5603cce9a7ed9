"""Convolution in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from ..named_tensors import NamedTensors
from ..utils import WeightsDict
from .parameters import drawn, mapped


class Conv2D(Module):
    """Convolution ``(N, C, H, W)`` with ``weight`` ``(out_channels, C / groups, *kernel_size)``, drawn from N(0, 0.02),
    and ``bias`` ``(1, out_channels, 1, 1)``, zeros.

    Args:
        paddings: before and after each of the two axes (all before, then all after), or a kind: ``same_upper``,
            ``same_lower``, ``valid``.
        available_memory_proportions, partials_types, enable_conv_dithering: as in ``popxl.ops.conv``.
    """

    @checked_arguments
    def __init__(
        self,
        out_channels: int,
        kernel_size: Sequence[int] | int,
        strides: Sequence[int] = (1, 1),
        paddings: Sequence[int] | str = (0, 0, 0, 0),
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
        bias: bool = True,
        available_memory_proportions: Sequence[float] | None = None,
        partials_types: Sequence[str] | None = None,
        enable_conv_dithering: Sequence[int] | None = None,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out_channels, self.groups, self.bias = out_channels, groups, bias
        self.kernel_size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        self.replica_grouping = replica_grouping
        kind, explicit = (paddings, (0, 0, 0, 0)) if isinstance(paddings, str) else ("not_set", paddings)
        self.options: dict[str, Any] = {
            "stride": strides,
            "padding": explicit,
            "dilation": dilations,
            "groups": groups,
            "pad_type": kind,
            "available_memory_proportions": available_memory_proportions,
            "partials_types": partials_types,
            "enable_conv_dithering": enable_conv_dithering,
        }

    @checked_arguments
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(N, C, H, W) -> (N, out_channels, H', W')``."""
        shape, group = (self.out_channels, x.shape[1] // self.groups, *self.kernel_size), self.replica_grouping
        self.weight = self.add_variable_input("weight", partial(drawn, shape), x.dtype, replica_grouping=group)
        y = ops.conv(x, self.weight, **self.options)
        if not self.bias:
            return y
        zeros = partial(np.zeros, (1, self.out_channels, 1, 1))
        return y + self.add_variable_input("bias", zeros, x.dtype, replica_grouping=group)

    @staticmethod
    @checked_arguments
    def torch_mapping(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype = popxl.float32) -> WeightsDict:
        """The data of a ``torch.nn.Conv2d``."""
        return mapped(variables, nn_layer, dtype)

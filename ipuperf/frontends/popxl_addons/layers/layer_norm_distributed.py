"""Layer norm of rows that replicas hold in parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from ..ops.layer_norm_distributed import layer_norm_distributed


class LayerNormDistributed(Module):
    """Layer norm of rows whose elements are split over ``replica_grouping`` (default: all replicas); ``weight`` (ones)
    and ``bias`` (zeros) are split alike."""

    @checked_arguments
    def __init__(self, replica_grouping: ReplicaGrouping | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replica_grouping = replica_grouping

    @checked_arguments
    def build(self, x: popxl.Tensor, eps: float = 1e-5) -> popxl.Tensor:
        """``(N, elements of this replica)``, the same shape."""
        over = self.replica_grouping or popxl.gir().replica_grouping()
        shape, group = (x.shape[-1],), over.transpose()
        weight = self.add_variable_input("weight", partial(np.ones, shape), x.dtype, replica_grouping=group)
        bias = self.add_variable_input("bias", partial(np.zeros, shape), x.dtype, replica_grouping=group)
        return layer_norm_distributed(x, weight, bias, epsilon=eps, group=over)

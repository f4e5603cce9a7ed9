"""Tensors exchanged between the replicas of a program (``poptorch_experimental_addons: _impl/collectives.py``).

Where upstream takes a :class:`ReplicaGroupingInfo`, the number of all replicas does as well, as in its first versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ipuperf.frontends import poptorch


@dataclass
class ReplicaGroupingInfo:
    """Groups of replicas: ``group_size`` replicas, ``stride`` apart, of ``num_replicas``."""

    num_replicas: int
    stride: int
    group_size: int

    @property
    def attributes(self) -> list[int]:
        """The three numbers."""
        return [self.num_replicas, self.stride, self.group_size]

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.num_replicas // self.group_size


def _of(rg_info: ReplicaGroupingInfo | int) -> ReplicaGroupingInfo:
    return ReplicaGroupingInfo(rg_info, 1, rg_info) if isinstance(rg_info, int) else rg_info


def _exchanged(
    x: torch.Tensor, name: str, info: ReplicaGroupingInfo, example: torch.Tensor, attributes: Mapping[str, Any]
) -> torch.Tensor:
    all_attributes = {"__collectiveReplicaGrouping": info.attributes, **attributes}
    return poptorch.custom_op([x], name, "ai.graphcore", 1, example_outputs=[example], attributes=all_attributes)[0]


def all_gather_cross_replica_identical_grads_in(x: torch.Tensor, rg_info: ReplicaGroupingInfo | int) -> torch.Tensor:
    """The tensors of a group's replicas, ``(group size, *x.shape)``; a replica's gradient is the part of its own
    gradient, which is taken to be that of all."""
    info = _of(rg_info)
    return _exchanged(x, "ReplicatedAllGather", info, x.new_zeros((info.group_size, *x.shape)), {})


def all_gather_cross_replica(x: torch.Tensor, rg_info: ReplicaGroupingInfo | int) -> torch.Tensor:
    """The tensors of a group's replicas, ``(group size, *x.shape)``; the gradient is summed over them."""
    gathered = all_gather_cross_replica_identical_grads_in(x, rg_info)
    return all_reduce_cross_replica_sum(gathered, rg_info, insert_in_grad_graph=True)


def all_reduce_cross_replica_sum(
    x: torch.Tensor, rg_info: ReplicaGroupingInfo | int, insert_in_grad_graph: bool = False
) -> torch.Tensor:
    """The sum of the group's tensors, with the gradient as it comes; or with ``insert_in_grad_graph`` the tensor as it
    is, with the sum of the group's gradients."""
    attributes = {"op": "sum", "backwards": insert_in_grad_graph}
    return _exchanged(x, "ReplicatedAllReduceTP", _of(rg_info), x, attributes)


def all_to_all_single_cross_replica(x: torch.Tensor, rg_info: ReplicaGroupingInfo | int) -> torch.Tensor:
    """Part ``i`` of each replica's tensor, split along its first axis into as many parts as there are replicas, goes
    to replica ``i``.

    Raises:
        NotImplementedError: there are several groups.
    """
    info = _of(rg_info)
    if info.num_groups > 1:
        raise NotImplementedError(f"all_to_all_single_cross_replica: {info.num_groups} groups; there has to be one")
    return _exchanged(x, "ReplicatedAllToAll", info, x, {})


__all__ = [
    "ReplicaGroupingInfo",
    "all_gather_cross_replica",
    "all_gather_cross_replica_identical_grads_in",
    "all_reduce_cross_replica_sum",
    "all_to_all_single_cross_replica",
]

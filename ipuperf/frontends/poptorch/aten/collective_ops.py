"""Ops between replicas that PopART has in C++ and PopTorch programs reach through ``poptorch.custom_op``.

Source: graphcore-research/poptorch-experimental-addons, ``_impl/collectives.py``, and PopART's ``ai.graphcore`` domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ipuperf.ir import ReplicaGrouping, Tensor
from ipuperf.ops import ReplicatedAllGather, ReplicatedAllToAll
from ipuperf.ops.base import Op
from ipuperf.ops.transfers.tensor_parallel import ReplicatedAllReduceTP

from ..errors import require

_GROUPING = "__collectiveReplicaGrouping"
Attributes = Mapping[str, Any]


def _group(tensor: Tensor, given: Attributes) -> ReplicaGrouping:
    """The groups that an op's attributes say (replicas, stride, size), else all replicas of the program in one."""
    numbers = given.get(_GROUPING)
    return tensor.graph.ir.grouping() if numbers is None else ReplicaGrouping(*numbers)


def _only(given: Attributes, name: str, *allowed: str) -> None:
    unknown = sorted(set(given) - {_GROUPING, *allowed})
    require(not unknown, f"{name}: attributes {', '.join(unknown)} are not those of this op")


def _all_gather(tensor: Tensor, given: Attributes) -> dict[str, Any]:
    _only(given, "ReplicatedAllGather")
    group = _group(tensor, given)
    return {"group": group, "mode": "shape", "shape": (group.group_size, *tensor.shape)}


def _all_reduce(tensor: Tensor, given: Attributes) -> dict[str, Any]:
    _only(given, "ReplicatedAllReduceTP", "op", "backwards")
    op = given.get("op", "sum")
    require(op == "sum", f"ReplicatedAllReduceTP: op is {op!r}; it is always 'sum'")
    backwards = bool(given.get("backwards", False))
    return {"group": _group(tensor, given), "identical_inputs": backwards, "identical_grad_inputs": not backwards}


def _all_to_all(tensor: Tensor, given: Attributes) -> dict[str, Any]:
    _only(given, "ReplicatedAllToAll")
    return {"group": _group(tensor, given), "split": 0, "concat": 0}


COLLECTIVES: Mapping[tuple[str, str, int], tuple[type[Op], Callable[[Tensor, Attributes], dict[str, Any]]]] = {
    ("ReplicatedAllGather", "ai.graphcore", 1): (ReplicatedAllGather, _all_gather),
    ("ReplicatedAllReduceTP", "ai.graphcore", 1): (ReplicatedAllReduceTP, _all_reduce),
    ("ReplicatedAllToAll", "ai.graphcore", 1): (ReplicatedAllToAll, _all_to_all),
}
"""By name, domain and version: the op, and its attributes for an operand and what the program gives."""

"""Parameters that differ between groups of replicas: ``model.weight.replicaGrouping(...)``.

Such a parameter has on the host one value for each group, along a leading axis; ``forward`` sees the value of one
replica. Its gradients are summed within its groups only, and its optimiser state has the groups' axis too.

Source: poptorch: docs/user_guide/replica_grouped_weights.py, tests/replicated_graph_test.py,
python/_poplar_executor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ipuperf.ir import ReplicaGrouping

from ..enums import CommGroupType, VariableRetrievalMode
from ..errors import Error, UnsupportedError, require


class Setting(NamedTuple):
    """What ``replicaGrouping`` was told about a parameter."""

    comm_group_type: CommGroupType
    shards: int
    variable_retrieval_mode: VariableRetrievalMode

    def grouping(self, name: str, replicas: int) -> ReplicaGrouping:
        """The groups of a program of so many replicas. ``Error``: they do not divide them."""
        if self.comm_group_type == CommGroupType.All:
            return ReplicaGrouping(replicas)
        size = 1 if self.comm_group_type == CommGroupType.NoGrouping else self.shards
        if size < 1 or replicas % size:
            raise Error(f"replicaGrouping of {name!r}: groups of {size} replicas do not divide {replicas} replicas")
        consecutive = self.comm_group_type == CommGroupType.Consecutive or size == 1
        return ReplicaGrouping(replicas, 1 if consecutive else replicas // size, size)


class Whole(NamedTuple):
    """A parameter with the values of all groups, ``(groups, *shape)``, and its groups."""

    values: torch.Tensor
    grouping: ReplicaGrouping


def setting_of(name: str, setting: Any) -> Setting:
    """What is in ``per_replica_params``, checked. ``AssertionError`` for anything else."""
    require(isinstance(setting, tuple) and len(setting) == 3, f"replicaGrouping of {name!r}: {setting!r} given")
    kind, shards, mode = setting
    good = isinstance(kind, CommGroupType) or kind in list(CommGroupType)
    require(good, f"replicaGrouping of {name!r}: {kind!r} given, expected a member of poptorch.CommGroupType")
    require(
        isinstance(shards, int) and not isinstance(shards, bool),
        f"replicaGrouping of {name!r}: shards is {shards!r}, expected the number of replicas in a group",
    )
    require(
        isinstance(mode, VariableRetrievalMode) or mode in list(VariableRetrievalMode),
        f"replicaGrouping of {name!r}: {mode!r} given, expected a member of poptorch.VariableRetrievalMode",
    )
    return Setting(CommGroupType(kind), shards, VariableRetrievalMode(mode))


@contextmanager
def one_replica(
    module: torch.nn.Module, settings: Mapping[str, Any], replicas: int
) -> Iterator[Mapping[torch.nn.Parameter, Whole]]:
    """Within, grouped parameters have the shape that one replica sees; what they are in whole.

    Raises:
        Error: no parameter of this name, groups that do not divide the replicas, or a first axis that is not theirs.
        UnsupportedError: a value for each replica is asked of groups of several.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    wholes: dict[torch.nn.Parameter, Whole] = {}
    for name, setting in settings.items():
        if name not in known:
            raise Error(f"replicaGrouping: the model has no parameter {name!r}; it has {', '.join(known) or 'none'}")
        wholes[known[name]] = _whole(name, known[name], setting_of(name, setting), replicas)
    try:
        for parameter, whole in wholes.items():
            parameter.data = whole.values[0]
        yield wholes
    finally:
        for parameter, whole in wholes.items():
            parameter.data = whole.values


def _whole(name: str, parameter: torch.nn.Parameter, setting: Setting, replicas: int) -> Whole:
    grouping = setting.grouping(name, replicas)
    groups = grouping.num_groups
    if not parameter.dim() or parameter.shape[0] != groups:
        raise Error(
            f"replicaGrouping of {name!r}: its shape is {tuple(parameter.shape)}, expected a first axis of {groups}, "
            f"one value for each group of {grouping.group_size} of {replicas} replicas"
        )
    if setting.variable_retrieval_mode == VariableRetrievalMode.AllReplicas and grouping.group_size > 1:
        raise UnsupportedError(
            f"replicaGrouping of {name!r}: VariableRetrievalMode.AllReplicas would bring {replicas} values for a "
            f"parameter of {groups}; allowed: OnePerGroup"
        )
    return Whole(parameter.data, grouping)


def with_grouping(parameter: torch.nn.Parameter, name: str, settings: dict[str, Any]) -> torch.nn.Parameter:
    """``parameter`` as an executor's attribute: the same memory, and ``replicaGrouping``, which sets ``settings``."""

    def replicaGrouping(
        self: torch.Tensor,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Let groups of replicas have values of their own, see :mod:`~ipuperf.poptorch.optimisers.replica_groups`.

        Args:
            comm_group_type: which replicas form a group.
            shards: how many.
            variable_retrieval_mode: what comes back.
        """
        settings[name] = tuple(setting_of(name, (comm_group_type, shards, variable_retrieval_mode)))

    kind = type(type(parameter).__name__, (type(parameter),), {"replicaGrouping": replicaGrouping})
    return torch.Tensor._make_subclass(kind, parameter.detach(), parameter.requires_grad)

"""``seed_variable``: the random seed of a program as a variable, one value per replica group."""

from __future__ import annotations

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments


@checked_arguments
def seed_variable(
    seed: int | np.ndarray, replica_grouping: popxl.ReplicaGrouping | None = None
) -> tuple[popxl.Tensor, popxl.Tensor]:
    """A variable ``random_seed`` (uint32, 2 words) and the tensor to draw with.

    Args:
        seed: a number, of which each group gets a seed of its own, or the words themselves.
        replica_grouping: replicas that share a seed (default: each replica has its own).

    Source: popxl-addons: popxl_addons/seeds.py.
    """
    group = replica_grouping or popxl.gir().replica_grouping(group_size=1)
    words = popxl.create_seeds(seed, replicas=group.num_groups) if isinstance(seed, int) else seed
    variable = popxl.variable(words, popxl.uint32, "random_seed", replica_grouping=group)
    return variable, variable

"""The options of ``IPUConfig`` and their enumerations; :mod:`ipuperf.frontends.options` has their rows."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ipuperf.frontends.options import Member, Option

from .effects import EFFECTS

Types = tuple[type, ...]


class SelectionOrder(Enum):
    """Order in which IPUs are taken for the shards of a replica: :func:`.programs.devices.selection_order`."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class ExecutionProfileType(Enum):
    """What execution profiles contain (recorded)."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class DeviceConnectionType(Enum):
    """When a device is attached."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(Enum):
    """Order of instructions."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Whether results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """ON or OFF."""
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


OPTIONS: Mapping[str, Option] = {
    name: option for name, option in EFFECTS.below("ipu.config.IPUConfig.").items() if "(" not in name
}
"""By full name, as a program writes it behind its configuration."""


def default_of(option: Option) -> Any:
    """Return the value of an option unless a program sets it; the default never gives a warning."""
    return option.default.value(globals()) if isinstance(option.default, Member) else option.default


def types_of(option: Option) -> Types:
    """Return the types of an option's values."""
    names = option.accepts.split("|") if option.accepts else []
    return tuple(globals().get(name) or getattr(builtins, name) for name in names) or (type(default_of(option)),)

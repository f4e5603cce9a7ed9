"""PopDist: facts about the instances that ``poprun`` launches, as a program asks for them.

One process simulates all replicas. A program that is launched alone therefore sees one instance with all replicas:
``POPDIST_NUM_TOTAL_REPLICAS`` gives their number (``poprun`` sets it), or there is one. An instance that ``poprun``
launches beside others cannot simulate its part of the machine. All instances but the first say so and stop, so that
nothing is computed twice.

Names: the PopRun and PopDist user guide, "PopDist API"; environment variables as ``poprun`` sets them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.runtime.effects import tell

TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
INSTANCES = ("POPDIST_NUM_INSTANCES", "OMPI_COMM_WORLD_SIZE")
INDEX = ("POPDIST_INSTANCE_INDEX", "OMPI_COMM_WORLD_RANK")


def _number(name: str, default: int, least: int = 1) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"popdist: the environment says {name}={text!r}; a whole number of at least {least} is needed")
    return int(text)


def _launched(names: Iterable[str], default: int, least: int) -> int:
    return next((_number(name, default, least) for name in names if os.environ.get(name)), default)


def _alone() -> None:
    """Raise RuntimeError in every instance but the first, which simulates all."""
    index = _launched(INDEX, 0, 0)
    if index:
        raise RuntimeError(
            f"popdist: this is instance {index} of {_launched(INSTANCES, index + 1, 1)}; instance 0 simulates the "
            f"replicas of all. Launch the program alone, with {TOTAL} in its environment"
        )


def isPopdistEnvSet() -> bool:
    """Whether the environment says how many replicas there are."""
    return bool(os.environ.get(TOTAL))


def init() -> None:
    """Do nothing, as one process needs no start; RuntimeError in all instances but the first."""
    _alone()


def getNumTotalReplicas() -> int:
    """Replicas of all instances."""
    _alone()
    return _number(TOTAL, 1)


def getNumLocalReplicas() -> int:
    """Replicas of this process: all."""
    return getNumTotalReplicas()


def getNumIpusPerReplica() -> int:
    """IPUs of a replica."""
    return _number(IPUS, 1)


def getNumInstances() -> int:
    """1: this process stands for all instances."""
    _alone()
    return 1


def getInstanceIndex() -> int:
    """0: this process stands for all instances."""
    _alone()
    return 0


def getReplicaIndexOffset() -> int:
    """0: the first replica is one of this process."""
    _alone()
    return 0


def getDeviceId() -> int:
    """0: the simulated machine."""
    return 0


@checked()
def checkNumIpusPerReplica(num_ipus: int) -> None:
    """Raise RuntimeError if the environment states another number of IPUs per replica."""
    configured = getNumIpusPerReplica()
    if isPopdistEnvSet() and num_ipus != configured:
        raise RuntimeError(f"popdist: the program has {num_ipus} IPUs for each replica, {IPUS} says {configured}")


@checked()
def execute_on_instances(instances: Iterable[int], function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What ``function`` returns if this process is one of the ``instances`` (it is instance 0), else None."""
    return function(*args, **named) if getInstanceIndex() in set(instances) else None


def replicas_of_one_process(subject: str) -> int:
    """Return :func:`getNumTotalReplicas` and tell the program that this process runs all replicas.

    Args:
        subject: the function or option that asks, for the note.
    """
    replicas, instances = getNumTotalReplicas(), instances_stood_for()
    if isPopdistEnvSet():
        of = f" of {instances} instances" if instances > 1 else ""
        tell(f"{subject}: this process stands for all and runs the {replicas} replicas{of}")
    else:
        tell(f"{subject}: not launched by poprun ({TOTAL} is not set), so that there is 1 instance with 1 replica")
    return replicas


def instances_stood_for() -> int:
    """Return the number of instances whose replicas this process runs (not upstream's).

    As many processes would serve them.
    """
    local = _number(LOCAL, getNumTotalReplicas())
    # Without a number of instances, it follows from the local replicas, rounded up.
    return max(_launched(INSTANCES, 1, 1), -(-getNumTotalReplicas() // local))


__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]

"""PopDist for PopTorch."""

from __future__ import annotations

from ipuperf.frontends import poptorch

from . import checkNumIpusPerReplica, instances_stood_for, replicas_of_one_process


class Options(poptorch.Options):
    """PopTorch's options with the replicas of all instances, all of which this process runs.

    Args:
        ipus_per_replica: IPUs of a replica.

    Raises:
        RuntimeError: the environment states another number of IPUs per replica.
    """

    def __init__(self, ipus_per_replica: int = 1) -> None:
        super().__init__()
        checkNumIpusPerReplica(ipus_per_replica)
        self.replicationFactor(replicas_of_one_process("popdist.poptorch.Options"))
        self._host_processes = instances_stood_for()


__all__ = ["Options"]

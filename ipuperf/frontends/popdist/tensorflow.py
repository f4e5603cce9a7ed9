"""PopDist for TensorFlow."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from . import checkNumIpusPerReplica, getNumIpusPerReplica, instances_stood_for, replicas_of_one_process


class _SelectsIpus(Protocol):
    """``ipu.config.IPUConfig``, as far as it is needed here."""

    auto_select_ipus: Any

    def served_by(self, host_processes: int) -> None: ...


_Config = TypeVar("_Config", bound=_SelectsIpus)


def set_ipu_config(config: _Config, ipus_per_replica: int | None = None, configure_device: bool = True) -> _Config:
    """Give ``config`` the IPUs of all instances' replicas, all of which this process runs.

    In simulated time, each instance has its own host process.

    Args:
        config: the program's configuration, not applied yet.
        ipus_per_replica: IPUs of a replica; by default the number that ``poprun`` gives.
        configure_device: whether to select the IPUs; otherwise the program does.

    Returns:
        ``config``.

    Raises:
        RuntimeError: the environment states another number of IPUs per replica.
    """
    ipus = getNumIpusPerReplica() if ipus_per_replica is None else ipus_per_replica
    checkNumIpusPerReplica(ipus)
    if configure_device:
        config.auto_select_ipus = ipus * replicas_of_one_process("popdist.tensorflow.set_ipu_config")
        config.served_by(instances_stood_for())
    return config


__all__ = ["set_ipu_config"]

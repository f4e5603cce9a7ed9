"""Several hosts."""

from ...refusals import refused

_INSTEAD = "there is one process; replicas are inside of the program (IPUConfig.auto_select_ipus)"
IPUMultiWorkerStrategy = refused("ipu_multi_worker_strategy.IPUMultiWorkerStrategy", _INSTEAD)
IPUMultiWorkerStrategyV1 = refused("ipu_multi_worker_strategy.IPUMultiWorkerStrategyV1", _INSTEAD)

__all__ = ["IPUMultiWorkerStrategy", "IPUMultiWorkerStrategyV1"]

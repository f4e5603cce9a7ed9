"""Several hosts."""

from ...refusals import refused

IPUMultiWorkerStrategy = refused("ipu_multi_worker_strategy.IPUMultiWorkerStrategy", "there is one process; replicas are inside of the program (IPUConfig.auto_select_ipus)")
IPUMultiWorkerStrategyV1 = refused("ipu_multi_worker_strategy.IPUMultiWorkerStrategyV1", "there is one process; replicas are inside of the program (IPUConfig.auto_select_ipus)")

__all__ = ["IPUMultiWorkerStrategy", "IPUMultiWorkerStrategyV1"]

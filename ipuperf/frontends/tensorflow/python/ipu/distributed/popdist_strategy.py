"""``PopDistStrategy``: the strategy of programs that ``poprun`` starts."""

from __future__ import annotations

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS
from ..ipu_strategy import IPUStrategyV1


class PopDistStrategy(IPUStrategyV1):
    """:class:`.ipu_strategy.IPUStrategyV1`: one instance has all replicas, so none is left to reduce over."""

    @checked_kinds()
    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        EFFECTS.given(
            "ipu.distributed.popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions)",
            add_ipu_cross_replica_reductions,
        )
        super().__init__(
            ipu_device,
            enable_dataset_iterators=enable_dataset_iterators,
            enable_keras_extensions=enable_keras_extensions,
        )


__all__ = ["PopDistStrategy"]

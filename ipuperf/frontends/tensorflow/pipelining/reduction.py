"""How gradients of micro-batches are combined."""

from __future__ import annotations

from enum import Enum
from typing import Any


class GradientAccumulationReductionMethod(Enum):
    """``SUM``; ``MEAN``: each gradient scaled by 1 / count; ``RUNNING_MEAN``: ``acc = acc n/(n+1) + g/(n+1)``."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse_reduction_method(cls, method: Any) -> GradientAccumulationReductionMethod:
        """A member, or its name in any case.

        Raises:
            ValueError: something else.
        """
        if isinstance(method, cls):
            return method
        if isinstance(method, str) and method.upper() in cls.__members__:
            return cls[method.upper()]
        raise ValueError(
            "reduction_method must be set to SUM, MEAN or RUNNING_MEAN from GradientAccumulationReductionMethod or to "
            f"one of these names, it is {method!r}"
        )

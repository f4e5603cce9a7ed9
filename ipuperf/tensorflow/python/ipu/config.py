"""``tensorflow.python.ipu.config``: see :mod:`ipuperf.tensorflow.config`."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.popart.offering import offered as _offered

from ...config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)

__all__ = _offered(__name__)

"""``tensorflow.python.ipu.config``: see :mod:`ipuperf.tensorflow.config`."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from ...config import IPUConfig, configure_ipu_system, get_ipu_config, reset_ipu_configuration
from ...config_options import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)

__all__ = _offered(__name__)

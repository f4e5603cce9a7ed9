"""``tensorflow.python.ipu.utils``: the configuration under its older address, and small helpers."""

from __future__ import annotations

from .config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SelectionOrder,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """IPUs of a device such as ``/device:IPU:0``; 1 when the configuration does not say."""
    from ...devices import num_ipus
    from ...effects import EFFECTS
    from ...state import state

    EFFECTS.given("ipu.utils.get_num_of_ipus_in_device(device)", device)
    return num_ipus(state().config, int(ipu_device.rpartition(":")[2])) or 1


__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SelectionOrder",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "reset_ipu_configuration",
]

"""Questions about the machine, answered for the simulated one."""

from __future__ import annotations

from ipuperf.machine import load_machine
from ipuperf.runtime.settings import AUTO, AUTO_MACHINES, current_settings

_VERSIONS = {"GC2": 1, "GC200": 2, "Bow": 21}
"""Poplar's number of each IPU generation."""


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether the simulated machine has ``num_ipus`` IPUs (with machine ``auto``: its largest choice)."""
    name = current_settings().machine
    return load_machine(AUTO_MACHINES[-1] if name == AUTO else name).num_ipus >= num_ipus


def ipuHardwareVersion() -> int:
    """1 for GC2, 2 for GC200, 21 for Bow, -1 for another chip."""
    name = current_settings().machine
    return _VERSIONS.get(load_machine(AUTO_MACHINES[0] if name == AUTO else name).chip.name, -1)

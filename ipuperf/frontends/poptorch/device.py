"""Questions about the machine, answered for the simulated one."""

from __future__ import annotations

from ipuperf.machine import Machine, load_machine
from ipuperf.runtime.settings import AUTO, AUTO_MACHINES, current_settings

from .errors import checked_kinds

#: Poplar's number of each IPU generation.
_VERSIONS = {"GC2": 1, "GC200": 2, "Bow": 21}


@checked_kinds()
def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether the simulated machine has ``num_ipus`` IPUs (with machine ``auto``: its largest choice)."""
    return _machine(AUTO_MACHINES[-1]).num_ipus >= num_ipus


def ipuHardwareVersion() -> int:
    """1 for GC2, 2 for GC200, 21 for Bow, -1 for another chip."""
    return _VERSIONS.get(_machine(AUTO_MACHINES[0]).chip.name, -1)


def _machine(auto: str) -> Machine:
    """The machine of the settings in force; ``auto`` stands for one that is not chosen yet."""
    machine = current_settings().machine
    if isinstance(machine, Machine):
        return machine
    return load_machine(auto if machine == AUTO else machine)

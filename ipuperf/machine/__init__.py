"""Room ``machine``: chips, IPU-Machines, Pods, links and host as frozen values loaded from ``data/*.toml``.

``load_machine("pod4")`` gives a `Machine`; ``list_machines()`` names the presets; a user's TOML file ``extends`` a
preset and overrides figures. Every number keeps its value as written, unit, source and kind in `Machine.figures`.
This room knows nothing about programs and imports no other room.
"""

from __future__ import annotations

from ipuperf.machine.errors import MachineError, TooFewIpusError
from ipuperf.machine.faults import Faults, Jitter, SlowIpu, SlowLink, parse_faults
from ipuperf.machine.figures import KINDS, Absence, Figure
from ipuperf.machine.loader import list_machines, load_machine, load_scaled
from ipuperf.machine.model import Bundle, Chip, Host, IpuMachine, Machine, StreamingMemory
from ipuperf.machine.topology import LINK_KINDS, IpuLink, Link, Topology

__all__ = [
    "KINDS",
    "LINK_KINDS",
    "Absence",
    "Bundle",
    "Chip",
    "Faults",
    "Figure",
    "Host",
    "IpuLink",
    "IpuMachine",
    "Jitter",
    "Link",
    "Machine",
    "MachineError",
    "SlowIpu",
    "SlowLink",
    "StreamingMemory",
    "TooFewIpusError",
    "Topology",
    "list_machines",
    "load_machine",
    "load_scaled",
    "parse_faults",
]

"""The kinds of steps a device program is made of, one module per family.

A step is a plain value. Its class describes and checks it, and gives its cost when it runs on the tiles of one IPU
alone. How it passes through simulated time is in :mod:`ipuperf.simulation.steps`, registered for the class, as lowering
does not know the simulation. ``docs/how-to/adding-a-step.md`` adds one.
"""

from .base import Cost, JoinableStep, LocalStep, Place, SharedStep, Step
from .collective import Collective
from .control import Call, ControlStep, IoTiles, Repeat, Sequence
from .external_sync import ExternalSync
from .host import HostCopy, HostExchange, StreamCopy
from .inter_ipu import InterIpuCopy, IpuTransfer
from .local import Phase, Sync
from .remote import RemoteTransfer
from .tile_set_copy import TileSetCopy

__all__ = [
    "Call",
    "Collective",
    "ControlStep",
    "Cost",
    "ExternalSync",
    "HostCopy",
    "HostExchange",
    "InterIpuCopy",
    "IoTiles",
    "IpuTransfer",
    "JoinableStep",
    "LocalStep",
    "Phase",
    "Place",
    "RemoteTransfer",
    "Repeat",
    "Sequence",
    "SharedStep",
    "Step",
    "StreamCopy",
    "Sync",
    "TileSetCopy",
]

"""Lowering: graphs of ops become trees of steps with cycles and bytes per tile. See ``docs/design.md``."""

from .again import Again
from .collective_merging import NO_MERGING, CollectiveMerging
from .control_programs import WEIGHT_RUNS, NewValues, new_values_program, weight_copies_program
from .fitting import DoesNotFitError
from .layout import Layout, linear
from .lower import lower
from .outlining import OUTLINE_THRESHOLD
from .placement import ipus_per_replica
from .planner.arguments import chip_named, plan_convolution, plan_matmul
from .planner.plan import ConvolutionPlan
from .program import CodeInfo, DeviceProgram, MemoryReport, OpInfo, ProgramWarning, VariableInfo
from .steps import (
    Call,
    Collective,
    Cost,
    ExternalSync,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IpuTransfer,
    Phase,
    RemoteTransfer,
    Repeat,
    Sequence,
    Step,
    StreamCopy,
    Sync,
)
from .streaming_memory import check_capacity
from .tilevector import TileVector

__all__ = [
    "NO_MERGING",
    "OUTLINE_THRESHOLD",
    "WEIGHT_RUNS",
    "Again",
    "Call",
    "CodeInfo",
    "Collective",
    "CollectiveMerging",
    "ConvolutionPlan",
    "Cost",
    "DeviceProgram",
    "DoesNotFitError",
    "ExternalSync",
    "HostCopy",
    "HostExchange",
    "InterIpuCopy",
    "IpuTransfer",
    "Layout",
    "MemoryReport",
    "NewValues",
    "OpInfo",
    "Phase",
    "ProgramWarning",
    "RemoteTransfer",
    "Repeat",
    "Sequence",
    "Step",
    "StreamCopy",
    "Sync",
    "TileVector",
    "VariableInfo",
    "check_capacity",
    "chip_named",
    "ipus_per_replica",
    "linear",
    "lower",
    "new_values_program",
    "plan_convolution",
    "plan_matmul",
    "weight_copies_program",
]

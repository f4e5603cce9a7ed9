"""Lowering: graphs of ops become trees of steps with cycles and bytes per tile. See ``docs/design.md``."""

from .convolution_planner import ConvolutionPlan, plan_convolution
from .layout import Layout, linear
from .lower import DoesNotFitError, ipus_per_replica, lower
from .planner import MatMulPlan, plan_matmul
from .program import (
    Call,
    Collective,
    Cost,
    DeviceProgram,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IpuTransfer,
    MemoryReport,
    OpInfo,
    Phase,
    RemoteTransfer,
    Repeat,
    Sequence,
    Step,
    StreamCopy,
    Sync,
    VariableInfo,
)
from .tilevector import TileVector

__all__ = [
    "Call",
    "Collective",
    "ConvolutionPlan",
    "Cost",
    "DeviceProgram",
    "DoesNotFitError",
    "HostCopy",
    "HostExchange",
    "InterIpuCopy",
    "IpuTransfer",
    "Layout",
    "MatMulPlan",
    "MemoryReport",
    "OpInfo",
    "Phase",
    "RemoteTransfer",
    "Repeat",
    "Sequence",
    "Step",
    "StreamCopy",
    "Sync",
    "TileVector",
    "VariableInfo",
    "ipus_per_replica",
    "linear",
    "lower",
    "plan_convolution",
    "plan_matmul",
]

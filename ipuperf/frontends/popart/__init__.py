"""The names of PopART that PopXL and PopTorch programs use beside their front end.

``popart_exception``, devices as descriptions, the enumerations and settings that options take. Nothing pretends to be
the rest: PopART's builder, its sessions for ONNX models, its patterns and its native module are not here, and asking
for them says so.
"""

from __future__ import annotations

from ipuperf.base.version import __version__ as _version
from ipuperf.ir import ApplicationRuntimeError as poplar_application_runtime_error
from ipuperf.ir import IrError as popart_exception

from .devices import DeviceInfo, DeviceManager
from .enums import (
    AccumulateOuterFragmentSchedule,
    BatchSerializationBatchSchedule,
    DataType,
    DeviceConnectionType,
    DeviceSelectionCriterion,
    DeviceType,
    MeanReductionStrategy,
    MergeVarUpdateType,
    RecomputationType,
    ReductionType,
    SubgraphCopyingStrategy,
    SyncPattern,
    SyntheticDataMode,
    VirtualGraphMode,
)
from .locations import ReplicatedTensorSharding, TensorLocation, TensorStorage, TileSet
from .session_options import AccumulateOuterFragmentSettings, SessionOptions, TensorLocationSettings

_UPSTREAM_VERSION = "3.4.0"
"""The PopART whose interface is here."""


def versionString() -> str:
    """PopART's version, with ipuperf's own behind it."""
    return f"{_UPSTREAM_VERSION} (ipuperf {_version})"


__all__ = ["AccumulateOuterFragmentSchedule", "AccumulateOuterFragmentSettings", "DataType", "DeviceConnectionType"]
__all__ += ["DeviceInfo", "DeviceManager", "DeviceSelectionCriterion", "DeviceType", "MeanReductionStrategy"]
__all__ += ["MergeVarUpdateType", "RecomputationType", "ReductionType", "ReplicatedTensorSharding", "SessionOptions"]
__all__ += ["SubgraphCopyingStrategy", "SyncPattern", "SyntheticDataMode", "TensorLocation", "TensorLocationSettings"]
__all__ += ["TensorStorage", "TileSet", "VirtualGraphMode", "popart_exception", "poplar_application_runtime_error"]
__all__ += ["BatchSerializationBatchSchedule", "versionString"]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"popart.{name} is not here: ipuperf stands in for PopXL and PopTorch, not for PopART's own interface "
        f"(builder, sessions for ONNX models, patterns, native module); supported: {', '.join(__all__)}"
    )

"""PopART's enumerations that options take, with upstream's names and numbers.

Source: popart: willow/include/popart/sessionoptions.hpp, python/popart bindings; ``int(member)`` is what PopTorch's
``_Popart.set`` takes.
"""

from ipuperf.frontends.enumerations import NativeEnum


class AccumulateOuterFragmentSchedule(NativeEnum):
    """How the weight updates of several IPUs are ordered."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class BatchSerializationBatchSchedule(NativeEnum):
    """How the ops of serialised batches are ordered."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class MeanReductionStrategy(NativeEnum):
    """When a mean over micro-batches is divided."""

    Running = 0
    Post = 1


class MergeVarUpdateType(NativeEnum):
    """Which weight updates become one."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class RecomputationType(NativeEnum):
    """Which forward ops run again in the backward pass. Upstream's first member is called ``None`` in C++."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class ReductionType(NativeEnum):
    """How losses and gradients are reduced."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SubgraphCopyingStrategy(NativeEnum):
    """When inputs and outputs of a call are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyncPattern(NativeEnum):
    """Which IPUs stand during host exchanges and transfers of Streaming Memory."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class SyntheticDataMode(NativeEnum):
    """What stands in for data from the host."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class VirtualGraphMode(NativeEnum):
    """How ops find their IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class DeviceType(NativeEnum):
    """The kind of a device."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4


class DeviceConnectionType(NativeEnum):
    """When a program attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceSelectionCriterion(NativeEnum):
    """Which of several free devices is taken."""

    First = 0
    Random = 1


class DataType(NativeEnum):
    """Element types."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT32 = 6
    UINT64 = 7
    BOOL = 8
    FLOAT = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    FLOAT8_143 = 12
    FLOAT8_152 = 13
    DOUBLE = 14
    COMPLEX64 = 15
    COMPLEX128 = 16
    STRING = 17
    UNDEFINED = 18

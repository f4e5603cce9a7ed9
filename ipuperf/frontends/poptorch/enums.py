"""The enumerations of the PopTorch API, with upstream's names and values (``poptorch:python/enums.py``)."""

from enum import Enum

from ipuperf.frontends.enumerations import NumberedEnum


class MeanReductionStrategy(NumberedEnum):
    """When a mean is divided by its count: in a running mean, after the sum (default), or half before the loss."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(NumberedEnum):
    """``Sync``: load when asked. ``Async``: load ahead. ``AsyncRebatched``: load small pieces ahead and join them."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(NumberedEnum):
    """How upstream hands a data set to its loading process; without effect here, where loading is a thread."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(NumberedEnum):
    """Which micro-batches' outputs come back: the last, every n-th, all, their sum.

    ``Default`` is ``All`` for inference and ``Final`` for training.
    """

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ConnectionType(NumberedEnum):
    """When to attach to an IPU: at once, when a program is ready, or never (compile only)."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(NumberedEnum):
    """What an op with half and float operands does: all to half, or PyTorch's rule (also the default)."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class MatMulSerializationMode(Enum):
    """The dimension along which ``serializedMatMul`` splits ``[m, n] @ [n, p]``: m, n, p, or none."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(NumberedEnum):
    """Phased execution: when tensors leave the chip (never, after the forward pass, ..., after each phase)."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(Enum):
    """How far ahead the host copies inputs while IPUs compute."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(NumberedEnum):
    """Stage of a block that no stage lists: the number of its IPU, or the next free number."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(NumberedEnum):
    """How the convolutions of a ``MultiConv`` run."""

    Parallel = 0
    Serial = 1


class CommGroupType(NumberedEnum):
    """How replicas form groups of k: one group, ``{0..k-1} {k..2k-1} ..``, ``{0, m, 2m..} ..`` (m groups), singles."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(NumberedEnum):
    """What comes back of a variable that differs between replica groups: one value per group, or one per replica."""

    OnePerGroup = 0
    AllReplicas = 2


class ReductionType(NumberedEnum):
    """How losses and gradients are reduced."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(NumberedEnum):
    """Which IPUs stand during host exchanges."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2

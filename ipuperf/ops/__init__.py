"""Ops: the shape rule, NumPy value, gradient and cost of each op stand together in one class; see ``docs/design.md``.

Every op class of every module of this room is exported by itself. Bases, which have no operation type, are not. Type
checkers know the ones that are imported by name below.
"""

# ruff: noqa: F401  # the imported names are the package's content
from __future__ import annotations

import pkgutil
from importlib import import_module

from .accumulation import Accumulate, AccumulatorScale, AccumulatorZero, CopyVarUpdate
from .activations import (
    Clip,
    ClipGrad,
    Gelu,
    GeluErf,
    GeluErfGrad,
    GeluErfInplace,
    GeluGrad,
    GeluInplace,
    Relu,
    ReluGrad,
    ReluInplace,
    Tanh,
    TanhGrad,
)
from .adam import AdamUpdater, AdamVarUpdate
from .average_pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolGrad,
    AveragePool,
    AveragePoolGrad,
    GlobalAveragePool,
)
from .base import Environment, Kernel, Op
from .batch_norm import BatchNormalization, BatchNormalizationGrad, BatchNormalizationInference
from .bitwise import BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, ShiftLeft, ShiftRight
from .code_load import RemoteCodeLoad
from .collectives import (
    ReplicatedAllGather,
    ReplicatedAllReduce,
    ReplicatedAllReduceInplace,
    ReplicatedAllToAll,
    ReplicatedReduceScatter,
)
from .comparisons import GreaterEqual, Less, LessEqual, NotEqual
from .control import Call, If, Loop
from .convolution import AddBias, Conv, ConvInputGrad, ConvTranspose, ConvWeightGrad
from .ctc import CtcBeamSearchDecoder, CtcLoss, CtcLossGrad
from .cumsum import CumSum
from .custom import CustomOp
from .distributed_norm import DistributedLayerNorm, DistributedLayerNormGrad
from .dynamic import (
    DynamicIndexError,
    DynamicSlice,
    DynamicSlicePadGrad,
    DynamicUpdate,
    DynamicUpdateInplace,
    IncrementMod,
    IncrementModInplace,
)
from .elementwise import (
    Add,
    AddLhsInplace,
    And,
    Div,
    Equal,
    Fmod,
    Greater,
    Mul,
    Or,
    Pow,
    Sub,
    Where,
)
from .euclidean import Hypotenuse, ReduceL2, RootMeanSquare
from .extrema import Maximum, Minimum, ReduceMax, ReduceMin
from .float8 import (
    CastThenPow2Scale,
    ConvPow2Scaled,
    ConvTransposePow2Scaled,
    MatMulPow2Scaled,
    Pow2ScaleThenCast,
)
from .fp8_scale import Fp8Scale
from .functions import Erf, Erfc, ErfGrad, Expm1, Log1p, Reciprocal, Round
from .gather import Gather, GatherGrad, OneHot, TiedGather
from .grad_reduce import GradReduceSquareAdd
from .gradients import autodiff
from .group_norm import GroupNormalization, GroupNormalizationGrad
from .group_quantize import GroupQuantizeDecompress
from .histogram import Histogram
from .hyperbolic import Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, Sinh
from .io_tile_copy import IoTileCopy
from .ipu_copy import IpuCopy
from .layouts import LinearLayout
from .logsoftmax import LogSoftmax, LogSoftmaxGrad
from .matmul import MatMul
from .max_pooling import MaxPool, MaxPoolGrad
from .median import ReduceMedian, ReduceMedianGrad
from .multi_conv import Convolutions, MultiConvForward, MultiConvInputGrad, MultiConvWeightGrad
from .piecewise import Elu, EluGrad, HardSigmoid, HardSigmoidGrad, LeakyRelu, LeakyReluGrad
from .printing import PrintTensor
from .randomness import (
    Dropout,
    DropoutGrad,
    ModifyRandomSeed,
    RandomInteger,
    RandomNormal,
    RandomUniform,
)
from .recurrent import Recurrent
from .recurrent_grad import RecurrentGrad
from .reduce import (
    ArgMax,
    ArgMin,
    Expand,
    LambSquare,
    ReduceL1,
    ReduceMean,
    ReduceProd,
    ReduceProdGrad,
    ReduceSum,
    ReduceSumSquare,
)
from .reduce_log import ReduceLogSum, ReduceLogSumExp
from .remainder import FloorQuotient, Remainder
from .remote import RemoteEntryError, RemoteLoad, RemoteLoadInplace, RemoteStore
from .resize import Resize, ResizeGrad
from .roi_align import RoiAlign, RoiAlignGrad
from .rotary import RotaryPosEmbed, RotaryPosEmbedGrad
from .scaled_add import ScaledAdd, ScaledAddLhsInplace
from .scatter import Scatter, ScatterReduce, ScatterReduceGrad, ScatterReduceInitialGrad
from .shape import (
    Concat,
    ConcatInplace,
    Init,
    Reshape,
    ReshapeInplace,
    Slice,
    SliceGrad,
    SliceInplace,
    Split,
    Subsample,
    SubsampleGrad,
    Transpose,
    TransposeInplace,
)
from .sharded_cross_entropy import CrossEntropySharded, CrossEntropyShardedGrad
from .sigmoid import Sigmoid, SigmoidGrad, Softplus, SoftplusGrad, Swish, SwishGrad, SwishInplace
from .softmax import Nll, NllGrad, NlllWithSoftmaxGradDirect, Softmax, SoftmaxGrad
from .sparse_accumulate import SparseAccumulate
from .streams import HostLoad, HostStore
from .tensor_parallel import (
    ReplicatedAllGatherStrided,
    ReplicatedAllReduceStrided,
    ReplicatedAllReduceTP,
    ReplicatedReduceScatterStrided,
)
from .topk import TopK
from .triangular import Cholesky, TriangularSolve
from .unary import (
    Abs,
    Cast,
    Ceil,
    Cos,
    Detach,
    DetachInplace,
    Exp,
    ExpInplace,
    Floor,
    Identity,
    IsFinite,
    IsInf,
    IsNaN,
    Log,
    Log2,
    Neg,
    Not,
    Sign,
    Sin,
    Sqrt,
)


def _op_classes() -> dict[str, type[Op]]:
    """The op classes that the modules of this room define, by name."""
    # The folder is read, so a new module needs no entry in a list.
    modules = [import_module(f"{__name__}.{module_info.name}") for module_info in pkgutil.iter_modules(__path__)]
    members = [(module, member) for module in modules for member in vars(module).values() if isinstance(member, type)]
    classes = [member for module, member in members if issubclass(member, Op) and member.__module__ == module.__name__]
    return {
        op_class.__name__: op_class for op_class in classes if op_class.type != Op.type and op_class.__name__[0] != "_"
    }


_OPS = _op_classes()
# Other rooms write `ops.Name`, whether or not the class is imported by name above.
globals().update(_OPS)

__all__ = ["DynamicIndexError", "Environment", "Kernel", "Op", "RemoteEntryError", "autodiff", *sorted(_OPS)]

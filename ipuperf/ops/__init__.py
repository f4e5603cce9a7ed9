"""Ops: the shape rule, NumPy value, gradient and cost of each op stand together in one class; see ``docs/design.md``.

Every op class of every module of this room is exported by itself. Bases, which have no operation type, are not. Type
checkers know the ones that are imported by name below.
"""

# ruff: noqa: F401  # the imported names are the package's content
from __future__ import annotations

import pkgutil
from importlib import import_module

from .base import Environment, Kernel, Op
from .control import Call, If, Loop
from .custom import CustomOp
from .elementwise.activations import (
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
from .elementwise.arithmetic import Add, AddLhsInplace, And, Div, Equal, Fmod, Greater, Mul, Or, Pow, Sub, Where
from .elementwise.bitwise import BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, ShiftLeft, ShiftRight
from .elementwise.comparisons import GreaterEqual, Less, LessEqual, NotEqual
from .elementwise.extrema import Maximum, Minimum, ReduceMax, ReduceMin
from .elementwise.functions import Erf, Erfc, ErfGrad, Expm1, Log1p, Reciprocal, Round
from .elementwise.hyperbolic import Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, Sinh
from .elementwise.piecewise import Elu, EluGrad, HardSigmoid, HardSigmoidGrad, LeakyRelu, LeakyReluGrad
from .elementwise.remainder import FloorQuotient, Remainder
from .elementwise.sigmoid import Sigmoid, SigmoidGrad, Softplus, SoftplusGrad, Swish, SwishGrad, SwishInplace
from .elementwise.unary import (
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
from .gradients import autodiff
from .layouts import LinearLayout
from .losses.ctc import CtcBeamSearchDecoder, CtcLoss, CtcLossGrad
from .losses.logsoftmax import LogSoftmax, LogSoftmaxGrad
from .losses.sharded_cross_entropy import CrossEntropySharded, CrossEntropyShardedGrad
from .losses.softmax import Nll, NllGrad, NlllWithSoftmaxGradDirect, Softmax, SoftmaxGrad
from .norms.batch import BatchNormalization, BatchNormalizationGrad, BatchNormalizationInference
from .norms.distributed import DistributedLayerNorm, DistributedLayerNormGrad
from .norms.euclidean import Hypotenuse, ReduceL2, RootMeanSquare
from .norms.group import GroupNormalization, GroupNormalizationGrad
from .pooling.average import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolGrad,
    AveragePool,
    AveragePoolGrad,
    GlobalAveragePool,
)
from .pooling.maximum import MaxPool, MaxPoolGrad
from .pooling.resize import Resize, ResizeGrad
from .pooling.roi_align import RoiAlign, RoiAlignGrad
from .printing import PrintTensor
from .products.convolution import AddBias, Conv, ConvInputGrad, ConvTranspose, ConvWeightGrad
from .products.float8 import (
    CastThenPow2Scale,
    ConvPow2Scaled,
    ConvTransposePow2Scaled,
    MatMulPow2Scaled,
    Pow2ScaleThenCast,
)
from .products.fp8_scale import Fp8Scale
from .products.group_quantize import GroupQuantizeDecompress
from .products.matmul import MatMul
from .products.multi_conv import Convolutions, MultiConvForward, MultiConvInputGrad, MultiConvWeightGrad
from .products.rotary import RotaryPosEmbed, RotaryPosEmbedGrad, RotaryPosEmbedHalves
from .products.triangular import Cholesky, TriangularSolve
from .randomness import (
    Dropout,
    DropoutGrad,
    ModifyRandomSeed,
    RandomInteger,
    RandomNormal,
    RandomUniform,
)
from .recurrent.backward import RecurrentGrad
from .recurrent.layer import Recurrent
from .reductions.axes_reduced import (
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
from .reductions.logarithms import ReduceLogSum, ReduceLogSumExp
from .selection.cumsum import CumSum
from .selection.dynamic import (
    DynamicIndexError,
    DynamicSlice,
    DynamicSlicePadGrad,
    DynamicUpdate,
    DynamicUpdateInplace,
    IncrementMod,
    IncrementModInplace,
)
from .selection.gather import Gather, GatherGrad, OneHot, TiedGather
from .selection.histogram import Histogram
from .selection.median import ReduceMedian, ReduceMedianGrad
from .selection.scatter import Scatter, ScatterReduce, ScatterReduceGrad, ScatterReduceInitialGrad
from .selection.topk import TopK
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
from .transfers.code_load import RemoteCodeLoad
from .transfers.collectives import (
    ReplicatedAllGather,
    ReplicatedAllReduce,
    ReplicatedAllReduceInplace,
    ReplicatedAllToAll,
    ReplicatedReduceScatter,
)
from .transfers.io_tile_copy import IoTileCopy
from .transfers.ipu_copy import IpuCopy
from .transfers.remote import RemoteEntryError, RemoteLoad, RemoteLoadInplace, RemoteStore
from .transfers.streams import HostLoad, HostStore
from .transfers.tensor_parallel import (
    ReplicatedAllGatherStrided,
    ReplicatedAllReduceStrided,
    ReplicatedAllReduceTP,
    ReplicatedReduceScatterStrided,
)
from .updates.accumulation import Accumulate, AccumulatorScale, AccumulatorZero, CopyVarUpdate
from .updates.adam import AdamUpdater, AdamVarUpdate
from .updates.grad_reduce import GradReduceSquareAdd
from .updates.scaled_add import ScaledAdd, ScaledAddLhsInplace
from .updates.sparse_accumulate import SparseAccumulate


def _op_classes() -> dict[str, type[Op]]:
    """The op classes that the modules of this room define, by name."""
    # The folder is read, so a new module needs no entry in a list.
    modules = [import_module(module_info.name) for module_info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    members = [(module, member) for module in modules for member in vars(module).values() if isinstance(member, type)]
    classes = [member for module, member in members if issubclass(member, Op) and member.__module__ == module.__name__]
    return {
        op_class.__name__: op_class for op_class in classes if op_class.type != Op.type and op_class.__name__[0] != "_"
    }


_OPS = _op_classes()
# Other rooms write `ops.Name`, whether or not the class is imported by name above.
globals().update(_OPS)

__all__ = ["DynamicIndexError", "Environment", "Kernel", "Op", "RemoteEntryError", "autodiff", *sorted(_OPS)]

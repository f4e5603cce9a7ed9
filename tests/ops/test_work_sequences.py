"""The vertices that ops ask for, in order and in place where PopART's and PopLibs' code works in place.

Sources: popart ``willow/src/popx/op/{erfx,nllx,softmaxx,batchnormx}.cpp``, poplibs ``lib/poplin/Norms.cpp`` and
``lib/popnn/NonLinearity.cpp``.
"""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ops.work import Reduction


def asked(op):
    """``scalar MULTIPLY!`` is a broadcast scalar in place."""
    kinds = {
        "UnaryOp1D": "unary", "BinaryOp1D": "binary", "BroadcastScalar1D": "scalar", "Reduce": "reduce",
        "BroadcastVectorOuter1D": "outer", "BroadcastVectorInner1D": "inner",
    }  # fmt: skip
    found = []
    for work in op.work():
        name, _, types = work.vertex.removesuffix(">").rpartition("::")[2].partition("<")
        plain = name.removesuffix("InPlace")
        changed = "!" if name != plain else ""
        found.append(f"{kinds[plain]} {types.split(',')[0]}{changed}" if plain in kinds else name)
    return ", ".join(found)


X, ONE, ROWS = (np.zeros(shape, np.float32) for shape in ((1, 64, 384), (1, 384), (1, 64)))
PROBS, LABELS, SCALAR = np.ones((1, 8, 10), np.float32), np.ones((1, 8), np.int32), np.ones((1,), np.float32)

#: A mean and an inverse deviation for each row (group) or column (channel); two sums in one pass, backward once for the
#: gradients of scale and offset and once for that of x. Values of columns are copied out for floats, so what combines
#: them is a plain binary vertex.
NORMALISED = {
    "group forward": (
        lambda bench: bench.op(ops.GroupNormalization, X, ONE, ONE, outputs=3, num_groups=1),
        "reduce ADD+SQUARE_ADD, scalar VARIANCE_TO_INV_STD_DEV, outer SUBTRACT, outer MULTIPLY!, binary MULTIPLY!, "
        "binary ADD!",
    ),
    "group backward": (
        lambda bench: bench.op(ops.GroupNormalizationGrad, X, ONE, ROWS, ROWS, X, outputs=3, num_groups=1),
        "outer SUBTRACT, outer MULTIPLY!, binary MULTIPLY, reduce ADD+ADD, "  # whitened; scale and offset
        "binary MULTIPLY, binary MULTIPLY, reduce ADD+ADD, outer MULTIPLY!, binary ADD!, outer ADD!, outer MULTIPLY!",
    ),
    "batch forward": (
        lambda bench: bench.op(ops.BatchNormalization, X, *[ONE] * 4, outputs=5),
        "reduce ADD+SQUARE_ADD, scalar VARIANCE_TO_INV_STD_DEV, binary MULTIPLY, Addend, binary MULTIPLY, binary ADD!, "
        "scalar INV_STD_DEV_TO_VARIANCE, RunningMean, RunningVariance",
    ),
    "batch backward": (
        lambda bench: bench.op(ops.BatchNormalizationGrad, X, ONE, ONE, ONE, X, outputs=3, frozen=False),
        "scalar VARIANCE_TO_INV_STD_DEV, binary SUBTRACT, binary MULTIPLY!, binary MULTIPLY, reduce ADD+ADD, "
        "binary MULTIPLY, binary MULTIPLY, reduce ADD+ADD, binary MULTIPLY!, binary ADD!, binary ADD!, "
        "binary MULTIPLY!",
    ),
    "batch backward, constant statistics": (
        lambda bench: bench.op(ops.BatchNormalizationGrad, X, ONE, ONE, ONE, X, outputs=3, frozen=True),
        "binary SUBTRACT, binary MULTIPLY!, binary MULTIPLY, reduce ADD+ADD, binary MULTIPLY, binary MULTIPLY",
    ),
}
HORNER = "scalar ADD!, binary MULTIPLY!, "
OTHERS = {
    "erf": (
        lambda bench: bench.op(ops.Erf, PROBS),
        "unary SIGNUM, unary ABSOLUTE, scalar MULTIPLY!, scalar ADD!, unary INVERSE!, scalar MULTIPLY, " + 4 * HORNER
        + "unary SQUARE, unary NEGATE!, unary EXPONENT!, binary MULTIPLY!, unary NEGATE!, scalar ADD!, "
        + "binary MULTIPLY!",
    ),
    "softmax": (
        lambda bench: bench.op(ops.Softmax, PROBS),
        "reduce MAX, outer SUBTRACT, unary EXPONENT!, reduce ADD, unary INVERSE!, outer MULTIPLY!",
    ),
    "softmax backward": (
        lambda bench: bench.op(ops.SoftmaxGrad, PROBS, PROBS),
        "binary MULTIPLY, reduce ADD, outer MULTIPLY, binary SUBTRACT!",
    ),
    "loss backward": (
        lambda bench: bench.op(ops.NllGrad, PROBS, LABELS, SCALAR, reduction="sum", ignore_index=None),
        "scalar MAXIMUM, EncodeOneHot, unary NEGATE!, binary DIVIDE!, scalar MULTIPLY!",
    ),
    "loss of logarithms": (
        lambda bench: bench.op(ops.Nll, PROBS, LABELS, reduction="sum", ignore_index=None, log_prob=True),
        "EncodeOneHot, binary MULTIPLY!, reduce ADD, reduce ADD",
    ),
    "loss of logarithms backward": (
        lambda bench: bench.op(ops.NllGrad, PROBS, LABELS, SCALAR, reduction="sum", ignore_index=None, log_prob=True),
        "EncodeOneHot, unary NEGATE!, scalar MULTIPLY!",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALISED | OTHERS)
def test_vertices_in_order(bench, name):
    make, wanted = (NORMALISED | OTHERS)[name]
    assert asked(make(bench)) == wanted


@pytest.mark.parametrize(("axis", "run"), [(0, 1), (1, 10)])
def test_neighbours_that_a_softmax_adds_up(bench, axis, run):
    """Ten columns: one sum has ten neighbours of a row, or one of each."""
    works = bench.op(ops.Softmax, PROBS, axis=axis).work()
    assert [work.run for work in works if isinstance(work, Reduction)] == [run, run]


@pytest.mark.parametrize("shape", [(8, 10), (8, 1)])
def test_a_softmax_has_a_sum_for_each_row(bench, shape):
    works = bench.op(ops.Softmax, np.ones((1, *shape), np.float32)).work()
    assert [work.outputs for work in works if isinstance(work, Reduction)] == [8, 8]


@pytest.mark.parametrize(
    ("op_class", "shape"),
    [(ops.Add, (3,)), (ops.Conv, (1, 2, 5, 5)), (ops.AddBias, (1, 2, 5, 5)), (ops.MatMul, (3, 3))],
)
def test_operands_are_counted(bench, op_class, shape):
    with pytest.raises(ValueError, match="needs 2 operands, got 1"):
        bench.op(op_class, np.zeros((1, *shape), np.float32))

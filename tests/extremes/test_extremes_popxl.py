"""Extreme operands of every PopXL op that computes, against NumPy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from extremes import FLOAT, Difference, check, differ, filled
from fuzzing.popxl.kinds.elementwise import UNARY

from ipuperf import popxl
from ipuperf.popxl import ops

SHAPE = (3, 4)
LABELS, EYE = np.array([0, 3, 1], np.int32), np.eye(4, dtype=np.float32)
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def norm_in_popxl(function: Callable[..., Any], *more: Any) -> Callable[..., Any]:
    def call(x: Any, _: Any) -> Any:
        one, zero = (popxl.constant(np.full(4, value), x.dtype) for value in (1, 0))
        return function(x, one, zero, *more)

    return call


def of_axis(name: str, function: Callable[..., Any]) -> Pair:
    return lambda x, _: getattr(ops, name)(x, axis=1), lambda x, _: function(x)


REDUCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    **{name: lambda x, n=name: getattr(np, n)(x, axis=1) for name in ("sum", "mean", "max", "min", "prod")},
    "sumsquare": lambda x: (x * x).sum(1),
    "l1": lambda x: np.abs(x).sum(1),
    "l2": lambda x: np.sqrt((x * x).sum(1)),
    "logsum": lambda x: np.log(x.sum(1)),
    "logsumexp": lambda x: np.logaddexp.reduce(x, 1),
}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum}
BINARY |= {"pow": np.power, "fmod": np.fmod, "equal": np.equal, "greater": np.greater}
UNLOGICAL = {name: function for name, function in UNARY.items() if name not in ("logical_not", "geluerf", "gelu")}
OPS: Mapping[str, Pair] = {
    **{name: (lambda x, _, n=name: getattr(ops, n)(x), lambda x, _, f=f: f(x)) for name, f in UNLOGICAL.items()},
    **{name: (getattr(ops, name), function) for name, function in BINARY.items()},
    **{name: of_axis(name, function) for name, function in REDUCTIONS.items()},
    "softmax": (lambda x, _: ops.softmax(x, -1), lambda x, _: softmax(x)),
    "swish": (lambda x, _: ops.swish(x), lambda x, _: x / (1 + np.exp(-x))),
    "clip": (lambda x, _: ops.clip(x, -2, 3), lambda x, _: np.clip(x, -2, 3)),
    "cumsum": (lambda x, _: ops.cumsum(x, 1), lambda x, _: np.cumsum(x, 1)),
    "argmax": (lambda x, _: ops.argmax(x, 1), lambda x, _: np.argmax(x, 1)),
    "argmin": (lambda x, _: ops.argmin(x, 1), lambda x, _: np.argmin(x, 1)),
    "median": (lambda x, _: ops.median(x, 1), lambda x, _: np.sort(x, 1)[:, 1]),
    "topk": (lambda x, _: ops.topk(x, 2, 1, True, True)[0], lambda x, _: np.sort(x, 1)[:, :1:-1]),
    "where": (lambda x, y: ops.where(ops.greater(x, y), x, y), lambda x, y: np.where(x > y, x, y)),
    "scaled_add": (lambda x, y: ops.scaled_add(x, y, 1.0, 0.5), lambda x, y: x + y * x.dtype.type(0.5)),
    "matmul": (lambda x, y: x @ ops.transpose(y), lambda x, y: x @ y.T),
    "layer_norm": (norm_in_popxl(ops.layer_norm), lambda x, _: normalised(x)),
    "group_norm": (norm_in_popxl(ops.group_norm, 1), lambda x, _: normalised(x)),
    "nll_loss": (
        lambda x, _: ops.nll_loss(ops.softmax(x, -1), popxl.constant(LABELS), reduction="none"),
        lambda x, _: np.logaddexp.reduce(x, 1) - x[np.arange(3), LABELS],
    ),
    "onehot": (
        lambda x, _: ops.onehot(popxl.constant(LABELS), popxl.constant(4, popxl.int32), x[0][1:3], 1),
        lambda x, _: np.where(EYE[LABELS] > 0, x[0, 2], x[0, 1]),
    ),
}
OTHERS: Mapping[str, str] = {
    "are other forms of ops": "add_ clamp exp_ gelu_ geluerf_ relu_ scaled_add_ swish_ nll_loss_with_softmax_grad",
    "move values and compute none": (
        "concat concat_ detach_ dynamic_slice dynamic_update dynamic_update_ flatten flatten_ gather groupedgather "
        "host_load host_store init io_tile_copy ipu_copy print_tensor remote_code_load remote_load remote_load_ "
        "remote_store rename reshape reshape_ scatter slice slice_ split squeeze subsample tied_gather "
        "transpose transpose_"
    ),
    "are sums and products of matmul's kind, or windows of reductions above": (
        "average_pool conv conv_transpose interpolate max_pool roi_align scatter_reduce batch_norm_inference "
        "lamb_square"
    ),
    "draw numbers, take whole numbers or bools": (
        "dropout shaped_dropout random_normal random_uniform split_random_seed histogram increment_mod increment_mod_ "
        "logical_and logical_not logical_or"
    ),
    "are casts, or of 8-bit floats (tests/popxl/test_popxl_float8.py)": (
        "cast conv_pow2scaled conv_transpose_pow2scaled matmul_pow2scaled pow2scale_cast_from_fp8 pow2scale_cast_to_fp8"
    ),
    "approximate a function (tests/ops/test_activations.py)": "gelu geluerf",
    "call graphs, or are no ops": (
        "CallSiteInfo PadType call call_with_info collectives conditional conditional_with_info repeat "
        "repeat_with_info var_updates"
    ),
}


def test_every_op_is_compared_or_says_why_not() -> None:
    others = {name for names in OTHERS.values() for name in names.split()}
    assert not others & set(OPS)
    assert others | set(OPS) == set(ops.__all__)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_extreme_operands_are_numpys(dtype: str) -> None:
    ir, kind_of = popxl.Ir(), getattr(popxl, dtype)
    with ir.main_graph, popxl.in_sequence(True):
        streams = [popxl.h2d_stream(SHAPE, kind_of) for _ in range(2)]
        operands = [ops.host_load(stream) for stream in streams]
        results = {}
        for name, (function, _) in OPS.items():
            tensor = function(*operands)
            results[name] = popxl.d2h_stream(tensor.shape, tensor.dtype)
            ops.host_store(results[name], tensor)
    found: set[Difference] = set()
    with popxl.Session(ir, "ipu_model") as session, np.errstate(all="ignore"):
        for kind in FLOAT:
            given = [filled(kind, np.empty(SHAPE, dtype), number) for number in range(2)]
            values = session.run(dict(zip(streams, given, strict=True)))
            for name, (_, oracle) in OPS.items():
                exact = np.asarray(oracle(*(array.astype(np.float64) for array in given)))
                single = np.asarray(oracle(*(array.astype(np.float32) for array in given)))
                reference = single.astype(values[results[name]].dtype)
                if differ(values[results[name]], reference, exact, rows=True):
                    found.add((name, kind, dtype, "values"))
    check("PopXL", [dtype], found)

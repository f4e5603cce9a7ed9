"""The ops of popxl.addons, and its functions of host arrays (``around`` is then ``host``)."""

import math
import random
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

from .base import Case, Drawn, shape_of
from .networks import FORMATS, SINGLE, _labelled, _nll, _nll_and_gradient, rounded8
from .special import REPLICAS

# -- losses, norms, embeddings -----------------------------------------------------------------------------------------


def _scaled_loss(r: random.Random) -> Drawn:
    operands, arguments = _labelled(r)
    return operands, {**arguments, "reduction": r.choice(["mean", "sum"]), "ignore_index": None, "loss_scaling": 8.0}


def _scaled_gradient(x: Any, labels: Any, loss_scaling: float, **arguments: Any) -> Any:
    loss, gradient = _nll_and_gradient(x, labels, **arguments)
    return loss, gradient * loss_scaling


def _turned(r: random.Random) -> Drawn:
    length, pairs = r.randint(1, 4), r.randint(1, 3)
    shape = [r.randint(1, 2), length, r.randint(1, 2), 2 * (pairs + r.randint(0, 1))]
    table = ["normal", [length, pairs], "any"]
    return [["normal", shape, "any"], table, table], {"rotary_dim": 2 * pairs}


def _rotated(x: Any, sin: Any, cos: Any, rotary_dim: int) -> Any:
    """Pairs of neighbours as complex numbers times another one."""
    turned = torch.view_as_complex(x[..., :rotary_dim].unflatten(-1, (-1, 2)).contiguous())
    turned = turned * torch.complex(cos, sin)[None, :, None]
    return torch.cat([torch.view_as_real(turned).flatten(-2), x[..., rotary_dim:]], -1)


def _tables(r: random.Random) -> Drawn:
    return [["normal", [], "any"]], {"seq_len": r.randint(1, 4), "rotary_dim": 2 * r.randint(1, 3), "base": 100}


def _angles(x: Any, seq_len: int, rotary_dim: int, base: int) -> Any:
    rates = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), rates)
    return angles.sin(), angles.cos()


# -- 8-bit and 4-bit numbers -------------------------------------------------------------------------------------------

LARGEST = {"float8_143": 240.0, "float8_152": 57344.0}


def _to_scale(r: random.Random) -> Drawn:
    return [["positive", shape_of(r, 1), "any"]], {"dtype": r.choice(list(FORMATS))}


def _scale(f: Any, x: Any, dtype: str) -> Any:
    return f(x, getattr(popxl, dtype))


def _least_error(got: list[Any], x: Any, dtype: str) -> Any:
    """What was found, unless another scale loses less."""

    def error(scale: int) -> float:
        scaled = (x * 2.0**scale).clamp(-LARGEST[dtype], LARGEST[dtype])
        return float(((rounded8(scaled, dtype) * 2.0**-scale - x) ** 2).mean())

    found = int(got[0])
    best = min(range(found - 4, found + 5), key=error)
    return torch.tensor(found if error(found) <= error(best) * 1.001 + 1e-12 else best)


def _groups(r: random.Random) -> Drawn:
    size, dim = 4 * r.randint(1, 3), r.choice([-1, 0, 1])
    shape = [r.randint(1, 3), size * r.randint(1, 3)]
    return [["normal", shape if dim else shape[::-1], "any"]], {"group_size": size, "dim": dim}


def _requantised(got: list[Any], x: Any, group_size: int, dim: int) -> Any:
    """What came back, unless a number is more than half a step away."""
    grouped = x.movedim(dim, -1).unflatten(-1, (-1, group_size))
    step = (grouped.amax(-1, keepdim=True) - grouped.amin(-1, keepdim=True)) / 15
    near = (got[0].movedim(dim, -1).reshape(grouped.shape) - grouped).abs() <= 0.51 * step + 4e-3 * grouped.abs().amax()
    return got[0] if bool(near.all()) else x


def _compressed(f: Any, x: Any, group_size: int, dim: int) -> Any:
    return addons.ops.group_quantize_decompress.group_quantize_decompress_numpy(*f(x, group_size, dim), dim)


def _there_and_back(f: Any, x: Any, group_size: int, dim: int) -> Any:
    return f(*addons.ops.group_quantize_decompress.group_quantize_compress_numpy(x, group_size, dim), dim)


def _on_the_ipu(r: random.Random) -> Drawn:
    groups, words = r.randint(1, 3), r.randint(1, 2)
    tables = [["normal", [2, groups, 1], "any"]] * 2
    return [["index", [2, groups, words], "uint16", 1 << 16], *tables], {"dim": r.choice([-1, 0, 1])}


def _unpacked(words: Any, scale: Any, bias: Any, dim: int) -> Any:
    numbers = torch.stack([words >> shift & 15 for shift in (12, 8, 4, 0)], -1).flatten(-2)
    return (numbers * scale + bias).reshape(len(words), -1).movedim(-1, dim)


# -- replicas ----------------------------------------------------------------------------------------------------------


def _one(r: random.Random) -> Drawn:
    return [["normal", shape_of(r, 1), "any"]], {}


def _even(r: random.Random) -> Drawn:
    return [["normal", [REPLICAS * r.randint(1, 4)], "any"]], {}


def _total(xs: list[Any]) -> list[Any]:
    return [sum(xs)] * len(xs)


def _classes(r: random.Random) -> Drawn:
    samples, classes = r.randint(1, 4), r.randint(1, 3)
    labels = [r.randrange(REPLICAS * classes) for _ in range(samples)]
    operands = [["normal", [samples, classes], "any"], ["fixed", [samples], "int32", labels]]
    return operands, {"reduction": r.choice(["mean", "sum", "none"])}


def _sharded_loss(f: Any, x: Any, labels: Any, reduction: str) -> Any:
    """Labels less the number of the replica's first class."""
    firsts = popxl.constant([i * x.shape[1] for i in range(REPLICAS)], popxl.int32)
    return f(x, labels - ops.collectives.replica_sharded_slice(firsts), reduction=reduction)


def _whole_loss(xs: list[Any], labels: list[Any], reduction: str) -> list[Any]:
    return [torch.nn.functional.cross_entropy(torch.cat(xs, 1), labels[0], reduction=reduction)] * len(xs)


def _rows(r: random.Random) -> Drawn:
    width = r.randint(3, 6)
    return [["normal", shape, "any"] for shape in ([r.randint(1, 4), width], [width], [width])], {"epsilon": 1e-5}


def _norm(xs: list[Any], ws: list[Any], bs: list[Any], epsilon: float) -> list[Any]:
    width = len(xs) * xs[0].shape[1]
    whole = torch.nn.functional.layer_norm(torch.cat(xs, 1), (width,), torch.cat(ws), torch.cat(bs), epsilon)
    return list(whole.chunk(len(xs), 1))


def _across(draw: Any, oracle: Any, build: Any = None, **more: Any) -> Case:
    more = {"gradient": False, "around": ("stream",), "across": True, "dtypes": ("float32",), **more}
    return Case(draw, oracle, **({} if build is None else {"build": build}), **more)


def _gathered(f: Any, x: Any) -> Any:
    return f(addons.reduce_replica_sharded_tensor(x))


# -- host arrays -------------------------------------------------------------------------------------------------------


def _pieces(r: random.Random, axes: int = 1) -> tuple[list[int], list[int], list[int]]:
    """A shape, some of its axes, and into how many pieces each of them is cut."""
    shape = shape_of(r, axes, 3)
    chosen = r.sample(range(len(shape)), axes)
    counts = [r.randint(1, 3) for _ in chosen]
    for axis, count in zip(chosen, counts):
        shape[axis] = count * r.randint(1, 3)
    return shape, [r.choice([a, a - len(shape)]) for a in chosen], counts


def _cut(r: random.Random) -> Drawn:
    shape, (axis,), (n,) = _pieces(r)
    return [["normal", shape, "any"]], {"n": n, "axis": axis}


def _cut_twice(r: random.Random) -> Drawn:
    shape, axes, counts = _pieces(r, 2)
    return [["normal", shape, "any"]], {"n_1": counts[0], "n_2": counts[1], "axis_1": axes[0], "axis_2": axes[1]}


def _in_rows(x: Any, n_1: int, n_2: int, axis_1: int, axis_2: int) -> list[list[Any]]:
    return [list(part.chunk(n_2, axis_2)) for part in x.chunk(n_1, axis_1)]


def _shards(x: Any, **arguments: Any) -> Any:
    return torch.stack([piece for row in _in_rows(x, **arguments) for piece in row])


def _copies(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    return [["normal", shape, "any"]], {"n": r.randint(1, 3), "axis": r.randrange(len(shape))}


def _repeated_shards(r: random.Random) -> Drawn:
    operands, arguments = _cut(r)
    kind = r.choice(["contiguous", "strided"])
    return operands, {"n_repeats": r.randint(1, 3), "n_shards": arguments["n"], "shard_axis": arguments["axis"],
                      "sharded_tensor": kind}  # fmt: skip


def _shards_repeated(x: Any, n_repeats: int, n_shards: int, shard_axis: int, sharded_tensor: str) -> Any:
    shards = torch.stack(x.chunk(n_shards, shard_axis))
    order = list(range(n_shards)) * n_repeats
    return shards[order if sharded_tensor == "contiguous" else sorted(order)]


def _parallel(r: random.Random) -> Drawn:
    tp, groups, transfers = r.randint(1, 2), r.randint(1, 2), r.randint(1, 3)
    return [["normal", [transfers * groups, 2, 3], "any"]], {"tp": tp, "rf": tp * groups}


def _for_replicas(x: Any, tp: int, rf: int) -> Any:
    """Neighbouring replicas get the same; axes of one are left out."""
    whole = x.reshape(-1, rf // tp, 1, 2, 3).expand(-1, -1, tp, -1, -1).reshape(-1, rf, 2, 3)
    return whole.reshape([n for n in whole.shape[:2] if n > 1] + [2, 3])


def _padding(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis = r.randrange(-len(shape), len(shape))
    return [["normal", shape, "any"]], {"n": shape[axis] + r.randint(0, 3), "axis": axis, "value": 1.5}


def _padded(x: Any, n: int, axis: int, value: float) -> Any:
    more = list(x.shape)
    more[axis] = n - x.shape[axis]
    return torch.cat([x, torch.full(more, value, dtype=x.dtype)], axis)


def _maybe_ones(r: random.Random) -> Drawn:
    shape = [r.choice([1, 2]) for _ in range(r.randint(1, 4))]
    return [["normal", shape, "any"]], {"axis": r.choice([None, r.randrange(len(shape)), list(range(len(shape) - 1))])}


def _without(x: Any, axis: Any) -> Any:
    axes = range(x.dim()) if axis is None else [axis] if isinstance(axis, int) else axis
    return x.reshape([n for i, n in enumerate(x.shape) if n > 1 or i not in axes])


def _host(draw: Any, oracle: Any, build: Any = None, **more: Any) -> Case:
    named = {} if build is None else {"build": build}
    return Case(draw, oracle, gradient=False, around=("host",), dtypes=("float32",), **named, **more)


def _flat(f: Any, x: Any, **arguments: Any) -> Any:
    return [piece for row in f(x, **arguments) for piece in row]


def _back(cut: Any) -> Any:
    """A function that puts together what ``cut`` has cut."""
    return lambda f, x, **arguments: f(cut(torch.tensor(x), **arguments).numpy(), **arguments)


HOST = {
    "shard": _host(_cut, lambda x, n, axis: torch.stack(x.chunk(n, axis))),
    "unshard": _host(_cut, lambda x, n, axis: x, lambda f, x, n, axis: f(addons.shard(x, n, axis), axis)),
    "unshard_arrays": _host(
        _cut, lambda x, n, axis: x, lambda f, x, n, axis: f(np.split(addons.shard(x, n, axis), n), axis)
    ),
    "shard2D": _host(_cut_twice, _shards),
    "unshard2D": _host(_cut_twice, lambda x, **arguments: x, _back(_shards)),
    "split2D": _host(_cut_twice, lambda x, **a: [piece for row in _in_rows(x, **a) for piece in row], _flat),
    "repeat": _host(_copies, lambda x, n, axis: torch.stack([x] * n, axis)),
    "repeat_axis": _host(_copies, lambda x, n, axis: torch.cat([x] * n, axis)),
    "repeat_shard": _host(_repeated_shards, _shards_repeated),
    "tensor_parallel_input": _host(_parallel, _for_replicas),
    "pad_axis": _host(_padding, _padded),
    "squeeze_safe": _host(_maybe_ones, _without),
    "handle_negative_axis": _host(
        lambda r: (_cut(r)[0], {"axis": -1}), lambda x, axis: torch.tensor(x.dim() - 1),
    ),
    "ops.group_quantize_decompress.group_quantize_compress_numpy": _host(
        _groups, _requantised, _compressed, random=True
    ),
    "ops.group_quantize_decompress.group_quantize_decompress_numpy": _host(
        _groups, _requantised, _there_and_back, random=True
    ),
}  # fmt: skip

_TP, _STRIDED = "ops.replicated_all_reduce_TP", "ops.replicated_strided_collectives"
OPS = {
    "cross_entropy": Case(_labelled, _nll, dtypes=SINGLE),
    "cross_entropy_with_grad": Case(_scaled_loss, _scaled_gradient, gradient=False, dtypes=("float32",)),
    "ops.rotary_pos_embed.rotary_pos_embed": Case(_turned, _rotated, gradient=False, dtypes=("float32", "float16")),
    "ops.rotary_pos_embed.trig_table_constants": Case(
        _tables, _angles, lambda f, x, **arguments: f(**arguments), gradient=False, dtypes=("float32",),
        around=("main", "constants"),
    ),
    "ops.grad_reduce_square_add.grad_reduce_square_add": Case(
        lambda r: (_one(r)[0], {"loss_scaling": 4.0}), lambda x, loss_scaling: ((x / loss_scaling) ** 2).sum(),
        gradient=False, dtypes=("float32", "float16"),
    ),
    "ops.linear_layout.linear_layout": Case(
        lambda r: (_one(r)[0], {"bs": r.randint(1, 4)}), lambda x, bs: x, dtypes=("float32", "float16"), gradient=False
    ),
    "fp8_amax_scale": Case(
        _to_scale, lambda x, dtype: torch.tensor(math.floor(math.log2(LARGEST[dtype] / float(x.max())))), _scale,
        gradient=False, dtypes=("float32", "float16"),
    ),
    "ops.fp8_mse_scale.fp8_mse_scale": Case(
        _to_scale, _least_error, _scale, gradient=False, dtypes=("float32", "float16"), random=True
    ),
    "ops.group_quantize_decompress.group_quantize_decompress": Case(
        _on_the_ipu, _unpacked, gradient=False, dtypes=("float16",)
    ),
    "print_tensor": Case(_one, lambda x: x, gradient=False, dtypes=("float32",)),
    "null_context": Case(_one, lambda x: x, lambda f, x: _within(f, x), dtypes=("float32",)),
    "reduce_replica_sharded_tensor": _across(_even, lambda xs: list(sum(xs).chunk(len(xs)))),
    "gather_replica_sharded_tensor": _across(_even, _total, _gathered),
    "ops.cross_entropy_sharded_loss.cross_entropy_sharded_loss": _across(_classes, _whole_loss, _sharded_loss),
    "ops.layer_norm_distributed.layer_norm_distributed": _across(_rows, _norm, rounding=20),
    f"{_TP}.replicated_all_reduce": _across(_one, _total),
    f"{_TP}.replicated_all_reduce_identical_inputs": _across(_one, lambda xs: xs),
    f"{_TP}.replicated_all_reduce_identical_grad_inputs": _across(_one, _total),
    f"{_STRIDED}.replicated_all_reduce_strided": _across(_one, _total),
    f"{_STRIDED}.replicated_reduce_scatter_strided": _across(_even, lambda xs: list(sum(xs).chunk(len(xs)))),
    f"{_STRIDED}.replicated_all_gather_strided": _across(_even, lambda xs: [torch.cat(xs)] * len(xs)),
}  # fmt: skip


def _within(f: Any, x: Any) -> Any:
    with f():
        return x * 1.0


CASES = {**HOST, **OPS}

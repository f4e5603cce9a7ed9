"""Random numbers, collectives, transforms: ops whose value depends on more than the operands of one replica."""

import random
from collections.abc import Sequence
from typing import Any

import torch

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from .base import Case, Drawn, shape_of

# -- random numbers ----------------------------------------------------------------------------------------------------


def _seeded(r: random.Random) -> Drawn:
    return [["seed", [2], "uint32"]], {"shape": shape_of(r, 0, 3, 8), "dtype": r.choice(["float32", "float16"])}


def _uniform(r: random.Random) -> Drawn:
    operands, arguments = _seeded(r)
    low = round(r.uniform(-2, 2), 1)
    return operands, {**arguments, "low": low, "high": low + r.choice([0.5, 1.0, 3.0])}


def _normal(r: random.Random) -> Drawn:
    operands, arguments = _seeded(r)
    return operands, {**arguments, "mean": round(r.uniform(-2, 2), 1), "std": r.choice([0.5, 1.0, 2.0])}


def _thrice(f: Any, seed: Any, dtype: str, **arguments: Any) -> Any:
    """Numbers of a seed, again of the same one, and of another, by one op that is called three times."""
    graph = popxl.gir().create_graph(lambda s: f(s, dtype=getattr(popxl, dtype), **arguments), seed)
    other = ops.add(seed, popxl.constant([1, 0], popxl.uint32))
    return tuple(ops.call(graph, s)[0] for s in (seed, seed, other))


def _distributed(got: list[Any], centre: float, deviation: float) -> Any:
    """What was drawn, unless a mean is six deviations off, or seeds do not say what the numbers are."""
    first, _, other = got
    limit = 6 * deviation / first.numel() ** 0.5 + 2e-3
    sound = all(abs(float(x.mean()) - centre) <= limit for x in (first, other))
    different = first.numel() < 4 or not torch.equal(first, other)
    return (first, first, other) if sound and different else (first * torch.nan,) * 3


def _is_uniform(got: list[Any], seed: Any, shape: Any, dtype: str, low: float, high: float) -> Any:
    inside = all(bool(((x >= low - 2e-3) & (x <= high + 2e-3)).all()) for x in got)
    return _distributed(got, (low + high) / 2, (high - low) / 12**0.5 if inside else 0.0)


def _is_normal(got: list[Any], seed: Any, shape: Any, dtype: str, mean: float, std: float) -> Any:
    return _distributed(got, mean, std)


def _dropped(r: random.Random) -> Drawn:
    rate = r.choice([0.0, 0.25, 0.5])
    return [["positive", shape_of(r, 1, 3, 8), "any"], ["seed", [2], "uint32"]], {"p": rate}


def _kept(got: list[Any], x: Any, seed: Any, p: float) -> Any:
    """What was kept is scaled; its share is that of the probability."""
    kept = got[0] != 0
    if abs(float(kept.double().mean()) - (1 - p)) > 6 * (p * (1 - p) / kept.numel()) ** 0.5 + 1e-6:
        return x * torch.nan
    return x * kept / (1 - p)


def _shaped(r: random.Random) -> Drawn:
    operands, arguments = _dropped(r)
    shape = [n if r.random() < 0.5 else 1 for n in operands[0][1]]
    return operands, {"ratio": arguments["p"], "shape": shape[r.randint(0, len(shape) - 1) :]}


def _kept_together(got: list[Any], x: Any, seed: Any, shape: Any, ratio: float) -> Any:
    """Elements that share a place of ``shape`` share their fate."""
    kept = got[0] != 0
    full = [1] * (x.dim() - len(shape)) + shape
    common = kept[tuple(slice(0, 1) if n == 1 else slice(None) for n in full)]
    return x * common / (1 - ratio)


def _split_seeds(got: list[Any], seed: Any, n: int) -> Any:
    pairs = {tuple(g.tolist()) for g in got}
    return tuple(got) if len(pairs) == n and tuple(seed.tolist()) not in pairs else tuple(g + 1 for g in got)


RANDOM = {
    "random_uniform": Case(_uniform, _is_uniform, _thrice, gradient=False, random=True),
    "random_normal": Case(_normal, _is_normal, _thrice, gradient=False, random=True),
    "dropout": Case(_dropped, _kept, random=True),
    "shaped_dropout": Case(_shaped, _kept_together, random=True),
    "split_random_seed": Case(
        lambda r: ([["seed", [2], "uint32"]], {"n": r.randint(1, 5)}), _split_seeds, gradient=False, random=True
    ),
}

# -- collectives -------------------------------------------------------------------------------------------------------

REPLICAS = 2
COMBINED = {"add": sum, "mean": lambda x: sum(x) / len(x), "max": lambda x: torch.stack(x).amax(0),
            "min": lambda x: torch.stack(x).amin(0)}  # fmt: skip


def _with_op(r: random.Random) -> Drawn:
    return [["distinct", shape_of(r, 1), "any"]], {"op": r.choice(list(COMBINED))}


def _reduced(xs: list[Any], op: str) -> list[Any]:
    return [COMBINED[op](xs)] * len(xs)


def _even(r: random.Random) -> Drawn:
    return [["distinct", [REPLICAS * r.randint(1, 4)], "any"]], {"op": r.choice(["add", "max"])}


def _scattered(xs: list[Any], op: str) -> list[Any]:
    return list(COMBINED[op](xs).chunk(len(xs)))


def _whole(r: random.Random) -> Drawn:
    return [["normal", [REPLICAS * r.randint(1, 4)], "any"]], {}


def _cut_along(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis = r.randrange(len(shape))
    shape[axis] = REPLICAS * r.randint(1, 3)
    return [["normal", shape, "any"]], {"axis": axis}


def _parts_along(xs: Sequence[Any], axis: int) -> list[Any]:
    """A part of one row loses its axis, and what is first then stands there (upstream's transposes leave it so)."""
    parts = [x.chunk(len(xs), axis)[i] for i, x in enumerate(xs)]
    if parts[0].shape[axis] > 1:
        return parts
    rows = [part.squeeze(axis) for part in parts]
    return [row.movedim(0, min(axis, row.dim() - 1)) if axis else row for row in rows]


def _gathered_along(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    return [["normal", shape, "any"]], {"axis": r.randrange(len(shape))}


def _between_ipus(r: random.Random) -> Drawn:
    shape, count = shape_of(r), r.choice([2, 2, 4])
    return [["distinct", shape, "any"] for _ in range(count)], {"op": r.choice(["add", "max"])}


def _all_reduce(f: Any, *tensors: Any, op: str) -> Any:
    """Each operand stands on an IPU of its own, and so do the results."""
    spread = [ops.ipu_copy(t, i, 0) if i else t for i, t in enumerate(tensors)]
    results = f(spread, list(range(len(spread))), op)
    return tuple(ops.ipu_copy(t, 0, i) if i else t for i, t in enumerate(results))


def _replicated(draw: Any, oracle: Any, build: Any = None, **more: Any) -> Case:
    named = {} if build is None else {"build": build}
    return Case(
        draw, oracle, gradient=False, around=("stream",), across=True, dtypes=("float32", "float16"), **named, **more
    )


COLLECTIVES = {
    "replicated_all_reduce": _replicated(_with_op, _reduced),
    "replicated_all_reduce_": _replicated(_with_op, _reduced),
    "replicated_reduce_scatter": _replicated(_even, _scattered),
    "replica_sharded_slice": _replicated(_whole, lambda xs: [x.chunk(len(xs))[i] for i, x in enumerate(xs)]),
    "replicated_slice": _replicated(_cut_along, _parts_along),
    "replicated_all_gather": _replicated(_gathered_along, lambda xs, axis: [torch.cat(xs, axis)] * len(xs)),
    "all_reduce": Case(
        _between_ipus, lambda *x, op: (COMBINED[op](x),) * len(x), _all_reduce, gradient=False, around=("main", "call"),
    ),
}  # fmt: skip

# -- transforms --------------------------------------------------------------------------------------------------------


def _several(r: random.Random) -> Drawn:
    shape = shape_of(r)
    return [["normal", shape, "any"] for _ in range(r.randint(2, 4))], {}


def _exchanged(f: Any, *tensors: Any) -> Any:
    """All go to remote buffers and come back in one exchange."""
    buffers = [popxl.remote_buffer(t.shape, t.dtype, 1) for t in tensors]
    with f():
        for buffer, tensor in zip(buffers, tensors, strict=True):
            ops.remote_store(buffer, 0, tensor)
    with f():
        return tuple(ops.remote_load(buffer, 0) for buffer in buffers)


def _decomposed(f: Any, *tensors: Any) -> Any:
    """The gradient of a tensor that is used so many times is a sum of as many."""
    ir = popxl.gir()
    graph = ir.create_graph(lambda x, *others: _used_by_all(x, others), *tensors)
    info = popxl.transforms.autodiff(graph, grads_required=graph.inputs[:1])
    graph = f(info.graph)
    site = ops.call_with_info(info.forward_graph, *tensors)
    ones = popxl.constant(torch.ones(site.outputs[0].shape).numpy(), tensors[0].dtype)
    return ops.call(graph, ones, inputs_dict=info.inputs_dict(site))[0]


def _used_by_all(x: Any, others: Any) -> Any:
    value = x
    for other in others:
        value = value + x * other
    return value


TRANSFORMS = {
    "merge_exchange": Case(_several, lambda *x: x, _exchanged, gradient=False, around=("main", "stream")),
    "decompose_sum": Case(_several, lambda x, *others: 1 + sum(others), _decomposed, gradient=False, around=("main",)),
}
CASES = {
    **RANDOM,
    **{f"collectives.{name}": case for name, case in COLLECTIVES.items()},
}

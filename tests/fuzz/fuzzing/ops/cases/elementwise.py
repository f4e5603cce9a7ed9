"""Element-wise ops, reductions, casts."""

import random
from typing import Any

import torch

import ipuperf.popxl as popxl

from .base import ANY, FLOATS, NUMBERS, SIGNED, Case, Drawn, axes_of, broadcast_pair, in_place, one, shape_of, twice

F = torch.nn.functional


def _tanh_gelu(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


UNARY = {
    "abs": Case(one(), torch.abs, dtypes=SIGNED),
    "negate": Case(one(), torch.neg, dtypes=SIGNED),
    "sign": Case(one("halves"), torch.sign, dtypes=SIGNED, gradient=False),
    "ceil": Case(one("halves"), torch.ceil, gradient=False),
    "floor": Case(one("halves"), torch.floor, gradient=False),
    "cos": Case(one(), torch.cos),
    "sin": Case(one(), torch.sin),
    "tanh": Case(one(), torch.tanh),
    "exp": Case(one(), torch.exp),
    "log": Case(one("positive"), torch.log),
    "log2": Case(one("positive"), torch.log2),
    "sqrt": Case(one("positive"), torch.sqrt),
    "relu": Case(one(), F.relu),
    "gelu": Case(one(), _tanh_gelu),
    "geluerf": Case(one(), F.gelu),
    "swish": Case(one(), F.silu),
    "isfinite": Case(one("special"), torch.isfinite, gradient=False),
    "isinf": Case(one("special"), torch.isinf, gradient=False),
    "isnan": Case(one("special"), torch.isnan, gradient=False),
    "logical_not": Case(one(), torch.logical_not, gradient=False, dtypes=("bool",)),
    "detach": Case(one(), torch.clone, gradient=False, dtypes=ANY),
    "identity": Case(one(), torch.clone, dtypes=ANY),
    "rename": Case(one(), torch.clone, dtypes=ANY),
    "print_tensor": Case(one(), torch.clone, lambda f, x: f(x, "seen"), gradient=False),
    "lamb_square": Case(one(low=1), lambda x: (x * x).sum(), gradient=False, dtypes=("float32",)),
    **{f"{name}_": Case(one(), twice(oracle), in_place, gradient=False) for name, oracle in (
        ("exp", torch.exp), ("gelu", _tanh_gelu), ("geluerf", F.gelu), ("relu", F.relu), ("swish", F.silu),
        ("detach", torch.clone))},
}  # fmt: skip


def _pair(first: str = "normal", second: str = "normal") -> Any:
    def draw(r: random.Random) -> Drawn:
        a, b = broadcast_pair(r)
        return [[first, a, "any"], [second, b, "any"]], {}

    return draw


def _into_first(r: random.Random) -> Drawn:
    a = shape_of(r)
    return [["normal", a, "any"], ["normal", a[r.randint(0, len(a)) :], "any"]], {}


def _quotient(x: Any, y: Any) -> Any:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


BINARY = {
    "add": Case(_pair(), torch.add, dtypes=NUMBERS, hostable=(0, 1)),
    "sub": Case(_pair(), torch.sub, dtypes=SIGNED, hostable=(0, 1)),
    "mul": Case(_pair(), torch.mul, dtypes=NUMBERS, hostable=(0, 1)),
    "div": Case(_pair(second="positive"), _quotient, dtypes=(*FLOATS, "int32", "uint32"), hostable=(0, 1)),
    "fmod": Case(_pair("halves", "positive"), torch.fmod, dtypes=("float32", "int32"), gradient=False, hostable=(1,)),
    "pow": Case(_pair("positive"), torch.pow, hostable=(0, 1)),
    "equal": Case(_pair("halves", "halves"), torch.eq, dtypes=ANY, gradient=False, hostable=(0, 1)),
    "greater": Case(_pair("halves", "halves"), torch.gt, dtypes=NUMBERS, gradient=False, hostable=(0, 1)),
    "logical_and": Case(_pair(), torch.logical_and, dtypes=("bool",), gradient=False, hostable=(0, 1)),
    "logical_or": Case(_pair(), torch.logical_or, dtypes=("bool",), gradient=False, hostable=(0, 1)),
    "add_": Case(_into_first, twice(torch.add), in_place, dtypes=NUMBERS, gradient=False, hostable=(1,)),
}


def _largest(*tensors: Any) -> Any:
    value = tensors[0]
    for other in tensors[1:]:
        value = torch.maximum(value, other)
    return value


def _several(r: random.Random) -> Drawn:
    a, b = broadcast_pair(r)
    return [["normal", r.choice([a, b]), "any"] for _ in range(r.randint(1, 4))], {}


def _choice(r: random.Random) -> Drawn:
    a, b = broadcast_pair(r)
    return [["normal", r.choice([a, b]), "bool"], ["normal", a, "any"], ["normal", b, "any"]], {}


def _limits(r: random.Random) -> Drawn:
    low, high = round(r.uniform(-1.5, 0), 2), round(r.uniform(0.1, 1.5), 2)
    return [["normal", shape_of(r), "any"]], r.choice([{"min": low, "max": high}, {"min": low}, {"max": high}])


def _another_dtype(r: random.Random) -> Drawn:
    return [["halves", shape_of(r), "any"]], {
        "to": r.choice(["float16", "float32", "float64", "int8", "int32", "int64"])
    }


def _cast(x: Any, to: str) -> Any:
    return x.to(torch.float64) if to.startswith("float") else x.to(torch.int64)


CHOOSING = {
    "maximum": Case(_several, _largest, dtypes=("float32", "float64"), hostable=(1,)),
    "where": Case(_choice, torch.where, dtypes=NUMBERS, hostable=(1, 2)),
    **{name: Case(_limits, torch.clamp) for name in ("clip", "clamp")},
    "cast": Case(_another_dtype, _cast, lambda f, x, to: f(x, getattr(popxl, to)), gradient=False, dtypes=SIGNED),
}


def _reduced(role: str = "normal") -> Any:
    def draw(r: random.Random) -> Drawn:
        shape = shape_of(r)
        return [[role, shape, "any"]], {"axis": axes_of(r, len(shape)), "keepdims": r.random() < 0.5}

    return draw


def _axes(x: Any, axis: Any) -> list[int]:
    axis = range(x.dim()) if axis is None else [axis] if isinstance(axis, int) else axis
    return sorted(a % x.dim() for a in axis)


def _over(function: Any) -> Any:
    """``function(x, axes, keepdims)``; of no axis at all, the value of an axis of one."""

    def reduced(x: Any, axis: Any, keepdims: bool) -> Any:
        axes = _axes(x, axis)
        return function(x, axes, keepdims) if axes else function(x[None], [0], False)

    return reduced


def _flat(function: Any) -> Any:
    """A function of one axis, of the axes flattened."""

    def reduced(x: Any, axes: list[int], keepdims: bool) -> Any:
        rest = [i for i in range(x.dim()) if i not in axes]
        value = function(x.permute(*rest, *axes).reshape(*[x.shape[i] for i in rest], -1))
        return value.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]) if keepdims else value

    return reduced


REDUCING = {
    "sum": Case(_reduced(), _over(torch.sum), dtypes=(*FLOATS, "int32", "int64")),
    "mean": Case(_reduced(), _over(torch.mean)),
    "max": Case(_reduced("distinct"), _over(torch.amax), dtypes=(*FLOATS, "int32")),
    "min": Case(_reduced("distinct"), _over(torch.amin), dtypes=(*FLOATS, "int32")),
    "prod": Case(_reduced(), _over(_flat(lambda x: x.prod(-1))), gradient=False),
    "l1": Case(_reduced(), _over(lambda x, d, k: x.abs().sum(d, k))),
    "l2": Case(_reduced(), _over(lambda x, d, k: (x * x).sum(d, k).sqrt())),
    "sumsquare": Case(_reduced(), _over(lambda x, d, k: (x * x).sum(d, k))),
    "logsum": Case(_reduced("positive"), _over(lambda x, d, k: x.sum(d, k).log())),
    "logsumexp": Case(_reduced(), _over(torch.logsumexp)),
    "median": Case(_reduced("distinct"), _over(_flat(lambda x: x.median(-1)[0]))),
}


def _along(role: str, **more: Any) -> Any:
    def draw(r: random.Random) -> Drawn:
        shape = shape_of(r, 1)
        chosen = {key: r.choice(values) for key, values in more.items()}
        return [[role, shape, "any"]], {"dim": r.randrange(-len(shape), len(shape)), **chosen}

    return draw


def _softmax(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    return [["normal", shape, "any", r.choice([1.0, 20.0])]], {"axis": r.randrange(-len(shape), len(shape))}


ALONG = {
    "argmax": Case(_along("distinct", keepdim=[True, False]), torch.argmax, gradient=False),
    "argmin": Case(_along("distinct", keepdim=[True, False]), torch.argmin, gradient=False),
    "cumsum": Case(_along("normal"), torch.cumsum),
    "softmax": Case(_softmax, lambda x, axis: torch.softmax(x, axis)),
}

CASES = {**UNARY, **BINARY, **CHOOSING, **REDUCING, **ALONG}

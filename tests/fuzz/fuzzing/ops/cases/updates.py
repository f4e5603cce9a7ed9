"""Updates of variables, scaled sums, counters."""

import random
from collections.abc import Callable
from typing import Any

import torch

from .base import AROUND, Case, Drawn, in_place, shape_of, twice

WEIGHTS = ("float32", "float32", "float16")
ADDED = ("any", "any", "float32", "float16", "int32", "uint32", "int16", "int8", "uint8")
COUNTING = tuple(place for place in AROUND if place != "constants")
"""A time step is changed in place."""


def _number(r: random.Random, low: float, high: float) -> float:
    return round(r.uniform(low, high), 2)


def _scaled(r: random.Random) -> Drawn:
    shape = shape_of(r)
    factors = {side: _number(r, -1, 1) for side in r.choice(["a", "b", "ab", ""])}
    return [["normal", shape, "any"], ["normal", shape, "any"]], factors


def _sum(x: Any, y: Any, a: float = 1.0, b: float = 1.0) -> Any:
    return a * x + b * y


def _counter(r: random.Random) -> Drawn:
    modulus = r.randint(2, 5)
    return [["index", shape_of(r), "any", modulus]], {"increment": float(r.randint(1, 3)), "modulus": float(modulus)}


def _accumulator(key: str) -> Callable[[random.Random], Drawn]:
    """What is added may have another dtype. The factor is a number, or a tensor, which is then the last operand."""

    def draw(r: random.Random) -> Drawn:
        shape, factor = shape_of(r), _number(r, 0.1, 0.9)
        operands = [["normal", shape, "any"], ["normal", shape, r.choice(ADDED)]]
        if r.random() < 0.5:
            return [*operands, ["fixed", [], "float32", factor]], {}
        return operands, {key: factor}

    return draw


def _sparse(r: random.Random) -> Drawn:
    shape = [r.randint(1, 5), r.randint(1, 4)]
    count = r.randint(1, 6)
    index = ["index", [count], r.choice(["int32", "uint32"]), shape[0]]
    return [["normal", shape, "any"], ["normal", [count, shape[1]], "any"], index], {"f": _number(r, -1, 1)}


def _moments(*, corrected: bool) -> Callable[[random.Random], Drawn]:
    def draw(r: random.Random) -> Drawn:
        shape = shape_of(r)
        operands = [["normal", shape, "float32"], ["positive", shape, "float32"]]
        arguments: dict[str, Any] = {"epsilon": 0.1, "decayed": r.random() < 0.5}
        arguments["corrected"] = corrected or r.random() < 0.5
        if arguments["decayed"]:
            operands.append(["normal", shape, "float32"])
            arguments["weight_decay"] = _number(r, 0.05, 0.2)
        if arguments["corrected"]:
            operands.append(["fixed", [], "float32", r.randint(0, 4)])
        return operands, arguments

    return draw


BETAS = {"beta1": 0.75, "beta2": 0.875}


def _update(*, adamax: bool = False) -> Callable[..., Any]:
    """The updater of tensors in the order moments, weight, time step."""

    def build(f: Any, *tensors: Any, decayed: bool, corrected: bool, **arguments: Any) -> Any:
        names = ["acc_first_order", "acc_second_order", *["weight"] * decayed, *["time_step"] * corrected]
        rates = {"beta1": BETAS["beta1"]} if adamax else BETAS if corrected else {}
        return f(**dict(zip(names, tensors, strict=True)), **rates, **arguments)

    return build


def _updater(
    m: Any, v: Any, *more: Any, epsilon: float, decayed: bool, corrected: bool, weight_decay: float = 0.0
) -> Any:
    if corrected:
        step = more[-1] + 1
        m, v = m / (1 - BETAS["beta1"] ** step), v / (1 - BETAS["beta2"] ** step)
    value = m / (v.sqrt() + epsilon)
    return value + weight_decay * more[0] if decayed else value


def _infinity(
    m: Any, v: Any, *more: Any, epsilon: float, decayed: bool, corrected: bool, weight_decay: float = 0.0
) -> Any:
    value = m / (1 - BETAS["beta1"] ** (more[-1] + 1)) / (v + epsilon)
    return value + weight_decay * more[0] if decayed else value


def _trusted(r: random.Random) -> Drawn:
    shape = shape_of(r)
    squares = [["fixed", [], "float32", r.choice([0.0, 0.25, 2.0])] for _ in range(2)]
    arguments = {"learning_rate": _number(r, 0.1, 0.9), "max_weight_norm": r.choice([None, 0.7])}
    return [["normal", shape, "float32"], ["normal", shape, "float32"], *squares], arguments


def _by_trust(t: Any, x: Any, r1: Any, r2: Any, learning_rate: float, max_weight_norm: float | None) -> Any:
    norm = r1.sqrt() if max_weight_norm is None else r1.sqrt().clamp(max=max_weight_norm)
    ratio = norm / r2.sqrt() if r1 > 0 and r2 > 0 else 1.0
    return t - learning_rate * ratio * x


def _remainder(x: Any, increment: float, modulus: float) -> Any:
    return torch.fmod(x + int(increment), int(modulus))


def _replace(r: random.Random) -> Drawn:
    shape = shape_of(r)
    return [["normal", shape, "any"], ["normal", shape, "any"]], {}


def _one_scaled(r: random.Random) -> Drawn:
    factor = _number(r, -1, 1)
    x = ["normal", shape_of(r), "any"]
    return ([x, ["fixed", [], "float32", factor]], {}) if r.random() < 0.5 else ([x], {"f": factor})


def _changing(draw: Any, oracle: Any, dtypes: tuple[str, ...] = WEIGHTS) -> Case:
    return Case(draw, twice(oracle), in_place, gradient=False, dtypes=dtypes)


OPS = {
    "scaled_add": Case(_scaled, _sum, gradient=False, dtypes=WEIGHTS),
    "scaled_add_": _changing(_scaled, _sum),
    "increment_mod": Case(_counter, _remainder, gradient=False, dtypes=("int32", "uint32")),
    "increment_mod_": _changing(_counter, _remainder, ("int32", "uint32")),
}
VAR_UPDATES = {
    "accumulate_": _changing(_accumulator("f"), lambda t, x, f: t + f * x),
    "accumulate_square_": _changing(_accumulator("f"), lambda t, x, f: t + f * x * x),
    "accumulate_mean_": _changing(_accumulator("step"), lambda t, x, step: step / (step + 1) * t + x / (step + 1)),
    "accumulate_moving_average_": _changing(_accumulator("f"), lambda t, x, f: f * t + (1 - f) * x),
    "accumulate_moving_average_square_": _changing(_accumulator("f"), lambda t, x, f: f * t + (1 - f) * x * x),
    "sparse_accumulate_": _changing(_sparse, lambda t, x, i, f: t.index_add(0, i, x, alpha=f)),
    "accumulator_scale_": _changing(_one_scaled, lambda t, f: t * f),
    "accumulator_zero_": _changing(lambda r: (_replace(r)[0][:1], {}), torch.zeros_like),
    "copy_var_update_": _changing(_replace, lambda t, x: x, ("float32", "float16", "int32")),
    **{
        name: Case(_moments(corrected=False), _updater, _update(), gradient=False, around=COUNTING)
        for name in ("adam_updater", "lamb_updater")
    },
    "adamax_updater": Case(_moments(corrected=True), _infinity, _update(adamax=True), gradient=False, around=COUNTING),
    "adam_var_update": _changing(_trusted, _by_trust, ("float32",)),
}
CASES = {**OPS, **{f"var_updates.{name}": case for name, case in VAR_UPDATES.items()}}

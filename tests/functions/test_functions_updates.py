"""Weight updates: three steps against formulas in plain NumPy (float64), with numbers as tensors and compiled in."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ipuperf.functions import updates as u
from ipuperf.functions.arithmetic import identity
from ipuperf.ir import FLOAT16, FLOAT32

RNG = np.random.default_rng(5)
WEIGHT, GRADIENT = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3))
ADAM = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
Numbers = Mapping[str, float]
#: From a weight and the number of the step (from 1) to the next weight.
Reference = Callable[[np.ndarray, int], np.ndarray]


def sgd(n: Numbers, nesterov: bool = False) -> Reference:
    v = np.zeros_like(WEIGHT)

    def step(w: np.ndarray, t: int) -> np.ndarray:
        nonlocal v
        g = GRADIENT + n.get("weight_decay", 0) * w
        v = n.get("momentum", 0) * v + n.get("undamped", 1) * g
        return w + n["rate"] * (g + n["momentum"] * v if nesterov else v)

    return step


def norm(x: np.ndarray) -> float:
    return float(np.sqrt((x * x).sum()))


def adam(n: Numbers, *, decoupled: bool = False, corrected: bool = True, lamb: float = 0) -> Reference:
    m = s = np.zeros_like(WEIGHT)

    def step(w: np.ndarray, t: int) -> np.ndarray:
        nonlocal m, s
        decay = n.get("weight_decay", 0) * w
        g = GRADIENT if decoupled else GRADIENT + decay
        m, s = n["beta1"] * m + (1 - n["beta1"]) * g, n["beta2"] * s + (1 - n["beta2"]) * g * g
        first, second = (m / (1 - n["beta1"] ** t), s / (1 - n["beta2"] ** t)) if corrected else (m, s)
        step = first / (np.sqrt(second) + n["epsilon"]) + (decay if decoupled else 0)
        return w + n["rate"] * step * (min(norm(w), lamb) / norm(step) if lamb else 1)

    return step


def rmsprop(n: Numbers, *, centered: bool = False, tensorflow: bool = False) -> Reference:
    s, mean, v = np.full_like(WEIGHT, float(tensorflow)), np.zeros_like(WEIGHT), np.zeros_like(WEIGHT)

    def step(w: np.ndarray, t: int) -> np.ndarray:
        nonlocal s, mean, v
        g = GRADIENT + n.get("weight_decay", 0) * w
        s = n["alpha"] * s + (1 - n["alpha"]) * g * g
        mean = n["alpha"] * mean + (1 - n["alpha"]) * g
        q = s - mean * mean if centered else s
        step = g / (np.sqrt(q + n["epsilon"]) if tensorflow else np.sqrt(q) + n["epsilon"])
        if tensorflow:
            v = n["momentum"] * v + n["step_size"] * step
            return w - v
        v = n.get("momentum", 0) * v + step
        return w + n["rate"] * v

    return step


def lars(n: Numbers) -> Reference:
    v = np.zeros_like(WEIGHT)

    def step(w: np.ndarray, t: int) -> np.ndarray:
        nonlocal v
        decay = n.get("weight_decay", 0)
        ratio = n["trust"] * norm(w) / (norm(GRADIENT) + decay * norm(w) + n.get("epsilon", 0))
        v = n["momentum"] * v + n["step_size"] * ratio * (GRADIENT + decay * w)
        return w - v

    return step


RATE, DECAY, MOMENTUM = {"rate": -0.1}, {"weight_decay": 0.2}, {"momentum": 0.8}
DAMPED = {**RATE, **DECAY, **MOMENTUM, "undamped": 0.7}
LARS = {**MOMENTUM, "step_size": 0.1, "trust": 0.5}
TF = {**MOMENTUM, "step_size": 0.1, "alpha": 0.9, "epsilon": 0.01}
RMS = {**RATE, "alpha": 0.9, "epsilon": 0.01}

REFERENCES: Mapping[type, Callable[..., Reference]] = {u.Sgd: sgd, u.Adam: adam, u.Lamb: adam, u.Lars: lars}
REFERENCES |= {u.RmsProp: rmsprop}

#: Updates, their numbers, and options of the reference.
CASES: list[tuple[u.Update, Numbers, Mapping[str, Any]]] = [
    (u.Sgd(), RATE, {}),
    (u.Sgd(decay=True), {**RATE, **DECAY}, {}),
    (u.Sgd(momentum=True, nesterov=True), {**RATE, **MOMENTUM}, {"nesterov": True}),
    (u.Sgd(True, True, damped=True), DAMPED, {}),
    (u.Adam(), {**RATE, **ADAM}, {}),
    (u.Adam(decay=True), {**RATE, **ADAM, **DECAY}, {}),
    (u.Adam(True, True, False), {**RATE, **ADAM, **DECAY}, {"decoupled": True, "corrected": False}),
    (u.Lamb(True, True, True, 2.0), {**RATE, **ADAM, **DECAY}, {"decoupled": True, "lamb": 2.0}),
    (u.Lamb(False, True, False), {**RATE, **ADAM}, {"corrected": False, "lamb": 1e9}),
    (u.Lars(False, True, False), LARS, {}),
    (u.Lars(True, True, True), {**LARS, **DECAY, "epsilon": 0.3}, {}),
    (u.RmsProp(False, False, False, False), RMS, {}),
    (u.RmsProp(True, True, True, False), {**RMS, **DECAY, **MOMENTUM}, {"centered": True}),
    (u.RmsProp(False, True, False, True), TF, {"tensorflow": True}),
]


@pytest.mark.parametrize("tensors", [True, False], ids=["scalars", "compiled in"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case[0]).__name__}-{len(case[1])}")
def test_three_steps(run, case, tensors) -> None:
    update, numbers, options = case
    reference = REFERENCES[type(update)](numbers, **options)
    assert update.numbers == set(numbers)
    state = update.state(WEIGHT.shape, FLOAT32, FLOAT32)
    scalars = {n: np.float32(v).reshape(()) for n, v in numbers.items()} if tensors else {}

    def write(weight: Any, gradient: Any, **others: Any) -> None:
        given = {n: others[n] if tensors else v for n, v in numbers.items()}
        slots = {n: others[f"slot_{n}"] for n in state}
        update.build(u.Step(weight, identity(gradient), slots, given))

    slots = {f"slot_{n}": np.array(v) for n, v in state.items()}
    arrays = {"weight": WEIGHT.astype(np.float32), "gradient": GRADIENT.astype(np.float32), **slots, **scalars}
    _, after = run(write, arrays, runs=3)
    expected = WEIGHT
    for t in (1, 2, 3):
        expected = reference(expected, t)
    np.testing.assert_allclose(after["weight"], expected, rtol=2e-5, atol=1e-6)


def test_a_weight_of_zeros_moves_at_the_plain_rate(run) -> None:
    """The ratio of LAMB and LARS is 1 where a norm is 0."""
    update = u.Lars(False, True, False)

    def write(weight: Any, gradient: Any, momentum: Any) -> None:
        update.build(u.Step(weight, gradient, {"momentum": momentum}, LARS))

    zeros = np.zeros((4,), np.float32)
    _, after = run(write, {"weight": zeros, "gradient": zeros + 2, "momentum": zeros})
    np.testing.assert_allclose(after["weight"], -0.1 * (zeros + 2), rtol=1e-6)


def test_states_take_the_types_asked_for() -> None:
    state = u.Adam().state((2, 3), FLOAT16, FLOAT32)
    assert {n: (a.dtype, a.shape) for n, a in state.items()} == {
        "exp_avg": (np.float16, (2, 3)),
        "exp_avg_sq": (np.float32, (2, 3)),
        "step": (np.float32, ()),
    }
    assert u.RmsProp(False, False, False, True).state((2,), FLOAT32, FLOAT32)["square_avg"].tolist() == [1, 1]


@pytest.mark.parametrize("update", [u.Sgd(), u.Lars(True, True, True), u.RmsProp(True, True, False, False)])
def test_a_wide_gradient_is_cast_once(run, update) -> None:
    """To the weight's type (float16), also where a norm and a step read it."""
    numbers = dict.fromkeys(update.numbers, 0.1)
    casts = []

    def write(weight: Any, gradient: Any, **slots: Any) -> None:
        update.build(u.Step(weight, gradient, slots, numbers))
        casts.extend(op for op in weight.graph.ops if op.type == "Cast" and op.inputs[0] is gradient)

    state = {n: np.array(v) for n, v in update.state(WEIGHT.shape, FLOAT16, FLOAT16).items()}
    half, wide = WEIGHT.astype(np.float16), GRADIENT.astype(np.float32)
    run(write, {"weight": half, "gradient": wide, **state})
    assert len(casts) == 1

"""``ops.var_updates`` and ``scaled_add`` through sessions, against formulas; losses against PyTorch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import IrError
from ipuperf.popxl import ops

RNG = np.random.default_rng(5)
T, X = (RNG.normal(size=(7,)).astype(np.float32) for _ in range(2))
update = ops.var_updates


def changed(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The variables' values after one run of ``fn`` on them."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        variables = [popxl.variable(a) for a in arrays]
        fn(*variables)
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.run()
    return [session.get_tensor_data(v) for v in variables]


@pytest.mark.parametrize("shape", [(), (1,), (7,)])
@pytest.mark.parametrize("tensor_factor", [False, True])
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (update.accumulate_, lambda f: T + f * X),
        (update.accumulate_square_, lambda f: T + f * X * X),
        (update.accumulate_mean_, lambda f: T * f / (f + 1) + X / (f + 1)),
        (update.accumulate_moving_average_, lambda f: f * T + (1 - f) * X),
        (update.accumulate_moving_average_square_, lambda f: f * T + (1 - f) * X * X),
        (lambda t, x, f: update.accumulator_scale_(t, f), lambda f: f * T),
        (lambda t, x, f: ops.scaled_add_(t, x, b=f), lambda f: T + f * X),
        (lambda t, x, f: ops.scaled_add_(t, x, a=f, b=2), lambda f: f * T + 2 * X),
    ],
)
def test_updates_with_a_factor(fn: Any, expected: Any, tensor_factor: bool, shape: tuple[int, ...]) -> None:
    t, x = (a[:1].reshape(shape) if math.prod(shape) == 1 else a for a in (T, X))
    if tensor_factor:
        result = changed(fn, t, x, np.float32(0.75))
    else:
        result = changed(lambda t, x: fn(t, x, 0.75), t, x)
    wanted = expected(np.float32(0.75))
    np.testing.assert_allclose(result[0], wanted[:1].reshape(shape) if t.size == 1 else wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result[1], x)


def test_updates_without_a_factor() -> None:
    np.testing.assert_array_equal(changed(update.accumulate_, T, X)[0], T + X)
    np.testing.assert_array_equal(changed(update.accumulator_zero_, np.full(3, np.nan, np.float32))[0], 0)
    np.testing.assert_array_equal(changed(update.accumulator_zero_, np.arange(3, dtype=np.int32))[0], 0)
    np.testing.assert_array_equal(changed(update.copy_var_update_, T, X)[0], X)


@pytest.mark.parametrize("square", [False, True])
def test_a_value_of_another_kind_of_numbers_is_cast(square: bool) -> None:
    """popops casts what no vertex of a scaled addition mixes: towards zero to integers."""
    whole, power = np.array([-3, 0, 2, 7], np.int32), 2 if square else 1
    function = update.accumulate_square_ if square else update.accumulate_
    numbers = np.array([0.5, -1.5, 2.75, 1e3], np.float32)
    np.testing.assert_array_equal(changed(function, numbers, whole)[0], numbers + whole.astype(np.float32) ** power)
    if not square:
        np.testing.assert_array_equal(changed(function, whole, numbers)[0], whole + np.trunc(numbers).astype(np.int32))


def test_mixed_dtypes() -> None:
    half = T.astype(np.float16)
    result = changed(lambda t, x: update.accumulate_(t, x), half, X)[0]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, half + X, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamax", "lamb"])
def test_updaters(name: str, decay: float, corrected: bool) -> None:
    if name == "adamax" and not corrected:
        pytest.skip("AdaMax is always corrected")
    m, v, w = T, np.abs(X) + np.float32(0.1), RNG.normal(size=(7,)).astype(np.float32)
    fn = getattr(update, f"{name}_updater")

    def program(m: Any, v: Any, w: Any, step: Any, out: Any) -> None:
        betas = {"beta1": 0.9} if name == "adamax" else {"beta1": 0.9, "beta2": 0.99}
        time_step = step if corrected else None
        term = fn(m, v, weight=w, weight_decay=decay, time_step=time_step, epsilon=1e-6, **betas)
        assert term.dtype is popxl.float32
        update.copy_var_update_(out, term)

    *_, step, out = changed(program, m, v, w, np.float32(2.0), np.zeros_like(m))
    count = 3 if corrected else np.inf
    first = m / (1 - 0.9**count)
    second = v if name == "adamax" else np.sqrt(v / (1 - 0.99**count))
    np.testing.assert_allclose(out, first / (second + 1e-6) + decay * w, rtol=1e-4)
    assert step == (3 if corrected else 2)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore", [None, 2])
def test_losses(reduction: Any, ignore: int | None) -> None:
    torch = pytest.importorskip("torch")
    logits = RNG.normal(size=(6, 4)).astype(np.float32)
    labels = np.array([0, 2, 1, 3, 2, 0], np.int32)
    ir = popxl.Ir()
    with ir.main_graph:
        probs = ops.softmax(popxl.variable(logits), axis=-1)
        target = popxl.variable(labels)
        alone = ops.nll_loss(probs, target, ignore_index=ignore, reduction=reduction)
        scale = 3.0 if reduction != "none" else np.full(6, 3.0)
        loss, grad = ops.nll_loss_with_softmax_grad(probs, target, scale, ignore, reduction)
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (alone, loss, grad)]
        for stream, t in zip(streams, (alone, loss, grad)):
            ops.host_store(stream, t)
        with pytest.raises(ValueError, match="reduction"):
            ops.nll_loss(probs, target, reduction="median")
    with popxl.Session(ir, "ipu_model") as session:
        results = session.run()
    t = torch.tensor(logits, requires_grad=True)
    ignored = {} if ignore is None else {"ignore_index": ignore}
    expected = torch.nn.functional.cross_entropy(t, torch.tensor(labels).long(), reduction=reduction, **ignored)
    (3 * expected.sum()).backward()
    for stream in streams[:2]:
        np.testing.assert_allclose(results[stream], expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[streams[2]], t.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_copy_of_a_changed_tensor_may_be_reshaped_in_place() -> None:
    ir = popxl.Ir()
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(data)
        ops.add_(x, 1.0)
        y = ops.reshape_(ops.transpose(x), (6,))
        out = popxl.d2h_stream((6,), popxl.float32)
        ops.host_store(out, y)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], (data + 1).T.reshape(-1))


def _after(build, *data):
    """The first variable after one run of what ``build`` makes of variables."""
    ir = popxl.Ir()
    with ir.main_graph:
        variables = [popxl.variable(d) for d in data]
        build(*variables)
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    return session.get_tensor_data(variables[0])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("indices", [[2, 0, 2], [[1, 1], [0, 2]]])
def test_sparse_accumulate_adds_slices(axis, dtype, indices):
    rng = np.random.default_rng(1)
    table, rows = rng.normal(size=(3, 3)).astype(dtype), np.array(indices, np.int32)
    value = rng.normal(size=np.take(table, rows, axis).shape).astype(dtype)
    wanted, moved = (
        table.astype(np.float32),
        np.moveaxis(value, range(axis % 2, axis % 2 + rows.ndim), range(rows.ndim)),
    )
    np.add.at(np.moveaxis(wanted, axis, 0), rows, 0.5 * moved.astype(np.float32))
    found = _after(lambda t, x, i: ops.var_updates.sparse_accumulate_(t, x, i, axis, 0.5), table, value, rows)
    np.testing.assert_allclose(found, wanted.astype(dtype), rtol=1e-6)


@pytest.mark.parametrize(("r1", "r2"), [(4.0, 16.0), (0.0, 2.0), (2.0, 0.0)])
def test_the_step_of_lamb(r1, r2):
    w, u = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    ratio = np.sqrt(r1 / r2) if r1 and r2 else 1.0
    for rate in (0.5, np.float32(0.25)):
        data = [w, u, np.float32(r1), np.float32(r2)]
        build = lambda *t, rate=rate: ops.var_updates.adam_var_update(*t[:4], t[4] if len(t) > 4 else rate)  # noqa: E731
        found = _after(build, *data, *([rate] if isinstance(rate, np.float32) else []))
        np.testing.assert_allclose(found, w - rate * ratio * u, rtol=1e-6)


@pytest.mark.parametrize("limit", [0.5, 0.0, 100.0])
@pytest.mark.parametrize("rate", [None, 0.25, np.float32(0.25)])
def test_the_step_of_lamb_with_a_limited_norm(rate, limit):
    w, u, r1, r2 = np.ones(3, np.float32), np.arange(3, dtype=np.float32), np.float32(4), np.float32(16)
    wanted = w - (1 if rate is None else rate) * (min(2, limit) / 4 if limit else 1) * u
    as_tensors = [a for a in (rate, np.float32(limit)) if isinstance(a, np.float32)]

    def build(*t):
        given = list(t[4:])
        lr = given.pop(0) if isinstance(rate, np.float32) else rate
        return ops.var_updates.adam_var_update(*t[:4], lr, given[0])

    np.testing.assert_allclose(_after(build, w, u, r1, r2, *as_tensors), wanted, rtol=1e-6)
    if not isinstance(rate, np.float32):
        found = _after(lambda *t: ops.var_updates.adam_var_update(*t, rate, limit), w, u, r1, r2)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_integers_accumulate_without_a_factor():
    found = _after(ops.var_updates.accumulate_, np.arange(3, dtype=np.int32), np.full(3, 5, np.int32))
    np.testing.assert_array_equal(found, [5, 6, 7])
    with popxl.Ir().main_graph, pytest.raises(IrError, match="without a factor"):
        ops.var_updates.accumulate_(popxl.variable(1), popxl.variable(2), 0.5)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_scaled_sums_of_integers_have_no_factors(dtype: type) -> None:
    x, y = np.array([1, 2], dtype), np.array([3, 4], dtype)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v, w = popxl.variable(x), popxl.variable(y)
        plain = ops.scaled_add(v, w)
        stream = popxl.d2h_stream(plain.shape, plain.dtype)
        ops.host_store(stream, plain)
        ops.scaled_add_(v, w)
        with pytest.raises(popxl.errors.popart_exception, match="floating-point"):
            ops.scaled_add(v, w, 2.0)
    with popxl.Session(ir, "ipu_model") as session:
        assert session.run()[stream].tolist() == [4, 6]
    assert session.get_tensor_data(v).tolist() == [4, 6]

"""Products and convolutions by PyTorch's libraries against NumPy's own, and against float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf.ir import FLOAT32  # noqa: E402
from ipuperf.numerics.compiler import Compiler  # noqa: E402
from ipuperf.ops import native  # noqa: E402
from ipuperf.ops.work import Convolution  # noqa: E402


def _noise(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.fixture(autouse=True, params=["MKL", "oneDNN"])
def always(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the work is."""
    monkeypatch.setattr(native, "WORTH", 0)
    if request.param == "oneDNN":
        monkeypatch.setattr(native, "WORTH_ONEDNN", 1)


def _by_pytorch(step: Any) -> bool:
    return step.func is native._flushing


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        (_noise(3, 4), _noise(4, 5)),
        (_noise(4, 3).T, _noise(4, 5)),
        (_noise(3, 4), _noise(5, 4).T),
        (_noise(4, 3).T, _noise(5, 4).T),
        (_noise(2, 3, 4), _noise(4, 5)),
        (_noise(2, 4, 3, 4).swapaxes(1, 2), _noise(2, 3, 4, 5)),
        (_noise(2, 1, 3, 4), np.broadcast_to(_noise(1, 3, 4, 5), (2, 3, 4, 5)).copy()),
        (_noise(0, 4), _noise(4, 5)),
        (_noise(3, 0), _noise(0, 5)),
        (_noise(1, 1), _noise(1, 1)),
    ],
)
def test_products(lhs: np.ndarray, rhs: np.ndarray) -> None:
    wanted = lhs.astype(np.float64) @ rhs.astype(np.float64)
    out = np.full(wanted.shape, np.nan, np.float32)
    step = native.product(lhs, rhs, out)
    assert _by_pytorch(step)
    step()
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
    first = out.copy()
    step()
    np.testing.assert_array_equal(out, first)


@pytest.mark.parametrize("missing", [False, True])
def test_large_products_are_done_by_onednn_where_there_is_one(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    monkeypatch.setattr(native, "WORTH_ONEDNN", 60)
    if missing:
        monkeypatch.setattr(native.sys.modules["torch"].ops, "mkldnn", object())
    lhs, rhs, out = _noise(2, 3, 4), _noise(2, 4, 5), np.empty((2, 3, 5), np.float32)
    calls = [native.product(left, rhs[:, :, :size], out[..., :size].copy()) for left, size in ((lhs, 5), (lhs, 4))]
    names = [call.args[1].func for call in calls]
    assert [name is native._products for name in names] == [not missing, False]


def test_what_pytorch_cannot_see_is_done_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.empty((2, 2), np.float32)
    backwards = _noise(2, 2)[::-1]
    assert not _by_pytorch(native.product(backwards, backwards, out))
    assert not _by_pytorch(native.product(_noise(2, 2, dtype=np.float64), _noise(2, 2, dtype=np.float64), out))
    monkeypatch.setattr(native, "WORTH", 1 << 18)
    assert not _by_pytorch(native.product(_noise(2, 2), _noise(2, 2), out))
    monkeypatch.setattr(native, "WORTH", 0)
    monkeypatch.delitem(native.sys.modules, "torch")
    assert not _by_pytorch(native.product(_noise(2, 2), _noise(2, 2), out))


@pytest.mark.parametrize("before", [False, True])
def test_the_callers_setting_for_subnormal_numbers_comes_back(before: bool) -> None:
    small = np.float32(1e-39)
    out = np.empty((1, 1), np.float32)
    torch.set_flush_denormal(before)
    try:
        native.product(np.full((1, 1), small), np.ones((1, 1), np.float32), out)()
        flushed = bool(small * np.float32(0.5) == 0)
    finally:
        torch.set_flush_denormal(False)
    assert out == 0
    assert flushed is before


CASES = [
    ((size, kernel, stride, padding, dilation), groups)
    for size, kernel, stride, padding, dilation, groups in itertools.product(
        ((7,), (6, 5), (2, 1), (4, 5, 3)), (1, 3), (1, 2), (0, 1), (1, 2), (1, 2)
    )
    if dilation * (kernel - 1) + 1 <= min(size) + 2 * padding
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("sizes", "groups"), CASES)
def test_convolutions_are_those_of_numpy(sizes: Any, groups: int, dtype: Any) -> None:
    from ipuperf import ir
    from ipuperf.ops.convolution import Conv, ConvInputGrad, ConvWeightGrad

    size, kernel, stride, padding, dilation = sizes
    axes = len(size)
    options = {
        "strides": (stride,) * axes, "padding": ((padding, padding),) * axes, "dilation": (dilation,) * axes,
        "groups": groups,
    }  # fmt: skip
    program = ir.Ir()
    graph, half = program.main_graph, ir.FLOAT16 if dtype == np.float16 else FLOAT32
    x, w = _noise(2, 4, *size, dtype=dtype), _noise(6, 4 // groups, *(kernel,) * axes, dtype=dtype)

    def tensor(array: np.ndarray) -> Any:
        return graph.add_input(ir.TensorSpec(array.shape, half), "x")

    forward = graph.create(Conv, [tensor(x), tensor(w)], ["y"], **options)
    grad = _noise(*forward.outputs[0].shape, dtype=dtype)
    ops = {
        forward: (x, w),
        graph.create(ConvInputGrad, [tensor(grad), tensor(w)], ["dx"], input_size=size, **options): (grad, w),
        graph.create(ConvWeightGrad, [tensor(grad), tensor(x)], ["dw"], kernel_size=(kernel,) * axes, **options): (
            grad,
            x,
        ),
    }
    env = Compiler(1, {}, {})
    for op, operands in ops.items():
        inputs = [operand[None] for operand in operands]
        found, wanted = (np.full((1, *op.outputs[0].shape), np.nan, dtype) for _ in range(2))
        conv = op.convolution()
        assert isinstance(conv, Convolution)
        steps = native.convolution(conv, inputs[0][0], inputs[1][0], found[0], env)
        assert steps is not None
        for step in steps:
            step()
        op._matrices(inputs, [wanted], env)()
        rtol, atol = (2e-3, 1e-3) if dtype == np.float16 else (1e-4, 1e-5)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def test_padding_that_differs_is_left_to_numpy() -> None:
    conv = Convolution(1, 1, 1, (4,), (2,), (1,), ((1, 0),), (1,), 1, FLOAT32, FLOAT32, FLOAT32)
    x, w, y = _noise(1, 1, 4), _noise(1, 1, 2), _noise(1, 1, 4)
    assert native.convolution(conv, x, w, y, Compiler(1, {}, {})) is None

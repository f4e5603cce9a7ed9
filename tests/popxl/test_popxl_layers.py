"""Convolution, pooling, normalisation, dropout and random tensors of ``popxl.ops``, against PyTorch or by counting."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops

torch = pytest.importorskip("torch")
functional = torch.nn.functional
RNG = np.random.default_rng(0)


def run(build: Callable[[], popxl.Tensor], runs: int = 1) -> np.ndarray:
    ir = popxl.Ir()
    with ir.main_graph:
        tensor = build()
        out = popxl.d2h_stream(tensor.shape, tensor.dtype)
        ops.host_store(out, tensor)
    with popxl.Session(ir, "ipu_hw") as session:
        return [session.run()[out] for _ in range(runs)][-1]


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def agrees(ours: Callable[..., popxl.Tensor], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Both functions give the same for the arrays."""
    actual = run(lambda: ours(*(popxl.variable(a) for a in arrays)))
    expected = theirs(*(torch.tensor(a) for a in arrays)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


X, W = array(2, 4, 9, 8), array(6, 2, 3, 2)


def test_convolution() -> None:
    agrees(
        lambda x, w: ops.conv(x, w, stride=(2, 1), padding=(1, 0, 2, 3), dilation=(1, 2), groups=2),
        lambda x, w: functional.conv2d(functional.pad(x, (0, 3, 1, 2)), w, stride=(2, 1), dilation=(1, 2), groups=2),
        X, W,
    )  # fmt: skip
    line = (array(1, 2, 7), array(3, 2, 3))
    agrees(lambda x, w: ops.conv(x, w, (1,), (1, 1), (1,)), lambda x, w: functional.conv1d(x, w, padding=1), *line)


@pytest.mark.parametrize(("pad_type", "pad"), [("same_upper", (0, 1, 0, 1)), ("same_lower", (1, 0, 1, 0))])
def test_same_padding(pad_type: str, pad: tuple[int, ...]) -> None:
    x, w = array(1, 2, 6, 6), array(3, 2, 2, 2)
    agrees(
        lambda x, w: ops.conv(x, w, pad_type=pad_type), lambda x, w: functional.conv2d(functional.pad(x, pad), w), x, w
    )


def test_transposed_convolution() -> None:
    agrees(
        lambda x, w: ops.conv_transpose(x, w, stride=(2, 3), padding=(1, 0, 1, 0), output_padding=(1, 2)),
        lambda x, w: functional.conv_transpose2d(x, w, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
        array(2, 4, 5, 4), array(4, 3, 3, 2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ops.max_pool, functional.max_pool2d), (ops.average_pool, functional.avg_pool2d)]
)
def test_pooling(ours: Callable[..., popxl.Tensor], theirs: Callable[..., Any]) -> None:
    uncounted = {} if ours is ops.max_pool else {"count_include_pad": False}
    agrees(lambda x: ours(x, (3, 2)), lambda x: theirs(x, (3, 2), stride=1), X)  # the default stride is 1
    agrees(
        lambda x: ours(x, (3, 2), stride=(2, 2), padding=(1, 1, 1, 1), ceil_mode=True),
        lambda x: theirs(x, (3, 2), stride=2, padding=(1, 1), ceil_mode=True, **uncounted),
        X,
    )


def test_normalisation() -> None:
    scale, bias = array(4), array(4)
    agrees(
        lambda x, s, b: ops.group_norm(x, s, b, 2, 1e-3), lambda x, s, b: functional.group_norm(x, 2, s, b, 1e-3),
        X, scale, bias,
    )  # fmt: skip
    agrees(ops.layer_norm, lambda x, s, b: functional.layer_norm(x, (4,), s, b), array(5, 4), scale, bias)
    agrees(
        ops.batch_norm_inference, lambda x, s, b, m, v: functional.batch_norm(x, m, v, s, b),
        X, scale, bias, array(4), array(4) ** 2,
    )  # fmt: skip


def seed() -> popxl.Tensor:
    return popxl.variable(np.array([1, 2], np.uint32), name="seed")


def test_dropout_and_its_gradient_drop_the_same() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, start = popxl.variable(np.ones((64, 64), np.float32)), seed()
        graph = ir.create_graph(lambda x, s: ops.dropout(x, s, 0.25), x, start)
        info = popxl.transforms.autodiff(graph, grads_required=[graph.inputs[0]])
        call = ops.call_with_info(graph, x, start)
        (dx,) = ops.call(info.graph, popxl.constant(np.ones((64, 64), np.float32)), inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream((64, 64), popxl.float32) for _ in range(2)]
        for stream, tensor in zip(streams, (call.outputs[0], dx)):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_hw") as session:
        y, gradient = (session.run()[s] for s in streams)
    np.testing.assert_array_equal(y, gradient)
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / y.size)


def test_shaped_dropout_decides_per_row() -> None:
    y = run(lambda: ops.shaped_dropout(popxl.variable(np.ones((8, 100, 5), np.float32)), seed(), (100, 1), 0.5))
    assert ((y == 0) == (y[:1, :, :1] == 0)).all()
    assert 20 < (y[0, :, 0] == 0).sum() < 80


def test_random_tensors() -> None:
    uniform = run(lambda: ops.random_uniform(seed(), (100, 100), -2.0, 4.0))
    normal = run(lambda: ops.random_normal(seed(), (100, 100), 3.0, 2.0, popxl.float16))
    assert -2 <= uniform.min() < uniform.max() <= 4
    assert abs(uniform.mean() - 1) < 4 * np.sqrt(36 / 12 / uniform.size)
    assert normal.dtype == np.float16
    assert abs(normal.astype(np.float64).mean() - 3) < 4 * 2 / 100
    assert abs(normal.astype(np.float64).std() - 2) < 0.1


def test_split_seeds_differ() -> None:
    found = run(lambda: ops.concat(ops.split_random_seed(seed(), 3))).reshape(3, 2)
    assert found.dtype == np.uint32
    assert len({tuple(row) for row in found}) == 3
    with popxl.Ir().main_graph, pytest.raises(ValueError, match=r"must be uint32 of shape \(2,\)"):
        ops.split_random_seed(popxl.variable(np.zeros(2, np.int32)))


def test_create_seeds() -> None:
    assert popxl.create_seeds(0).shape == (2,)
    found = popxl.create_seeds(7, 1, 2, 3, 4)
    assert (found.shape, found.dtype) == ((2, 3, 4, 2), np.uint32)
    words = np.random.default_rng(8).integers(0, 2**64 - 1, endpoint=True, dtype=np.uint64, size=24)
    assert [int(a) << 32 | int(b) for a, b in found.reshape(-1, 2)] == [int(w) for w in words]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, w: ops.conv(x, w, padding=(1, 1)), "padding .1, 1.; 4 numbers are needed"),
        (lambda x, w: ops.conv(x, w, pad_type="full"), "pad type 'full'; allowed"),
        (lambda x, w: ops.conv(x, w, partials_types=["double"]), "partials type 'double'"),
        (lambda x, w: ops.conv_transpose(x, w, output_shape=(3,)), "output_shape=.3,."),
        (lambda x, w: ops.conv_transpose(x, w, output_shape=(9, 9, 3, 3)), "output_shape=.9, 9, 3, 3."),
        (lambda x, w: ops.conv_transpose(x, w, pad_type="same_upper"), "pad_type='same_upper'. is not supported"),
        (lambda x, w: ops.max_pool(x, (2, 2), out_pads=(1, 1)), "max_pool.out_pads="),
        (lambda x, w: ops.average_pool(x, (2, 2), in_dilations=(2, 2)), "average_pool.in_dilations="),
    ],
)
def test_options_that_do_not_exist(build: Callable[..., object], message: str) -> None:
    with popxl.Ir().main_graph, pytest.raises(ValueError, match=message):
        build(popxl.variable(X), popxl.variable(W))


@pytest.mark.parametrize("wanted", [(5, 5), (2, 3, 6, 4), (9, 11)])
def test_the_shape_of_a_transposed_convolution_can_be_asked_for(wanted: tuple[int, ...]) -> None:
    """Padding as ONNX has it for ConvTranspose: the larger half at the begin; zeros where the result is smaller."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(2, 4, 3, 3)).astype(np.float32), rng.normal(size=(4, 3, 3, 2)).astype(np.float32)
    full = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=2).numpy()  # (2, 3, 7, 6)
    expected = full
    for axis, size in zip((2, 3), wanted[-2:]):
        surplus = expected.shape[axis] - size
        begin = max(0, surplus) - max(0, surplus) // 2
        expected = expected.take(range(begin, begin + min(size, full.shape[axis])), axis=axis)
        missing = [(0, 0)] * 4
        missing[axis] = (0, max(0, -surplus))
        expected = np.pad(expected, missing)
    ir = popxl.Ir()
    with ir.main_graph:
        y = ops.conv_transpose(popxl.variable(x), popxl.variable(w), stride=(2, 2), output_shape=wanted)
        out = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(out, y)
    assert y.shape == (2, 3, *wanted[-2:])
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_allclose(session.run()[out], expected, rtol=1e-5, atol=1e-5)

"""Pooling and its gradients against PyTorch: windows, padding, ceil mode, ties, replicas, fp16, cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ops
from ipuperf.ops.pooling.windows import adaptive_windows, regular_windows
from ipuperf.ops.work import Vertices

torch = pytest.importorskip("torch")
functional = torch.nn.functional
MAXIMUM = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
ADAPTIVE = {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d}

#: spatial size, kernel, strides, padding, dilation, ceil_mode
CASES = [
    ((8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((9, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((9, 7), (2, 2), (2, 2), (0, 0), (1, 1), True),
    ((9, 9), (3, 3), (3, 3), (0, 0), (1, 1), False),
    ((9, 8), (3, 4), (3, 4), (0, 0), (1, 1), False),
    ((9, 8), (3, 3), (2, 2), (1, 1), (1, 1), False),
    ((9, 8), (3, 3), (2, 2), (1, 1), (1, 1), True),
    ((9, 8), (3, 2), (1, 2), (1, 0), (1, 1), False),
    ((9, 8), (2, 2), (3, 4), (1, 1), (1, 1), True),
    ((9, 11), (3, 2), (2, 1), (1, 1), (2, 3), False),
    ((9, 11), (1, 1), (1, 1), (0, 0), (1, 1), False),
    ((9, 10), (1, 2), (1, 2), (0, 0), (1, 1), False),
    ((9, 10), (1, 1), (2, 3), (0, 0), (1, 1), False),
    ((13,), (4,), (3,), (2,), (1,), False),
    ((12,), (4,), (4,), (0,), (1,), False),
    ((5, 6, 7), (2, 3, 2), (2, 2, 1), (1, 1, 0), (1, 1, 1), False),
]


def pads(padding):
    return tuple((p, p) for p in padding)


def maximum(kernel, strides, padding=(0, 0), dilation=(1, 1), ceil=False):
    """(builder, reference) of a maximum."""
    attributes = {
        "kernel_size": kernel,
        "strides": strides,
        "padding": pads(padding),
        "dilation": dilation,
        "ceil_mode": ceil,
    }
    return (
        lambda g, x: g.create(ops.MaxPool, [x], ["y"], **attributes).outputs[0],
        lambda x: MAXIMUM[len(kernel)](x, kernel, strides, padding, dilation, ceil),
    )


def average(kernel, strides, padding, ceil, include):
    """(builder, reference) of an average."""
    attributes = {"kernel_size": kernel, "strides": strides, "padding": pads(padding), "ceil_mode": ceil}
    return (
        lambda g, x: g.create(ops.AveragePool, [x], ["y"], count_include_pad=include, **attributes).outputs[0],
        lambda x: AVERAGE[len(kernel)](x, kernel, strides, padding, ceil, include),
    )


def with_ties(rng, shape):
    """Small integers, so that windows have several equal maxima."""
    return rng.integers(-1, 2, shape).astype(np.float64)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("make", [np.random.Generator.standard_normal, with_ties])
@pytest.mark.parametrize("case", CASES)
def test_maximum(bench, rng, case, make, replicas):
    size, kernel, strides, padding, dilation, ceil = case
    bench.check(*maximum(kernel, strides, padding, dilation, ceil), [make(rng, (replicas, 3, 2, *size))])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("case", [c for c in CASES if set(c[4]) == {1}])
def test_average(bench, rng, case, replicas, include):
    size, kernel, strides, padding, _, ceil = case
    bench.check(*average(kernel, strides, padding, ceil, include), [rng.standard_normal((replicas, 3, 2, *size))])


@st.composite
def pools(draw):
    """Random windows that PyTorch accepts."""
    axes = draw(st.integers(1, 2))
    size, kernel, strides, padding = [], [], [], []
    for _ in range(axes):
        k = draw(st.integers(1, 4))
        p = draw(st.integers(0, k // 2))
        size.append(draw(st.integers(max(1, k - 2 * p), 11)))
        kernel.append(k)
        padding.append(p)
        strides.append(draw(st.integers(1, 5)))
    return tuple(size), tuple(kernel), tuple(strides), tuple(padding), draw(st.booleans())


@settings(max_examples=80)
@given(case=pools(), seed=st.integers(0, 1000), include=st.booleans())
def test_random_windows(case, seed, include):
    from opbench import Bench

    size, kernel, strides, padding, ceil = case
    x = with_ties(np.random.default_rng(seed), (1, 2, 3, *size))
    Bench().check(*maximum(kernel, strides, padding, (1,) * len(size), ceil), [x])
    Bench().check(*average(kernel, strides, padding, ceil, include), [x])


def test_adaptive_windows_that_divide_the_size_are_regular_ones():
    """Apart and complete, so that a kernel takes them in one pass."""
    windows = adaptive_windows(12, 4)
    assert windows == regular_windows(12, 4, 3, 3, (0, 0))
    assert windows.counts == (3, 3, 3, 3)
    assert adaptive_windows(10, 4).counts == (3, 3, 3, 3)  # 0 to 3, 2 to 5, 5 to 8, 7 to 10
    assert adaptive_windows(10, 4) != regular_windows(12, 4, 3, 3, (0, 0))


@pytest.mark.parametrize(
    ("size", "wanted"), [((8, 6), (4, 3)), ((7, 7), (1, 1)), ((7, 10), (3, 4)), ((3, 4), (5, 2)), ((10,), (4,))]
)
def test_adaptive(bench, rng, size, wanted):
    bench.check(
        lambda g, x: g.create(ops.AdaptiveAveragePool, [x], ["y"], output_size=wanted).outputs[0],
        lambda x: ADAPTIVE[len(size)](x, wanted),
        [rng.standard_normal((2, 3, 2, *size))],
    )


def test_global(bench, rng):
    bench.check(
        lambda g, x: g.create(ops.GlobalAveragePool, [x], ["y"]).outputs[0],
        lambda x: x.mean((2, 3), keepdim=True),
        [rng.standard_normal((2, 3, 2, 5, 7))],
    )


def test_uneven_padding(bench, rng):
    x = rng.standard_normal((1, 2, 3, 6, 7))
    found = bench.run(ops.MaxPool, x, kernel_size=(2, 3), strides=2, padding=((0, 1), (0, 1)))
    padded = functional.pad(torch.tensor(x[0]), (0, 1, 0, 1), value=-torch.inf)
    np.testing.assert_array_equal(found[0], functional.max_pool2d(padded, (2, 3), 2).numpy())


@pytest.mark.parametrize("options", [{}, {"output_size": (3, 2)}])
def test_second_derivative_of_average(bench, rng, options):
    op_class = ops.AdaptiveAveragePoolGrad if options else ops.AveragePoolGrad
    attributes = options or {"kernel_size": (3, 2), "strides": (2, 2), "padding": ((1, 1), (0, 0))}

    def reference(grad):
        x = torch.zeros((2, 3, 7, 5), dtype=torch.float64, requires_grad=True)
        y = (
            functional.adaptive_avg_pool2d(x, (3, 2))
            if options
            else functional.avg_pool2d(x, (3, 2), (2, 2), (1, 0), count_include_pad=False)
        )
        return torch.autograd.grad(y, x, grad, create_graph=True)[0]

    shape = (2, 2, 3, 3, 2) if options else (2, 2, 3, 4, 2)
    bench.check(
        lambda g, x: g.create(op_class, [x], ["y"], input_size=(7, 5), **attributes).outputs[0],
        reference,
        [rng.standard_normal(shape)],
    )


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_bad_gradient_reaches_one_element(bench, bad):
    """Overflown gradients must not spread to their neighbours."""
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 1, 4, 4)
    for strides in (2, 1):
        n = 2 if strides == 2 else 3
        grad = np.ones((1, 1, 1, n, n), np.float32)
        grad[..., 0, 0] = bad
        y = bench.run(ops.MaxPool, x, kernel_size=2, strides=strides)
        dx = bench.run(ops.MaxPoolGrad, grad, y, x, kernel_size=2, strides=strides)
        assert np.isfinite(dx).sum() == 15
        assert not np.isfinite(dx[0, 0, 0, 1, 1])


@pytest.mark.parametrize("strides", [2, 1])
def test_half(bench, rng, strides):
    x = rng.standard_normal((2, 3, 2, 8, 6)).astype(np.float16)
    for op_class in (ops.MaxPool, ops.AveragePool):
        y, grad, (dx,) = bench.gradients(
            lambda g, t, c=op_class: g.create(c, [t], ["y"], kernel_size=2, strides=strides).outputs[0], [x]
        )
        assert y.dtype == dx.dtype == np.float16
        apply = functional.max_pool2d if op_class is ops.MaxPool else functional.avg_pool2d
        for r in range(2):
            wide = torch.tensor(x[r].astype(np.float32)).requires_grad_()
            expected = apply(wide, 2, strides)
            expected.backward(torch.tensor(grad[r].astype(np.float32)))
            np.testing.assert_array_equal(y[r], expected.detach().numpy().astype(np.float16))
            np.testing.assert_allclose(dx[r], wide.grad.numpy().astype(np.float16), rtol=1e-3, atol=1e-6)


def test_operands_may_be_views(bench, rng):
    x = rng.standard_normal((2, 8, 6, 3, 4)).transpose(0, 3, 4, 1, 2)
    build, _ = maximum((2, 2), (2, 2))
    for found, copied in zip(
        bench.gradients(build, [x])[2], bench.gradients(build, [np.ascontiguousarray(x)])[2], strict=True
    ):
        np.testing.assert_array_equal(found, copied)


def test_through_a_graph(bench, rng):
    """The first layer of the tutorial's network in small."""

    def build(g, x, w, b):
        y = g.create(ops.Conv, [x, w], ["y"]).outputs[0]
        y = g.create(ops.AddBias, [y, b], ["y"]).outputs[0]
        y = g.create(ops.MaxPool, [y], ["y"], kernel_size=2).outputs[0]
        return g.create(ops.Relu, [y], ["y"]).outputs[0]

    bench.check(
        build,
        lambda x, w, b: functional.relu(functional.max_pool2d(functional.conv2d(x, w, b), 2)),
        [rng.standard_normal(s) for s in ((2, 20, 1, 12, 12), (2, 3, 1, 5, 5), (2, 3))],
    )


def cycles_of(op, elements, chip):
    (work,) = op.work()
    assert isinstance(work, Vertices)
    return work, work.cycles(np.array([0, elements]), chip).tolist()


def test_work_of_maximum(bench, mk2):
    x = np.ones((1, 40, 10, 24, 24), np.float32)
    work, cycles = cycles_of(bench.op(ops.MaxPool, x, kernel_size=2), 40, mk2)
    assert (work.vertex, work.elements, work.low_confidence) == ("popnn::MaxPooling<float>", 57600, True)
    assert work.flops == 57600 * 4
    # 20 vectors of 2, 4 for a worker, in one row: 4 items of 28 + 4 + 3 * 3.
    assert cycles == [0, 6 * (45 + 4 + 15 + 4 * 41) + 13]
    # 300 vectors, 50 for a worker, in 5 rows of 12: 4 items each of 28 + 4 + 3 * 11.
    assert cycles_of(bench.op(ops.MaxPool, x, kernel_size=2), 600, mk2)[1][1] == 6 * (45 + 50 + 5 * (15 + 4 * 65)) + 13


def test_work_of_gradients(bench, mk2):
    y, x = np.ones((1, 40, 10, 12, 12), np.float32), np.ones((1, 40, 10, 24, 24), np.float32)
    work, cycles = cycles_of(bench.op(ops.MaxPoolGrad, y, y, x, kernel_size=2), 96, mk2)
    assert (work.vertex, work.elements) == ("popnn::MaxPoolingGrad<float>", 230400)
    # 8 vectors for a worker, in one row: the window's 2 positions along the row, 4 vectors each of 28 + 7 + 5 * 3.
    assert cycles == [0, 6 * (55 + 8 + 15 + 2 * 50) + 13]
    work, cycles = cycles_of(bench.op(ops.AveragePoolGrad, y, kernel_size=2, input_size=(24, 24)), 96, mk2)
    assert work.vertex == "popnn::SumPooling<float>"
    assert cycles == [0, 6 * (46 + 8 + 15 + 2 * 42) + 13]


def test_operations_of_the_gradient_of_an_average(bench):
    """Each of 16 elements belongs to one window of 2 x 2: one addition and one multiplication each."""
    grad = np.ones((1, 1, 1, 2, 2), np.float32)
    (work,) = bench.op(ops.AveragePoolGrad, grad, kernel_size=2, input_size=(4, 4)).work()
    assert work.flops == 16 + 16

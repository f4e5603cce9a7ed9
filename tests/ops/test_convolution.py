"""Convolution and its gradients against PyTorch: shapes, strides, padding, dilation, groups, replicas, fp16, cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.ops.work import Convolution

torch = pytest.importorskip("torch")
functional = torch.nn.functional

#: batch, channels, output channels, spatial size, kernel, strides, padding, dilation, groups
CASES = [
    (2, 1, 3, (8, 8), (5, 5), 1, 0, 1, 1),
    (40, 3, 4, (12, 10), (5, 3), 1, 0, 1, 1),
    (16, 4, 6, (9, 11), (3, 3), 1, 1, 1, 1),
    (16, 4, 6, (9, 11), (3, 3), 2, 1, 1, 2),
    (16, 4, 4, (9, 11), (3, 2), (2, 1), (1, 0), (1, 2), 4),
    (20, 2, 3, (10, 7), (3, 3), 1, 2, 2, 1),
    (20, 2, 3, (10, 7), (3, 1), 1, 0, 1, 1),
    (20, 2, 3, (10, 7), (3, 1), 2, 0, 1, 1),
    (70, 2, 3, (6, 6), (5, 5), 3, 0, 1, 1),
    (70, 2, 3, (6, 5), (5, 1), 3, 0, 1, 1),
    (8, 4, 8, (7, 7), (1, 1), 1, 0, 1, 1),
    (8, 4, 8, (7, 7), (1, 1), 2, 0, 1, 2),
    (8, 4, 8, (7, 7), (1, 1), 1, 1, 1, 1),
    (1, 3, 8, (16, 16), (4, 4), 4, 0, 1, 1),
    (1, 2, 2, (20,), (3,), 1, 1, 1, 1),
    (3, 4, 6, (17,), (4,), 3, 2, 2, 2),
    (4, 2, 2, (5, 6, 7), (3, 2, 2), (1, 2, 1), (1, 0, 1), 1, 1),
    (30, 2, 2, (5, 4, 6), (3, 2, 3), 1, 0, (1, 1, 2), 2),
]


def tuples(value, axes):
    return (value,) * axes if isinstance(value, int) else tuple(value)


def attributes_of(size, strides, padding, dilation, groups):
    axes = len(size)
    return {
        "strides": tuples(strides, axes),
        "padding": tuple((p, p) for p in tuples(padding, axes)),
        "dilation": tuples(dilation, axes),
        "groups": groups,
    }


def reference(axes):
    return {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[axes]


def conv(g, x, w, **attributes):
    return g.create(ops.Conv, [x, w], ["y"], **attributes).outputs[0]


def transposed(g, x, w, **attributes):
    return g.create(ops.ConvTranspose, [x, w], ["y"], **attributes).outputs[0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(bench, rng, case, replicas):
    batch, channels, outputs, size, kernel, strides, padding, dilation, groups = case
    x = rng.standard_normal((replicas, batch, channels, *size))
    w = rng.standard_normal((replicas, outputs, channels // groups, *kernel))
    bench.check(
        lambda g, a, b: conv(g, a, b, **attributes_of(size, strides, padding, dilation, groups)),
        lambda a, b: reference(len(size))(a, b, None, strides, padding, dilation, groups),
        [x, w],
    )


@st.composite
def convolutions(draw):
    """A random convolution whose kernel fits the padded input."""
    axes, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    size, kernel, strides, padding, dilation = [], [], [], [], []
    for _ in range(axes):
        k, d = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        p = draw(st.integers(0, 2))
        size.append(draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 12)))
        kernel.append(k)
        dilation.append(d)
        padding.append(p)
        strides.append(draw(st.integers(1, 3)))
    batch = draw(st.sampled_from([1, 3, 65]))
    return batch, channels, outputs, tuple(size), tuple(kernel), tuple(strides), tuple(padding), tuple(dilation), groups


@settings(max_examples=60)
@given(case=convolutions(), seed=st.integers(0, 1000))
def test_random_convolutions(case, seed):
    from opbench import Bench

    rng = np.random.default_rng(seed)
    batch, channels, outputs, size, kernel, strides, padding, dilation, groups = case
    Bench().check(
        lambda g, a, b: conv(g, a, b, **attributes_of(size, strides, padding, dilation, groups)),
        lambda a, b: reference(len(size))(a, b, None, strides, padding, dilation, groups),
        [
            rng.standard_normal((1, batch, channels, *size)),
            rng.standard_normal((1, outputs, channels // groups, *kernel)),
        ],
        atol=1e-10,
    )


def test_uneven_padding(bench, rng):
    pads = ((0, 1), (2, 3))
    bench.check(
        lambda g, a, b: conv(g, a, b, padding=pads, strides=2),
        lambda a, b: functional.conv2d(functional.pad(a, (2, 3, 0, 1)), b, None, 2),
        [rng.standard_normal((2, 16, 3, 8, 9)), rng.standard_normal((2, 4, 3, 3, 3))],
    )


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "padding", "extra", "dilation", "groups"),
    [
        ((5, 6), (3, 3), 1, 0, 0, 1, 1),
        ((5, 6), (3, 2), 2, 1, 1, 1, 2),
        ((5, 6), (3, 3), (2, 3), (1, 0), (1, 2), 2, 1),
        ((9,), (4,), 3, 1, 2, 1, 1),
    ],
)
def test_transposed(bench, rng, size, kernel, strides, padding, extra, dilation, groups, replicas):
    apply = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d}[len(size)]
    extras = tuples(extra, len(size))
    bench.check(
        lambda g, a, b: transposed(
            g, a, b, output_padding=extras, **attributes_of(size, strides, padding, dilation, groups)
        ),
        lambda a, b: apply(a, b, None, strides, padding, extra, groups, dilation),
        [rng.standard_normal((replicas, 13, 4, *size)), rng.standard_normal((replicas, 4, 6 // groups, *kernel))],
    )


@pytest.mark.parametrize("pass_", ["input", "weights"])
def test_second_derivatives(bench, rng, pass_):
    """The gradient passes are linear in both operands; their gradients against PyTorch's double backward."""
    options = {"strides": (2, 1), "padding": ((1, 1), (0, 0)), "groups": 2}
    grad, x = rng.standard_normal((2, 9, 4, 4, 5)), rng.standard_normal((2, 9, 2, 8, 7))
    w = rng.standard_normal((2, 4, 1, 3, 3))
    arguments = {"stride": (2, 1), "padding": (1, 0), "groups": 2}
    if pass_ == "input":
        bench.check(
            lambda g, a, b: g.create(ops.ConvInputGrad, [a, b], ["y"], input_size=(8, 7), **options).outputs[0],
            lambda a, b: torch.nn.grad.conv2d_input((9, 2, 8, 7), b, a, **arguments),
            [grad, w],
        )
    else:
        bench.check(
            lambda g, a, b: g.create(ops.ConvWeightGrad, [a, b], ["y"], kernel_size=3, **options).outputs[0],
            lambda a, b: torch.nn.grad.conv2d_weight(b, (4, 1, 3, 3), a, **arguments),
            [grad, x],
        )


def test_through_a_graph(bench, rng):
    def build(g, x, w, bias):
        y = conv(g, x, w, padding=1)
        y = g.create(ops.AddBias, [y, bias], ["biased"]).outputs[0]
        return g.create(ops.Relu, [y], ["z"]).outputs[0]

    bench.check(
        build,
        lambda x, w, bias: functional.relu(functional.conv2d(x, w, bias, padding=1)),
        [rng.standard_normal(s) for s in ((2, 10, 3, 7, 7), (2, 5, 3, 3, 3), (2, 5))],
    )


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 5, 6)])
def test_add_bias(bench, rng, shape):
    bench.check(
        lambda g, x, b: g.create(ops.AddBias, [x, b], ["y"]).outputs[0],
        lambda x, b: x + b.reshape(1, -1, *[1] * (len(shape) - 2)),
        [rng.standard_normal((2, *shape)), rng.standard_normal((2, 4))],
    )


def test_float32_like_torch(bench, rng):
    x = rng.standard_normal((1, 40, 10, 12, 12)).astype(np.float32)
    w = rng.standard_normal((1, 20, 10, 5, 5)).astype(np.float32)
    bench.check(conv, functional.conv2d, [x, w], rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("batch", [2, 40])
def test_half_rounds_once(bench, rng, batch):
    x = rng.standard_normal((2, batch, 3, 9, 9)).astype(np.float16)
    w = rng.standard_normal((2, 4, 3, 3, 3)).astype(np.float16)
    y, grad, (dx, dw) = bench.gradients(conv, [x, w])
    assert y.dtype == dx.dtype == dw.dtype == np.float16
    for r in range(2):
        a, b = (torch.tensor(t[r].astype(np.float32)).requires_grad_() for t in (x, w))
        expected = functional.conv2d(a, b)
        expected.backward(torch.tensor(grad[r].astype(np.float32)))
        for found, wide in ((y, expected.detach()), (dx, a.grad), (dw, b.grad)):
            np.testing.assert_allclose(found[r], wide.numpy().astype(np.float16), rtol=1e-3, atol=1e-3)


def test_half_sums_beyond_half_range(bench):
    x, w = np.ones((1, 1, 4096, 1), np.float16), np.ones((1, 1, 4096, 1), np.float16)
    assert bench.run(ops.Conv, x, w).item() == 4096


def test_operands_may_be_views(bench, rng):
    x = rng.standard_normal((2, 7, 9, 5, 6)).transpose(0, 3, 4, 1, 2)
    w = rng.standard_normal((2, 3, 3, 6, 4)).transpose(0, 4, 3, 1, 2)
    copies = [np.ascontiguousarray(a) for a in (x, w)]
    np.testing.assert_array_equal(bench.run(ops.Conv, x, w), bench.run(ops.Conv, *copies))


def test_work(bench):
    x, w = np.ones((1, 40, 4, 12, 10), np.float16), np.ones((1, 20, 2, 5, 3), np.float16)
    options = {
        "strides": (2, 1),
        "padding": ((1, 2), (0, 1)),
        "dilation": (1, 2),
        "groups": 2,
        "partials_dtype": FLOAT16,
        "available_memory_proportion": 0.2,
    }
    op = bench.op(ops.Conv, x, w, **options)
    (work,) = op.work()
    assert isinstance(work, Convolution)
    assert (work.batch, work.channels_in, work.channels_out, work.groups) == (40, 4, 20, 2)
    assert (work.input_size, work.kernel_size, work.output_size) == ((12, 10), (5, 3), (6, 7))
    assert (work.strides, work.padding, work.dilation) == ((2, 1), ((1, 2), (0, 1)), (1, 2))
    assert (work.input_dtype, work.output_dtype, work.partials_dtype) == (FLOAT16, FLOAT16, FLOAT16)
    assert work.flops == 2 * 40 * 20 * 6 * 7 * 2 * 5 * 3
    op.graph.add_output(op.outputs[0])
    back = ops.autodiff(op.graph).graph
    passes = {o.type: o.work()[0] for o in back.ops}
    assert {t: p.pass_ for t, p in passes.items()} == {"ConvDataGrad": "bwd", "ConvWeightsGrad": "wu"}
    for found in passes.values():
        assert isinstance(found, Convolution)
        assert {**vars(found), "pass_": "fwd"} == vars(work)


def test_defaults(bench):
    op = bench.op(ops.Conv, np.ones((1, 2, 3, 8, 8), np.float32), np.ones((1, 4, 3, 3, 3), np.float32))
    (work,) = op.work()
    assert isinstance(work, Convolution)
    assert (work.partials_dtype, work.available_memory_proportion, work.pass_) == (FLOAT32, 0.6, "fwd")
    assert (work.strides, work.padding, work.dilation, work.groups) == ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)


@pytest.mark.parametrize(("operands", "partials", "planned"), [
    (np.float32, FLOAT16, FLOAT32), (np.float16, FLOAT16, FLOAT16), (np.float16, FLOAT32, FLOAT32),
])  # fmt: skip
def test_partial_sums_are_at_least_as_wide_as_the_result(bench, operands, partials, planned):
    x, w = np.ones((1, 1, 2, 8, 8), operands), np.ones((1, 4, 2, 3, 3), operands)
    (work,) = bench.op(ops.Conv, x, w, partials_dtype=partials).work()
    assert work.partials_dtype is planned


def test_work_of_transposed_and_bias(bench):
    x, w = np.ones((1, 2, 6, 5, 5), np.float32), np.ones((1, 6, 4, 3, 3), np.float32)
    op = bench.op(ops.ConvTranspose, x, w, strides=2, output_padding=1)
    assert op.outputs[0].shape == (2, 4, 12, 12)
    (work,) = op.work()
    assert isinstance(work, Convolution)
    assert (work.pass_, work.channels_in, work.channels_out, work.input_size) == ("bwd", 4, 6, (12, 12))
    assert work.output_size == (5, 5)
    (vertex,) = bench.op(ops.AddBias, x, np.ones((1, 6), np.float32)).work()
    assert vertex.vertex == "popops::BinaryOp1DInPlace<ADD,float>"
    assert vertex.elements == 2 * 6 * 25


def test_kernels_work_in_shared_scratch_memory(rng):
    """With the evaluator's scratch memory, where slots are reused and full of other kernels' values."""
    from ipuperf.numerics.memory import Scratch

    memory = Scratch()

    class Environment:
        replicas = 1

        def scratch(self, shape, dtype, slot=0):
            return memory.array(shape, dtype, slot)

    graph = ir.Ir().create_graph("g")
    shapes = ((4, 2, 9, 9), (3, 2, 3, 3), (20, 3, 11, 11), (5, 3, 3, 3))
    tensors = [graph.add_input(ir.TensorSpec(s, FLOAT32), f"t{i}") for i, s in enumerate(shapes)]
    arrays = [rng.standard_normal((1, *s)).astype(np.float32) for s in shapes]
    found = []
    for (a, b), (x, w) in ((tensors[:2], arrays[:2]), (tensors[2:], arrays[2:])):
        op = graph.create(ops.Conv, [a, b], ["y"], padding=1)
        out = np.empty((1, *op.outputs[0].shape), np.float32)
        found.append((op.kernel([x, w], [out], Environment()), out, x, w))
    for _ in range(2):
        for run, _, _, _ in found:
            run()
    for _, out, x, w in found:
        expected = functional.conv2d(torch.tensor(x[0]), torch.tensor(w[0]), padding=1)
        np.testing.assert_allclose(out[0], expected.numpy(), rtol=1e-4, atol=1e-4)

"""Matrix products against NumPy and PyTorch: all ranks, broadcasting, fp16, passes, cost."""

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.ops.work import MatMul as MatMulWork

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((6, 2, 3, 4), (2, 4, 5)),
    ((6, 1, 3, 4), (2, 4, 5)),
    ((6, 2, 3, 4), (1, 4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((1, 1), (1, 1)),
]


def product(g, a, b, **attributes):
    return g.create(ops.MatMul, [a, b], ["y"], **attributes).outputs[0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("shapes", SHAPES)
def test_values(bench, rng, shapes, replicas):
    lhs, rhs = (rng.standard_normal((replicas, *s)) for s in shapes)
    found = bench.run(ops.MatMul, lhs, rhs)
    for r in range(replicas):
        np.testing.assert_allclose(found[r], np.matmul(lhs[r], rhs[r]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients(bench, rng, shapes):
    torch = pytest.importorskip("torch")
    bench.check(product, torch.matmul, [rng.standard_normal((2, *s)) for s in shapes])


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_transposed_views(bench, rng, turned, dtype):
    lhs, rhs = (rng.standard_normal((2, 5, 5)).astype(dtype) for _ in range(2))
    views = [a.swapaxes(1, 2) if t else a for a, t in zip((lhs, rhs), turned, strict=True)]
    copies = [np.ascontiguousarray(v) for v in views]
    np.testing.assert_allclose(
        bench.run(ops.MatMul, *views), bench.run(ops.MatMul, *copies), rtol=1e-5 if dtype == np.float32 else 2e-3
    )


def test_half_accumulates_in_float32_and_rounds_once(bench):
    lhs, rhs = np.ones((1, 1, 4096), np.float16), np.ones((1, 4096, 1), np.float16)
    assert bench.run(ops.MatMul, lhs, rhs) == np.float16(4096)
    assert bench.run(ops.MatMul, lhs, rhs * np.float16(20), output_dtype=FLOAT32) == np.float32(81920)


@pytest.mark.parametrize("shapes", SHAPES)
def test_half(bench, rng, shapes):
    lhs, rhs = (rng.standard_normal((2, *s)).astype(np.float16) for s in shapes)
    found = bench.run(ops.MatMul, lhs, rhs)
    assert found.dtype == np.float16
    for r in range(2):
        wide = np.matmul(lhs[r].astype(np.float32), rhs[r].astype(np.float32))
        np.testing.assert_allclose(found[r], wide.astype(np.float16), rtol=2e-3, atol=2e-4)


def test_gradient_of_float32_output_of_half_operands(bench, rng):
    lhs, rhs = (rng.standard_normal((2, *s)).astype(np.float16) for s in ((3, 4), (4, 5)))
    _, grad, (d_lhs, d_rhs) = bench.gradients(lambda g, a, b: product(g, a, b, output_dtype=FLOAT32), [lhs, rhs])
    assert grad.dtype == np.float32
    assert d_lhs.dtype == d_rhs.dtype == np.float16
    narrow = grad.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(d_lhs, narrow @ rhs.astype(np.float32).swapaxes(1, 2), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("pass_", "expected"), [("nonemm", {"nonemm"}), ("fcfwd", {"fcbwd", "fcwu"})])
def test_gradient_graph(pass_, expected):
    graph = ir.Ir().create_graph("g")
    x, w = (graph.add_input(ir.TensorSpec(s, FLOAT32), n) for s, n in (((8, 784), "x"), ((784, 512), "w")))
    options = {"partials_dtype": FLOAT16, "available_memory_proportion": 0.2, "pass_": pass_}
    graph.add_output(product(graph, x, w, **options))
    back = ops.autodiff(graph).graph
    assert sorted(op.type for op in back.ops) == ["MatMul", "MatMul", "Transpose", "Transpose"]
    products = [op for op in back.ops if op.type == "MatMul"]
    assert {op.attributes["pass_"] for op in products} == expected
    assert {op.attributes["available_memory_proportion"] for op in products} == {0.2}
    assert {op.attributes["partials_dtype"] for op in products} == {FLOAT16}


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        (((8, 784), (784, 512)), (1, 8, 784, 512)),
        (((4, 8, 784), (784, 512)), (1, 32, 784, 512)),
        (((4, 8, 16), (4, 16, 32)), (4, 8, 16, 32)),
        (((8, 16), (4, 16, 32)), (1, 8, 16, 128)),
        (((6, 4, 8, 16), (4, 16, 32)), (4, 48, 16, 32)),
        (((16,), (16, 32)), (1, 1, 16, 32)),
        (((8, 16), (16,)), (1, 8, 16, 1)),
    ],
)
def test_work(bench, shapes, sizes):
    lhs, rhs = (np.ones((1, *s), np.float16) for s in shapes)
    (work,) = bench.op(ops.MatMul, lhs, rhs, pass_="fcfwd", available_memory_proportion=None).work()
    assert isinstance(work, MatMulWork)
    assert (work.groups, work.m, work.k, work.n) == sizes
    assert (work.input_dtype, work.output_dtype, work.partials_dtype) == (FLOAT16, FLOAT16, FLOAT32)
    assert (work.pass_, work.available_memory_proportion) == ("fcfwd", 0.6)

"""The Cholesky factor and triangular equations against PyTorch: values, gradients, errors and cost."""

import numpy as np
import pytest

from ipuperf.functions import make
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.ops import Cholesky, TriangularSolve
from ipuperf.ops.work import MatMul
from ipuperf.simulation import simulate

torch = pytest.importorskip("torch")


def definite(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal((*shape, shape[-1]))
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])


def symmetric(x):
    """Of which the factor's gradient is symmetric, as ours is."""
    return torch.linalg.cholesky(x)


@pytest.mark.parametrize("shape", [(4,), (3, 5)])
def test_cholesky(bench, rng, shape) -> None:
    bench.check(lambda g, t: g.create(Cholesky, [t], ["y"]).outputs[0], symmetric, [definite(rng, 2, *shape)])


def test_cholesky_reads_the_lower_triangle_alone(bench, rng) -> None:
    whole = definite(rng, 1, 4).astype(np.float32)
    above = np.where(np.triu(np.ones((4, 4), bool), 1), np.nan, whole)
    np.testing.assert_array_equal(bench.run(Cholesky, above), bench.run(Cholesky, whole))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_triangular_solve(bench, rng, lower, adjoint) -> None:
    def expected(a, b):
        triangle = torch.tril(a) if lower else torch.triu(a)
        triangle = triangle.transpose(-1, -2) if adjoint else triangle
        return torch.linalg.solve_triangular(triangle, b, upper=lower == adjoint)

    def build(graph, a, b):
        return graph.create(TriangularSolve, [a, b], ["y"], lower=lower, adjoint=adjoint).outputs[0]

    bench.check(build, expected, [definite(rng, 2, 3, 5), rng.standard_normal((2, 3, 5, 2))])


def test_no_factor_is_not_a_number(bench) -> None:
    assert np.isnan(bench.run(Cholesky, -np.ones((1, 2, 3, 3), np.float32))).all()
    singular = np.zeros((1, 2, 2), np.float32)
    assert np.isnan(bench.run(TriangularSolve, singular, np.ones((1, 2, 1), np.float32))).all()


def test_work_is_done_in_blocks(bench) -> None:
    work = bench.op(Cholesky, np.ones((1, 160, 160), np.float32)).work()
    assert [w.m for w in work if isinstance(w, MatMul)] == [96, 32]
    solve = bench.op(TriangularSolve, np.ones((1, 160, 160), np.float32), np.ones((1, 160, 3), np.float32)).work()
    assert [(w.m, w.k, w.n) for w in solve if isinstance(w, MatMul)] == [(96, 64, 3), (32, 64, 3)]


def test_of_nothing_there_is_no_work(bench) -> None:
    for count, size, columns in ((0, 4, 2), (2, 4, 0), (2, 0, 2)):
        matrices, sides = np.ones((1, count, size, size), np.float32), np.ones((1, count, size, columns), np.float32)
        assert bench.op(TriangularSolve, matrices, sides).work() == []
        assert bool(bench.op(Cholesky, matrices).work()) is (count * size > 0)


def test_time_grows_with_the_matrix() -> None:
    from ipuperf import popxl
    from ipuperf.popxl.ops.lifting import lifted

    def cycles(size: int) -> int:
        ir = popxl.Ir()
        with ir.main_graph:
            x = popxl.variable(np.eye(size, dtype=np.float32))
            lifted(lambda t: make(Cholesky, t))(x)
        machine = load_machine("pod4")
        return int(simulate(lower(ir._ir, machine), machine).totals()["compute"].iloc[0])

    assert 0 < cycles(16) < cycles(64) < cycles(160)

"""Factors, determinants and solutions of matrices, sparse ones by coordinates: values and gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402

L = torch.linalg
W = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(3))
B = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(4))
EDGES = torch.tensor([[0, 1, 1, 3], [2, 0, 0, 1]])


def positive(w: Any) -> Any:
    return w @ w.mT + torch.eye(4)


def sparse(values: Any, b: Any) -> Any:
    graph = torch.sparse_coo_tensor(EDGES, values, (4, 4)).coalesce()
    return torch.sparse.mm(graph, b) + graph.to_dense()[:, :3]


CASES = {
    "cholesky": (lambda w: L.cholesky(positive(w)), W),
    "cholesky_upper": (lambda w: L.cholesky(positive(w), upper=True), W),
    "cholesky_solve": (lambda w, b: torch.cholesky_solve(b, L.cholesky(positive(w))), W, B),
    "det": (lambda w: L.det(w), W),
    "det_of_one_matrix": (lambda w: w.det(), W[0]),
    "logdet": (lambda w: torch.logdet(positive(w)), W),
    "slogdet": (lambda w: L.slogdet(w).logabsdet + L.slogdet(w)[0], W),
    "solve_lower": (lambda w, b: L.solve_triangular(positive(w), b, upper=False), W, B),
    "solve_upper_right": (lambda w, b: L.solve_triangular(positive(w), b.mT, upper=True, left=False), W, B),
    "solve_unit": (lambda w, b: L.solve_triangular(w, b, upper=False, unitriangular=True), W, B),
    "gaussian": (
        lambda w, b: torch.distributions.MultivariateNormal(b[:, :, 0], positive(w)).log_prob(b[:, :, 1]), W, B
    ),
    "slope_of_a_factor": (lambda w: torch.func.grad(lambda v: L.cholesky(positive(v)).square().sum())(w), W[0]),
    "solve_one_matrix": (lambda w, b: L.solve_triangular(positive(w), b, upper=False), W[0], B),
    "exponential": (lambda w: torch.matrix_exp(w * torch.tensor([0.1, 3.0])[:, None, None]) / 9, W),
    "rotation": (lambda w: L.matrix_exp(3 * (w - w.mT)), W[0]),
    "exponential_of_nothing": (lambda w: (0 * w).matrix_exp(), W[0]),
    "sparse": (sparse, B[0, :, 0], B[1]),
}  # fmt: skip


def test_values_and_gradients_are_pytorchs(check_all: Any) -> None:
    functions = {name: case[0] for name, case in CASES.items()}
    check_all(functions, operands={name: list(case[1:]) for name, case in CASES.items()})


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: L.det(x.expand(65, 65)), "linalg.det: 65 rows are unsupported; allowed: up to 64"),
        (lambda x: torch.sparse_coo_tensor(EDGES, x.expand(4)), "sparse_coo_tensor: size must be given"),
    ],
)
def test_what_is_refused(function: Any, text: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    with pytest.raises(poptorch.UnsupportedError, match=text):
        poptorch.inferenceModel(Model())(torch.ones(1))


def test_a_sparse_buffer_is_refused() -> None:
    model = torch.nn.Linear(4, 4)
    model.register_buffer("graph", torch.eye(4).to_sparse())
    with pytest.raises(poptorch.UnsupportedError, match=r"'graph' is a tensor of layout torch.sparse_coo.*to_dense"):
        poptorch.inferenceModel(model)(B[0].T)

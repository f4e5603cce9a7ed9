"""Factors of matrices by loops, against NumPy in double: any shape, low rank, equal values, large and small ones."""

from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.functions import spectra
from ipuperf.popxl import ops
from ipuperf.popxl.ops.lifting import lifted

RANDOM = np.random.default_rng(5)
MATRICES = {
    "one": RANDOM.normal(size=(1, 1)),
    "square": RANDOM.normal(size=(3, 5, 5)),
    "high": RANDOM.normal(size=(7, 4)),
    "wide": RANDOM.normal(size=(2, 2, 3, 6)),
    "thirty": RANDOM.normal(size=(30, 30)),
    "of_rank_two": RANDOM.normal(size=(6, 2)) @ RANDOM.normal(size=(2, 5)),
    "identity": np.eye(4),
    "nothing": np.zeros((4, 3)),
    "graded": RANDOM.normal(size=(5, 5)) * 10.0 ** np.arange(-4, 1),
    "large": RANDOM.normal(size=(4, 4)) * 1e6,
}


def run(function: Any, a: np.ndarray) -> list[np.ndarray]:
    """The results of a function, as the simulator has them."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        found = lifted(function)(popxl.variable(a.astype(np.float32)))
        streams = [popxl.d2h_stream(t.shape, popxl.float32) for t in found]
        for stream, tensor in zip(streams, found, strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_hw") as session:
        outputs = session.run()
    return [outputs[stream].astype(float) for stream in streams]


def t(a: np.ndarray) -> np.ndarray:
    return a.swapaxes(-1, -2)


def close(found: np.ndarray, wanted: np.ndarray, scale: float = 1.0) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * max(scale, 1e-30))


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_singular_values_and_vectors(name: str, complete: bool) -> None:
    a = MATRICES[name].astype(np.float32).astype(float)
    u, s, v = run(lambda x: spectra.svd(x, complete), a)
    largest, count = np.linalg.norm(a, 2, axis=(-2, -1)).max(), min(a.shape[-2:])
    close(s, np.linalg.svd(a, compute_uv=False), largest)
    close(u[..., :count] * s[..., None, :] @ t(v[..., :count]), a, largest)
    for side in (u, v):
        close(t(side) @ side, np.broadcast_to(np.eye(side.shape[-1]), (*a.shape[:-2], *[side.shape[-1]] * 2)))


@pytest.mark.parametrize("name", [n for n, a in MATRICES.items() if a.shape[-1] == a.shape[-2]])
def test_eigenvalues_and_vectors(name: str) -> None:
    a = MATRICES[name] + t(MATRICES[name])
    values, vectors = run(spectra.eigh, a)
    largest = abs(a).max() * a.shape[-1]
    close(values, np.linalg.eigvalsh(a), largest)
    close(a @ vectors, vectors * values[..., None, :], largest)
    close(t(vectors) @ vectors, np.broadcast_to(np.eye(a.shape[-1]), a.shape))


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", [n for n in MATRICES if n != "of_rank_two"])
def test_orthogonal_and_triangular_factor(name: str, complete: bool) -> None:
    a = MATRICES[name].astype(np.float32).astype(float)
    q, r = run(lambda x: spectra.qr(x, complete), a)
    wanted = np.linalg.qr(a, "complete" if complete else "reduced")
    close(r, wanted[1], np.linalg.norm(a))
    close(q, wanted[0], 30 if name == "graded" else 1)


@pytest.mark.parametrize("name", ["one", "square", "thirty", "identity"])
def test_inverse(name: str) -> None:
    a = MATRICES[name]
    (found,) = run(lambda x: [spectra.inverse(x)], a)
    close(found, np.linalg.inv(a), 30 * abs(np.linalg.inv(a)).max())

"""Conversions between float16 and float32: the same bits with and without PyTorch, for every kind of number."""

import sys

import numpy as np
import pytest

from ipuperf.ops import half


def numbers() -> np.ndarray:
    """float32 numbers around everything that rounding distinguishes, among them every float16 and every tie."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    ties = (finite[:-1] + finite[1:]) / 2
    near = np.concatenate([np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([every, ties, near, bits, np.float32([0.0, -0.0, 65519.9, 65520, -1e30, 2**-25, -(2**-26)])])


def converted(out: np.ndarray, source: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        half.copy(out, source)()
    return out


@pytest.fixture(params=["with PyTorch", "without PyTorch"])
def conversion(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with both conversions."""
    if request.param == "with PyTorch":
        pytest.importorskip("torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("conversion")
def test_float32_to_float16_rounds_as_numpy() -> None:
    """Every bit but the payload of NaN is that of NumPy's ``astype``."""
    source = numbers()
    with np.errstate(all="ignore"):
        wanted = source.astype(np.float16)
    found = converted(np.empty(source.shape, np.float16), source)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(found.view(np.uint16)[number], wanted.view(np.uint16)[number])
    assert np.isnan(found[~number]).all()


@pytest.mark.usefixtures("conversion")
def test_float16_to_float32_is_exact() -> None:
    source = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(converted(np.empty(source.shape, np.float32), source), source.astype(np.float32))


@pytest.mark.usefixtures("conversion")
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::2],
        lambda a: a[:0],
        lambda a: a[0, 0, ...],
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
    ids=["whole", "transposed", "backwards", "every second", "empty", "scalar", "broadcast"],
)
def test_any_view_is_converted(view) -> None:
    """Sources of any layout, both ways; the target may be broadcast to."""
    for before, after in ((np.float32, np.float16), (np.float16, np.float32)):
        source = view(np.arange(24, dtype=before).reshape(4, 6))
        np.testing.assert_array_equal(converted(np.full(source.shape, np.nan, after), source), source.astype(after))


@pytest.mark.usefixtures("conversion")
def test_row_is_broadcast() -> None:
    source = np.float32([1, 2, 3])
    np.testing.assert_array_equal(converted(np.empty((2, 3), np.float16), source), np.float16([[1, 2, 3]] * 2))

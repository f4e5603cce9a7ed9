"""Ops that XLA makes of formulas, and those whose places are known: the logarithm of the gamma function and its
derivatives, stitches, counts, factorisations and crops, against TensorFlow on the CPU."""

# ruff: noqa: E731 (the table is made of small functions)

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import check

from ipuperf.tensorflow.importer.errors import GraphError

RNG = np.random.default_rng(3)
raw = tf.raw_ops
Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def with_gradient(function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """The value of a function and the gradients of the sum of its squares, made by TensorFlow."""

    def both(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments[:count])
            value = function(*arguments)
            loss = tf.reduce_sum(value * value)
        return [value, *tape.gradient(loss, arguments[:count])]

    return both


def gammas() -> Iterator[Case]:
    x = np.concatenate([RNG.uniform(0.05, 12, 40), RNG.uniform(-4.9, -0.1, 40), [30.0, 100.5, 1e3, 1e-3]])
    x = x[np.abs(x - np.round(x)) > 0.02].astype(np.float32)
    edges = np.array([0.0, -1.0, -2.0, np.inf, 1.0, 2.0, 0.5], np.float32)
    for name in ("lgamma", "digamma"):
        function = getattr(tf.math, name)
        yield name, with_gradient(function), (x,)
        yield f"{name} float16", function, (x[:40].astype(np.float16),)
    yield "lgamma at poles", tf.math.lgamma, (edges,)
    yield "digamma at poles", tf.math.digamma, (edges[1:3],)
    yield "lbeta", lambda v: tf.math.lbeta(v), (RNG.uniform(0.5, 4, (3, 4)).astype(np.float32),)


def stitches() -> Iterator[Case]:
    stitch = lambda a, b: tf.dynamic_stitch([[4, 1], [[0, 2], [3, 5]]], [a, b])
    yield "stitch", with_gradient(stitch, 2), (f32(2, 3), f32(2, 2, 3))
    yield "last of equal places", lambda a, b: tf.dynamic_stitch([[0, 1], [1, 2]], [a, b]), (f32(2), f32(2))
    yield "scalars", lambda a, b: tf.dynamic_stitch([1, 0], [a, b]), (f32(), f32())
    yield (
        "parallel",
        lambda a, b: tf.raw_ops.ParallelDynamicStitch(indices=[[2, 0], [1]], data=[a, b]),
        (f32(2, 2), f32(1, 2)),
    )


def counts() -> Iterator[Case]:
    x = RNG.integers(0, 6, 20).astype(np.int32)
    yield "bincount", lambda v: raw.Bincount(arr=v, size=6, weights=tf.zeros([0], tf.int32)), (x,)
    yield "with weights", lambda v, w: raw.DenseBincount(input=v, size=8, weights=w), (x, f32(20))
    yield "beyond the size", lambda v: raw.DenseBincount(input=v, size=3, weights=tf.zeros([0])), (x,)
    rows = RNG.integers(0, 5, (3, 7)).astype(np.int32)
    yield "rows", lambda v: raw.DenseBincount(input=v, size=5, weights=tf.zeros([0])), (rows,)
    yield "rows with weights", lambda v, w: raw.DenseBincount(input=v, size=5, weights=w), (rows, f32(3, 7))
    binary = lambda v: raw.DenseBincount(input=v, size=5, weights=tf.zeros([0]), binary_output=True)
    yield "rows, whether", binary, (rows,)
    yield "math", lambda v: tf.math.bincount(v, minlength=6, maxlength=6), (x,)
    yield "math rows", lambda v: tf.math.bincount(v, minlength=5, maxlength=5, axis=-1), (rows,)


def factorisations() -> Iterator[Case]:
    x = f32(2, 5, 5)
    definite = x @ x.transpose(0, 2, 1) + 2 * np.eye(5, dtype=np.float32)
    yield "cholesky", with_gradient(tf.linalg.cholesky), (definite,)
    yield "cholesky of a part", lambda a: tf.linalg.cholesky(tf.linalg.band_part(a, -1, 0)), (definite[0],)
    for lower in (True, False):
        for adjoint in (True, False):
            solve = lambda a, b, lo=lower, ad=adjoint: tf.linalg.triangular_solve(a, b, lower=lo, adjoint=ad)
            yield f"triangular solve {lower} {adjoint}", with_gradient(solve, 2), (definite, f32(2, 5, 3))
    broadcast = lambda a, b: tf.linalg.triangular_solve(a, b)
    yield "triangular solve of one matrix", broadcast, (definite[:1], f32(2, 5, 3))
    for adjoint in (False, True):
        yield f"inverse {adjoint}", with_gradient(lambda a, ad=adjoint: tf.linalg.inv(a, adjoint=ad)), (definite + x,)
        solve = lambda a, b, ad=adjoint: tf.linalg.solve(a, b, adjoint=ad)
        yield f"solve {adjoint}", with_gradient(solve, 2), (definite + x, x[..., :3])
    yield "cholesky solve", lambda a, b: tf.linalg.cholesky_solve(tf.linalg.cholesky(a), b), (definite, f32(2, 5, 3))


CASES = [
    pytest.param(*case[1:], id=case[0]) for family in (gammas, stitches, counts, factorisations) for case in family()
]


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_an_op_equals_tensorflow(function: Callable[..., Any], arguments: tuple[np.ndarray, ...]) -> None:
    half = any(a.dtype == np.float16 for a in arguments)
    check(function, *arguments, rtol=4e-3 if half else 1e-4, atol=4e-3 if half else 2e-5)


BOXES = np.array([[0.1, 0.2, 0.8, 0.9], [-0.2, 0.0, 0.6, 1.3], [0.9, 0.8, 0.1, 0.2], [0.0, 0.0, 1.0, 1.0]], np.float32)
OF_IMAGES = np.array([1, 0, 1, 0], np.int32)


@pytest.mark.parametrize("size", [(3, 4), (1, 5), (1, 1), (9, 2)])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crops(method: str, size: tuple[int, int]) -> None:
    def crop(images: Any, boxes: Any, numbers: Any) -> Any:
        return tf.image.crop_and_resize(images, boxes, numbers, size, method=method, extrapolation_value=0.5)

    function = with_gradient(crop, 1 if method == "nearest" else 2)
    check(function, f32(2, 5, 6, 3), BOXES, OF_IMAGES, rtol=1e-4, atol=2e-4)


def test_crops_of_half_precision_and_bytes() -> None:
    crop = lambda images: tf.image.crop_and_resize(images, BOXES, OF_IMAGES, (3, 4))
    check(crop, f32(2, 5, 6, 3).astype(np.float16), rtol=1e-3, atol=1e-3)
    check(crop, RNG.integers(0, 255, (2, 5, 6, 3)).astype(np.uint8), rtol=1e-4, atol=1e-3)


def test_what_depends_on_data_is_refused() -> None:
    with pytest.raises(GraphError, match="give minlength and maxlength, and both the same"):
        check(tf.math.bincount, np.array([1, 2], np.int32))
    with pytest.raises(GraphError, match="allowed: 1, the derivative of tf.math.digamma"):
        check(lambda x: tf.math.polygamma(2.0, x), f32(3))

"""Operations in C++ that programs load: functions in Python stand for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus  # noqa: E402

from ipuperf.ir import IrError  # noqa: E402
from ipuperf.tensorflow import user_ops  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402

X = np.arange(24, dtype=np.float32).reshape(1, 4, 6, 1)
DESCRIBED = """
import tensorflow as tf


def Cubed(inputs, attributes):
    return [inputs[0] ** 3 * float(attributes), inputs[1] + 1]


def Cubed_grad(gradients, inputs, outputs, attributes):
    return [gradients[0] * float(attributes), None]
"""


def run(function: Any, *arguments: Any) -> Any:
    """A function on one IPU."""
    with ipus(1):
        return tf.distribute.get_strategy().run(tf.function(function, jit_compile=True), args=arguments)


def outs(*shapes: tuple[int, ...], types: Any = None) -> dict[str, Any]:
    return {
        "output_types": types or [tf.float32] * len(shapes),
        "output_shapes": [tf.TensorShape(shape) for shape in shapes],
    }


def known(name: str) -> ModuleType:
    """A module that stands for a public library."""
    return user_ops.loaded(Path(user_ops.__file__).with_name(name))


def slopes_of(function: Any, operand: Any) -> Any:
    def program(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = function(x)
            loss = tf.reduce_sum(tf.cast(results[0], tf.float32) ** 2)
        return results[0], tape.gradient(loss, x)

    return [np.asarray(each) for each in run(program, tf.constant(operand))]


def test_a_function_beside_the_library_stands_for_it(tmp_path: Path) -> None:
    library = tmp_path / "libcubed.so"
    library.with_name("libcubed.so.py").write_text(DESCRIBED)
    which = {"op_name": "Cubed", "attributes": "2", "gradient_attributes": "0.5"}
    x = np.array([1.0, 2.0], np.float32)

    def cubed(x: Any) -> Any:
        counts = tf.constant([3])
        shapes = outs((2,), (1,), types=[tf.float32, tf.int32])
        return ipu.custom_ops.precompiled_user_op([x, counts], str(library), outs=shapes, **which)

    value, slope = slopes_of(cubed, x)
    np.testing.assert_allclose(value, 2 * x**3)
    np.testing.assert_allclose(slope, 0.5 * 2 * value)

    def without_gradient(x: Any) -> Any:
        counts = tf.constant([3])
        shapes = outs((2,), (1,), types=[tf.float32, tf.int32])
        made = ipu.custom_ops.precompiled_user_op(
            [x, counts], str(library), outs=shapes, inputs_with_gradients=[], **which
        )
        return [made[0] + x]

    value, slope = slopes_of(without_gradient, x)
    np.testing.assert_allclose(slope, 2 * value)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("libother.so", {}, "cannot record here.*; write 'libother.so.py' beside it"),
        ("libcubed.so", {"op_name": "Squared"}, "has no function 'Squared'"),
        (
            "libcubed.so",
            {"op_name": "Cubed", "attributes": "1"},
            "gives float32 .2,., int32 .1,., and `outs` says no",
        ),
    ],
)
def test_what_does_not_fit_is_one_error(tmp_path: Path, name: str, arguments: dict[str, str], message: str) -> None:
    (tmp_path / "libcubed.so.py").write_text(DESCRIBED)
    (tmp_path / "source.cpp").write_text("int Build();")
    operands = [tf.constant([1.0, 2.0]), tf.constant([3])]
    with pytest.raises((NotImplementedError, ValueError), match=message):
        ipu.custom_ops.precompiled_user_op(operands, str(tmp_path / name), **arguments)


def test_the_middle_of_images() -> None:
    value, slope = slopes_of(lambda x: known("central_crop.py").Build([x], "0.5"), X)
    np.testing.assert_array_equal(value, X[:, 1:3, 1:5])
    wanted = np.zeros_like(X)
    wanted[:, 1:3, 1:5] = 2 * value
    np.testing.assert_array_equal(slope, wanted)


def test_rows_of_groups() -> None:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 4, (2, 5)).astype(np.int32)
    table = rng.normal(size=(2, 4, 3)).astype(np.float32)
    build = known("grouped_rows.py").Build
    value, slope = slopes_of(lambda x: build([x, tf.constant(indices)], "v0 gather float 2 4 3 5"), table)
    wanted = np.stack([table[group][indices[group]] for group in range(2)])
    np.testing.assert_array_equal(value, wanted)
    summed = np.zeros_like(table)
    for group in range(2):
        np.add.at(summed[group], indices[group], 2 * wanted[group])
    np.testing.assert_allclose(slope, summed, rtol=1e-6)
    back, _ = slopes_of(lambda x: build([x, tf.constant(indices)], "v0 scatter float 2 4 3 5"), 2 * wanted)
    np.testing.assert_allclose(back, summed, rtol=1e-6)
    with pytest.raises(ValueError, match="is not `v0 gather"):
        build([table, indices], "v1 gather float 2 4 3 5")


def test_sources_decide_which_module_stands_for_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crop.cpp").write_text("int Build();  // in the middle")
    key = user_ops.digest(tmp_path / "crop.cpp")
    monkeypatch.setattr(user_ops, "KNOWN", {(key,): "central_crop.py"})
    for place in ("crop.so", "build/crop.so"):
        (made,) = ipu.custom_ops.precompiled_user_op(
            [X], str(tmp_path / place), attributes="0.5", outs=outs((1, 2, 4, 1))
        )
        np.testing.assert_array_equal(made, X[:, 1:3, 1:5])
    assert all((Path(user_ops.__file__).parent / name).is_file() for name in user_ops.KNOWN.values())


def test_suppression_of_boxes_with_one_class_is_that_of_scores_by_class() -> None:
    rng = np.random.default_rng(1)
    corners = rng.uniform(0, 4, (2, 12, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(1, 3, (2, 12, 2)).astype(np.float32)], -1)
    classes = rng.integers(0, 3, (2, 12)).astype(np.int32)
    scores = rng.uniform(0, 1, (2, 12)).astype(np.float32)
    by_class = np.where(np.arange(3) == classes[..., None], scores[..., None], -1.0).astype(np.float32)
    build = known("suppression.py").Build
    settings = '{"threshold": 0.2, "scoreThreshold": 0.3, "numDetections": 8, "sigma": null}'
    one = run(lambda s, b, c: build([s, b, c], settings), *map(tf.constant, (scores, boxes, classes)))
    many = run(lambda s, b: build([s, b], settings), *map(tf.constant, (by_class, boxes)))
    for found, wanted in zip(one, many, strict=True):
        np.testing.assert_array_equal(found, wanted)
    chosen = np.asarray(one[0])[0]
    kept = chosen[chosen >= 0]
    assert 2 <= len(kept) < 12
    assert list(scores[0][kept]) == sorted(scores[0][kept], reverse=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_an_operation_that_records_itself() -> None:
    """Against NumPy: ``y = 3 A B`` and its row sums, one gradient at a time."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 5)))
    library = Path(__file__).with_name("recorded") / "build" / "libscaled_product.so"

    def program(a: Any, b: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((a, b))
            y, sums = ipu.custom_ops.precompiled_user_op(
                [a, b],
                str(library),
                outs=outs((4, 5), (4,)),
                separate_gradients=True,
                attributes="3",
                gradient_attributes="3",
            )
            loss = tf.reduce_sum(y * y) / 2 + tf.reduce_sum(sums)
        return (y, sums, *tape.gradient(loss, (a, b)))

    y, sums, da, db = (np.asarray(each) for each in run(program, tf.constant(a), tf.constant(b)))
    product = 3 * a @ b
    np.testing.assert_allclose(y, product, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, product.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(da, 3 * (product + 1) @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, 3 * a.T @ (product + 1), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_what_a_recorded_operation_refuses() -> None:
    operand, library = tf.constant([[1.0]]), Path(__file__).with_name("recorded") / "libscaled_product.so"
    with pytest.raises(IrError, match=r"scaled_product\.cpp: two matrices are needed"):
        ipu.custom_ops.precompiled_user_op([operand], str(library), attributes="1")
    with pytest.raises(ValueError, match=r"gives float32 .1, 1., float32 .1,., and `outs` says nothing"):
        run(lambda x: ipu.custom_ops.precompiled_user_op([x, x], str(library), attributes="1"), operand)
    with pytest.raises(NotImplementedError, match="cannot record here"):
        ipu.custom_ops.precompiled_user_op([operand], str(library), op_name="Other")

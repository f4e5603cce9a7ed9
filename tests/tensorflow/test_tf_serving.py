"""Models exported for serving: the SavedModel by plain TensorFlow and what is returned, on the IPU, against NumPy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

import tf_keras as keras  # noqa: E402
from kerasruns import ipus  # noqa: E402

from ipuperf.tensorflow.python import ipu  # noqa: E402

VECTOR = tf.TensorSpec((4,), tf.float32)
X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def two_ipus() -> Iterator[None]:
    with ipus(2):
        yield


def saved(directory: Path, **data: Any) -> dict[str, np.ndarray]:
    """What the SavedModel answers."""
    answer = tf.saved_model.load(str(directory)).signatures["serving_default"]
    return {name: value.numpy() for name, value in answer(**{k: tf.constant(v) for k, v in data.items()}).items()}


def test_a_step_keeps_the_variables_of_its_export(tmp_path: Path) -> None:
    factor = tf.Variable(3.0)
    run = ipu.serving.export_single_step(lambda x: x * factor, str(tmp_path / "m"), 16, (VECTOR,), output_names="y")
    factor.assign(7.0)
    np.testing.assert_array_equal(run(X)["y"], 3 * X)
    np.testing.assert_array_equal(run(x=X + 1)["y"], 3 * X + 3)
    np.testing.assert_array_equal(saved(tmp_path / "m", x=X)["y"], 3 * X)


def test_steps_of_the_host(tmp_path: Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec((4,), tf.string)])
    def numbers(texts: Any) -> Any:
        return tf.strings.to_number(texts)

    @tf.function(input_signature=[VECTOR])
    def double(x: Any) -> Any:
        return 2 * x

    @tf.function(input_signature=[VECTOR])
    def after(x: Any) -> Any:
        return tf.abs(x), tf.reduce_sum(x)

    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "old").touch()
    run = ipu.serving.export_single_step(
        double,
        str(tmp_path / "m"),
        10,
        preprocessing_step=numbers,
        postprocessing_step=after,
        output_names=["size", "sum"],
        purge_export_dir=True,
    )
    texts = ["-1", "2", "3", "4"]
    for found in (run(tf.constant(texts)), saved(tmp_path / "m", texts=texts)):
        np.testing.assert_array_equal(found["size"], [2, 4, 6, 8])
        assert found["sum"] == 16
    assert not (tmp_path / "m" / "old").exists()


def test_a_pipeline_answers_each_request(tmp_path: Path) -> None:
    stages = [lambda c, x: (2 * x + c, x), lambda a, x: (a + 3, x)]
    run = ipu.serving.export_pipeline(
        stages, str(tmp_path / "m"), 4, inputs=[1.5], device_mapping=[0, 1], predict_step_signature=(VECTOR,)
    )
    for x in (X, X + 1):
        first, second = run(x)
        np.testing.assert_array_equal(first, 2 * x + 4.5)
        np.testing.assert_array_equal(second, x)
    assert set(saved(tmp_path / "m", x=X)) == {"output_0", "output_1"}


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_keras_model(pipelined: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shapes = [(8, 4), (4, 5), (5,), (5, 3), (3,)]
    data, *weights = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    layers = [keras.layers.Dense(5, "relu", input_shape=(4,), name="hidden"), keras.layers.Dense(3, name="out")]
    model = keras.Sequential(layers, name="served")
    model.set_weights(weights)
    if pipelined:
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile(steps_per_execution=4)
    run = model.export_for_ipu_serving(str(tmp_path / "m"), batch_size=8, output_names="y")
    found = run(data)["y"]
    kernel, bias, kernel_2, bias_2 = weights
    expected = np.maximum(data @ kernel + bias, 0) @ kernel_2 + bias_2
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(saved(tmp_path / "m", hidden_input=data)["y"], expected, atol=1e-6)


def double(x: Any) -> Any:
    return 2 * x


WRONG = {
    "no signature": (lambda d: ipu.serving.export_single_step(double, d, 1), ValueError, "needs the shapes"),
    "no shapes": (lambda d: ipu.serving.export_single_step(double, d, 1, [4]), TypeError, "tf.TensorSpec"),
    "arguments": (lambda d: ipu.serving.export_single_step(double, d, 1, [VECTOR] * 2), ValueError, "2 of them"),
    "iterations": (lambda d: ipu.serving.export_single_step(double, d, 0, [VECTOR]), ValueError, "at least 1"),
    "iterations of a pipeline": (lambda d: ipu.serving.export_pipeline([double], d, 0), ValueError, "at least 1"),
    "no stages": (lambda d: ipu.serving.export_pipeline([], d, 1), ValueError, "is empty"),
    "both": (
        lambda d: ipu.serving.export_single_step(double, d, 1, [VECTOR], tf.data.Dataset.from_tensors(X)),
        ValueError,
        "give one of them",
    ),
    "names": (
        lambda d: ipu.serving.export_single_step(double, d, 1, [VECTOR], output_names=["a", "b"]),
        ValueError,
        "2 output_names for 1 results",
    ),
    "kind of names": (
        lambda d: ipu.serving.export_single_step(double, d, 1, [VECTOR], output_names=("a",)),
        TypeError,
        "tuple",
    ),
    "fit": (
        lambda d: ipu.serving.export_single_step(
            double, d, 1, [VECTOR], postprocessing_step=double, postprocessing_step_signature=[tf.TensorSpec((3,))]
        ),
        ValueError,
        "postprocessing_step takes",
    ),
    "files": (lambda d: ipu.serving.export_single_step(double, str(Path(d).parent), 1, [VECTOR]), ValueError, "files"),
    "not built": (
        lambda d: ipu.serving.export_keras(keras.Sequential([keras.layers.Dense(3)]), d),
        ValueError,
        "is not built",
    ),
    "batch size": (
        lambda d: ipu.serving.export_keras(keras.Sequential([keras.layers.Dense(3, input_shape=(2,))]), d),
        ValueError,
        "batch_size is None",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_exported(case: str, tmp_path: Path) -> None:
    export, kind, words = WRONG[case]
    (tmp_path / "other").touch()
    with pytest.raises(kind, match=words):
        export(str(tmp_path / "m"))
    assert not (tmp_path / "m").exists()

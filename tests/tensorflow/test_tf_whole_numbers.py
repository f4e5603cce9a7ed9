"""Whole numbers of 64 bits that the 32 of the IPU cannot hold are refused, whatever way they come."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from kerasruns import ipus  # noqa: E402
from sessions import Compiled, graphs  # noqa: E402

from ipuperf.tensorflow.python import ipu  # noqa: E402

keras = tf.keras


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives on one IPU."""

    def program(*tensors: Any) -> Any:
        result = function(*tensors)
        return result if tf.is_tensor(result) else None

    with ipus(1):
        return tf.distribute.get_strategy().run(tf.function(program, jit_compile=True), args=arguments)


def argument(data: np.ndarray) -> Any:
    return run(lambda x: x + 0, tf.constant(data))


def fed(data: np.ndarray) -> Any:
    with graphs():
        return Compiled(lambda x: x + 0, [data]).run()[0]


def variable(data: np.ndarray) -> Any:
    with ipus(1):
        held = tf.Variable(data)
    return run(lambda: held + 0)


def assigned(data: np.ndarray) -> Any:
    """A variable that gets other values between two runs."""
    with ipus(1):
        held = tf.Variable(np.zeros_like(data))
        function = tf.function(lambda: held + 0, jit_compile=True)
        tf.distribute.get_strategy().run(function)
        held.assign(data)
        return tf.distribute.get_strategy().run(function)


def captured(data: np.ndarray) -> Any:
    constant = tf.constant(data)
    return run(lambda x: constant + x, tf.zeros(data.shape, data.dtype))


def enqueued_constant(data: np.ndarray) -> Any:
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    run(lambda: queue.enqueue(tf.constant(data)))
    return queue.dequeue()[0]


def infeed(data: np.ndarray) -> Any:
    source = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensors(data).repeat())
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    run(lambda: ipu.loops.repeat(2, lambda x: queue.enqueue(x), [], source))
    return queue.dequeue()[1]


def iterator(data: np.ndarray) -> Any:
    source = iter(tf.data.Dataset.from_tensors(data).repeat())
    return run(lambda: next(source) + 0)


def keras_data(data: np.ndarray) -> Any:
    with ipus(1):
        model = keras.Sequential([keras.Input((len(data),), dtype=data.dtype), keras.layers.Lambda(lambda x: x + 0)])
        model.compile()
        return model.predict(data[None], batch_size=1)[0]


SOURCES = (argument, fed, variable, assigned, captured, enqueued_constant, infeed, iterator, keras_data)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("kind", "value"), [("int64", 2**40), ("int64", -(2**31) - 1), ("uint64", 2**64 - 1)])
def test_a_number_that_does_not_fit_is_refused(source: Callable[..., Any], kind: str, value: int) -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=str(value)):
        source(np.array([3, value], kind))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("kind", "values"), [("int64", [-(2**31), 2**31 - 1]), ("uint64", [0, 2**32 - 1])])
def test_a_number_that_fits_arrives(source: Callable[..., Any], kind: str, values: list[int]) -> None:
    found = np.asarray(source(np.array(values, kind)))
    assert found.dtype == kind
    assert found.tolist() == values


@pytest.mark.parametrize("source", [infeed, iterator])
def test_numbers_of_float64_arrive_in_float32(source: Callable[..., Any]) -> None:
    """As Keras' ``fit`` gives them."""
    if source is infeed:
        np.testing.assert_array_equal(source(np.array([0.1, 3.0])), np.array([0.1, 3.0], np.float32))
        return
    elements = iter(tf.data.Dataset.from_tensors(np.array([0.1, 3.0])).repeat())
    found = run(lambda: tf.cast(next(elements), tf.float32) * 2)
    np.testing.assert_array_equal(found, np.array([0.2, 6.0], np.float32))

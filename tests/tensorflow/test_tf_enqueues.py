"""Where a program may enqueue: in layers of Keras models, in compute_gradients and apply_gradients of optimizers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import descend, gradients_of, ipus, same, two_stages  # noqa: E402

from ipuperf.tensorflow.python.ipu import ipu_outfeed_queue  # noqa: E402

keras = tf.keras
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(16, 4)).astype("float32"), RNG.normal(size=(16, 2)).astype("float32")


class Tap(keras.layers.Layer):
    """A layer that sends what it gets, once in a program."""

    def __init__(self, queue: Any) -> None:
        super().__init__()
        self.queue = queue

    def call(self, x: Any) -> Any:
        if not self.queue.enqueued:
            self.queue.enqueue({"values": x})
        return x


class Seen(tf.compat.v1.train.GradientDescentOptimizer):
    """Sends gradients of micro-batches, and those that it applies."""

    def __init__(self, rate: float, computed: Any = None, applied: Any = None) -> None:
        super().__init__(rate)
        self.computed, self.applied = computed, applied

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        pairs = super().compute_gradients(*args, **kwargs)
        if self.computed is not None:
            self.computed.enqueue({v.name: g for g, v in pairs})
        return pairs

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        pairs = list(grads_and_vars)
        if self.applied is not None:
            self.applied.enqueue({v.name: g for g, v in pairs})
        return super().apply_gradients(pairs, global_step, name)


class SeenByKeras(keras.optimizers.legacy.SGD):
    """The same of Keras."""

    def __init__(self, rate: float, computed: Any = None, applied: Any = None) -> None:
        super().__init__(rate)
        self.__dict__.update(computed=computed, applied=applied)

    def get_gradients(self, loss: Any, params: Any) -> Any:
        gradients = super().get_gradients(loss, params)
        if self.computed is not None:
            self.computed.enqueue({v.name: g for g, v in zip(gradients, params, strict=True)})
        return gradients

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if self.applied is not None:
            self.applied.enqueue({v.name: g for g, v in pairs})
        return super().apply_gradients(pairs, *args, **kwargs)


@pytest.mark.heavy
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_layer_enqueues_in_each_program(pipelined: bool) -> None:
    """Keras calls it symbolically before, where it sends nothing."""
    queue = ipu_outfeed_queue.IPUOutfeedQueue()
    with ipus(2 if pipelined else 1):
        model = two_stages(pipelined, [Tap(queue)])
        assert queue.take()[0].shape == (0, 0, 3)
        if pipelined:
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile(keras.optimizers.legacy.SGD(0.0), "mse", steps_per_execution=8)
        values = np.tanh(X @ model.get_weights()[0]).reshape(8, 2, 3)
        for call in (model.fit, model.evaluate):
            call(X, Y, batch_size=2, verbose=0, **({"shuffle": False} if call == model.fit else {}))
            same(queue.dequeue()["values"], values)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("make", [Seen, SeenByKeras])
def test_gradients_are_enqueued_where_the_optimizer_has_them(make: Callable[..., Any], pipelined: bool) -> None:
    computed, applied = (ipu_outfeed_queue.IPUOutfeedQueue() for _ in range(2))
    keras.backend.reset_uids()  # streams come in the order of the variables' names, and dense_10 before dense_9
    with ipus(2 if pipelined else 1):
        model = two_stages(pipelined)
        set_options = model.set_pipelining_options if pipelined else model.set_gradient_accumulation_options
        set_options(gradient_accumulation_steps_per_replica=4)
        model.compile(make(0.05, computed, applied), "mse", steps_per_execution=8)
        weights = model.get_weights()
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    after, names = model.get_weights(), [v.name for v in model.trainable_variables]
    model.set_weights(weights)
    expected: dict[Any, list[Any]] = {computed: [], applied: []}
    for x, y in zip(np.split(X, 2), np.split(Y, 2)):
        gradients = gradients_of(model, x, y, 4)
        expected[computed] += gradients
        expected[applied].append([sum(parts) for parts in zip(*gradients, strict=True)])
        descend(model, gradients, 0.05)
    for queue, rows in expected.items():
        found = queue.dequeue()
        same([found[name] for name in names], [np.stack(one) for one in zip(*rows, strict=True)])
    same(after, model.get_weights())


@pytest.mark.parametrize("value", [3.25, 7, True, np.float32(1.5), np.arange(3, dtype=np.int32)])
def test_numbers_are_enqueued_as_tensors(value: Any) -> None:
    queue = ipu_outfeed_queue.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue({"value": value})

    with ipus(1):
        tf.distribute.get_strategy().run(program)
    np.testing.assert_array_equal(queue.dequeue()["value"], [value])

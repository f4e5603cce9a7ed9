"""What a program does before and after a pipeline happens before and after it."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from sessions import configure  # noqa: E402

from ipuperf.tensorflow.python import ipu  # noqa: E402
from ipuperf.tensorflow.python.ipu import pipelining_ops  # noqa: E402

COUNT, RATE = 4, 0.25


@pytest.fixture
def strategy():
    configure(auto_select_ipus=2)
    yield ipu.ipu_strategy.IPUStrategy()
    ipu.config.reset_ipu_configuration()


def pipelined(weight, optimizer):
    """A pipeline whose loss is the weight: the sum of the gradients is COUNT. Returns it and its outfeed."""
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([4])).repeat())
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def run():
        pipelining_ops.pipeline(
            [lambda x: x * weight, tf.reduce_mean],
            COUNT,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            optimizer_function=lambda loss: pipelining_ops.OptimizerFunctionOutput(optimizer, loss, variables=[weight]),
        )

    return run, outfeed


def test_reads_and_assignments_on_both_sides(strategy):
    with strategy.scope():
        weight, other = tf.Variable(1.0), tf.Variable(0.0)
        run, outfeed = pipelined(weight, tf.keras.optimizers.SGD(RATE))

        @tf.function(jit_compile=True)
        def step():
            weight.assign_add(1.0)
            before = weight.read_value()
            run()
            after = weight.read_value()
            other.assign(weight * 3.0)
            weight.assign_add(100.0)
            return before, after

        start = 1.0
        for _ in range(2):
            before, after = strategy.run(step)
            assert (float(before), float(after)) == (start + 1, start + 1 - COUNT * RATE)
            np.testing.assert_array_equal(outfeed.dequeue()[0], [start + 1] * COUNT)
            assert float(other) == 3 * float(after)
            start = float(after) + 100
            assert float(weight) == start


def test_a_variable_of_the_optimizer_in_the_program_is_refused(strategy):
    with strategy.scope():
        weight, optimizer = tf.Variable(1.0), tf.keras.optimizers.SGD(RATE, momentum=0.9)
        optimizer.build([weight])
        run, _ = pipelined(weight, optimizer)
        (slot,) = optimizer.momentums

        @tf.function(jit_compile=True)
        def step():
            run()
            return slot.read_value()

        with pytest.raises(NotImplementedError, match="is a variable of optimizer 'SGD'.*uses it as well"):
            strategy.run(step)

"""Gradients of a pipeline where formulas change: those of TensorFlow at ties, edges and zeros."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import configure, graphs

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops

tf = tf2.compat.v1

EDGES = np.array([-3.0, -1.0, 0.0, 0.5, 1.0, 6.0], np.float32)
TIES = np.array([[1.0, 2.0, 1.0], [1.0, 2.0, 2.0], [0.0, 2.0, 0.0]], np.float32)
FUNCTIONS = {
    "relu6": (tf2.nn.relu6, EDGES),
    "selu": (tf2.nn.selu, EDGES),
    "maximum": (lambda v: tf2.maximum(v, tf2.reverse(v, [0])), TIES),
    "minimum": (lambda v: tf2.minimum(v, 0.5), EDGES),
    "reduce_max": (lambda v: tf2.reduce_max(v, 1), TIES),
    "reduce_min": (lambda v: tf2.reduce_min(v), TIES),
    "segments": (lambda v: tf2.math.unsorted_segment_max(v, [0, 0, 1], 2), TIES),
    "scattered": (lambda v: tf2.tensor_scatter_nd_max(v, [[0, 1], [1, 2]], v[2, 1:]), TIES),
}


def loss_of(y):
    """A weighted sum."""
    return tf2.reduce_sum(y * tf2.reshape(tf2.linspace(0.3, 1.1, int(np.prod(y.shape))), y.shape))


@pytest.mark.heavy
def test_gradients_of_stages_are_tensorflows():
    wanted = {}
    for name, (function, value) in FUNCTIONS.items():
        variable = tf2.constant(value)
        with tf2.GradientTape() as tape:
            tape.watch(variable)
            loss = loss_of(function(variable))
        wanted[name] = tape.gradient(loss, variable).numpy()
    with graphs():
        configure(auto_select_ipus=2)
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf2.data.Dataset.from_tensors(np.zeros(1, np.float32)).repeat())
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def first(x):
            loss = tf2.reduce_sum(x)
            for name, (function, value) in FUNCTIONS.items():
                loss += loss_of(function(tf.get_variable(name, initializer=value, use_resource=True)))
            return loss

        def step(loss):
            return pipelining_ops.OptimizerFunctionOutput(tf.train.GradientDescentOptimizer(1.0), loss)

        def program():
            return pipelining_ops.pipeline(
                [first, lambda loss: loss * 1.0], 4, infeed_queue=infeed, outfeed_queue=outfeed,
                optimizer_function=step, reduction_method="mean",
            )  # fmt: skip

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = ipu.ipu_compiler.compile(program, inputs=[])
        with tf.Session() as session:
            session.run(infeed.initializer)
            session.run(tf.global_variables_initializer())
            session.run(run)
            for variable in tf.global_variables():
                name = variable.op.name.split("/")[-1]
                if name in FUNCTIONS:
                    found = FUNCTIONS[name][1] - session.run(variable)
                    np.testing.assert_allclose(found, wanted.pop(name), rtol=1e-4, atol=1e-5, err_msg=name)
    assert not wanted

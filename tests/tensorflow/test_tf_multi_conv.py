"""``ipu.nn_ops.multi_conv``: one op forward, one for each gradient; values are TensorFlow's, time follows the plan."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from sessions import configure

from ipuperf.tensorflow.importer.errors import GraphError
from ipuperf.tensorflow.programs.hosting import program_of
from ipuperf.tensorflow.python import ipu

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2, 12, 12, 8)).astype(np.float32)
W = [RNG.normal(size=(3, 3, 8, 8)).astype(np.float32) for _ in range(2)]


def step(options, decorate=True):
    """Loss and gradients of two convolutions, of one input and of another."""

    def convs(x, y, v, w):
        first = tf.nn.relu(tf.nn.conv2d(x, v, 1, "SAME"))
        return first, tf.nn.conv2d(y, w, 1, "SAME")

    both = ipu.nn_ops.multi_conv(convs, options) if decorate else convs

    def run(x, v, w):
        with tf.GradientTape() as tape:
            tape.watch([x, v, w])
            u = both(x, tf.sigmoid(x), v, w)
            loss = tf.reduce_sum(u[0] * u[1])
        return [loss, *tape.gradient(loss, [x, v, w])]

    return run


def on_ipu(options, decorate=True):
    program = tf.function(step(options, decorate), jit_compile=True)
    arguments = [tf.constant(a) for a in (X, *W)]
    configure(optimizations__enable_graph_outlining=False)
    with ipu.ipu_strategy.IPUStrategy().scope():
        found = [t.numpy() for t in program(*arguments)]
        made = program_of(program, *arguments)
        made.finish()
    types = [op.type for graph in made.ir.all_graphs() for op in graph.ops if "Conv" in op.type]
    return found, sorted(types), made.executable


@pytest.fixture(scope="module")
def alone():
    return on_ipu({}, decorate=False)


def test_values_and_gradients_are_tensorflows():
    found, types, _ = on_ipu({"planType": "parallel", "cycleBackOff": "1.0"})
    for one, other in zip(found, step({}, decorate=False)(*(tf.constant(a) for a in (X, *W)))):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert types == ["MultiConv", "MultiConvDataGrad", "MultiConvWeightsGrad"]


@pytest.mark.heavy
def test_the_plan_type_changes_time(alone):
    cycles = {}
    for name, options in {"serial": {"planType": "serial"}, "parallel": {"perConvReservedTiles": "700"}}.items():
        found, _, executable = on_ipu(options)
        cycles[name] = executable.simulated_run_cycles
        assert all(np.array_equal(one, other) for one, other in zip(found, alone[0]))
    assert cycles["serial"] == alone[2].simulated_run_cycles
    assert cycles["parallel"] < cycles["serial"]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"planType": "both"}, ValueError, "planType='both'; allowed"),
        ({"perConvReservedTiles": "-1"}, ValueError, "perConvReservedTiles='-1'; allowed"),
        ({"partialsType": "half"}, ValueError, "partialsType='half'; allowed"),
        ("serial", TypeError, "to be a `dict`"),
    ],
)
def test_bad_options(options, kind, message):
    with pytest.raises(kind, match=message):
        ipu.nn_ops.multi_conv(lambda x: x, options)(tf.constant(X))


def test_dependent_convolutions_are_refused():
    @ipu.nn_ops.multi_conv
    def chain(x, v, w):
        return tf.nn.conv2d(tf.nn.conv2d(x, v, 1, "SAME"), w, 1, "SAME")

    program = tf.function(chain, jit_compile=True)
    with ipu.ipu_strategy.IPUStrategy().scope(), pytest.raises(GraphError, match="needs the result of"):
        program(*(tf.constant(a) for a in (X, *W)))


def test_updates_between_the_convolutions_keep_their_order():
    seen, v, w = tf.Variable(0.0), *(tf.constant(a) for a in W)

    @ipu.nn_ops.multi_conv
    def both(x):
        first = tf.nn.conv2d(x, v, 1, "SAME")
        seen.assign(tf.reduce_max(first))
        later = seen * 2.0
        second = tf.nn.conv2d(x, w, 1, "SAME")
        seen.assign_add(1.0)
        return first, second, later

    with ipu.ipu_strategy.IPUStrategy().scope():
        first, second, later = tf.function(both, jit_compile=True)(tf.constant(X))
    np.testing.assert_allclose(later, 2 * first.numpy().max(), rtol=1e-6)
    np.testing.assert_allclose(seen.numpy(), first.numpy().max() + 1, rtol=1e-6)
    np.testing.assert_allclose(second, tf.nn.conv2d(X, w, 1, "SAME"), rtol=1e-4, atol=1e-4)

"""The rest of ``tensorflow.python.ipu``: functions against TensorFlow on the CPU, and names that are refused."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, configure

from ipuperf.tensorflow.programs.hosting import program_of
from ipuperf.tensorflow.python import ipu

tf = tf2.compat.v1
X = np.random.default_rng(2).normal(size=(2, 4, 6)).astype(np.float32)


def several(x):
    rows = tf2.reshape(x, (8, 6))
    flat = tf2.reshape(x, [-1])
    bins = ipu.statistics_ops.fixed_width_bins(flat, 5)
    hist = ipu.statistics_ops.histogram(flat, bins)
    return {
        "gelu": ipu.nn_ops.gelu(x),
        "hard_sigmoid": ipu.nn_ops.hard_sigmoid(x),
        "swish": ipu.nn_ops.swish(x),
        "softmax": ipu.nn_ops.softmax(x),
        "bins": bins,
        "histogram": ipu.statistics_ops.histogram_update(hist, flat, bins, absolute_of_input=True),
        "normalized": ipu.statistics_ops.histogram_normalize(hist),
        "image": ipu.image_ops.normalise_image(x[:, :, :3], [1.0, 2, 3], [1.0, 2, 3], 2),
        "barrier": ipu.control_flow_ops.barrier([x, x * 2.0]),
        "outlined": ipu.outlined_function(lambda a: a * 2)(x),
        "lookup": ipu.embedding_ops.embedding_lookup(rows, tf2.constant([1, 3]), serialization_factor=2),
        "sums": ipu.math_ops.segment_sum(rows, tf2.constant([0, 0, 1, 1, 2, 2, 3, 3]), 4),
        "expression": ipu.custom_ops.codelet_expression_op(lambda a, b: a * b + 1.0, x, x),
        "multi_conv": ipu.nn_ops.multi_conv(lambda a: a + 1.0)(x),
        "sum": ipu.cross_replica_ops.cross_replica_sum(x),
        "equal": ipu.cross_replica_ops.assume_equal_across_replicas(x),
        "replica": ipu.replication_ops.replication_index(),
    }


def test_functions_equal_tensorflow():
    program = tf2.function(several, jit_compile=True)
    with ipu.ipu_strategy.IPUStrategy().scope():
        found = program(tf2.constant(X))
    wanted = several(tf2.constant(X))
    for name, value in wanted.items():
        for one, other in zip(tf2.nest.flatten(found[name]), tf2.nest.flatten(value)):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
    counts = np.histogram(X, np.concatenate([[-np.inf], wanted["bins"].numpy(), [np.inf]]))[0]
    np.testing.assert_allclose(wanted["normalized"] * X.size, counts, atol=1e-4)


@pytest.mark.parametrize("dimension", ["a_columns", "b_rows", "a_rows_b_columns"])
@pytest.mark.parametrize("transposed", [False, True])
def test_serialized_products_and_their_gradients(dimension, transposed):
    a = tf2.constant(X[0])
    b = tf2.constant(X[1].T if not transposed else X[1])
    serialized = ipu.math_ops.serialized_matmul
    with tf2.GradientTape(persistent=True) as tape:
        tape.watch([a, b])
        found = serialized(a, b, 2, dimension, transpose_b=transposed)
        wanted = tf2.matmul(a, b, transpose_b=transposed)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for one, other in zip(tape.gradient(found, [a, b]), tape.gradient(wanted, [a, b])):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    with pytest.raises(ValueError, match="serialization_factor 5 does not divide"):
        serialized(a, b, 5, dimension, transpose_b=transposed)
    with pytest.raises(ValueError, match="serialization_dimension is 'rows'"):
        serialized(a, b, 2, "rows")


def test_normalisations(graph):
    """Group ``g`` has the channels whose number leaves ``g`` when divided by the number of groups."""
    norms = ipu.normalization_ops
    image = np.random.default_rng(1).normal(size=(2, 5, 6)).astype(np.float32)

    def net(x):
        return (
            norms.group_norm(x, groups=3),
            norms.layer_norm(x, center=False),
            norms.instance_norm(x, channels_axis=1, scale=False, epsilon=0.5),
        )

    group, layer, instance = Compiled(net, [image]).run()
    assert [v.op.name for v in tf.trainable_variables()] == [
        "GroupNorm/beta", "GroupNorm/gamma", "LayerNorm/gamma", "InstanceNorm/beta",
    ]  # fmt: skip
    for g in range(3):
        part = image[:, :, g::3]
        centred = part - part.mean((1, 2), keepdims=True)
        wanted = centred / np.sqrt(part.var((1, 2), keepdims=True) + 1e-6)
        np.testing.assert_allclose(group[:, :, g::3], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.mean((1, 2)), 0, atol=1e-5)
    wanted = (image - image.mean(2, keepdims=True)) / np.sqrt(image.var(2, keepdims=True) + 0.5)
    np.testing.assert_allclose(instance, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="6 channels is not commensurate with 4 groups"):
        norms.group_norm(tf.constant(image), groups=4)
    for axis in (3, -4):
        with pytest.raises(ValueError, match="Axis is out of bounds"):
            norms.group_norm(tf.constant(image), channels_axis=axis)


def test_replicas_sum_and_number_themselves(graph):
    configure(auto_select_ipus=4)

    def net(x):
        mine = x * tf2.cast(ipu.replication_ops.replication_index() + 1, tf.float32)
        return ipu.cross_replica_ops.cross_replica_sum(mine), ipu.cross_replica_ops.cross_replica_mean(mine)

    found, mean = Compiled(net, [np.float32(2)]).run()
    assert (found, mean) == (20, 5)


def test_shards_chosen_for_a_graph(graph):
    def net(x):
        start = value = tf2.identity(x)
        for _ in range(4):
            value = tf2.tanh(value) + 1.0
        loss = tf2.reduce_sum(value)
        slope = tf.gradients(loss, [start])[0]
        ipu.autoshard.automatic_sharding(2, start, loss)
        return loss, slope

    program = Compiled(net, [X])
    loss, _ = program.run()
    wanted = X
    for _ in range(4):
        wanted = np.tanh(wanted) + 1
    assert loss == pytest.approx(wanted.sum(), rel=1e-5)
    ops = [op for op in program.program.ir.main_graph.ops if op.type == "Tanh"]
    assert {op.ipu or 0 for op in ops} == {0, 1}
    with pytest.raises(ValueError, match="needs? .* places where one tensor passes"):
        ipu.autoshard.automatic_sharding(40, *_two_tensors())


def _two_tensors():
    first = tf2.identity(tf.placeholder(tf.float32, [2]))
    return first, tf2.tanh(first)


REFUSED = [
    (lambda: ipu.custom_ops.cpu_user_op([], "library.so"), "write it with TensorFlow's operations"),
    (lambda: ipu.embedded_runtime.embedded_runtime_start("f", [], "n"), "run the program by a session"),
    (lambda: ipu.utils.create_ipu_config(), "use ipu.config.IPUConfig"),
    (lambda: ipu.optimizers.AutomaticLossScalingOptimizer(None), "by a constant"),
    (lambda: ipu.ipu_multi_worker_strategy.IPUMultiWorkerStrategyV1(None), "there is one process"),
]


@pytest.mark.parametrize(("call", "instead"), REFUSED)
def test_names_that_are_refused_say_what_to_do(call, instead):
    with pytest.raises(NotImplementedError, match=rf"^tensorflow\.python\.ipu\.\w+\.\w+ is not simulated: .*{instead}"):
        call()


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("keras", "PipelineModel", "set_pipelining_options"),
        ("keras", "Model", r"tf\.keras\.Model within"),
        ("utils", "set_ipu_model_options", r"the fields of ipu\.config\.IPUConfig"),
    ],
)
def test_names_of_older_releases_say_what_stands_for_them(module, name, instead):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': .*{instead}"):
        getattr(getattr(ipu, module), name)


def test_unknown_names_are_unknown():
    assert not hasattr(ipu.keras, "Unknown")
    assert not hasattr(ipu.utils, "set_unknown")


def test_small_helpers(graph):
    ipu.utils.move_variable_initialization_to_cpu()
    with pytest.raises(TypeError, match="is no graph"):
        ipu.utils.move_variable_initialization_to_cpu(3)
    ipu.utils.reset_ipu_seed(5)
    assert not ipu.utils.running_on_ipu_model()
    with pytest.raises(NotImplementedError, match="cannot call the host"), ipu.scopes.outside_compilation_scope():
        pass
    with pytest.raises(ValueError, match="a device such as"), ipu.scopes.ipu_scope("/device:GPU:0"):
        pass


def test_a_seed_of_the_ipu_changes_what_is_drawn():
    drawn = []
    for seed in (0, 0, 1):
        ipu.utils.reset_ipu_seed(seed)
        function = tf2.function(lambda: ipu.rand_ops.dropout(tf2.ones(100)), jit_compile=True)
        with ipu.ipu_strategy.IPUStrategy().scope():
            drawn.append(function().numpy().tobytes())
        assert program_of(function).executable is not None
    assert drawn[0] == drawn[1] != drawn[2]


def test_one_process_is_all_there_is():
    hvd = ipu.horovod
    hvd.init()
    assert (hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank()) == (1, 0, 1, 0)
    assert hvd.broadcast(3.0, 0).numpy() == 3
    assert hvd.allreduce(3.0, prescale_factor=0.5).numpy() == 1.5
    with pytest.raises(ValueError, match="there is process 0 only"):
        hvd.broadcast(3.0, 1)
    strategy = hvd.popdist_strategy.PopDistStrategy()
    with strategy.scope():
        assert strategy.run(tf2.function(lambda: tf2.constant(1.0) + 1.0)).numpy() == 2
    with pytest.raises(NotImplementedError, match="add_ipu_cross_replica_reductions"):
        ipu.distributed.popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)


EACH_FIRST = """
import importlib, os, pkgutil
import tensorflow, tf_keras
from ipuperf.frontends.tensorflow import facade
for module in pkgutil.iter_modules(facade.__path__, facade.__name__ + "."):
    if not (child := os.fork()):
        importlib.import_module(module.name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module.name
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each module is imported in a copy of one process")
def test_each_module_can_be_the_first(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    subprocess.run([sys.executable, "-c", EACH_FIRST], check=True, timeout=300)

"""Group normalisation is the IR's fused op, forward and backward; values are those of its parts in TensorFlow."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import Program
from kerasruns import beside, configure, same

from ipuperf.tensorflow.facade.norms import group_normalised
from ipuperf.tensorflow.programs.hosting import program_of
from ipuperf.tensorflow.python import ipu

GROUPS, EPSILON = 3, 1e-3


def parts(x, gamma, beta, axis: int, strided: bool):
    x = tf.transpose(x, [0, *(i for i in range(1, x.shape.rank) if i != axis), axis])
    channels = x.shape[-1]
    split = [channels // GROUPS, GROUPS] if strided else [GROUPS, channels // GROUPS]
    grouped = tf.reshape(x, [*x.shape[:-1], *split])
    rank = grouped.shape.rank
    mean, variance = tf.nn.moments(grouped, [*range(1, rank - 2), rank - 2 if strided else rank - 1], keepdims=True)
    y = tf.reshape((grouped - mean) * tf.math.rsqrt(variance + EPSILON), x.shape) * gamma + beta
    back = [*range(1, y.shape.rank - 1)]
    back.insert(axis - 1, y.shape.rank - 1)
    return tf.transpose(y, [0, *back])


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize(("shape", "axis"), [((2, 4, 5, 6), 3), ((2, 6, 4), 1), ((4, 6), 1)])
def test_values_and_gradients(shape, axis: int, strided: bool) -> None:
    rng = np.random.default_rng(1)
    x, gamma, beta, weight = (
        rng.normal(size=size).astype(np.float32) for size in (shape, shape[axis], shape[axis], shape)
    )

    def gradients(norm):
        def function(*operands):
            with tf.GradientTape() as tape:
                tape.watch(operands)
                y = norm(*operands[:3])
                total = tf.reduce_sum(y * operands[3])
            return [y, *tape.gradient(total, operands[:3])]

        return function

    fused = gradients(lambda x, g, b: group_normalised("norm", x, g, b, GROUPS, axis, EPSILON, strided))
    operands = (x, gamma, beta, weight)
    wanted = gradients(lambda *a: parts(*a, axis, strided))(*map(tf.constant, operands))
    program = Program(fused, operands)
    kinds = [op.type for op in program.ir.main_graph.ops]
    assert kinds.count("GroupNormalization") == kinds.count("GroupNormalizationGrad") == 1
    for found in (program.run(), fused(*map(tf.constant, operands))):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_stable_statistics_take_longer() -> None:
    """``norms.use_stable_statistics`` of the configuration: a pass more for group and batch norms, the same values."""
    x, one = np.random.default_rng(1).normal(size=(2, 5, 5, 6)).astype(np.float32), np.ones(6, np.float32)
    found = []
    for stable in (False, True):

        @tf.function(jit_compile=True)
        def function(x, one):
            y = group_normalised("norm", x, one, one, GROUPS, 3, EPSILON, True)
            return tf.raw_ops.FusedBatchNormV3(x=y, scale=one, offset=one, mean=[], variance=[]).y

        configure(norms__use_stable_statistics=stable)
        arguments = [tf.constant(x), tf.constant(one)]
        with ipu.ipu_strategy.IPUStrategy().scope():
            y = function(*arguments).numpy()
            program = program_of(function, *arguments)
        program.finish()
        assert [op.stable for op in program.ir.main_graph.ops if "stable" in op.declared] == [stable] * 2
        found.append((program.executable.simulated_run_cycles, y))
    assert found[0][0] < found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_no_transposes_between_convolutions_and_norms() -> None:
    """The axes stay as convolutions have them: images are rearranged where they come in and go out."""
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(2, 5, 5, 6)).astype(np.float32), rng.normal(size=(3, 3, 6, 6)).astype(np.float32)
    ones, zeros = np.ones(6, np.float32), np.zeros(6, np.float32)

    def function(x, kernel):
        y = group_normalised("norm", tf.nn.conv2d(x, kernel, 1, "SAME"), ones, zeros, GROUPS, 3, EPSILON, True)
        return tf.nn.conv2d(y, kernel, 1, "SAME")

    def without(x, kernel):
        return tf.nn.conv2d(tf.nn.conv2d(x, kernel, 1, "SAME"), kernel, 1, "SAME")

    transposes = [
        [op.type for op in Program(f, (x, kernel)).ir.main_graph.ops].count("Transpose") for f in (function, without)
    ]
    assert transposes[0] == transposes[1]


def test_one_value_for_each_channel() -> None:
    """As behind a global pooling of a batch of one: the variance is 0, there and in the moving statistics."""
    pytest.importorskip("tf_keras")
    layers = tf.keras.layers
    x, y = np.random.default_rng(0).normal(size=(2, 1, 4)).astype(np.float32)

    def build() -> tf.keras.Model:
        return tf.keras.Sequential([layers.Dense(4, input_shape=(4,)), layers.BatchNormalization(momentum=0.5)])

    model, cpu = beside(build, lambda m: m.compile("sgd", "mse"))
    for _ in range(2):
        same(model.train_on_batch(x, y), cpu.train_on_batch(x, y))
    same(model.get_weights(), cpu.get_weights())


def test_gradients_of_batch_norm_in_half_precision_are_summed_and_given_in_float32():
    """Scale and offset stay float32 beside float16 images: their gradients are float64's, and may be beyond 65504."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(1, 2, (8, 9, 9, 3)).astype(np.float16), rng.normal(130, 300, (8, 9, 9, 3)).astype(np.float16)
    gamma, beta = rng.normal(1, 0.1, (2, 3)).astype(np.float32)

    def gradients(x, gamma, beta, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            zeros = tf.zeros_like(beta)
            y = tf.raw_ops.FusedBatchNormV3(x=x, scale=gamma, offset=beta, mean=zeros, variance=zeros)[0]
        return [y, *tape.gradient(y, [x, gamma, beta], dy)]

    y, dx, dgamma, dbeta = Program(tf.function(gradients), [x, gamma, beta, dy]).run()
    images, grads, axes = x.astype(float), dy.astype(float), (0, 1, 2)
    inverse = 1 / np.sqrt(images.var(axes) + 1e-4)
    white = (images - images.mean(axes)) * inverse
    scaled = grads * gamma
    wanted = inverse * (scaled - scaled.mean(axes) - white * (scaled * white).mean(axes))
    np.testing.assert_allclose(y, white * gamma + beta, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dx, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())
    np.testing.assert_allclose(dgamma, (grads * white).sum(axes), rtol=1e-5)
    np.testing.assert_allclose(dbeta, grads.sum(axes), rtol=1e-5)
    assert np.abs(dbeta).max() > np.finfo(np.float16).max
    assert dgamma.dtype == dbeta.dtype == np.float32


def batch_normed(samples: int):
    x = np.random.default_rng(3).normal(size=(samples, 2, 1, 3)) * np.arange(1, samples + 1)[:, None, None, None]
    x = x.astype(np.float32)
    ones = tf.keras.initializers.Ones()
    layers = [
        tf.keras.layers.Input((2, 1, 3)),
        tf.keras.layers.BatchNormalization(momentum=0.5),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(1, kernel_initializer=ones),
    ]
    return tf.keras.Sequential(layers), x, x.sum((1, 2, 3))[:, None]


def test_batch_norms_over_replicas_have_the_statistics_of_their_whole_batch() -> None:
    plain, x, y = batch_normed(8)
    # Keras sums the gradients of replicas, each of which has the mean of half of the samples.
    plain.compile(tf.keras.optimizers.SGD(0.02), "mse")
    plain.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    found = {}
    for size in (1, 2):
        configure(auto_select_ipus=2, norms__experimental__distributed_batch_norm_replica_group_size=size)
        with ipu.ipu_strategy.IPUStrategy().scope():
            model, *_ = batch_normed(8)
            model.compile(tf.keras.optimizers.SGD(0.01), "mse", steps_per_execution=2)
            model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
            found[size] = [w.numpy() for w in model.weights]
    for one, other in zip(found[2], plain.weights, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=2e-5, atol=1e-6)
    # The mean of the replicas' own variances is not that of the batch.
    assert abs(found[1][3] - plain.weights[3].numpy()).min() > 0.01


def test_groups_of_replicas_divide_the_replicas() -> None:
    configure(auto_select_ipus=2, norms__experimental__distributed_batch_norm_replica_group_size=3)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model, x, y = batch_normed(8)
        model.compile("sgd", "mse", steps_per_execution=2)
        with pytest.raises(ValueError, match=r"groups of 3 replicas .* do not divide the program's 2"):
            model.fit(x, y, batch_size=4, verbose=0)


def test_batch_norms_take_half_parameters() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 2, 2, 3)).astype(np.float16)
    scale, offset = (rng.normal(size=3).astype(np.float16) for _ in range(2))

    def function(x, scale, offset):
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-3)
            total = tf.reduce_sum(tf.cast(y, tf.float32) ** 3)
        z, *_ = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, mean, variance, epsilon=1e-3, is_training=False)
        return [y, mean, variance, z, *tape.gradient(total, [x, scale, offset])]

    found = Program(function, (x, scale, offset)).run()
    assert [array.dtype for array in found] == [np.float16] * 7
    values = x.astype(np.float64)
    mean, variance = values.mean((0, 1, 2)), values.var((0, 1, 2))
    whitened = (values - mean) / np.sqrt(variance + 1e-3)
    y = whitened * scale + offset
    gradient = 3 * y**2
    for one, other in zip(found, [y, mean, variance * 16 / 15, None, None], strict=False):
        if other is not None:
            np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)
    np.testing.assert_allclose(found[5], (gradient * whitened).sum((0, 1, 2)), rtol=1e-2, atol=0.1)
    np.testing.assert_allclose(found[6], gradient.sum((0, 1, 2)), rtol=1e-2, atol=0.1)

"""Recurrent layers as click-through models use them, against what upstream's gave: results of sequences of several
lengths, and the kernel after a step (``graphcore/examples``, DIEN, tests of its GRU and AUGRU)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from sessions import Compiled, graphs

from ipuperf.tensorflow.python import ipu

tf1 = tf.compat.v1
FIRST = {
    "gru": [
        [0.36324948, 0.34305102, -0.47945526, 0.29105264, -0.55362725, 0.33607864],
        [-0.20881158, 0.79369456, 0.3866263, -0.55099547, 0.41944432, 0.39612126],
        [0.48400682, 0.16632384, -0.78809285, 0.47519642, 0.4464376, -0.63623476],
        [-0.57933414, -0.29082513, -0.7381171, 0.77089626, -0.24111485, 0.9164796],
    ],
    "augru": [
        [0.3188401, 0.8256132, -0.12287354, 0.8648142, -0.17983055, -0.45415568],
        [-0.29249465, 0.65579015, -0.75681853, 0.4331085, -0.07700777, -0.47652483],
        [-0.20116574, 0.52735907, -0.08258069, -0.21897888, -0.54514384, 0.32709408],
        [-0.43361932, -0.62175727, 0.28278595, 0.13071388, -0.29585528, -0.14058399],
    ],
}
TRAINED = {
    "gru": [
        [0.35011762, 0.37606436, -0.4793783, 0.29105875, -0.6845508, 0.3001622],
        [-0.22194342, 0.8267079, 0.38670325, -0.55098933, 0.28852075, 0.36020482],
        [0.48412853, 0.16602053, -0.7880953, 0.4751962, 0.4473563, -0.6360037],
        [-0.57958513, -0.2901997, -0.73811203, 0.7708967, -0.24294817, 0.9160184],
    ],
    "augru": [
        [0.31478855, 0.81888944, -0.12453551, 0.863326, -0.40852502, -0.5518727],
        [-0.2965462, 0.6490664, -0.7584805, 0.4316203, -0.30570224, -0.5742418],
        [-0.20129025, 0.52758944, -0.08233033, -0.21876118, -0.5368969, 0.3306306],
        [-0.43399453, -0.6211322, 0.28351453, 0.13140172, -0.25127774, -0.12138209],
    ],
}
LENGTHS = {"gru": [1, 2, 2], "augru": [1, 3, 2]}
STEPS = {
    "gru": [[-0.03196924, 0.06592286], [-0.06241067, 0.12973404]],
    "augru": [[-0.15881832, -0.39365855], [-0.1270374, -0.56743807], [-0.09283338, -0.6407641]],
}


@pytest.mark.parametrize("kind", FIRST)
def test_results_and_a_step_are_upstreams(kind):
    lengths = np.array(LENGTHS[kind], np.int32)
    time, batch = lengths.max(), len(lengths)

    def net(x, lengths, scores):
        if kind == "gru":
            rows, _ = ipu.ops.rnn_ops.PopnnDynamicGRU(2)(x, lengths, time_major=False)
        else:
            rows, _ = ipu.ops.rnn_ops.PopnnAUGRU(2)(x, lengths, scores, time_major=False)
        rows = tf.transpose(rows, [1, 0, 2])
        optimizer = tf1.train.GradientDescentOptimizer(learning_rate=1)
        train = optimizer.apply_gradients(optimizer.compute_gradients(tf.reduce_mean(rows - 1.0)))
        with tf1.control_dependencies([train]):
            return tf.identity(rows)

    with graphs() as made:
        values = [np.ones((batch, time, 2), np.float32), lengths, np.full((batch, time), 0.5, np.float32)]
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = Compiled(net, values)
        made.session.run(tf1.global_variables_initializer())
        name = {"gru": "popnn_dynamic_gru/kernel:0", "augru": "popnn_augru/kernel:0"}[kind]
        (kernel,) = (v for v in tf1.global_variables() if v.name == name)
        made.session.run(tf1.assign(kernel, FIRST[kind]))
        (rows,) = run()
        inside = np.arange(time) < lengths[:, None]
        np.testing.assert_allclose(rows, np.where(inside[..., None], STEPS[kind], 0), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(made.session.run(kernel), TRAINED[kind], rtol=1e-5, atol=1e-7)

"""Programs under the upstream names, as ``ipuperf run`` executes them."""

import subprocess
import sys
from pathlib import Path

import pytest
from behaviour import version_2

pytest.importorskip("tensorflow")

from ipuperf.runtime.script import run_script
from ipuperf.runtime.settings import RunSettings, use_settings

TRAINING_LOOP = """
import time
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, loops
from tensorflow.python.ipu.config import IPUConfig

tf.disable_v2_behavior()
feed = tf.data.Dataset.from_tensors(tf.constant(1.0, shape=[800])).map(lambda x: [x, x]).repeat()
infeed = ipu_infeed_queue.IPUInfeedQueue(feed)
outfeed = ipu_outfeed_queue.IPUOutfeedQueue()


def body(x1, x2):
    return outfeed.enqueue({"d1": x1 + x2, "d2": x1 - x2})


def net():
    return loops.repeat(10, body, [], infeed)


with ipu.scopes.ipu_scope("/device:IPU:0"):
    loop = ipu.ipu_compiler.compile(net, inputs=[])
fetch = outfeed.dequeue()
config = IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
with tf.Session() as session:
    session.run(infeed.initializer)
    start = time.time()
    session.run(loop)
    seconds = time.time() - start
    result = session.run(fetch)
assert 1e-6 < seconds < 1e-1, seconds
print(sorted(result), result["d1"].shape, result["d2"].shape, float(result["d1"].mean()))
"""

EAGER = """
import tensorflow as tf
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, ipu_strategy, loops
from tensorflow.python.ipu.config import IPUConfig

feed = tf.data.Dataset.from_tensors(tf.constant(1.0, shape=[8])).repeat()
infeed = ipu_infeed_queue.IPUInfeedQueue(feed, feed_name="i")
outfeed = ipu_outfeed_queue.IPUOutfeedQueue(feed_name="o")


def body(counter, x):
    outfeed.enqueue(x * 2)
    counter += 1
    return counter


@tf.function(experimental_compile=True)
def net():
    return loops.repeat(4, body, [0], infeed)


config = IPUConfig()
config.configure_ipu_system()
strategy = ipu_strategy.IPUStrategy()
with strategy.scope():
    infeed.initializer
    count = strategy.experimental_run_v2(net)
    print(int(count), outfeed.dequeue().numpy().shape)
"""

PIPELINE = """
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ipu import config, ipu_compiler, ipu_infeed_queue, ipu_outfeed_queue
from tensorflow.python.ipu.ops import pipelining_ops
from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer

tf.disable_v2_behavior()
images = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(8) % 4)).batch(4, drop_remainder=True).repeat()
infeed_queue = ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed_queue = ipu_outfeed_queue.IPUOutfeedQueue()


def dense(x, units, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", (x.shape[-1], units))
        return tf.matmul(x, kernel) + tf.get_variable("bias", (units,), initializer=tf.zeros_initializer)


def stage1(lr, images, labels):
    return lr, tf.nn.relu(dense(images, 16, "one")), labels


def stage2(lr, partial, labels):
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=dense(partial, 4, "two"))
    return lr, tf.reduce_mean(cross_entropy)


def optimizer_function(lr, loss):
    return pipelining_ops.OptimizerFunctionOutput(CrossReplicaOptimizer(tf.train.GradientDescentOptimizer(lr)), loss)


def model(lr):
    with tf.variable_scope("vs", use_resource=True):
        return pipelining_ops.pipeline(
            computational_stages=[stage1, stage2],
            gradient_accumulation_count=8,
            repeat_count=10,
            inputs=[lr],
            infeed_queue=infeed_queue,
            outfeed_queue=outfeed_queue,
            optimizer_function=optimizer_function,
            name="Pipeline",
        )


with tf.device("cpu"):
    lr = tf.placeholder(np.float16, [])
with tf.device("/device:IPU:0"):
    compiled_model = ipu_compiler.compile(model, inputs=[lr])
outfeed_op = outfeed_queue.dequeue()
cfg = config.IPUConfig()
cfg.auto_select_ipus = 4
cfg.configure_ipu_system()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(infeed_queue.initializer)
    sess.run(compiled_model, {lr: 0.01})
    rates, losses = sess.run(outfeed_op)
print(losses.shape, rates.dtype, losses[:8].mean() > 1.2 * losses[-8:].mean())
"""

OUTFEED_EXAMPLE = """
from threading import Thread

from tensorflow.python.ipu.config import IPUConfig
from tensorflow.python.ipu import ipu_outfeed_queue
from tensorflow.python.ipu import ipu_strategy
from tensorflow import keras
import tensorflow as tf

outfeed_queue = ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def training_step(features, labels, in_model, optimizer):
    with tf.GradientTape() as tape:
        predictions = in_model(features, training=True)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, predictions))
        grads = tape.gradient(loss, in_model.trainable_variables)
        optimizer.apply_gradients(zip(grads, in_model.trainable_variables))
    outfeed_queue.enqueue(loss)
    return loss


cfg = IPUConfig()
cfg.configure_ipu_system()
strategy = ipu_strategy.IPUStrategyV1()
with strategy.scope():
    dataset = tf.data.Dataset.from_tensors((tf.constant(1.0, shape=[2, 20]), tf.constant(1, shape=[2]))).repeat()
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10, activation="softmax")])
    model.build((2, 20))
    opt = keras.optimizers.SGD(0.01)
    NUM_ITERATIONS = 10
    losses = []

    def dequeue_thread_fn():
        while len(losses) != NUM_ITERATIONS:
            r = outfeed_queue.dequeue().numpy()
            if r.size:
                for t in r:
                    losses.append(float(t))

    dequeue_thread = Thread(target=dequeue_thread_fn)
    for i, (x, y) in zip(range(NUM_ITERATIONS), dataset):
        strategy.run(training_step, args=[x, y, model, opt])
        if i == 0:
            dequeue_thread.start()
    dequeue_thread.join()
print(len(losses), losses == sorted(losses, reverse=True), losses[0] > losses[-1] + 0.1)
"""


IMPORTS = """
from tensorflow.python import ipu
from tensorflow.python.ipu.ops import pipelining_ops
from tensorflow.python.ipu.optimizers import gradient_accumulation_optimizer
from tensorflow.python.ipu import cross_replica_optimizer, gradient_accumulation, utils, dataset_benchmark
import tensorflow.python.ipu.ipu_compiler
import tensorflow as tf
assert ipu.pipelining_ops.pipeline is pipelining_ops.pipeline
print(tf.keras.__name__, tf.__version__.split(".")[0])
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRAINING_LOOP, "['d1', 'd2'] (10, 800) (10, 800) 2.0"),
        (EAGER, "4 (4, 8)"),
        (OUTFEED_EXAMPLE, "10 True True"),
        (IMPORTS, "tf_keras.api._v2.keras 2"),
    ],
)
def test_programs(text, expected, tmp_path: Path, capsys):
    script = tmp_path / "program.py"
    script.write_text(text)
    with version_2():
        result = run_script(script, (), names=("tensorflow",))
    printed = capsys.readouterr()
    assert result.exit_code == 0, printed.err
    assert expected in printed.out


IO_TILES = TRAINING_LOOP.replace(
    "config.configure_ipu_system()", "config.io_tiles.num_io_tiles = 128\nPLACE\nconfig.configure_ipu_system()"
)


@pytest.mark.parametrize("place", [False, True])
def test_io_tiles_do_not_compute(tmp_path, recwarn, place):
    """Tiles may be set aside; that no host I/O is placed on them is said."""
    script = tmp_path / "io_tiles.py"
    script.write_text(IO_TILES.replace("PLACE", f"config.io_tiles.place_ops_on_io_tiles = {place}"))
    with use_settings(RunSettings()) as settings:
        with version_2():
            result = run_script(script, (), names=("tensorflow",))
        tiles = [executable.device_program.io_tiles for executable in settings.executables]
    message = "place_ops_on_io_tiles is without effect: host I/O of TensorFlow programs stays on the compute tiles"
    assert any(message in str(warning.message) for warning in recwarn) is place
    assert (result.exit_code, tiles) == (0, [128])


def test_without_tensorflow_the_line_to_install_it_is_said(tmp_path, capsys, monkeypatch):
    script = tmp_path / "program.py"
    script.write_text("import tensorflow\n")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    result = run_script(script, (), names=("tensorflow",))
    assert result.exit_code == 1
    assert "TensorFlow programs need TensorFlow: pip install 'tensorflow<" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_program_of_version_1_as_the_command_runs_it(tmp_path):
    """In a process of its own: TensorFlow does not forget in which mode it began."""
    script = tmp_path / "program.py"
    script.write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, "-m", "ipuperf", "run", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "(80, 2) float16 True" in done.stdout

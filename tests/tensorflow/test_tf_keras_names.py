"""Keras by the names that it had when TensorFlow for the IPU was made, in a process of its own."""

import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

PROGRAM = """
import ipuperf
from ipuperf.runtime.install import uninstall
ipuperf.install()
from tensorflow.keras.optimizers import RMSprop  # before the IPU's modules, as sorted imports are
import keras.ipu
from keras.engine.input_spec import InputSpec
from keras.engine.keras_tensor import KerasTensor
from keras.optimizer_v2 import adam, optimizer_v2
from keras.utils import tf_inspect
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python import keras as private
from tensorflow.python.keras import layers
from tensorflow.python.keras.layers.pooling import MaxPool2D
from tensorflow.python.keras.optimizer_v2.adam import Adam
from tensorflow.python.keras.preprocessing import sequence
from tensorflow.python.ipu import distributed, horovod
from tensorflow.python.ipu.horovod.popdist_strategy import PopDistStrategy
from tensorflow.python.ipu.keras.optimizers.cross_replica_optimizer import CrossReplicaOptimizer
from ipu_tensorflow_addons.keras.layers.embedding_lookup import Embedding
from ipu_tensorflow_addons.keras.optimizers.adam_optimizer import AdamIpuOptimizer
from ipu_tensorflow_addons.v1.layers.rnn_ops import PopnnLSTM
import popdist.tensorflow

assert issubclass(RMSprop, optimizer_v2.OptimizerV2) and issubclass(AdamIpuOptimizer, adam.Adam)
assert tf.keras.optimizers.Optimizer is keras.optimizers.Optimizer is optimizer_v2.OptimizerV2
assert isinstance(tf.keras.Input((3,)), KerasTensor) and isinstance(tf.keras.layers.Dense(1), keras.layers.Dense)
assert tf.keras.ipu.PipelineStage is keras.ipu.PipelineStage
tf.keras.optimizers.SGD(lr=0.1, decay=0.5, gradient_transformers=[lambda pairs: pairs])
CrossReplicaOptimizer(tf.keras.optimizers.AdamW(0.1))
assert Adam is tf.keras.optimizers.Adam and layers.Dense is tf.keras.layers.Dense and private.Model is tf.keras.Model
from tensorflow.python.distribute import distribution_strategy_context
from tensorflow.python.training import training_ops
from tensorflow.python.eager import tape
from tensorflow.python.keras.applications import resnet
from keras.losses import LossFunctionWrapper
from keras.backend import set_session
assert distribution_strategy_context.get_strategy() is tf.distribute.get_strategy()
assert callable(training_ops.resource_apply_momentum)
assert issubclass(keras.losses.MeanSquaredError, LossFunctionWrapper) and callable(tape.stop_recording)
assert callable(resnet.ResNet) and not hasattr(keras.losses, "NoSuchLoss")
class Scaled(tf.keras.mixed_precision.LossScaleOptimizer):
    def __init__(self, inner):
        super().__init__(inner, dynamic=False, initial_scale=4.0)
scaled = Scaled(tf.keras.optimizers.SGD(0.5))
assert isinstance(scaled, optimizer_v2.OptimizerV2) and isinstance(scaled, tf.keras.mixed_precision.LossScaleOptimizer)
assert float(scaled.get_scaled_loss(tf.constant(3.0))) == 12
later = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.AdamW(0.1))
assert not isinstance(later, optimizer_v2.OptimizerV2)
horovod.init()
assert (horovod.size(), horovod.rank(), horovod.Average) == (1, 0, "Average")
assert float(distributed.allreduce(tf.constant(2.0), tf.distribute.ReduceOp.MEAN)) == 2
assert horovod.allgather([1, 2]).numpy().tolist() == distributed.broadcast([1, 2]).numpy().tolist() == [1, 2]
config = ipu.config.IPUConfig()
assert popdist.tensorflow.set_ipu_config(config, ipus_per_replica=2) is config and config.auto_select_ipus == 8
config.configure_ipu_system()
assert ipu.config.get_ipu_config()[0]._host_processes == 2  # simulated time has a host process for each instance
uninstall()
from tensorflow.python import keras as own
assert own.Model is not tf.keras.Model
assert not issubclass(tf.keras.optimizers.SGD, optimizer_v2.OptimizerV2)
assert not hasattr(keras.losses, "LossFunctionWrapper") and not hasattr(tape, "stop_recording")
"""
LATE = """
import ipuperf
ipuperf.install()
import tensorflow as tf
import tf_keras  # as programs that loaded Keras beforehand
from tensorflow.python import ipu
assert tf.keras.ipu.PipelineStage
from tensorflow.keras.layers import Dense  # Python makes another module of `tf.keras` here
assert tf.keras.ipu.PipelineStage is ipu.keras.PipelineStage and not hasattr(tf.keras, "no_such_name")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("program", [PROGRAM, LATE], ids=["names", "late"])
def test_names_of_keras_2_6(program):
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_IPUS_PER_REPLICA": "2"}
    environment["POPDIST_NUM_LOCAL_REPLICAS"] = "2"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr

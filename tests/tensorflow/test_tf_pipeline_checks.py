"""Pipelines: what is not allowed, and what is said then."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import graphs
from tf_perceptron import Compiled, compiled, feed, momentum, stage0, stage1, stage2

from ipuperf.tensorflow.importer.errors import GraphError
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops
from ipuperf.tensorflow.python.ipu.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, PipelineStageOptions

tf = tf2.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with graphs() as made:
        yield made


def outfeed_last():
    return ipu.ipu_outfeed_queue.IPUOutfeedQueue(ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"count": None}, ValueError, "gradient_accumulation_count must be specified"),
        ({"count": 10}, ValueError, "must be a multiple of 6, but it is 10. This number might be called grad"),
        ({"count": 10, "optimizer_function": None}, ValueError, "must be a multiple of 3, but it is 10"),
        ({"count": 10, "pipeline_schedule": PipelineSchedule.Interleaved}, ValueError, "multiple of 3, but it is 10"),
        ({"continuous_weight_updates": True}, NotImplementedError, "Continuous weight updates are currently not"),
        ({"pipeline_schedule": "Grouped"}, TypeError, "not a member of the PipelineSchedule enumeration"),
        ({"recomputation_mode": 1}, TypeError, "not a member of the RecomputationMode enumeration"),
        (
            {"batch_serialization_iterations": 2, "pipeline_schedule": PipelineSchedule.Grouped},
            NotImplementedError,
            "only supported with the `Sequential` schedule",
        ),
        ({"batch_serialization_iterations": 2, "device_mapping": [0, 1, 0]}, NotImplementedError, "single IPU"),
        ({"batch_serialization_iterations": 2, "reduction_method": "mean"}, ValueError, "Method.SUM"),
        ({"batch_serialization_iterations": 2}, NotImplementedError, "batch_serialization_iterations=2"),
        ({"stages": [stage0]}, ValueError, "Pipeline requires at least two computational stages."),
        ({"stages": stage0}, TypeError, "computational_stages argument needs to be a list or a tuple."),
        ({"infeed_queue": [1]}, TypeError, "infeed_queue is not an instance of ipu_infeed_queue.IPUInfeedQueue"),
        ({"outfeed_queue": [1]}, TypeError, "outfeed_queue is not an instance of ipu_outfeed_queue"),
        ({"device_mapping": 1}, TypeError, "device_mapping argument needs to be a list or a tuple."),
        ({"device_mapping": [0, 1]}, ValueError, "Each stage must be mapped to an IPU: 2 mappings != 3 stages"),
        (
            {"device_mapping": [0, 1, 0], "pipeline_schedule": PipelineSchedule.Interleaved},
            NotImplementedError,
            "'Interleaved' does not currently support multiple pipeline stages on the same device",
        ),
        (
            {"stages": [stage0, [stage1], stage2], "device_mapping": [0, 1, 2]},
            ValueError,
            "must also be a list of device",
        ),
        (
            {"stages": [stage0, [stage1], stage2], "device_mapping": [0, [1, 2], 2]},
            ValueError,
            "must be the same length",
        ),
        (
            {"stages": [stage0, [[stage1]], stage2], "device_mapping": [0, [1], 2]},
            NotImplementedError,
            "Multiple nested",
        ),
        (
            {"forward_propagation_stages_poplar_options": 1},
            TypeError,
            "must be a list or a tuple of PipelineStageOptions",
        ),
        (
            {"forward_propagation_stages_poplar_options": [PipelineStageOptions()]},
            ValueError,
            "of length 3 .* but is 1",
        ),
        ({"backward_propagation_stages_poplar_options": [1, 2, 3]}, TypeError, "Expected all elements of backward"),
        ({"weight_update_poplar_options": 3}, TypeError, "weight_update_poplar_options to be of type"),
        ({"optimizer_function": None, "outfeed_mask": [True]}, ValueError, "when outfeed_mask is set"),
        ({"optimizer_function": None, "outfeed_loss": True}, ValueError, "when outfeed_loss is True"),
        ({"outfeed_loss": True, "outfeed_mask": [True, False]}, ValueError, "Only one of `outfeed_loss` and"),
        ({"outfeed_queue": None}, ValueError, "An outfeed_queue must be provided when outfeed_loss is True"),
        ({"outfeed_queue": None, "outfeed_loss": False}, ValueError, "has tensor outputs: .* no outfeed_queue"),
        (
            {"outfeed_loss": False, "outfeed_mask": [True]},
            ValueError,
            "2 outputs, but the `outfeed_mask` has elements 1",
        ),
        (
            {"accumulate_outfeed": True, "outfeed_queue": None, "outfeed_loss": False},
            ValueError,
            "when accumulate_outfeed is True",
        ),
        ({"accumulate_outfeed": True, "outfeed_queue": "LAST"}, ValueError, "it must be in IPUOutfeedMode ALL"),
        ({"accumulate_outfeed": True, "repeat_count": 2}, NotImplementedError, "with repeat_count=2"),
        ({"reduction_method": "median"}, ValueError, "reduction_method must be set to SUM, MEAN or RUNNING_MEAN"),
        ({"replicated_weight_sharding": True}, NotImplementedError, "replicated_weight_sharding"),
        ({"repeat_count": 0}, ValueError, "repeat_count has to be an integer of at least 1"),
        (
            {"optimizer_function": lambda rate, loss: loss},
            TypeError,
            "an instance of pipelining_ops.OptimizerFunctionOutput",
        ),
    ],
)
def test_checks(options, error, message):
    if options.get("outfeed_queue") == "LAST":
        options = {**options, "outfeed_queue": outfeed_last()}
    with pytest.raises(error, match=message):
        compiled(**options)


def test_a_stage_cannot_use_values_from_outside():
    def model(lr):
        def captures(rate, hidden, labels):
            return rate, hidden * lr, labels

        return pipelining_ops.pipeline(
            [stage0, captures, stage2],
            6,
            inputs=[lr],
            infeed_queue=feed(),
            outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            optimizer_function=momentum,
            outfeed_loss=True,
        )

    with pytest.raises(ValueError, match="Trying to capture the tensor arg0:0 which is not a resource"):
        ipu.ipu_compiler.compile(model, [np.float32(0.1)])


def test_variables_of_two_ipus_and_computed_rates_are_refused(graph):
    def again(rate, hidden, labels):
        with tf.variable_scope("", reuse=True):
            return rate, hidden + tf.reduce_sum(tf.get_variable("w0")), labels

    program, _ = compiled([stage0, again, stage2])
    with pytest.raises(Exception, match="all stages that use a variable have to be on one IPU"):
        program.run()
    graph.fresh()
    program, _ = compiled(optimizer_function=lambda rate, loss: momentum(rate * 0.5, loss))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="a number of optimizer 'Momentum' .* is computed in a stage"
    ):
        program.run()


def test_an_update_that_mixes_gradients_is_refused():
    class Mixed(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            grads, variables = zip(*grads_and_vars)
            both = tf2.reduce_sum(tf2.matmul(grads[0], grads[1]))
            return super().apply_gradients([(g + both, v) for g, v in zip(grads, variables)])

    program, _ = compiled(optimizer_function=lambda rate, loss: OptimizerFunctionOutput(Mixed(rate), loss))
    with pytest.raises(NotImplementedError, match="from the gradients of several .*only numbers such as the norm"):
        program.run()


def test_a_stage_on_an_ipu_that_is_not_there():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    program, _ = compiled()
    with pytest.raises(ValueError, match="an IPU device with 2 IPUs and 4 shards"):
        program.run()


def test_replicas_without_cross_replica_optimizer_are_refused():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 8
    config.configure_ipu_system()
    program, _ = compiled(count=6)
    with pytest.raises(ValueError, match="CrossReplicaOptimizer"):
        program.run()


def test_gradient_accumulation_optimizers_have_no_place_in_pipelines():
    def accumulating(rate, loss):
        optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(tf.train.GradientDescentOptimizer(rate), 2)
        return OptimizerFunctionOutput(optimizer, loss)

    with pytest.raises(ValueError, match="no gradient accumulation optimizer should be used"):
        compiled(optimizer_function=accumulating)


def test_optimizer_function_output_checks_its_types():
    with pytest.raises(TypeError, match="opt must be a TensorFlow Optimizer"):
        OptimizerFunctionOutput("sgd", 1)
    with pytest.raises(TypeError, match="loss must be a TensorFlow Tensor"):
        OptimizerFunctionOutput(tf.train.GradientDescentOptimizer(0.1), 1.0)
    with pytest.raises(TypeError, match="PipelineStageOptions.matmul_options must be dictionary"):
        PipelineStageOptions(matmul_options=[1])


def test_a_pipeline_within_a_conditional_is_refused():
    def model(condition):
        def run():
            made = pipelining_ops.pipeline(
                [lambda rate, hidden, labels: hidden * 2, tf.reduce_sum],
                6,
                inputs=[condition],
                infeed_queue=feed(),
                outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            )
            with tf.control_dependencies([made]):
                return tf.constant(1.0)

        return tf.cond(condition > 0, run, lambda: tf.constant(2.0))

    with pytest.raises(GraphError, match="a pipeline in a branch of a tf.cond: how often it runs"):
        Compiled(model, [np.float32(0.1)], []).run()

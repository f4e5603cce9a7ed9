"""Calls of the interface with one operand or argument made another.

What each call says (the class and text of the error, or what it told and that it works) is in the golden row of the
test, and so is what the programs of the calls that work are made of (:mod:`built`).
"""

import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

import tensorflow as tf
from fuzzing.ipu.cases import CASES, Case
from graphcases import Program, traced
from kerasruns import ipus
from sessions import Compiled, graphs

from ipuperf.runtime.effects import WithoutEffectWarning
from ipuperf.tensorflow.addons.keras import optimizers as addons
from ipuperf.tensorflow.addons.v1 import layers as popnn
from ipuperf.tensorflow.keras import layers
from ipuperf.tensorflow.keras.extension import extension
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, optimizers, pipelining_ops, scopes

tf1, keras = tf.compat.v1, tf.keras
VALUES = (None, True, False, -1, 0, 1, 2, 5, 2.5, "text", (1,), [1, 0], {"a": "b"}, tf.float16, object)


class WorksError(Exception):
    """Nothing was refused."""


def says(call: Callable[[], Any]) -> None:
    """Note what a call says."""
    with pytest.raises(Exception), warnings.catch_warnings(record=True) as told:  # noqa: B017, PT012 (any is noted)
        warnings.simplefilter("always", WithoutEffectWarning)
        found = call()
        notes = [str(one.message) for one in told if one.category is WithoutEffectWarning]
        state = found.get_config() if hasattr(found, "get_config") else found if isinstance(found, str) else ""
        raise WorksError(f"{notes} {state}")


def others_of(arguments: Mapping[str, Any], names: Iterator[str] | list[str]) -> Iterator[dict[str, Any]]:
    """Arguments of which one is left out, or another value."""
    for name in dict.fromkeys(names):
        yield {key: value for key, value in arguments.items() if key != name}
        for value in VALUES:
            yield {**arguments, name: value}


# -- functions of tensors ----------------------------------------------------------------------------------------------


def operands_of(case: Case) -> tuple[list[np.ndarray], dict[str, Any]]:
    rng, (drawn, arguments) = np.random.default_rng(3), case.draw(random.Random(3))
    made = [rng.normal(size=o[1]).astype(np.float32) if o[0] == "normal" else np.array(o[2], o[1]) for o in drawn]
    return made, arguments


def like(array: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays of another type, rank or length."""
    yield array.astype(np.int32 if array.dtype.kind == "f" else np.float32)
    yield array[None]
    if array.ndim:
        yield array[..., :-1]
        yield np.concatenate([array, array])
        yield array[..., 0]


def calls_of(function: Any, case: Case) -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    operands, arguments = operands_of(case)
    yield operands, arguments
    for number, operand in enumerate(operands):
        for other in like(operand):
            yield [*operands[:number], other, *operands[number + 1 :]], arguments
    parameters = inspect.signature(function).parameters if not isinstance(function, type) else {}
    for changed in others_of(arguments, [*arguments, *list(parameters)[len(operands) :]]):
        yield operands, changed


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.steps])
def test_a_perturbed_call_says_as_before(name: str) -> None:
    function, case = attrgetter(name)(ipu), CASES[name]
    run = traced if case.across or case.shards > 1 else Program
    for operands, arguments in calls_of(function, case):
        called = lambda *tensors, k=arguments: case.build(function, *tensors, **k)  # noqa: E731
        says(lambda f=called, o=operands: (run(f, o) if run is Program else run(f, *o), None)[1])


# -- constructors ------------------------------------------------------------------------------------------------------

ONES = tf.data.Dataset.from_tensors(np.ones(4, np.float32)).repeat()
MADE: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
    (ipu_infeed_queue.IPUInfeedQueue, {"dataset": ONES}),
    (ipu_infeed_queue.IPUIterator, {"dataset": ONES}),
    (ipu_outfeed_queue.IPUOutfeedQueue, {}),
    (ipu.ipu_strategy.IPUStrategy, {}),
    (pipelining_ops.PipelineStageOptions, {}),
    (ipu.embedding_ops.HostEmbeddingOptimizerSpec, {"learning_rate": 0.5}),
    (ipu.embedding_ops.HostEmbeddingSGDGAOptimizerSpec, {"learning_rate": 0.5, "accumulation_factor": 2}),
    (ipu.embedding_ops.create_host_embedding, {"name": "e", "shape": (4, 2), "dtype": tf.float32}),
    (ipu.utils.reset_ipu_seed, {"seed": 3}),
    (ipu.utils.get_num_of_ipus_in_device, {"ipu_device": "/device:IPU:0"}),
    (ipu.horovod.allgather, {"tensor": [1.0]}),
    (ipu.horovod.allreduce, {"tensor": [1.0]}),
    (ipu.horovod.broadcast, {"tensor": [1.0], "root_rank": 0}),
    (ipu.distributed.allgather, {"value": [1.0]}),
    (ipu.distributed.allreduce, {"value": [1.0], "reduce_op": tf.distribute.ReduceOp.SUM}),
    (ipu.distributed.broadcast, {"value": [1.0]}),
    *((getattr(scopes, name), {}) for name in ("stochastic_rounding", "partials_type", "ipu_jit_scope", "ipu_shard")),
    (scopes.frontend_attribute, {"attribute_name": "a", "attribute_value": "b"}),
    (scopes.ipu_scope, {"device": "/device:IPU:0"}),
    (layers.Embedding, {"input_dim": 6, "output_dim": 2}),
    (layers.SerialDense, {"units": 4, "serialization_factor": 2, "serialization_dimension": "kernel_rows"}),
    *((getattr(layers, name), {"units": 3}) for name in ("LSTM", "GRU")),
    (layers.Dropout, {"rate": 0.5}),
    *(
        (getattr(layers, name), {})
        for name in ("GroupNorm", "InstanceNorm", "LayerNorm", "CTCLoss", "CTCInferenceLayer")
    ),
    *((getattr(addons, name), {}) for name in ("AdamIpuOptimizer", "LAMBIpuOptimizer", "SGDIpuOptimizer")),
    *((getattr(popnn, name), {"num_units": 3}) for name in ("PopnnLSTM", "PopnnGRU", "PopnnDynamicGRU", "PopnnAUGRU")),
    *(
        (getattr(optimizers, name), {"opt": tf1.train.GradientDescentOptimizer(0.1), "num_mini_batches": 2})
        for name in ("GradientAccumulationOptimizer", "GradientAccumulationOptimizerV2")
    ),
    (optimizers.CrossReplicaOptimizer, {"opt": tf1.train.GradientDescentOptimizer(0.1)}),
)


@pytest.mark.parametrize(("make", "arguments"), [pytest.param(*case, id=case[0].__name__) for case in MADE])
def test_a_perturbed_constructor_says_as_before(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    def entered(**given: Any) -> Any:
        found = make(**given)
        if hasattr(found, "__enter__") and make.__module__ == scopes.__name__:
            with found:
                pass
        return found

    names = [name for name, one in inspect.signature(make).parameters.items() if one.kind is not one.VAR_KEYWORD]
    for given in [arguments, *others_of(arguments, [*names, "unknown"])]:
        says(lambda k=given: entered(**k))


OPTIONS = sorted(ipu.config.IPUConfig().to_dict())


@pytest.mark.parametrize("option", OPTIONS)
def test_a_perturbed_option_says_as_before(option: str) -> None:
    group, _, name = option.rpartition(".")
    kept = attrgetter(option)(ipu.config.IPUConfig())
    for value in (*VALUES, 64, 0.25, "0.5", *(type(kept) if hasattr(type(kept), "__members__") else ())):
        config = ipu.config.IPUConfig()

        def configure(config: Any = config, value: Any = value) -> str:
            setattr(attrgetter(group)(config) if group else config, name, value)
            config.configure_ipu_system()
            return str(config.to_dict()[option])

        says(configure)


def test_options_are_as_before() -> None:
    says(lambda: str(ipu.config.IPUConfig().to_dict()))


# -- programs ----------------------------------------------------------------------------------------------------------


def staged(**given: Any) -> None:
    """A pipeline of two stages, imported."""

    def first(x: Any) -> Any:
        with tf1.variable_scope("first", use_resource=True):
            return x * tf1.get_variable("w", initializer=2.0)

    arguments: dict[str, Any] = {"computational_stages": [first, tf.reduce_sum], "gradient_accumulation_count": 4}
    arguments |= {"optimizer_function": lambda loss: Function(tf1.train.MomentumOptimizer(0.1, 0.9), loss)}
    with graphs():
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 2
        config.configure_ipu_system()
        arguments |= {"infeed_queue": ipu_infeed_queue.IPUInfeedQueue(ONES)}
        arguments |= {"outfeed_queue": ipu_outfeed_queue.IPUOutfeedQueue()}
        Compiled(lambda: pipelining_ops.pipeline(**{**arguments, **given})).program.finish()


Function = pipelining_ops.OptimizerFunctionOutput
PIPELINE = [n for n in inspect.signature(pipelining_ops.pipeline).parameters if n != "name"]
ENUMERATIONS = {
    "pipeline_schedule": pipelining_ops.PipelineSchedule, "recomputation_mode": pipelining_ops.RecomputationMode,
    "reduction_method": optimizers.GradientAccumulationReductionMethod,
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINE)
def test_a_perturbed_pipeline_says_as_before(name: str) -> None:
    for value in (None, True, False, 0, 8, 2.5, "mean", [1, 0], [True], tf.float16, *ENUMERATIONS.get(name, ())):
        says(lambda v=value: staged(**{name: v}))


def test_perturbed_options_of_models_say_as_before() -> None:
    with ipus(2):
        model = keras.Sequential([keras.layers.Dense(3, input_shape=(4,)), keras.layers.Dense(1)])
    for method in (model.set_gradient_accumulation_options, model.set_pipelining_options):
        names = [name for name, one in inspect.signature(method).parameters.items() if one.kind is not one.VAR_KEYWORD]
        for given in others_of({}, names):
            says(lambda m=method, k=given: (m(**k), str(vars(extension(model).options)))[1])

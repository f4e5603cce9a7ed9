"""What upstream refuses is refused here, with the same class of exception.

Each case is a ``raise`` of upstream's Python sources (``tensorflow: python/ipu``, ``keras: keras/ipu/extensions``) as a
program of a user that meets it.
"""

# ruff: noqa: E731 (the tables are made of small functions)

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus  # noqa: E402
from sessions import graphs  # noqa: E402

from ipuperf.tensorflow import keras as extensions  # noqa: E402
from ipuperf.tensorflow.addons.keras import optimizers as addons  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402
from ipuperf.tensorflow.python.ipu import (  # noqa: E402
    ipu_infeed_queue,
    ipu_outfeed_queue,
    loops,
    optimizers,
    pipelining_ops,
)
from ipuperf.tensorflow.python.ipu.config import IPUConfig  # noqa: E402

keras, tf1 = tf.keras, tf.compat.v1
Case = tuple[str, type[Exception], Callable[[], Any]]
Dataset, Infeed, Outfeed = tf.data.Dataset, ipu_infeed_queue.IPUInfeedQueue, ipu_outfeed_queue.IPUOutfeedQueue
Schedule, Options, Output = (
    pipelining_ops.PipelineSchedule,
    pipelining_ops.PipelineStageOptions,
    pipelining_ops.OptimizerFunctionOutput,
)
X, Y = np.ones((16, 4), np.float32), np.ones((16, 1), np.float32)
ONES = Dataset.from_tensors(np.ones(4, np.float32)).repeat()


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function on one IPU."""
    with ipus(1):
        return tf.distribute.get_strategy().run(tf.function(function, jit_compile=True), args=arguments)


# -- queues and loops --------------------------------------------------------------------------------------------------


def twice_initialized() -> None:
    with graphs():
        queue = Infeed(Dataset.from_tensors(np.ones(4, np.float32)))
        _ = queue.initializer, queue.initializer


def twice_enqueued() -> None:
    queue = Outfeed()
    run(lambda x: [queue.enqueue(x), queue.enqueue(x)], tf.ones(()))


def read_on_the_host() -> None:
    with ipus(1):
        next(ipu_infeed_queue.IPUIterator(ONES))


def queues() -> Iterator[Case]:
    open_shape = ONES.batch(3)
    yield "infeed of a list", TypeError, lambda: Infeed([1.0])
    yield "enqueued outside of a program", RuntimeError, lambda: Outfeed().enqueue(tf.constant(1.0))
    yield "infeed of an open shape", ValueError, lambda: Infeed(Dataset.from_tensor_slices(X).batch(3))
    for depth in (0, -1, 256):
        yield f"infeed of depth {depth}", ValueError, lambda d=depth: Infeed(ONES, prefetch_depth=d)
    for ordinal in ("0", -1, 1.5):
        yield f"infeed on device {ordinal!r}", ValueError, lambda d=ordinal: Infeed(ONES, device_ordinal=d)
        yield f"outfeed on device {ordinal!r}", ValueError, lambda d=ordinal: Outfeed(device_ordinal=d)
    yield "infeed initialized twice", ValueError, twice_initialized
    yield "infeed read by get_next", ValueError, lambda: Infeed(ONES).get_next()
    yield "iterator of nothing", ValueError, lambda: ipu_infeed_queue.IPUIterator()
    yield (
        "iterator of a dataset and a specification",
        ValueError,
        lambda: ipu_infeed_queue.IPUIterator(ONES, element_spec=open_shape.element_spec),
    )
    yield "iterator read on the host", RuntimeError, read_on_the_host
    yield (
        "iterator asked for an optional",
        NotImplementedError,
        lambda: ipu_infeed_queue.IPUIterator(ONES).get_next_as_optional(),
    )
    yield "outfeed of another mode", ValueError, lambda: Outfeed(outfeed_mode=1)
    yield "outfeed of depth 0", ValueError, lambda: Outfeed(buffer_depth=0)
    yield "outfeed enqueued twice", ValueError, twice_enqueued
    yield "outfeed dequeued before", ValueError, lambda: Outfeed().dequeue()
    yield "outfeed of an object", ValueError, lambda: run(lambda: Outfeed().enqueue(object()))


def repeated(body: Callable[..., Any], inputs: Any = (), infeed: Any = None) -> Callable[[], Any]:
    return lambda: run(lambda: loops.repeat(2, body, list(inputs), infeed))


def counted(condition: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: run(lambda: loops.while_loop(condition, lambda x: x, [1], maximum_iterations=3))


def looping() -> Iterator[Case]:
    yield "body of too many arguments", TypeError, repeated(lambda x, y: x, [1])
    yield "body of too few arguments", TypeError, repeated(lambda: None, [1])
    yield "body without the infeed's", TypeError, repeated(lambda x: x, [1], Infeed(ONES))
    yield "condition of too many arguments", TypeError, counted(lambda x, y: x < 2)
    yield "body with an operation first", ValueError, repeated(lambda x: (tf.no_op(), x), [1])
    yield "body of another shape", ValueError, repeated(lambda x: tf.stack([x, x]), [1])
    yield "body of another type", TypeError, repeated(lambda x: tf.cast(x, tf.float32), [1])
    for kind in (
        optimizers.GradientAccumulationOptimizerV2,
        optimizers.CrossReplicaGradientAccumulationOptimizerV2,
        optimizers.GradientAccumulationOptimizer,
        optimizers.CrossReplicaGradientAccumulationOptimizer,
    ):
        yield f"{kind.__name__} of no batches", ValueError, lambda k=kind: k(sgd(), 0)
    adam = tf1.train.AdamOptimizer()
    yield "accumulation without state", ValueError, lambda: optimizers.GradientAccumulationOptimizer(adam, 2)
    yield (
        "another reduction",
        ValueError,
        lambda: optimizers.GradientAccumulationOptimizerV2(sgd(), 2, reduction_method="median"),
    )


# -- pipelines ---------------------------------------------------------------------------------------------------------


def sgd() -> Any:
    return tf1.train.GradientDescentOptimizer(0.1)


def output(**given: Any) -> Callable[[], Any]:
    return lambda: Output(**{"opt": sgd(), "loss": tf.ones(()), **given})


def outputs() -> Iterator[Case]:
    tape, modern = tf.GradientTape(), keras.optimizers.legacy.SGD(0.1)
    variable = [tf.Variable(1.0)]
    for error, given in (
        (TypeError, {"opt": "sgd"}),
        (TypeError, {"loss": 1.0}),
        (TypeError, {"compute_gradients_args": [1]}),
        (TypeError, {"compute_gradients_kwargs": [1]}),
        (TypeError, {"apply_gradients_args": [1]}),
        (TypeError, {"apply_gradients_kwargs": [1]}),
        (TypeError, {"opt": modern, "variables": {1}}),
        (TypeError, {"opt": modern, "tape": 1}),
        (TypeError, {"captured_gradient_outfeed": 1}),
        (ValueError, {"opt": modern, "compute_gradients_args": (1,)}),
        (ValueError, {"opt": modern, "compute_gradients_kwargs": {"var_list": variable}}),
        (ValueError, {"variables": variable}),
        (ValueError, {"tape": tape}),
        (ValueError, {"opt": modern, "tape": tape, "variables": variable}),
        (ValueError, {"captured_gradient_outfeed": Outfeed()}),
    ):
        yield " and ".join(f"{k}={v!r:.20}" for k, v in given.items()), error, output(**given)
    for name in ("convolution_options", "matmul_options", "slice_options"):
        yield name, TypeError, lambda n=name: Options(**{n: [1]})


def trained(loss: Any, *_: Any) -> Any:
    return Output(sgd(), loss)


def pipeline(**given: Any) -> Callable[[], Any]:
    """A pipeline of two stages in a program."""

    def first(x: Any) -> Any:
        with tf1.variable_scope("first", use_resource=True):
            return x * tf1.get_variable("w", initializer=2.0)

    def program() -> Any:
        queue = Outfeed()
        arguments = {"computational_stages": [first, tf.reduce_sum], "gradient_accumulation_count": 4}
        arguments |= {"infeed_queue": Infeed(ONES), "outfeed_queue": queue, "optimizer_function": trained}
        return pipelining_ops.pipeline(**{**arguments, **{k: v() if k in LATE else v for k, v in given.items()}})

    def compiled() -> None:
        with graphs() as made:
            config = IPUConfig()
            config.auto_select_ipus = 2
            config.configure_ipu_system()
            result = ipu.ipu_compiler.compile(program)
            made.session.run(tf1.global_variables_initializer())
            made.session.run(result)

    return compiled


def _shown(value: Any) -> str:
    """Without addresses, so that every worker collects the same names."""
    return re.sub(r"<function (\S+) at \w+>", r"\1", repr(value))[:30]


LATE = ("outfeed_queue", "device_mapping")


def pipelines() -> Iterator[Case]:
    def by_keras(loss: Any) -> Any:
        return Output(keras.optimizers.legacy.SGD(0.1), loss)

    def accumulating_twice(loss: Any) -> Any:
        return Output(optimizers.GradientAccumulationOptimizerV2(sgd(), 2), loss)

    last = lambda: Outfeed(ipu_outfeed_queue.IPUOutfeedMode.LAST)
    none, pair = (lambda: None), [lambda x: x, lambda x: (x, x)]
    for error, given in (
        (ValueError, {"gradient_accumulation_count": None}),
        (ValueError, {"gradient_accumulation_count": -4}),
        (ValueError, {"gradient_accumulation_count": 2**31}),
        (ValueError, {"reduction_method": "median"}),
        (ValueError, {"reduction_method": "mean", "batch_serialization_iterations": 2}),
        (NotImplementedError, {"continuous_weight_updates": True}),
        (TypeError, {"pipeline_schedule": 0}),
        (NotImplementedError, {"pipeline_schedule": Schedule.Grouped, "batch_serialization_iterations": 2}),
        (NotImplementedError, {"device_mapping": lambda: [0, 1], "batch_serialization_iterations": 2}),
        (TypeError, {"recomputation_mode": 0}),
        (TypeError, {"computational_stages": tf.reduce_sum}),
        (TypeError, {"infeed_queue": ONES}),
        (TypeError, {"outfeed_queue": lambda: [1]}),
        (ValueError, {"computational_stages": [tf.reduce_sum]}),
        (TypeError, {"device_mapping": lambda: 0}),
        (ValueError, {"device_mapping": lambda: [0]}),
        (NotImplementedError, {"device_mapping": lambda: [0, 0], "pipeline_schedule": Schedule.Interleaved}),
        (TypeError, {"forward_propagation_stages_poplar_options": Options()}),
        (ValueError, {"forward_propagation_stages_poplar_options": [Options()]}),
        (TypeError, {"forward_propagation_stages_poplar_options": [{}, {}]}),
        (TypeError, {"backward_propagation_stages_poplar_options": Options()}),
        (ValueError, {"backward_propagation_stages_poplar_options": [Options()]}),
        (TypeError, {"backward_propagation_stages_poplar_options": [{}, {}]}),
        (TypeError, {"weight_update_poplar_options": {}}),
        (ValueError, {"optimizer_function": None, "outfeed_mask": [True]}),
        (ValueError, {"optimizer_function": None, "outfeed_loss": True}),
        (ValueError, {"outfeed_mask": [True], "outfeed_loss": True}),
        (ValueError, {"outfeed_mask": [True, False]}),
        (ValueError, {"accumulate_outfeed": True, "outfeed_queue": none}),
        (ValueError, {"accumulate_outfeed": True, "outfeed_queue": last}),
        (ValueError, {"outfeed_loss": True, "outfeed_queue": none}),
        (ValueError, {"outfeed_queue": none}),
        (ValueError, {"optimizer_function": None, "outfeed_queue": none}),
        (ValueError, {"optimizer_function": None, "outfeed_queue": none, "computational_stages": pair}),
        (RuntimeError, {"optimizer_function": by_keras}),
        (TypeError, {"optimizer_function": lambda loss: loss}),
        (ValueError, {"optimizer_function": accumulating_twice}),
    ):
        yield " and ".join(f"{k}={_shown(v)}" for k, v in given.items()), error, pipeline(**given)
    outside: list[Any] = []

    def capturing() -> None:
        def stage(x: Any) -> Any:
            return x * outside[0]

        def program(x: Any) -> Any:
            outside[:] = [x * 2]
            return pipelining_ops.pipeline([stage, stage], 4, infeed_queue=Infeed(ONES), outfeed_queue=Outfeed())

        with graphs():
            ipu.ipu_compiler.compile(program, [tf1.placeholder(tf.float32, (4,))])

    yield "a stage that uses a tensor from outside", ValueError, capturing


# -- embeddings and configuration --------------------------------------------------------------------------------------


def configured(**given: Any) -> Callable[[], Any]:
    def configure() -> None:
        config = IPUConfig()
        for path, value in given.items():
            *parts, leaf = path.split("__")
            place = config
            for part in parts:
                place = getattr(place, part)
            setattr(place, leaf, value)
        config.configure_ipu_system()

    return configure


def others() -> Iterator[Case]:
    embedding = ipu.embedding_ops
    table, rows = tf.ones((6, 2)), tf.zeros((3,), tf.int32)
    for factor in (0, 4):
        lookup = lambda t, i, f=factor: embedding.embedding_lookup(t, i, serialization_factor=f)
        yield f"a lookup in {factor} parts", ValueError, lambda f=lookup: run(f, table, rows)
    yield "host embedding of an array", ValueError, lambda: embedding.HostEmbedding("e", [[1.0]])
    variable, host = tf.Variable(table), embedding.HostEmbedding
    yield "host embedding in rows", ValueError, lambda: host("e", variable, "ROWS")
    yield "host embedding with Adam", ValueError, lambda: embedding.HostEmbeddingOptimizerSpec(0.1, "Adam")
    yield "host embedding outside of a program", RuntimeError, lambda: host("e", variable).lookup(rows)
    yield (
        "host embedding of another optimizer",
        ValueError,
        lambda: embedding.HostEmbedding("e", table, optimizer_spec=sgd()),
    )
    yield "an option that is none", ValueError, configured(auto_selct_ipus=1)
    yield "an option read that is none", ValueError, lambda: IPUConfig().matmul
    yield "an option of another type", TypeError, configured(allow_recompute=1)
    yield "an option of a category that is none", ValueError, configured(io_tiles__num_io_tile=1)
    yield "no configuration", RuntimeError, ipu.config.get_ipu_config
    yield "a category assigned", Exception, configured(io_tiles=1)
    yield "two ways to select", Exception, configured(auto_select_ipus=1, select_ipus=1)
    yield "an IPU selected twice", ValueError, configured(select_ipus=[1, 1])
    yield (
        "distributed norms beside I/O tiles",
        ValueError,
        configured(
            auto_select_ipus=2,
            io_tiles__num_io_tiles=32,
            norms__experimental__distributed_batch_norm_replica_group_size=2,
        ),
    )
    yield "a configuration of another type", TypeError, lambda: ipu.config.configure_ipu_system({})


def benchmarks() -> Iterator[Case]:
    benchmark, some = ipu.dataset_benchmark.dataset_benchmark, Dataset.range(3)
    for name, error, arguments in (
        ("no epochs", ValueError, (some, 0, 1)),
        ("no elements", ValueError, (some, 1, 0)),
        ("a list", TypeError, ([1], 1, 1)),
        ("too little", tf.errors.OutOfRangeError, (some, 1, 4)),
        ("nothing", tf.errors.InvalidArgumentError, (Dataset.from_tensors(np.zeros((2, 0))), 1, 1)),
    ):
        yield name, error, lambda a=arguments: benchmark(*a)
    yield "an infeed of another type", TypeError, lambda: ipu.dataset_benchmark.infeed_benchmark(some, 1, 1)


def kinds() -> Iterator[Case]:
    """Arguments of a wrong kind."""
    ones, norms = tf.ones((2, 4)), ipu.normalization_ops
    for name, call in {
        "a text for a number": lambda: loops.repeat("a", lambda: None),
        "a fraction for a number": lambda: loops.repeat(2.5, lambda: None),
        "a number for a function": lambda: loops.repeat(2, 5),
        "a list for a depth": lambda: Infeed(ONES, prefetch_depth=[]),
        "a list for a rate": lambda: ipu.rand_ops.dropout(ones, rate=[]),
        "a text for groups": lambda: norms.group_norm(ones, groups="a"),
        "a number for initializers": lambda: norms.layer_norm(ones, param_initializers=5),
        "a list for a table": lambda: ipu.embedding_ops.embedding_lookup([], [0]),
        "a number for a tensor": lambda: ipu.autoshard.automatic_sharding(2, 5, 5),
        "a number for a graph": lambda: ipu.sharding.propagate_sharding(5),
        "a list for a seed": lambda: ipu.utils.reset_ipu_seed([]),
        "a number for stages": lambda: pipelining_ops.pipeline(5, gradient_accumulation_count=2),
        "a number for an optimizer": lambda: optimizers.CrossReplicaOptimizer(3),
    }.items():
        yield name, TypeError, call


def operations() -> Iterator[Case]:
    images, a, b = tf.ones((2, 3, 3, 6)), tf.ones((4, 6)), tf.ones((6, 8))
    norms = ipu.normalization_ops
    for name, given in (
        ("more groups than channels", {"groups": 7}),
        ("groups that do not divide the channels", {"groups": 4}),
        ("channels beyond the axes", {"groups": 2, "channels_axis": 4}),
        ("channels between the axes", {"groups": 2, "channels_axis": 2}),
    ):
        yield name, ValueError, lambda g=given: run(lambda x: norms.group_norm(x, **g), images)
    for norm in (norms.layer_norm, norms.instance_norm):
        yield (
            f"{norm.__name__} beyond the axes",
            ValueError,
            lambda n=norm: run(lambda x: n(x, channels_axis=4), images),
        )
    for left, right, factor, dimension in (
        (a, b, 0, "a_columns"),
        (tf.ones(4), b, 2, "a_columns"),
        (a, tf.ones(6), 2, "a_columns"),
        (a, b, 3, "a_columns"),
        (a, b, 4, "a_rows_b_columns"),
        (a, tf.ones((5, 8)), 1, "a_rows_b_columns"),
        (a, b, 3, "b_rows"),
        (a, b, 2, "rows"),
    ):
        product = lambda x, y, f=factor, d=dimension: ipu.math_ops.serialized_matmul(x, y, f, d)
        yield (
            f"{left.shape} by {right.shape} in {factor} parts of {dimension}",
            ValueError,
            lambda p=product, x=left, y=right: run(p, x, y),
        )
    yield "options of convolutions", TypeError, lambda: run(ipu.nn_ops.multi_conv(lambda x: x, options=[1]), images)


# -- Keras -------------------------------------------------------------------------------------------------------------


def dense(stages: int = 0) -> Any:
    """A sequence of two layers."""
    model = keras.Sequential([keras.layers.Dense(3, input_shape=(4,)), keras.layers.Dense(1)])
    if stages:
        model.set_pipeline_stage_assignment([0, 1])
    return model


def graph(kind: Any = None) -> Any:
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3)(inputs)
    return (kind or keras.Model)(inputs, keras.layers.Dense(1)(hidden))


def layers() -> Iterator[Case]:
    own, x = extensions.layers, tf.ones((2, 2, 2))
    for name in ("kernel_regularizer", "go_backwards", "unroll"):
        yield f"LSTM with {name}", ValueError, lambda n=name: own.LSTM(3, **{n: True})
    yield "GRU with elu", ValueError, lambda: own.GRU(3, activation="elu")
    yield "LSTM over an unknown time", ValueError, lambda: own.LSTM(3)(keras.Input((None, 4)))
    masked = lambda: keras.layers.Embedding(5, 4, mask_zero=True)(keras.Input((6,)))
    yield "LSTM with a mask", NotImplementedError, lambda: own.LSTM(3)(masked())
    yield "state of another type", ValueError, lambda: ipu.rnn_ops.PopnnLSTM(2)(x, (x[0], x[0]))
    constraint = {"gamma_constraint": keras.constraints.NonNeg()}
    yield "LayerNorm with a constraint", NotImplementedError, lambda: own.LayerNorm(**constraint)
    for name in ("EffectiveTransformer", "CaptureUpstreamGradients"):
        yield name, NotImplementedError, getattr(own, name)
    yield "ALSOptimizer", NotImplementedError, lambda: extensions.optimizers.ALSOptimizer(None)
    yield "IPUEstimator", NotImplementedError, lambda: ipu.ipu_estimator.IPUEstimator(None)
    one_type = {"optimizer_compute_precisions": (tf.float32,)}
    yield "LAMB of one type", ValueError, lambda: addons.LAMBIpuOptimizer(**one_type)
    rows = tf.IndexedSlices(tf.ones((1, 1)), tf.constant([2]), tf.constant([4, 1]))
    for made in (addons.AdamIpuOptimizer(), addons.SGDIpuOptimizer(0.1, 0.9), addons.LAMBIpuOptimizer()):
        step = lambda m=made: m.apply_gradients([(rows, tf.Variable(tf.ones((4, 1))))])
        yield f"gradients of rows for {type(made).__name__}", NotImplementedError, step


def made_outside() -> None:
    model = dense()
    with ipus(1):
        model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=4, verbose=0)


def fitted(make: Callable[[], Any], call: str = "fit", data: Any = None, count: int = 2, **options: Any) -> Any:
    """A model that is compiled with options and run."""

    def fit() -> None:
        with ipus(count):
            model = make()
            how = {"optimizer": "sgd", "loss": "mse", "steps_per_execution": 4, **options}
            model.compile(**how)
            given = {"x": X, "y": Y, "batch_size": 4} if data is None else data()
            if call == "predict":
                given.pop("y")
            getattr(model, call)(verbose=0, **given)

    return fit


def on_model(make: Callable[[], Any], method: str, *arguments: Any, **named: Any) -> Callable[[], Any]:
    def call() -> None:
        with ipus(2):
            getattr(make(), method)(*arguments, **named)

    return call


def overriding(base: type, *names: str) -> type:
    """A class of models with methods of its own that do as before."""

    def make(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(base, name)(self, *args, **kwargs)

    return type("Own", (base,), {name: make(name) for name in names})


def options_of_models() -> Iterator[Case]:
    accumulation, pipelining = "set_gradient_accumulation_options", "set_pipelining_options"
    for method in (accumulation, pipelining):
        for steps in (0, -1, 1.5, "2"):
            yield f"{method} {steps!r}", ValueError, on_model(dense, method, steps)
        for name in ("gradient_accumulation_reduction_method", "experimental_normalize_gradients"):
            yield f"{method} {name}", ValueError, on_model(dense, method, 4, **{name: "median"})
    for name in ("opt", "num_mini_batches"):
        yield f"{accumulation} {name}", ValueError, on_model(dense, accumulation, 4, **{name: 1})
    for mapping in (0, (0, 1), [0, "1"]):
        yield f"{pipelining} on {mapping!r}", ValueError, on_model(dense, pipelining, 4, device_mapping=mapping)
    for name in (
        "gradient_accumulation_count computational_stages repeat_count inputs infeed_queue outfeed_queue "
        "optimizer_function outfeed_loss outfeed_mask batch_serialization_iterations"
    ).split():
        yield f"{pipelining} {name}", ValueError, on_model(dense, pipelining, 4, **{name: 1})
    for name in ("dataset", "infeed_spec", "element_spec"):
        yield f"infeed option {name}", ValueError, on_model(dense, "set_infeed_queue_options", **{name: 1})
    for name in ("outfeed_mode", "device_ordinal"):
        yield f"outfeed option {name}", ValueError, on_model(dense, "set_outfeed_queue_options", **{name: 1})


def scoped(*stages: Any, strategy: bool = True) -> Callable[[], Any]:
    """Nested blocks of pipeline stages."""

    def enter() -> None:
        with ipus(2) if strategy else contextlib.nullcontext(), contextlib.ExitStack() as stack:
            for stage in stages:
                stack.enter_context(extensions.PipelineStage(stage))

    return enter


def assigned(make: Callable[[], Any], change: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """An assignment that is changed before it is set."""

    def assign() -> None:
        with ipus(2):
            model = make()
            assignment = model.get_pipeline_stage_assignment()
            for number, one in enumerate(assignment):
                one.pipeline_stage = number
            model.set_pipeline_stage_assignment(change(assignment))

    return assign


def staged(assignment: list[Any], *stages: int | None) -> list[Any]:
    for one, stage in zip(assignment, stages, strict=True):
        one.pipeline_stage = stage
    return assignment


class Unbuilt(keras.Model):
    """Without a graph as yet."""

    def call(self, x: Any) -> Any:
        return x


def half_scoped() -> None:
    with ipus(2):
        inputs = keras.Input((4,))
        with extensions.PipelineStage(0):
            hidden = keras.layers.Dense(3)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse", steps_per_execution=4)
        model.predict(X, batch_size=4, verbose=0)


def stage_assignments() -> Iterator[Case]:
    yield "stage -1", ValueError, scoped(-1)
    yield "a stage within a stage", RuntimeError, scoped(0, 1)
    yield "a stage outside of a strategy", RuntimeError, scoped(0, strategy=False)
    yield "layers without a stage", ValueError, half_scoped
    for name, make in (("sequence", dense), ("graph", graph)):
        yield f"{name}: no list", ValueError, assigned(make, tuple)
        yield f"{name}: too short", ValueError, assigned(make, lambda a: a[:1])
        yield f"{name}: too long", ValueError, assigned(make, lambda a: [*a, a[-1]])
        yield f"{name}: text", ValueError, assigned(make, lambda a: ["0", "1"])
        yield f"{name}: a layer without", ValueError, assigned(make, lambda a: staged(a, 0, None))
        yield f"{name}: begins at 1", ValueError, assigned(make, lambda a: staged(a, 1, 2))
        yield f"{name}: leaves one out", ValueError, assigned(make, lambda a: staged(a, 0, 2))
        yield f"{name}: backwards", ValueError, assigned(make, lambda a: staged(a, 1, 0))
        yield f"{name}: another order", ValueError, assigned(make, lambda a: staged(a[::-1], 0, 1))
    yield "graph: numbers", ValueError, assigned(graph, lambda a: [0, 1])
    for method in ("get", "set"):
        arguments = [[]] if method == "set" else []
        call = on_model(Unbuilt, f"{method}_pipeline_stage_assignment", *arguments)
        yield f"{method} before a model is built", RuntimeError, call


def pipelined(kind: type | None = None, accumulation: int | None = 4) -> Callable[[], Any]:
    """A functional model in two stages."""

    def make() -> Any:
        model = graph(kind)
        model.set_pipeline_stage_assignment(staged(model.get_pipeline_stage_assignment(), 0, 1))
        if accumulation is not None:
            model.set_pipelining_options(accumulation)
        return model

    return make


def accumulating(kind: type | None = None, steps: int = 4) -> Callable[[], Any]:
    def make() -> Any:
        model = graph(kind)
        model.set_gradient_accumulation_options(steps)
        return model

    return make


def changed_sequence() -> Any:
    model = dense(2)
    model.set_pipelining_options(4)
    model.add(keras.layers.Dense(1))
    return model


def own_sequence() -> Any:
    kind = overriding(keras.Sequential, "call")
    model = kind([keras.layers.Dense(3, input_shape=(4,)), keras.layers.Dense(1)])
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(4)
    return model


class Silent(keras.Model):
    """Without a call."""


def fits() -> Iterator[Case]:
    sgd = keras.optimizers.legacy.SGD
    doubled = {"minimize": lambda self, loss, *others, **named: sgd.minimize(self, 2 * loss, *others, **named)}
    silent = {"minimize": lambda self, loss, var_list, tape=None: None}
    minimizing, idle = (type("Own", (sgd,), methods) for methods in (doubled, silent))
    yield "a model made outside", RuntimeError, made_outside
    yield "options of a model made outside", RuntimeError, lambda: dense().set_pipelining_options(4)
    yield "eagerly", RuntimeError, fitted(dense, run_eagerly=True)
    yield "pipeline without accumulation", ValueError, fitted(pipelined(accumulation=None))
    yield "steps that accumulation does not divide", RuntimeError, fitted(accumulating(steps=3), count=1)
    yield "steps that a pipeline's does not divide", RuntimeError, fitted(pipelined(accumulation=8))
    yield "too few IPUs", ValueError, fitted(pipelined(), count=1)
    yield "own minimize, pipelined", ValueError, fitted(pipelined(), optimizer=minimizing(0.1))
    yield "own minimize of nothing, pipelined", ValueError, fitted(pipelined(), optimizer=idle(0.1))
    yield "own minimize, accumulated", ValueError, fitted(accumulating(), count=1, optimizer=minimizing(0.1))
    yield "sequence that has changed", RuntimeError, fitted(changed_sequence, count=4)
    for mode, step in (("fit", "train"), ("evaluate", "test"), ("predict", "predict")):
        own = overriding(keras.Model, f"make_{step}_function")
        yield f"own make_{step}_function", RuntimeError, fitted(lambda k=own: graph(k), mode, count=1)
        own = overriding(keras.Model, f"{step}_step")
        yield f"own {step}_step, pipelined", RuntimeError, fitted(pipelined(own), mode)
        own = overriding(keras.Model, "call")
        yield f"own call, pipelined, {mode}", RuntimeError, fitted(pipelined(own), mode)
    yield (
        "own train_step, accumulated",
        RuntimeError,
        fitted(accumulating(overriding(keras.Model, "train_step")), count=1),
    )
    yield "own call of a sequence", RuntimeError, fitted(own_sequence)
    yield "no call", NotImplementedError, fitted(Silent, count=1)


def batches(data: Any, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": data() if callable(data) else data, **options}


def data() -> Iterator[Case]:
    pairs = Dataset.from_tensor_slices((X, Y))
    whole = pairs.batch(4, drop_remainder=True)

    def generator() -> Any:
        while True:
            yield X[:4], Y[:4]

    for name, given in (
        ("a generator", batches(generator, steps_per_epoch=4)),
        ("an iterator", batches(lambda: iter([(X[:4], Y[:4])] * 4), steps_per_epoch=4)),
        ("a partial batch", lambda: {"x": X, "y": Y, "batch_size": 3}),
        ("batches of an open size", batches(pairs.batch(4))),
        ("data without an end", batches(whole.repeat())),
        ("too little data", batches(whole, steps_per_epoch=8)),
        ("too little data for all epochs", batches(pairs.batch(2, drop_remainder=True), steps_per_epoch=4, epochs=4)),
        ("steps that do not divide the epoch", lambda: {"x": X[:12], "y": Y[:12], "batch_size": 2}),
    ):
        yield name, ValueError, fitted(dense, data=given, count=1)
    yield "fewer batches than replicas", ValueError, fitted(dense, data=batches(whole.take(1)), count=2)


TABLES = (
    queues, looping, outputs, pipelines, others, benchmarks, kinds, operations, layers, options_of_models,
    stage_assignments, fits, data,
)  # fmt: skip
CASES = [pytest.param(*case[1:], id=f"{table.__name__}-{case[0]}") for table in TABLES for case in table()]


@pytest.mark.parametrize(("error", "program"), CASES)
def test_what_upstream_refuses_is_refused(error: type[Exception], program: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as raised:
        program()
    assert isinstance(raised.value, error), f"{type(raised.value).__name__}: {raised.value}"

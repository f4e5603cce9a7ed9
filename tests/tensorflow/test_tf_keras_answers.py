"""What Keras models on the IPU say of data, steps, results, stages and saved options, without a run: values and logs.

The golden files have the answers, or the class and text of the error, and what is logged.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rows import Golden

pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

import tensorflow as tf
import tf_keras
from answers import asked
from kerasruns import configure, ipus

from ipuperf.tensorflow.addons.v1 import layers as popnn
from ipuperf.tensorflow.keras import data, graphs, layers, programs, saving, scopes, staging
from ipuperf.tensorflow.keras import extension as sides

Dataset = tf.data.Dataset


# -- data --------------------------------------------------------------------------------------------------------------


def handler(
    x: Any = 8, replicas: int = 1, executed: int = 1, every: bool = False, **options: Any
) -> data.IPUDataHandler:
    """The data of a model with so many replicas; a number: a dataset of so many batches of two."""
    extension = SimpleNamespace(
        stop_feeding=lambda feed: None,
        tell_of_arrays=lambda x, y: None, build=lambda x: None, replicas=lambda: replicas, before_epoch=lambda h: None,
        calls_every_step=lambda: every,
    )  # fmt: skip
    given = Dataset.from_tensors(np.zeros((2, 3), np.float32)).repeat(x) if isinstance(x, int) else x
    return data.IPUDataHandler(extension, given, steps_per_execution=tf.Variable(executed, dtype=tf.int64), **options)


def fed(*given: Any, **options: Any) -> list[Any]:
    """Batches, steps of an epoch and of an execution, and the first batches of the executions of each epoch."""
    made = handler(*given, **options)
    epochs = [(epoch, list(made.steps()), str(feed.dataset.element_spec)) for epoch, feed in made.enumerate_epochs()]
    return [made.batch_size, made._inferred_steps, made.steps_per_execution, epochs]


def element(*parts: Any) -> data.Element:
    """The structure of elements of a dataset."""
    return data.Element(Dataset.from_tensors(parts[0] if len(parts) == 1 else parts).element_spec)


# -- models ------------------------------------------------------------------------------------------------------------


def dense(name: str, **options: Any) -> Any:
    return tf_keras.layers.Dense(2, name=name, **options)


def row_of(*layers: Any, name: str = "row", shape: Any = (4,)) -> Any:
    return tf_keras.Sequential([*([tf_keras.Input(shape)] if shape else []), *layers], name=name)


def row(length: int = 2, **options: Any) -> Any:
    return row_of(*(dense(name) for name in "abc"[:length]), **options)


def net() -> Any:
    """A model that calls a layer twice, adds what two others make, and has a model inside."""
    x = tf_keras.Input((2,), name="x")
    twice, inner = dense("twice"), row_of(dense("low"), dense("high"), name="inner", shape=(2,))
    y = tf_keras.layers.Add(name="both")([twice(x), twice(dense("once")(x))])
    return tf_keras.Model(x, inner(y), name="net")


class Called(tf_keras.Model):
    """A model that is a ``call``."""

    def __init__(self) -> None:
        super().__init__(name="called")
        self.first, self.second = dense("first"), dense("second")

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def built(shape: Any = (3, 4)) -> Any:
    model = Called()
    model.build(shape)
    return model


def staged(model: Any, *stages: Any) -> Any:
    """The model with stages for the calls of its layers, in order."""
    given = model.get_pipeline_stage_assignment()
    for one, stage in zip(staging.flat(given), stages):
        one.pipeline_stage = stage
    model.set_pipeline_stage_assignment(given)
    return model


def listed(model: Any) -> list[Any]:
    """The stages of a model's calls."""
    return [(one.layer.name, one.pipeline_stage) for one in staging.flat(model.get_pipeline_stage_assignment())]


def passed(model: Any) -> list[Any]:
    """How many tensors each stage hands on, and the calls in order."""
    layout = sides.extension(model).layout()
    return [[len(layout.passed(i)) for i in range(layout.stages)], [(c.layer.name, c.stage) for c in layout.calls]]


def summary(model: Any, length: int | None = None) -> list[str]:
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(length, lines.append)
    return lines


def side(steps: int | None = None, pipelined: bool = False, **options: Any) -> Any:
    """The extension of a model with such options."""
    model = row()
    made = sides.extension(staged(model, 0, 1) if pipelined else model)
    vars(made.options).update(options, **{"pipeline_steps" if pipelined else "accumulation_steps": steps})
    return made


def results(replicas: int, mean: bool = False) -> programs.Results:
    """Of two steps, a number and rows."""
    lead = (2,) if replicas == 1 else (2, replicas)
    flat = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in (lead, (*lead, 2, 3))]
    return programs.Results(("a", "b"), flat, replicas, mean)


def plain(found: Any) -> Any:
    return [np.asarray(one) for one in tf.nest.flatten(found)]


def of_ipus(count: int, shards: int) -> int:
    configure(auto_select_ipus=count)
    return scopes.replicas(shards)


NAMES = {
    "np": np, "tf": tf, "tf_keras": tf_keras, "Dataset": Dataset, "Called": Called, "SimpleNamespace": SimpleNamespace,
    **vars(graphs), **vars(staging), **{name: value for name, value in globals().items() if callable(value)},
    "sides": sides, "saving": saving, "staging": staging, "extension": sides.extension,
}  # fmt: skip
FED = [
    *(f"fed({batches}, {replicas}, {executed})" for batches in (1, 2, 3, 7, 8) for replicas in (1, 2)
      for executed in (1, 2, 3)),
    *(f"fed(8, {rest})" for rest in (
        "1, 2, epochs=2", "1, 2, epochs=3, steps_per_epoch=2", "1, 2, epochs=2, steps_per_epoch=4",
        "1, 2, epochs=2, steps_per_epoch=5", "2, 2, epochs=2, steps_per_epoch=4", "2, 2, epochs=2, steps_per_epoch=2",
        "1, 2, epochs=3, initial_epoch=1", "1, 2, epochs=3, initial_epoch=1, steps_per_epoch=4", "1, 2, True",
        "1, 2, True, epochs=2", "1, 1, True", "2, 2, True", "1, 8", "1, 9", "3, 2", "4, 1", "5, 1", "9, 1",
        "steps_per_epoch=8", "steps_per_epoch=9")),
    *(f"fed({x}{rest})" for x in ("np.ones((8, 3), np.float32)", "tf.ones((8, 3))") for rest in
      (", batch_size=2", ", batch_size=3", ", batch_size=8", ", 2, batch_size=2", ", y=np.ones((8, 1)), batch_size=4")),
    *(f"fed({x})" for x in (
        "Dataset.range(8).batch(2)", "Dataset.range(8).batch(2, drop_remainder=True)", "Dataset.range(7).batch(2)",
        "Dataset.from_tensors((np.ones((2, 3)), None)).repeat(2)",
        "Dataset.from_tensors(np.ones((2, 3))).repeat(), steps_per_epoch=3",
        "Dataset.from_tensors(np.ones((2, 3))).repeat(4).filter(lambda x: True)",
        "Dataset.from_tensors(np.ones((2, 3))).repeat(4).filter(lambda x: True), steps_per_epoch=2",
        "Dataset.from_tensors((np.ones((2, 3)), np.ones((2, 1)))).repeat(4)", "(n for n in [np.ones((2, 3))])")),
    *(f"e = element({parts}); [e.parts(list(range(9))), e.targets(list(range(9))), len(e.flat)]" for parts in (
        "1.0", "1.0, 2.0", "1.0, 2.0, 3.0", "{'a': 1.0, 'b': 2}, (3.0, 4.0)", "1.0, None", "1.0, None, 2.0",
        "(1.0, None), 2.0")),
    *(f"data.DataFeed(Dataset.from_tensors({parts})).signature()" for parts in
      ("1.0", "(1.0, np.int32(2))", "(1.0, None)", "({'a': np.ones((2, 3))}, 1)")),
]  # fmt: skip
NAMES["data"] = data
RESULTS = [
    *(f"r = results({replicas}, {mean}); [plain(one) for one in {what}]" for replicas in (1, 2, 3)
      for mean in (False, True) for what in ("[r.last()]", "[r.merged()]", "r.each_log()", "r.each()")),
    *(f"of_ipus({ipus}, {shards})" for ipus in (1, 2, 4, 8) for shards in (1, 2, 3, 4)),
]  # fmt: skip
MODELS = [
    *(f"summary({model}{length})" for length in ("", ", 40", ", 120") for model in (
        "net()", "staged(net(), 0, 0, 0, 0, 1, 1)", "row()",
        "staged(row_of(dense('a'), row(2, name='in', shape=(2,))), 0, 1, 2)", "built()")),
    *(f"passed(staged({model}, {stages}))" for model, stages in (
        ("net()", "0, 0, 0, 0, 0, 1"), ("net()", "0, 0, 1, 1, 2, 3"), ("net()", "0, 1, 1, 1, 2, 2"),
        ("net()", "1, 0, 0, 2, 2, 2"), ("net()", "0, 0, 0, 1, 0, 1"), ("net()", "0, 0, 0, 2, 2, 2"),
        ("net()", "1, 1, 1, 1, 1, 1"), ("net()", "0, 0, 0, 0, 0, None"), ("net()", "-1, 0, 0, 0, 0, 1"),
        ("net()", "0, 0, 0, 0, 0, 0"), ("built()", "0, 1"), ("built()", "1, 0"), ("built()", "0, 0"),
        ("row(3)", "0, 1, 2"),
        ("row(3)", "0, 0, 1"),
        ("row(3)", "0, 2, 2"),
        ("row(3)", "1, 1, 2"),
        ("row(3)", "0, 1, 0"),
        ("row(3)", "0, None, 0"))),
    *(f"m = row(); m.set_pipeline_stage_assignment({given}); listed(m)" for given in
      ("[0, 1]", "[0, 0]", "[0]", "[0, True]", "[0, 2]", "(0, 1)", "[0, 1, 2]", "['a', 1]",
       "m.get_pipeline_stage_assignment()[::-1]", "[]")),
    *(f"m = net(); a = staged(m, 0, 0, 0, 0, 1, 1).get_pipeline_stage_assignment(); {rest}; listed(m)" for rest in
      ("m.set_pipeline_stage_assignment(a[::-1])", "m.set_pipeline_stage_assignment(a[1:])",
       "m.set_pipeline_stage_assignment([a[0], *a[:-1]])", "m.reset_pipeline_stage_assignment()",
       "a[0]._node_index = 7; m.set_pipeline_stage_assignment(a)", "a[0] = 1; m.set_pipeline_stage_assignment(a)",
       "a[0]._node_index = -1; m.set_pipeline_stage_assignment(a)")),
    "[str(one) for one in staged(net(), 0, 0, 0, 0, 1, 1).get_pipeline_stage_assignment()]",
    "m = Called(); m.get_pipeline_stage_assignment()",
    "m = row(1, shape=None); passed(staged(m, 0))",
    "[[(t.shape, t.dtype) for t in tf.nest.flatten(keras_inputs(given))] for given in "
    "((3, 4), [3, None], [(3, 4), (None, 2)], {'b': (3, ), 'a': (2, 1)}, tf.TensorShape([3, 4]), ((3, 4), [1]))]",
    "[[(t.shape, t.dtype) for t in tf.nest.flatten(keras_inputs(*given))] for given in "
    "(((3, 4), tf.int32), ([(3, 4), (3, 2)], [tf.int32, tf.float16]), "
    "({'b': (3, ), 'a': (2, )}, {'a': tf.int32, 'b': tf.int8}))]",
    "x = tf_keras.Input((3, )); keras_inputs(x) is x",
    *(f"has_graph({model})" for model in
      ("net()", "Called()", "built()", "row(1)", "row(1, shape=None)")),
    *(f"m = {model}; build_for(m, {spec}); [has_graph(m), [w.shape for w in m.weights]]" for model in
      ("net()", "Called()", "row(1, shape=None)", "row(1)") for spec in
      ("tf.TensorSpec((2, 4))", "(tf.TensorSpec((2, 4)), tf.TensorSpec((2, 3)))", "{'a': tf.TensorSpec((2, 4))}")),
]  # fmt: skip
SIDES = [
    *(f"side({steps}, {pipelined}).accumulation({executed})" for steps in (None, 1, 2) for pipelined in (False, True)
      for executed in (2, 3)),
    "side(None, True, pipeline_options={'pipeline_schedule': SimpleNamespace(name='Sequential')}).accumulation(3)",
    "side(None, True, pipeline_options={'pipeline_schedule': SimpleNamespace(name='Grouped')}).accumulation(3)",
    *(f"side(1, {pipelined}, asynchronous={one}, accumulate_outfeed={other}).calls_every_step()"
      for pipelined in (False, True) for one in (False, True) for other in (False, True)),
    *(f"side(1, True, device_mapping={mapping}).shards()" for mapping in (None, [0, 0], [1, 0], [0, 3])),
    "side().shards()", "side(1, True).replicas()", "side(1, True, device_mapping=[0, 4]).replicas()",
    *(f"logged(lambda: side({steps}, {pipelined})._tell_batch_size(SimpleNamespace(steps_per_execution=4, "
      f"replicas={replicas}, batch_size=3)))"
      for steps in (1, 2) for pipelined in (False, True) for replicas in (1, 2)),
    *(f"logged(lambda: side().before_epoch(SimpleNamespace(steps_per_execution={steps})))" for steps in (1, 2)),
    "sides._ARRAYS_SEEN.clear(); "
    "[logged(lambda: side().tell_of_arrays(np.ones(2), y)) for y in (None, np.ones(2), 1, np.ones(2))]",
    *(f"logged(lambda: staged(row(), 0, 1).{change}) " for change in
      ("add(dense('c'))", "pop()")),
    "logged(lambda: row().add(dense('c')))",
    "m = staged(row(), 0, 1); m.pop(); extension(m).layout()",
    "m = staged(row(), 0, 1); m.pop(); m.get_config()['ipu']",
    "staged(net(), 0, 0, 0, 0, 1, 1).get_config()['ipu']",
    "m = staged(net(), 0, 0, 0, 0, 1, 1); listed(type(m).from_config(m.get_config()))",
    "m = row(); listed(type(m).from_config(m.get_config()))",
    *(f"m = row(1); m.set_{way}; logged(lambda: m.get_config()['ipu'])" for way in
      ("gradient_accumulation_options(2, dtype=1)", "pipelining_options(2, pipeline_schedule=1)",
       "asynchronous_callbacks(True)", "metrics_options(True)", "infeed_queue_options(prefetch_depth=2)",
       "outfeed_queue_options(buffer_depth=2)")),
]  # fmt: skip


def weights(made: Any, *shape: int) -> list[Any]:
    """The weights of a layer that is built for a shape."""
    made.build(shape)
    return [(one.name, one.shape, one.trainable) for one in made.weights]


def recurrent(name: str, shape: tuple[Any, ...], **options: Any) -> list[Any]:
    """The weights of one of PopNN's layers, and what it says of itself."""
    with tf.Graph().as_default():
        made = getattr(popnn, name)(3, **options)
        made.build(shape)
        said = (made.num_layers, made.input_size, made.canonical_weight_shape, made.canonical_bias_shapes)
        return [said, made.state_shape(7), [(one.name, one.shape) for one in made.weights]]


NAMES |= {"weights": weights, "recurrent": recurrent, "layers": layers}
LAYERS = [
    *(f"weights(layers.GroupNorm(channels_axis={axis}), *{shape})" for shape in ((2, 4), (2, 4, 6), (2, 4, 5, 6))
      for axis in (-5, -4, -3, -2, -1, 0, 1, 2, 3, 4)),
    *(f"weights(layers.GroupNorm({groups}), 2, 6)" for groups in (0, 1, 2, 3, 4, 6, 7, 12)),
    *(f"weights(layers.{name}({one}={value}), 2, 5, 6)" for name in ("GroupNorm", "InstanceNorm", "LayerNorm")
      for one in ("center", "scale", "trainable") for value in (False, True)),
    "n = layers.InstanceNorm(); n.build((2, 5, 6)); n.groups",
    *(f"weights(layers.{name}(3{options}), 2, 5, 4)"
      for name, own in (("LSTM", "unit_forget_bias"), ("GRU", "reset_after")) for options in
      ("", ", stateful=True", ", stateful=True, time_major=True", f", {own}=True", f", {own}=False")),
    *(f"weights(layers.LSTM(3), *{shape})" for shape in ((2, 5), (2, 5, 4, 3))),
    *(f"weights(layers.Embedding(6, 3), *{shape})" for shape in ((2,), (2, 5), (2, 5, 4))),
    *(f"weights(layers.SerialDense(4, {factor}, 'kernel_rows'), 2, 5)" for factor in (-1, 0, 1, 2)),
    *(f"recurrent({name!r}, {shape}{options})" for name in
      ("PopnnLSTM", "PopnnGRU", "PopnnDynamicLSTM", "PopnnDynamicGRU", "PopnnAUGRU") for shape, options in (
          ((5, 2, 4), ""), ((None, 2, 4), ""), ((5, 2), ""), ((5, 2, None), ""), ((5, 2, 4), ", reset_after=True"),
          ((5, 2, 4), ", dtype=tf.float16"), ((5, 2, 4), ", dtype=tf.int32"))),
    *(f"made = layers.{name}; type(made).from_config(made.get_config()).get_config() == made.get_config()" for name in (
          "LSTM(3)", "GRU(3)", "GroupNorm()", "InstanceNorm()", "LayerNorm()", "Dropout(0.3)", "Embedding(5, 2)",
          "SerialDense(4, 2, 'input_columns')", "CTCLoss()", "CTCInferenceLayer()", "CTCPredictionsLayer(beam_width=3)",
          "AssumeEqualAcrossReplicas(True)", "RecomputationCheckpoint()")),
]  # fmt: skip


TABLES = {
    f"{name}-{first // 20 + 1}": table[first : first + 20]
    for name, table in (("data", FED), ("results", RESULTS), ("models", MODELS), ("options", SIDES), ("layers", LAYERS))
    for first in range(0, len(table), 20)
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", TABLES)
def test_every_answer(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(tf.get_logger(), level, lambda text, *_, level=level: messages.append(f"{level}: {text}"))

    def logged(act: Any) -> list[Any]:
        messages.clear()
        return [act(), *messages]

    def answered(expression: str) -> str:
        tf_keras.backend.reset_uids()
        messages.clear()
        return " ".join([expression, "->", asked(expression, {**NAMES, "logged": logged}), *messages])

    with ipus(4):
        golden([answered(expression) for expression in TABLES[name]])

"""Keras models in pipeline stages: the functions of the stages, executed by plain TensorFlow, equal the model's own
call."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, same, stage  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.keras.data import Element  # noqa: E402
from ipuperf.tensorflow.keras.extension import extension  # noqa: E402
from ipuperf.tensorflow.keras.stages import KerasStages  # noqa: E402


def run_stages(model, element, training=False, finish=None):
    """The stages of ``model``, one after the other, on one ``element``; and what each hands on."""
    structure = Element(tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), element))
    functions = KerasStages(model, extension(model).layout(), structure, training, finish).functions()
    handed = []

    @tf.function(autograph=False)
    def run(*tensors):
        for function in functions:
            tensors = function(*tensors)
            handed.append([tuple(t.shape) for t in tf.nest.flatten(tensors)])
            tensors = tensors if function is functions[-1] else tuple(tensors)
        return tensors

    return run(*tf.nest.flatten(element)), handed


def data(*shape, dtype="float32"):
    return tf.constant(np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype))


@pytest.fixture(autouse=True)
def scope():
    with ipus(2):
        yield


def test_skips_and_merges_pass_each_tensor_once():
    first, second = keras.Input((4,)), keras.Input((6,))
    with stage(0):
        a = keras.layers.Dense(8, activation="relu")(first)
        b = keras.layers.Dense(8)(second)
    with stage(1):
        c = keras.layers.Add()([a, b])
    with stage(2):
        d = keras.layers.Concatenate()([c, a, a])
        out = keras.layers.Dense(3)(d)
    model = keras.Model([first, second], [out, c])
    x = (data(5, 4), data(5, 6))
    result, handed = run_stages(model, (x,))
    same(result, model(list(x)))
    assert handed[0] == [(5, 8), (5, 8)]
    assert handed[1] == [(5, 8), (5, 8)]


def test_a_shared_layer_is_called_in_two_stages_and_a_layers_stage_counts_where_its_call_has_none():
    inputs = keras.Input((4,))
    with stage(1):
        shared = keras.layers.Dense(4, activation="tanh")
    with stage(0):
        x = shared(inputs)
    x = shared(x)
    model = keras.Model(inputs, x)
    stages = [(one.layer, one.node_index, one.pipeline_stage) for one in model.get_pipeline_stage_assignment()]
    assert stages == [(shared, 0, 0), (shared, 1, 1)]
    x = data(3, 4)
    same(run_stages(model, (x,))[0], model(x))


def test_masks_pass_from_stage_to_stage():
    inputs = keras.Input((7,), dtype="int32")
    with stage(0):
        x = keras.layers.Embedding(11, 5, mask_zero=True)(inputs)
    with stage(1):
        x = keras.layers.Dense(5)(x)
        x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, x)
    x = tf.constant(np.random.default_rng(0).integers(0, 4, (3, 7)), tf.int32)
    result, handed = run_stages(model, (x,))
    same(result, model(x))
    assert (3, 7) in handed[0]


def test_targets_weights_and_losses_of_layers_reach_the_last_stage():
    inputs = keras.Input((4,))
    with stage(0):
        x = keras.layers.Dense(6, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    with stage(1):
        x = keras.layers.Dense(2, kernel_regularizer="l2")(x)
    model = keras.Model(inputs, x)
    seen = {}

    def finish(y, predictions, weights, losses):
        seen["weights"] = weights
        return tf.add_n(losses), y

    element = (data(3, 4), {"a": data(3, 2)})
    (loss, y), _ = run_stages(model, element, finish=finish)
    same(y, element[1])
    assert seen["weights"] is None
    model(element[0])
    same(loss, sum(model.losses))


def test_dictionaries_as_inputs():
    inputs = {"b": keras.Input((3,), name="b"), "a": keras.Input((2,), name="a")}
    with stage(0):
        x = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    with stage(1):
        x = keras.layers.Dense(2)(x)
    model = keras.Model(inputs, {"out": x})
    x = {"a": data(4, 2), "b": data(4, 3)}
    result, _ = run_stages(model, (x,))
    same(result["out"], model(x)["out"])


def test_sequential_models_have_a_number_for_each_layer():
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
    model.set_pipeline_stage_assignment([0, 0, 1])
    x = data(3, 2, 2)
    extension(model).build(tf.TensorSpec(x.shape, x.dtype))
    assert extension(model).shards() == 2
    same(run_stages(model, (x,))[0], model(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(2)

    def call(self, inputs, training=None):
        with stage(0):
            x = self.first(inputs)
        with stage(1):
            return self.second(tf.nn.relu(x) + 1.0)


def test_subclassed_models_are_split_by_the_scopes_in_their_call():
    model = Subclassed()
    x = data(3, 5)
    extension(model).build(tf.TensorSpec(x.shape, x.dtype))
    assert extension(model).shards() == 2
    same(run_stages(model, (x,))[0], model(x))


def test_models_inside_models():
    inner_input = keras.Input((6,))
    inner = keras.Model(inner_input, keras.layers.Dense(3)(keras.layers.Dense(5, "relu")(inner_input)), name="inner")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inner(keras.layers.Dense(6)(inputs))))
    assignments = model.get_pipeline_stage_assignment()
    assert [one.is_nested_model for one in assignments] == [False, True, False]
    inside = assignments[1].pipeline_stage_assignments
    for number, one in enumerate([assignments[0], *inside, assignments[2]]):
        one.pipeline_stage = number
    model.set_pipeline_stage_assignment(assignments)
    x = data(3, 4)
    result, handed = run_stages(model, (x,))
    same(result, model(x))
    assert [shapes[0] for shapes in handed] == [(3, 6), (3, 5), (3, 3), (3, 2)]


def test_a_model_inside_one_stage_is_one_call():
    inner = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(3)])
    inputs = keras.Input((4,))
    with stage(0):
        x = inner(inputs)
    with stage(1):
        x = keras.layers.Dense(2)(x)
    model = keras.Model(inputs, x)
    x = data(3, 4)
    same(run_stages(model, (x,))[0], model(x))


def pipelined(*layers):
    """A model of two stages, the last layer in the second."""
    model = keras.Sequential(layers, name="net")
    model.set_pipeline_stage_assignment([0] * (len(layers) - 1) + [1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile(keras.optimizers.SGD(0.0), loss="mse", steps_per_execution=4)
    return model


def test_a_loss_without_targets_is_refused():
    model = pipelined(keras.layers.Dense(4, name="first"), keras.layers.Dense(2, name="second"))
    with pytest.raises(ValueError, match="Target data is missing"):
        model.fit(tf.data.Dataset.from_tensors(np.ones((2, 3), np.float32)).repeat(4), verbose=0)


def test_losses_of_several_types_add_up():
    model = pipelined(
        keras.layers.ActivityRegularization(l2=0.5, name="wide"),
        keras.layers.ActivityRegularization(l2=0.25, dtype="float16", name="narrow"),
        keras.layers.Dense(1, kernel_initializer="zeros", name="last"),
    )
    x = np.full((2, 3), 2.0, np.float32)
    history = model.fit(tf.data.Dataset.from_tensors((x, np.zeros((2, 1), np.float32))).repeat(4), verbose=0)
    assert history.history["loss"] == [3 * 4 * (0.5 + 0.25)]

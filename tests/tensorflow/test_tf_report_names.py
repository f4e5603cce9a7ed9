"""What reports call the ops of TensorFlow programs: name scopes as layers, the user's lines."""

import inspect

import numpy as np
import pytest

from ipuperf.ir.location import user_location

tf = pytest.importorskip("tensorflow")

from kerasruns import ipus  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402
from ipuperf.trace.operations import op_facts  # noqa: E402

from .graphcases import Program  # noqa: E402


def test_ops_stand_in_the_name_scopes_of_the_graph() -> None:
    def function(x):
        with tf.name_scope("block"), tf.name_scope("dense"):
            return tf.nn.tanh(x @ x)

    program = Program(function, [np.ones((3, 3), np.float32)])
    found = {op.type: (op.scope, op.location.rpartition(":")[0]) for op in program.ir.main_graph.ops}
    assert found["MatMul"] == found["Tanh"] == ("block/dense", __file__)


@pytest.mark.parametrize("module", ["tensorflow.python.autograph.impl.api", "tf_keras.src.engine.training"])
def test_the_users_line_is_not_one_of_tensorflow(module: str) -> None:
    library = {"__name__": module}
    exec("def call(function):\n    return function()", library)
    own = {"__name__": "ipuperf.any", "user_location": user_location}
    exec("def create():\n    return inner()\ndef inner():\n    return user_location()", own)
    assert library["call"](own["create"]).rpartition(":")[0] == __file__


def places(build, stages: int = 1) -> dict[tuple[str, str], tuple[str, int]]:
    """Layer and line of the ops of a training step, by type and phase: the last of each."""
    x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
    with use_settings(RunSettings()) as used, ipus(stages):
        model = build()
        model.compile(keras.optimizers.Adam(), "mse", steps_per_execution=4)
        if stages > 1:
            model.set_pipelining_options(4)
        model.fit(x, y, batch_size=2, verbose=0)
        trace = used.executables[0].trace
    facts = op_facts(trace, trace.columns("ops")["op_id"])
    rows = zip(facts["type"], facts["phase"], facts["module"], facts["line"])
    return {(kind, phase): (layer, int(line.rpartition(":")[2] or 0)) for kind, phase, layer, line in rows}


def line_of(function, text: str) -> int:
    """The line of a function that has ``text``."""
    return next(
        function.__code__.co_firstlineno + number
        for number, line in enumerate(inspect.getsource(function).splitlines())
        if text in line
    )


def functional():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, "tanh", name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden), name="net")


@pytest.mark.heavy
def test_ops_of_a_functional_model_and_their_gradients_stand_on_the_line_of_their_layer() -> None:
    found, line = places(functional), line_of(functional, "hidden")
    assert found["Tanh", "fwd"] == found["TanhGrad", "bwd"] == ("net.hidden", line)
    assert found["MatMul", "fwd"] == ("net.head", line_of(functional, "head"))
    assert found["Sqrt", "update"][0] == "Adam"


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="own")
        self.dense = keras.layers.Dense(2, name="dense")

    def call(self, inputs):
        activated = tf.nn.tanh(inputs * 2)
        return self.dense(activated)


def test_ops_of_a_model_with_a_call_of_its_own_stand_on_its_lines() -> None:
    found = places(Own)
    assert found["Tanh", "fwd"] == ("own", line_of(Own.call, "tanh"))
    assert found["MatMul", "fwd"] == ("own.dense", line_of(Own.call, "self.dense"))


def staged():
    inputs = keras.Input((4,))
    with keras.ipu.PipelineStage(0):
        hidden = keras.layers.Dense(6, "tanh", name="hidden")(inputs)
    with keras.ipu.PipelineStage(1):
        return keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden), name="net")


@pytest.mark.heavy
def test_gradients_that_a_pipeline_makes_stand_on_the_line_of_their_forward_op() -> None:
    found, line = places(staged, 2), line_of(staged, "hidden")
    assert found["Tanh", "fwd"] == found["TanhGrad", "bwd"] == ("hidden", line)

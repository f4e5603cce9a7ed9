"""What reports call the ops of TensorFlow programs: name scopes as layers, the user's lines."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf.ir.location import user_location

tf = pytest.importorskip("tensorflow")

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

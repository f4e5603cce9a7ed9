"""Arguments of a wrong kind: functions and modules of popxl.addons refuse them with their name, the argument's, and
what is allowed."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl_addons import layers, optimizers


class Thing:
    """What is no argument of anything."""


#: Functions that look at their arguments themselves.
OWN = ("enable_fc_pass", "disable_fc_pass", "named_variable_buffers", "pipelined_execution")
#: Annotations that say what is allowed.
TOLD = ("popxl.Tensor", "popxl.Graph", "int", "bool", "str", "float", "np.ndarray", "int | None", "str | None")


def _parameters() -> list[tuple[str, str]]:
    """Functions of the package and their parameters."""
    return [
        (name, parameter.name)
        for name in addons.__all__
        if inspect.isfunction(function := getattr(addons, name)) and name not in OWN
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation in TOLD and parameter.kind is not parameter.VAR_POSITIONAL
    ]


@pytest.mark.parametrize(("function", "name"), _parameters())
def test_what_is_no_argument_of_any_function(function: str, name: str) -> None:
    with popxl.Ir().main_graph, pytest.raises((TypeError, ValueError), match=f"{function}: {name} is <.*needed"):
        getattr(addons, function)(**{name: Thing()})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.Linear("a"), "Linear: out_features is 'a'; a whole number is needed"),
        (lambda: layers.Linear(2.5), "Linear: out_features is 2.5; a whole number is needed"),
        (lambda: layers.Embedding(popxl.float32, [], 4), r"Embedding: vocab_size is \(\); a whole number is needed"),
        (lambda: layers.Conv2D(4, kernel_size=None), "Conv2D: kernel_size is None; a sequence of whole numbers"),
        (lambda: optimizers.AdamOptimizerStep(cache="a"), "Module: cache is 'a'; True or False"),
        (lambda: addons.autodiff(5), "5 is no graph; a popxl.Graph or a popxl_addons.GraphWithNamedArgs is needed"),
        (lambda: addons.InputStreams(x=5), r"InputStreams: x is 5; \(shape, dtype\) is needed"),
        (lambda: addons.timer(5), "timer: title is 5; a string or None is needed"),
        (lambda: addons.shard(5, 2, 0), "shard: x is 5; a NumPy array is needed"),
    ],
)
def test_messages(call: Callable[[], Any], message: str) -> None:
    with popxl.Ir().main_graph, pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_step_of_an_optimiser_takes_tensors() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        step = optimizers.AdamOptimizerStep()
        with pytest.raises((TypeError, ValueError), match="lr|learning_rate"):
            step.create_graph(x, x.spec, lr="a")

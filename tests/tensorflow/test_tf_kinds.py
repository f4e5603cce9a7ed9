"""Arguments of a wrong kind: the functions of ``tensorflow.python.ipu`` name them and say what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from ipuperf.tensorflow.programs.infeed import IPUInfeedQueue
from ipuperf.tensorflow.python.ipu import autoshard, loops, sharding, utils
from ipuperf.tensorflow.python.ipu.ops import embedding_ops, normalization_ops, pipelining_ops, rand_ops

DATA = tf.data.Dataset.from_tensors(tf.ones(2)).repeat()
ONES = tf.ones((2, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loops.repeat("a", lambda: None), "repeat: n is 'a'; a whole number is needed"),
        (lambda: loops.repeat(2.5, lambda: None), "repeat: n is 2.5; a whole number is needed"),
        (lambda: loops.repeat(2, 5), "repeat: body is 5; a function is needed"),
        (lambda: IPUInfeedQueue(DATA, prefetch_depth=[]), r"IPUInfeedQueue: prefetch_depth is \[\]; a whole number"),
        (lambda: rand_ops.dropout(ONES, rate=[]), r"dropout: rate is \[\]; a number is needed"),
        (lambda: normalization_ops.group_norm(ONES, groups="a"), "group_norm: groups is 'a'; a whole number is needed"),
        (
            lambda: normalization_ops.layer_norm(ONES, param_initializers=5),
            "param_initializers is 5; a mapping or None",
        ),
        (lambda: embedding_ops.embedding_lookup([], [0]), r"embedding_lookup: params is \[\]; a variable or a tensor"),
        (lambda: autoshard.automatic_sharding(2, 5, 5), "automatic_sharding: input_ts is 5; a tensor of a graph"),
        (lambda: sharding.propagate_sharding(5), "propagate_sharding: graph is 5; a Graph is needed"),
        (lambda: utils.reset_ipu_seed([]), r"reset_ipu_seed: seed is \[\]; a whole number is needed"),
        (lambda: pipelining_ops.pipeline(5, gradient_accumulation_count=2), "needs to be a list or a tuple"),
    ],
)
def test_arguments_of_another_kind(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()

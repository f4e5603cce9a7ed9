"""How often loops run, and what their counters are afterwards, beside the same loops run by TensorFlow step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import traced

from ipuperf.tensorflow.importer.counting import MOST_STEPS, Counted, UnknownValue, count
from ipuperf.tensorflow.importer.needed import function_of

Loop = tuple[Callable[..., Any], Callable[..., Any], list[Any]]


def counted(cond: Callable[..., Any], body: Callable[..., Any], values: list[Any], given: list[Any]) -> Counted:
    """What is known of a loop of ``tf.while_loop``; a value of None is one that the program computes."""
    numbers = [v for v in values if v is None]

    def program(*computed: Any) -> Any:
        rest = iter(computed)
        return tf.while_loop(cond, body, [next(rest) if v is None else tf.constant(v) for v in values])

    graph = traced(program, *given[: len(numbers)])
    (op,) = (op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    known = [object() if (found := tf.get_static_value(t)) is None else np.asarray(found) for t in op.inputs]
    return count(function_of(op, "cond"), function_of(op, "body"), known)


def run(cond: Callable[..., Any], body: Callable[..., Any], values: list[Any]) -> tuple[int, list[Any]]:
    """The iterations of a loop, and its variables afterwards."""
    state, trips = [tf.constant(v) for v in values], 0
    while bool(cond(*state)):
        state, trips = list(tf.nest.flatten(body(*state))), trips + 1
    return trips, [np.asarray(v) for v in state]


BOUNDS = {
    "<": lambda i, n: i < n, "<=": lambda i, n: i <= n, ">": lambda i, n: n > i,
    "and": lambda i, n: tf.logical_and(i < n, i < 5), "and and": lambda i, n: (i < n) & (i >= 0) & (i < 9),
    "of a call": lambda i, n: tf.function(lambda a: a < n)(i),
}  # fmt: skip
STEPS = {
    "+1": lambda i: i + 1, "1+": lambda i: 1 + i, "+3": lambda i: i + 3, "- -2": lambda i: i - (-2),
    "by running": lambda i: i * 2 + 1, "of the identity": lambda i: tf.identity(i) + tf.identity(1),
    "of a call": lambda i: tf.function(lambda a: a + 2)(i), "its own mirror": lambda i: 1 - i + 2 * i,
}  # fmt: skip
LOOPS: dict[str, Loop] = {
    **{f"{bound} {n} from {start} by {step}":
       (lambda i, n=n, b=BOUNDS[bound]: b(i, n), lambda i, s=STEPS[step]: [s(i)], [start])
       for bound in BOUNDS for step in STEPS for start, n in ((0, 6), (3, 3))
       if step in ("+1", "by running") or (bound == "<" and start < n)},
    "down": (lambda i: i > 0, lambda i: [i - 1], [7]),
    "down by two": (lambda i: i >= 0, lambda i: [i - 2], [7]),
    "of fractions": (lambda i: i < 1.0, lambda i: [i + 0.25], [0.0]),
    "a bound that the loop carries": (lambda i, n: i < n, lambda i, n: [i + 1, n], [0, 5]),
    "a step that the loop carries": (lambda i, s: i < 9, lambda i, s: [i + s, s], [0, 2]),
    "a bound that changes": (lambda i, n: i < n, lambda i, n: [i + 1, n - 1], [0, 9]),
    "two that change places": (lambda i, n: i < 9, lambda i, n: [n, i + 3], [0, 1]),
    "until it is there": (lambda i: tf.not_equal(i, 4), lambda i: [1 + i], [0]),
    "small numbers": (lambda i: i < 100, lambda i: [i + tf.constant(7, tf.int8)], [np.int8(0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_counters(name: str) -> None:
    cond, body, values = LOOPS[name]
    found = counted(cond, body, values, [])
    trips, after = run(cond, body, values)
    assert found.trips == trips
    assert not found.data
    ours = list(found.final.values())  # TensorFlow's own counter of iterations comes first
    assert len(ours) == 0 or ours[0] == trips
    for value in ours[1:]:
        assert any(np.array_equal(value, one) for one in after)


DATA = np.array([3, 1, 4], np.int32)


@pytest.mark.parametrize(
    ("cond", "body", "values", "trips", "invariant"),
    [
        (lambda i, x: (i < 4) & (x[0] < 9), lambda i, x: [i + 1, x + 1], [0, None], 4, 0),
        (lambda i, x: (x[0] < 9) & (i < 4) & (i < 3), lambda i, x: [i + 1, x], [0, None], 3, 1),
        (lambda i, x: (i < x[0]) & (i < 2), lambda i, x: [i + 1, x], [0, None], 2, 1),
    ],
)
def test_data_may_end_a_loop_before(cond: Any, body: Any, values: list[Any], trips: int, invariant: int) -> None:
    found = counted(cond, body, values, [DATA])
    assert (found.trips, found.data, len(found.invariant)) == (trips, True, invariant + 1)  # and the greatest number


@pytest.mark.parametrize(
    ("cond", "body", "values", "reason"),
    [
        (lambda i, x: i < x[0], lambda i, x: [i + 1, x], [0, None], "Placeholder"),
        (lambda i, x: i < 3, lambda i, x: [i + x[0], x], [0, None], "Placeholder"),
        (lambda i: i >= 0, lambda i: [i * 1], [0], "does not end"),
        (lambda i: i < 3, lambda i: [i + 0], [0], "does not end"),
    ],
)
def test_a_loop_that_cannot_be_counted(cond: Any, body: Any, values: list[Any], reason: str, monkeypatch: Any) -> None:
    assert MOST_STEPS == 100_000
    monkeypatch.setattr("ipuperf.tensorflow.importer.counting.MOST_STEPS", 50)
    with pytest.raises(UnknownValue, match=reason):
        counted(cond, body, values, [DATA])


def test_the_most_steps_that_are_run(monkeypatch: Any) -> None:
    """Doubled from 1, 100 is passed after 7 steps; that the condition does not hold any more is seen in an 8th."""
    for most in (8, 7):
        monkeypatch.setattr("ipuperf.tensorflow.importer.counting.MOST_STEPS", most)
        if most == 8:
            assert counted(lambda i: i < 100, lambda i: [i * 2], [1], []).trips == 7
        else:
            with pytest.raises(UnknownValue, match="does not end"):
                counted(lambda i: i < 100, lambda i: [i * 2], [1], [])

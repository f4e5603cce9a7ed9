"""Equal ops of TensorFlow's graphs are made once, and values stay TensorFlow's."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import Program, check
from kerasruns import ipus, same

from ipuperf.tensorflow.programs import hosting as functions
from ipuperf.tensorflow.programs.program import TracedProgram

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def kinds(program: Program) -> Counter[str]:
    """How many ops of each type a program has."""
    return Counter(op.type for graph in program.ir.all_graphs() for op in graph.ops)


def test_equal_ops_are_one() -> None:
    def function(x, y):
        return tf.exp(x) * tf.sin(y), tf.exp(tf.identity(x)) + tf.sin(y), tf.pow(2.0, x), tf.pow(2.0, x), tf.pow(3.0, x)

    found = kinds(check(function, array(3), array(3)))
    assert (found["Exp"], found["Sin"], found["Pow"]) == (1, 1, 2)


def test_other_attributes_are_other_ops() -> None:
    def function(x):
        return tf.linalg.matmul(x, x), tf.linalg.matmul(x, x, transpose_b=True), x @ x, tf.cumsum(x), tf.cumsum(x, 1)

    found = kinds(check(function, array(3, 3)))
    assert (found["MatMul"], found["CumSum"]) == (2, 2)


def test_in_a_function_that_is_called_twice() -> None:
    @tf.function
    def inner(x):
        return tf.exp(x) + 1.0

    assert kinds(check(lambda x: inner(x) * inner(x) + tf.exp(x), array(3)))["Exp"] == 1


@pytest.mark.parametrize("view", [False, True])
def test_not_across_a_change_of_the_variable(view: bool) -> None:
    variable, other = tf.Variable(array(4)), tf.Variable(array(4))

    def computed():
        return tf.exp(tf.reshape(variable, (2, 2)) if view else variable)

    def function(x):
        first = computed()
        other.assign_add(x)
        second = computed()
        variable.assign_add(x)
        third = computed()
        variable.assign(x * 2.0)
        return first, second, third, computed(), tf.exp(other)

    assert kinds(check(function, array(4)))["Exp"] == 4


def test_not_across_a_change_in_a_function_a_loop_or_a_branch() -> None:
    variable = tf.Variable(array(3))

    @tf.function
    def change(x):
        variable.assign_add(x)

    def function(x):
        found = [tf.exp(variable)]
        change(x)
        found.append(tf.exp(variable))
        for _ in tf.range(3):
            variable.assign(tf.exp(variable * 0.1))
        found.append(tf.exp(variable))
        if tf.reduce_sum(x) < 100.0:
            variable.assign_sub(x)
        found.append(tf.exp(variable))
        return tuple(found)

    assert kinds(check(tf.function(function), array(3)))["Exp"] == 5


def test_within_the_body_of_a_loop_and_a_branch() -> None:
    def function(x):
        total = tf.zeros_like(x)
        for _ in tf.range(4):
            total += tf.sin(x + total) * tf.sin(x + total)
        if tf.reduce_sum(total) > 0:
            total = tf.exp(total) + tf.exp(total)
        else:
            total = tf.exp(-total)
        return total, tf.exp(-x)

    found = kinds(check(tf.function(function), array(3)))
    assert (found["Sin"], found["Exp"]) == (1, 3)


def test_random_numbers_stay_apart() -> None:
    first, second = Program(lambda x: (x + tf.random.uniform([64]), x + tf.random.uniform([64])), [array(64)]).run()
    assert np.abs(first - second).max() > 0.1


def test_what_a_gradient_computes_again_is_computed_again() -> None:
    def function(x):
        block = tf.recompute_grad(lambda t: tf.exp(tf.sin(t)))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(block(x) ** 2)
        return y, tape.gradient(y, x)

    with ipus(1):
        step = tf.function(function)
        x = tf.constant(array(3))
        program = functions.program_of(step, x)
        found = functions.call(step, [x], {})
    same(tf.nest.map_structure(np.asarray, found), tf.nest.map_structure(np.asarray, function(x)))
    assert kinds(program)["Sin"] == 2


def network() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(5, "tanh"), tf.keras.layers.Dense(4)])


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["optimizers", "optimizers.legacy"])
@pytest.mark.parametrize("name", ["Adam", "Nadam", "Adamax", "RMSprop"])
def test_an_optimizer_computes_its_numbers_once(monkeypatch: pytest.MonkeyPatch, family: str, name: str) -> None:
    programs: list[TracedProgram] = []
    finish = TracedProgram.finish
    monkeypatch.setattr(TracedProgram, "finish", lambda self: programs.append(self) or finish(self))
    optimizers = tf.keras.optimizers.legacy if family.endswith("legacy") else tf.keras.optimizers
    x, y = tf.constant(array(8, 6)), tf.constant(array(8, 4))

    def trained(model, optimizer):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return tf.function(step)

    cpu = network()
    step = trained(cpu, getattr(optimizers, name)(0.01))
    expected = [step(x, y).numpy() for _ in range(3)]
    with ipus(1):
        model = network()
        step = trained(model, getattr(optimizers, name)(0.01))
        run = tf.distribute.get_strategy().run
        found = [run(step, [x, y]).numpy() for _ in range(3)]
    same(found, expected)
    same(model.get_weights(), cpu.get_weights())
    if name == "Adam":
        assert kinds(programs[-1])["Pow"] == 2

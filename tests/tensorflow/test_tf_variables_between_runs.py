"""Variables stay on the device from run to run; whatever changes them outside comes in before the next run."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from kerasruns import ipus

from ipuperf.numerics import Evaluator

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of the variables that each run has brought to the device."""
    found: list[list[str]] = []
    load = Evaluator.load_variables

    def noted(self, only=None):
        if only is not None:
            found.append([variable.name for variable in only])
            load(self, only)
        else:
            load(self)

    monkeypatch.setattr(Evaluator, "load_variables", noted)
    return found


class Stepping:
    """A function with a variable that it changes and one that it reads, on IPUs and in NumPy."""

    def __init__(self) -> None:
        self.changed, self.fixed = tf.Variable(array(3), name="changed"), tf.Variable(array(3), name="fixed")

        @tf.function
        def step(x):
            self.changed.assign(self.changed * 0.5 + x * self.fixed)
            return self.changed + 0.0

        self._step = step

    def check(self) -> None:
        """One step on the device, and in NumPy from TensorFlow's variables."""
        x = array(3)
        expected = self.changed.numpy() * np.float32(0.5) + x * self.fixed.numpy()
        found = tf.distribute.get_strategy().run(self._step, [tf.constant(x)])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(self.changed, expected, rtol=1e-6)


def test_variables_come_in_once(loaded: list[list[str]]) -> None:
    with ipus(1):
        one = Stepping()
        for _ in range(3):
            one.check()
    assert [sorted(names) for names in loaded] == [["arg0", "changed", "fixed"], ["arg0"], ["arg0"]]


CHANGES: dict[str, Callable[[tf.Variable], object]] = {
    "assign": lambda v: v.assign(array(3)),
    "assign_add": lambda v: v.assign_add(tf.ones(3)),
    "a slice": lambda v: v[1:2].assign([7.0]),
    "scatter": lambda v: v.scatter_add(tf.IndexedSlices(tf.ones(1), [2])),
    "an optimizer": lambda v: tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=1.0, delta=tf.ones(3)),
    "an update of rows": lambda v: tf.raw_ops.ResourceScatterUpdate(
        resource=v.handle, indices=[0], updates=tf.constant([5.0])
    ),
}


@pytest.mark.parametrize("name", ["changed", "fixed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_outside_comes_in(loaded: list[list[str]], change: Callable[[tf.Variable], object], name: str) -> None:
    with ipus(1):
        one = Stepping()
        one.check()
        for _ in range(2):
            change(getattr(one, name))
            one.check()
            assert loaded[-1] == ["arg0", name]
        one.check()


def test_two_programs_of_one_variable() -> None:
    with ipus(1):
        variable = tf.Variable(array(2))
        add = tf.function(lambda: variable.assign_add(tf.ones(2)) + 0.0)
        double = tf.function(lambda: variable.assign(variable * 2.0) + 0.0)
        run, expected = tf.distribute.get_strategy().run, variable.numpy()
        for _ in range(3):
            run(add)
            run(add)
            run(double)
            expected = (expected + 2) * 2
            np.testing.assert_allclose(variable, expected, rtol=1e-6)


def test_a_number_that_changes_outside() -> None:
    with ipus(1):
        total = tf.Variable(0.0)
        add = tf.function(lambda x: total.assign_add(tf.reduce_sum(x)) + 0.0)
        run = tf.distribute.get_strategy().run
        for number in range(5):
            x = array(4)
            np.testing.assert_allclose(run(add, [tf.constant(x)]), number + x.sum(), rtol=1e-5, atol=1e-5)
            total.assign(number + 1.0)


def test_a_run_that_fails_leaves_what_tensorflow_has() -> None:
    with ipus(1):
        variable = tf.Variable([1.0, 2.0])
        data = iter(tf.data.Dataset.from_tensor_slices(np.ones((3, 2), np.float32)))

        @tf.function
        def two(iterator):
            for _ in tf.range(2):
                variable.assign_add(next(iterator))

        run = tf.distribute.get_strategy().run
        run(two, [data])
        with pytest.raises(tf.errors.OutOfRangeError):
            run(two, [data])
        np.testing.assert_allclose(variable, [3.0, 4.0])
        run(two, [iter(tf.data.Dataset.from_tensor_slices(np.ones((3, 2), np.float32)))])
        np.testing.assert_allclose(variable, [5.0, 6.0])

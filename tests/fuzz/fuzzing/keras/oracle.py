"""A random Keras program on the CPU: Keras op by op, with accumulation and replicas written out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from ..outcome import Outcome
from . import training
from .models import Data, Values, build, compiled, data, start, state
from .program import Program

TOLERANCE = 3e-5
"""Of the largest element of a tensor, in float32."""
HALF_TOLERANCE = 2e-2
"""The same where layers compute in float16."""
JITTER = {"float32": 2.0**-23, "mixed_float16": 2.0**-10}
"""How far start weights and inputs are moved, relative to themselves, by policy: a unit in the last place."""
JITTERED_RUNS = 4
EXPLAINED = 4.0
"""A difference of at most so many times what the jitter does is the program's own."""
STATE_TOLERANCE = 1e-4
"""The same for the optimizer's state, which holds sums of gradients that nearly cancel."""
SMALLEST = 1e-2
"""A tensor whose elements are all smaller is taken to be as large as that."""


def run(
    program: Program, weights: list[np.ndarray] | None = None, given: Data | None = None
) -> tuple[list[np.ndarray], Values]:
    """Start weights, and what Keras gives."""
    model = build(program, on_ipu=False)
    weights = start(program, model) if weights is None else weights
    model.set_weights(weights)
    optimizer = compiled(program, model, on_ipu=False)
    if hasattr(optimizer, "build"):  # a traced step makes its state before the first forward, which may change weights
        optimizer.build(model.trainable_variables)
    trainer, given, values = _Trainer(program, model, optimizer), given or data(program), {}
    for number, phase in enumerate(program.phases):
        for name, value in trainer.phase(phase, given).items():
            values[f"{number} {phase}, {name}"] = np.asarray(value)
    return weights, values | state(program, model, optimizer)


class _Trainer:
    """A model on the CPU with its optimizer."""

    def __init__(self, program: Program, model: Any, optimizer: Any) -> None:
        self.program, self.model, self.optimizer = program, model, optimizer

    def phase(self, phase: str, given: Data) -> dict[str, Any]:
        """Logs or predictions of one phase."""
        if phase == "new rate":
            self.optimizer.learning_rate = 0.005
            return {}
        if phase in ("fit", "train_on_batch"):
            given = _with_classes(given)
            self.model.reset_metrics()
            return self._fit(given) if phase == "fit" else self._train(given, 0, 1)
        numbers = range(1 if phase.endswith("on_batch") else self.program.steps * self.program.replicas)
        if phase.startswith("predict"):
            return self._predict(given, numbers)
        self.model.reset_metrics()
        return self._evaluate(given, [n for n in numbers if self._is_first(n)])

    def _is_first(self, number: int) -> bool:
        """Whether batch ``number`` is of the replica that metrics are of."""
        return number % self.program.replicas == 0

    def _batch(self, given: Data, number: int) -> tuple[Any, Any, Any]:
        rows = slice(number * self.program.batch, (number + 1) * self.program.batch)
        x, y = ([tf.constant(value[rows]) for value in values] for values in (given.x, given.y))
        weights = None if given.weights is None else tf.constant(given.weights[rows])
        return (x[0] if len(x) == 1 else x), (y[0] if len(y) == 1 else y), weights

    def _predict(self, given: Data, numbers: range) -> dict[str, Any]:
        found = [tf.nest.flatten(self.model(self._batch(given, n)[0], training=False)) for n in numbers]
        return {str(i): np.concatenate(parts) for i, parts in enumerate(zip(*found))}

    def _evaluate(self, given: Data, numbers: list[int]) -> dict[str, Any]:
        logs = [_numbers(self.model.test_step(self._batch(given, n))) for n in numbers]
        steps = self.program.accumulation * self.program.updates
        return self._shown(logs, steps if len(logs) > 1 else 1)

    def _shown(self, logs: list[dict[str, Any]], window: int) -> dict[str, Any]:
        """What is shown at the end: the last logs, or the mean of the last ``window`` where these are summed up."""
        if not self.program.options.get("accumulate_outfeed"):
            return logs[-1]
        return {name: np.mean([log[name] for log in logs[-window:]]) for name in logs[-1]}

    def _fit(self, given: Data) -> dict[str, Any]:
        history: dict[str, list[Any]] = {}
        for _ in range(self.program.epochs):
            self.model.reset_metrics()
            for update in range(self.program.steps // self.program.accumulation):
                logs = self._train(given, update, self.program.accumulation)
            for name, value in logs.items():
                history.setdefault(name, []).append(value)
        finish = getattr(self.optimizer, "finalize_variable_values", None)
        if finish is not None and self.program.wrapper in ("", "LossScaleOptimizer"):
            finish(self.model.trainable_variables)
        return history

    def _train(self, given: Data, update: int, count: int) -> dict[str, Any]:
        """One update of the weights."""
        program, model = self.program, self.model
        if program.own_step:
            return _numbers(model.train_step(self._batch(given, update)))
        reduced, logs = None, []
        for replica in range(1 if program.equal else program.replicas):
            totals = None
            for step in range(count):
                number = (update * count + step) * program.replicas + replica
                gradients, log = self._gradients(*self._batch(given, number))
                totals = _sums(totals, gradients)
                logs.append(log)
            reduced = _sums(reduced, self._of_replica(totals or [], 1 if program.reduction == "sum" else count))
        self._apply(reduced or [])
        return self._shown(logs, count)

    def _of_replica(self, totals: list[Any], share: int) -> list[Any]:
        """What a replica adds to the gradients of all: with equal data it stands for all of them."""
        program, variables = self.program, self.model.trainable_variables
        found = [None if total is None else total / share for total in totals]
        if program.wrapper.startswith("Map"):
            found = [None if g is None else training.mapped(g, v) for g, v in zip(found, variables)]
        factor = (program.replicas if program.equal else 1) / (program.replicas if "Cross" in program.wrapper else 1)
        return [None if g is None else g * factor for g in found]

    def _gradients(self, x: Any, y: Any, weights: Any) -> tuple[list[Any], dict[str, Any]]:
        model, scales = self.model, self.program.wrapper == "LossScaleOptimizer"
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = model.compute_loss(x, y, predicted, weights)
            scaled = self.optimizer.get_scaled_loss(loss) if scales else loss
        found = tape.gradient(scaled, model.trainable_variables)
        found = self.optimizer.get_unscaled_gradients(found) if scales else found
        dense = [None if g is None else tf.convert_to_tensor(g) for g in found]
        return dense, _numbers(model.compute_metrics(x, y, predicted, weights))

    def _apply(self, gradients: list[Any]) -> None:
        pairs = [(g, v) for g, v in zip(gradients, self.model.trainable_variables) if g is not None]
        if pairs:
            self.optimizer.apply_gradients(pairs)


def _sums(totals: list[Any] | None, parts: list[Any]) -> list[Any]:
    """The sums of gradients, None where there is none."""
    return parts if totals is None else [a if b is None else a + b for a, b in zip(totals, parts)]


def _with_classes(given: Data) -> Data:
    """The data with weights of samples in place of those of classes."""
    if not given.classes:
        return given
    labels = given.y[0] if given.y[0].ndim == 1 else given.y[0].argmax(-1)
    return Data(given.x, given.y, np.array([given.classes[label] for label in labels], np.float32), None)


def _numbers(logs: Any) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in logs.items()}


# -- what may differ ---------------------------------------------------------------------------------------------------


def judged(program: Program, weights: list[np.ndarray], got: Values, want: Values) -> Outcome:
    """Differences; where the CPU's own jitter explains all of them, the program is ill-conditioned."""
    outcome = Outcome()
    wrong = []
    for name, value in want.items():
        if _incomparable(program, name):
            continue
        outcome.compared += value.size
        text = _difference(program, name, got.get(name), value)
        wrong += [(name, text)] if text else []
    if not wrong:
        return outcome
    moved = _jittered(program, weights, want)
    explained = []
    for name, text in wrong:
        far = _distance(got[name], want[name]) if name in got and got[name].size == want[name].size else np.inf
        is_own = far <= EXPLAINED * moved.get(name, 0.0)
        (explained if is_own else outcome.problems).append(f"{name}: {text}; jitter {moved.get(name, 0.0):.2g}")
    if not outcome.problems:
        outcome.ill_conditioned = "; ".join(explained[:3])
    return outcome


def _incomparable(program: Program, name: str) -> bool:
    """Logs of replicas that have seen different data: what is shown of them is a choice."""
    logs = any(f" {phase}," in name for phase in ("fit", "evaluate"))
    return logs and program.replicas > 1 and not program.equal


def _distance(got: np.ndarray, want: np.ndarray) -> float:
    a, b = np.asarray(got, np.float64).reshape(-1), np.asarray(want, np.float64).reshape(-1)
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~both], b[~both], equal_nan=True):
        return float("inf")
    return float(np.abs(a - b)[both].max(initial=0.0))


def _difference(program: Program, name: str, got: np.ndarray | None, want: np.ndarray) -> str:
    if got is None or got.size != want.size:
        return f"shape {None if got is None else got.shape}, expected {want.shape}"
    if program.policy != "float32":  # formulas of one gradient overflow at different points
        got, want = (values.reshape(-1)[np.isfinite(want).reshape(-1)] for values in (got, want))
    largest = np.abs(want[np.isfinite(want)]).max(initial=SMALLEST)
    exact = STATE_TOLERANCE if name.startswith("state") else TOLERANCE
    allowed = (exact if program.policy == "float32" else HALF_TOLERANCE) * float(largest)
    far = _distance(got, want)
    if far <= allowed:
        return ""
    return f"differs by {far:.2g} of {largest:.2g}: got {got.reshape(-1)[:3]}, expected {want.reshape(-1)[:3]}"


def _jittered(program: Program, weights: list[np.ndarray], want: Values) -> dict[str, float]:
    """How far Keras' own results move when each start weight and each input does by :data:`JITTER`, or when it computes
    in float64 instead of float32."""
    moved: dict[str, float] = {}
    if program.policy == "float32":
        moved = {name: _distance(value, want[name]) for name, value in _in_float64(program, weights).items()}
    for seed in range(JITTERED_RUNS):
        given, rng = data(program), np.random.default_rng(seed)
        others = [_disturbed(program, rng, w) for w in weights]
        given.x = given.x if program.whole else [_disturbed(program, rng, x) for x in given.x]
        for name, value in run(program, others, given)[1].items():
            moved[name] = max(moved.get(name, 0.0), _distance(value, want[name]))
    return moved


def _in_float64(program: Program, weights: list[np.ndarray]) -> Values:
    """The CPU's results in float64, without metrics where one of them knows float32 alone (``InTopK``).

    Nothing where a layer has no kernel of that type (pooling in three dimensions).
    """
    wide, started = replace(program, policy="float64"), [w.astype(np.float64) for w in weights]
    with _floats("float64"):
        try:
            return run(wide, started, data(program))[1]
        except tf.errors.InvalidArgumentError:
            return run(replace(wide, metrics=[[] for _ in program.metrics]), started, data(program))[1]
        except TypeError:
            return {}


@contextmanager
def _floats(dtype: str) -> Iterator[None]:
    """Keras' own type of numbers."""
    before = tf.keras.backend.floatx()
    try:
        tf.keras.backend.set_floatx(dtype)
        tf.keras.mixed_precision.set_global_policy(dtype)
        yield
    finally:
        tf.keras.backend.set_floatx(before)
        tf.keras.mixed_precision.set_global_policy(before)


def _disturbed(program: Program, rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return (values * (1 + JITTER[program.policy] * rng.choice([-1, 1], values.shape))).astype(values.dtype)

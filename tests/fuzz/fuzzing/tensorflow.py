"""Random TensorFlow pipelines of a perceptron against gradient accumulation written down in NumPy.

A stage is ``activation((x W + b) s)`` with a 0-d ``s``; the last one gives the mean cross entropy.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf2

from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops
from ipuperf.tensorflow.state import isolated

from .invariants import trace_problems
from .outcome import Outcome
from .stored import Stored

tf = tf2.compat.v1
CLASSES = 5
TOLERANCE = 3e-5
"""Of the largest element of a tensor, or of 1."""


@dataclass
class Program(Stored):
    """A pipeline: the width of each stage's input, its activations, and how it is executed.

    Attributes:
        results: the loss of each micro-batch, alone or by a mask, or its sum for each update.
        mapping: the IPU of each stage. accumulator: type of accumulated gradients.
        skip: what the first stage gives goes on to the last one too, over those between.
        slower: the learning rate halves after the first run.
    """

    seed: int
    widths: list[int]
    activations: list[str]
    schedule: str
    count: int
    steps: int
    runs: int
    batch: int
    replicas: int
    optimiser: str
    reduction: str
    recompute: bool
    offload: bool
    sharded_state: bool
    results: str = "loss"
    mapping: list[int] | None = None
    accumulator: str = ""
    skip: bool = False
    slower: bool = False

    def rate(self, run: int) -> float:
        """The learning rate of a run: small for sums, so that training is stable and roundings do not grow."""
        return (0.05 if self.slower and run else 0.1) / (self.count if self.reduction == "sum" else 1)

    def size(self) -> int:
        """Number of stages."""
        return len(self.widths)


@tf2.custom_gradient
def _halved(z: Any) -> Any:
    """The values themselves, with half of their gradient."""
    return tf2.identity(z), lambda grad: grad * 0.5


Pair = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


ACTIVATIONS: dict[str, Pair] = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(z.dtype)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "sigmoid": (_sigmoid, lambda z: _sigmoid(z) * (1 - _sigmoid(z))),
    "halved": (lambda z: z, lambda z: np.full_like(z, 0.5)),
}
BY_TENSORFLOW: dict[str, Callable[[Any], Any]] = {
    "relu": tf2.nn.relu,
    "tanh": tf2.nn.tanh,
    "sigmoid": tf2.nn.sigmoid,
    "halved": _halved,
}
OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "descent": tf.train.GradientDescentOptimizer,
    "momentum": lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
    "nesterov": lambda rate: tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    "adam": lambda rate: tf.train.AdamOptimizer(rate, epsilon=0.05),
}


def draw(r: random.Random) -> Program:
    """A random pipeline."""
    stages = r.choice([2, 3, 4])
    schedule = r.choice(["Grouped", "Interleaved", "Sequential"])
    replicas, steps = r.choice([1, 1, 2]), r.choice([1, 2])
    return Program(
        seed=r.randrange(1 << 20),
        widths=[r.choice([4, 6, 10]) for _ in range(stages)],
        activations=[r.choice(list(ACTIVATIONS)) for _ in range(stages - 1)],
        schedule=schedule,
        count=r.choice([2, 5, 8]) if schedule == "Sequential" else 2 * stages * r.choice([1, 2, 3]),
        steps=steps,
        runs=r.choice([1, 2]),
        batch=r.choice([2, 4]),
        replicas=replicas,
        optimiser=r.choice(list(OPTIMISERS)),
        reduction=r.choice(["sum", "mean", "running_mean"]),
        recompute=r.random() < 0.4,
        offload=r.random() < 0.4,
        sharded_state=replicas > 1 and r.random() < 0.5,
        results=r.choice(["loss", "mask", "sum"] if steps == 1 else ["loss", "mask"]),
        mapping=r.choice([None, r.sample(range(stages), stages)]),
        accumulator=r.choice(["", "float32"]),
        skip=stages > 2 and r.random() < 0.4,
        slower=r.random() < 0.5,
    )


Weights = list[list[np.ndarray]]


def _weights(program: Program) -> Weights:
    """``[W, b, s]`` of each stage."""
    rng = np.random.default_rng(program.seed)
    ends = zip(program.widths, [*program.widths[1:], CLASSES])
    drawn = [
        [rng.normal(size=(a, b)) * 0.4, rng.normal(size=b) * 0.1, np.asarray(1 + rng.normal() * 0.2)] for a, b in ends
    ]
    return [[w.astype(np.float32) for w in stage] for stage in drawn]


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of losses and weights."""
    rng = np.random.default_rng(program.seed + 1)
    elements = program.count * program.steps * program.replicas * program.runs
    xs = rng.normal(size=(elements, program.batch, program.widths[0])).astype(np.float32)
    ys = rng.integers(0, CLASSES, (elements, program.batch)).astype(np.int32)
    losses, trained, executable = _by_tensorflow(program, xs, ys)
    found, wanted = _by_numpy(program, xs, ys)
    wanted_losses = np.array(found).reshape(-1, program.count, program.replicas)
    if program.results == "sum":
        wanted_losses = wanted_losses.sum(1)
    outcome = Outcome()
    _compare("losses", losses.reshape(-1), wanted_losses.reshape(-1), outcome)
    for stage, (got, want) in enumerate(zip(trained, wanted, strict=True)):
        for name, a, b in zip("Wbs", got, want, strict=True):
            _compare(f"{name} of stage {stage}", a, b, outcome)
    if trace:
        outcome.problems += trace_problems(executable)
    return outcome


def _compare(name: str, got: np.ndarray, want: np.ndarray, outcome: Outcome) -> None:
    outcome.compared += want.size
    if got.shape != want.shape:
        outcome.problems.append(f"{name}: shape {got.shape}, expected {want.shape}")
    elif not np.allclose(got, want, rtol=0, atol=TOLERANCE * max(1.0, np.abs(want).max())):
        outcome.problems.append(f"{name}: got {got.reshape(-1)[:4]}, expected {want.reshape(-1)[:4]}")


def _stage(program: Program, number: int, weights: list[np.ndarray]) -> Callable[..., Any]:
    def stage(rate: Any, x: Any, *rest: Any) -> Any:
        w, b, s = (tf.get_variable(f"{n}{number}", initializer=v) for n, v in zip("wbs", weights))
        z = (tf.matmul(x, w) + b) * s
        if number < len(program.activations):
            result = BY_TENSORFLOW[program.activations[number]](z)
            first = [result] if program.skip and number == 0 else []
            return rate, result, *first, *rest
        if program.skip:
            z += tf2.reduce_mean(rest[0], axis=1, keepdims=True)
        return rate, tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=rest[-1], logits=z))

    return stage


def _optimiser(program: Program) -> Callable[..., Any]:
    def make(rate: Any, loss: Any) -> Any:
        inner = OPTIMISERS[program.optimiser](rate)
        outer = ipu.optimizers.CrossReplicaOptimizer(inner) if program.replicas > 1 else inner
        return pipelining_ops.OptimizerFunctionOutput(outer, loss)

    return make


def _by_tensorflow(program: Program, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, Weights, Any]:
    """Losses in the order of the feed, weights, the executable."""
    weights = _weights(program)
    with isolated(), use_settings(RunSettings()) as settings, tf2.Graph().as_default(), tf.Session() as session:
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = (2 if len(weights) == 2 else 4) * program.replicas
        config.allow_recompute = program.recompute
        config.optimizations.minimum_remote_tensor_size = 4
        config.configure_ipu_system()
        feed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf2.data.Dataset.from_tensor_slices((xs, ys)).repeat())
        results = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def model(rate: Any) -> Any:
            return pipelining_ops.pipeline(
                [_stage(program, i, w) for i, w in enumerate(weights)],
                program.count,
                repeat_count=program.steps,
                inputs=[rate],
                infeed_queue=feed,
                outfeed_queue=results,
                optimizer_function=_optimiser(program),
                pipeline_schedule=getattr(pipelining_ops.PipelineSchedule, program.schedule),
                outfeed_loss=program.results != "mask",
                outfeed_mask=[True, False] if program.results == "mask" else None,
                accumulate_outfeed=program.results == "sum",
                device_mapping=program.mapping,
                gradient_accumulation_dtype=tf.as_dtype(program.accumulator) if program.accumulator else None,
                reduction_method=program.reduction,
                offload_weight_update_variables=program.offload or None,
                replicated_optimizer_state_sharding=program.sharded_state,
            )

        rate = tf.placeholder(tf.float32, [])
        run = ipu.ipu_compiler.compile(model, [rate])
        session.run([tf.global_variables_initializer(), feed.initializer])
        for number in range(program.runs):
            session.run(run, {rate: program.rate(number)})
        losses = session.run(results.dequeue())
        found = {v.op.name: session.run(v) for v in tf.trainable_variables()}
    trained = [[found[f"{n}{i}"] for n in "wbs"] for i in range(len(weights))]
    return np.asarray(losses), trained, settings.executables[-1]


def _by_numpy(program: Program, xs: np.ndarray, ys: np.ndarray) -> tuple[list[float], Weights]:
    """Losses and trained weights."""
    weights = [[w.astype(np.float64) for w in stage] for stage in _weights(program)]
    state: list[list[Any]] = [[_State(w) for w in stage] for stage in weights]
    losses, size = [], program.count * program.replicas
    scale = 1 / program.replicas / (1 if program.reduction == "sum" else program.count)
    for update, start in enumerate(range(0, len(xs), size)):
        rate = program.rate(update // program.steps)
        totals = [[np.zeros_like(w) for w in stage] for stage in weights]
        for x, y in zip(xs[start : start + size], ys[start : start + size]):
            losses.append(_accumulate(program, weights, x.astype(np.float64), y, totals))
        for stage, total in zip(state, totals):
            for one, gradient in zip(stage, total):
                one.update(program.optimiser, rate, gradient * scale)
    return losses, weights


def _accumulate(program: Program, weights: Weights, x: np.ndarray, y: np.ndarray, totals: Weights) -> float:
    """The loss of a micro-batch; its gradients are added to ``totals``."""
    inputs, linear, scaled = [x], [], []
    for number, (w, b, s) in enumerate(weights):
        linear.append(inputs[-1] @ w + b)
        scaled.append(linear[-1] * s)
        last = number == len(weights) - 1
        if last and program.skip:
            scaled[-1] = scaled[-1] + inputs[1].mean(1, keepdims=True)
        inputs.append(scaled[-1] if last else ACTIVATIONS[program.activations[number]][0](scaled[-1]))
    p = np.exp(inputs[-1] - inputs[-1].max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(p[rows, y]).mean())
    p[rows, y] -= 1
    grad = p / len(y)
    skipped = grad.sum(1, keepdims=True) / inputs[1].shape[1]
    for number in reversed(range(len(weights))):
        w, _, s = weights[number]
        if number == 0 and program.skip:
            grad = grad + skipped
        if number < len(program.activations):
            grad = grad * ACTIVATIONS[program.activations[number]][1](scaled[number])
        totals[number][2] += (grad * linear[number]).sum()
        grad = grad * s
        totals[number][0] += inputs[number].T @ grad
        totals[number][1] += grad.sum(0)
        grad = grad @ w.T
    return loss


class _State:
    """A weight with its optimiser's state; updates change the weight's array."""

    def __init__(self, weight: np.ndarray) -> None:
        self.weight, self.step = weight, 0
        self.first, self.second = np.zeros_like(weight), np.zeros_like(weight)

    def update(self, optimiser: str, rate: float, g: np.ndarray) -> None:
        """One update by gradient ``g``."""
        self.step += 1
        if optimiser == "adam":
            self.first[...] = 0.9 * self.first + 0.1 * g
            self.second[...] = 0.999 * self.second + 0.001 * g * g
            rate *= np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
            self.weight -= rate * self.first / (np.sqrt(self.second) + 0.05)
            return
        self.first[...] = (0 if optimiser == "descent" else 0.9) * self.first + g
        self.weight -= rate * (g + 0.9 * self.first if optimiser == "nesterov" else self.first)

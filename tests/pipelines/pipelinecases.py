"""A small network in stages, as stage graphs and as plain NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipuperf.ir import CONTEXT, FLOAT32, Ir, ReplicaGrouping, Stream, Tensor, TensorSpec, Variable
from ipuperf.numerics import Evaluator
from ipuperf.ops import Add, Identity, MatMul, Mul, ReduceSum, ScaledAddLhsInplace, Sin, Sub, Tanh
from ipuperf.pipelines import Activation, Data, HostInput, Source, StageGraph, StageOutput, Training

WIDTH, ROWS = 3, 2

#: op class, value and derivative (from z and y) of the functions a stage may end with
FUNCTIONS = {
    "tanh": (Tanh, np.tanh, lambda z, y: 1 - y**2),
    "sin": (Sin, np.sin, lambda z, y: np.cos(z)),
    "identity": (Identity, lambda z: z, lambda z, y: np.ones_like(z)),
}


class Momentum:
    """``v = 0.5 v + g``, ``w = w - rate v``."""

    def __init__(self, rate: float = 0.05) -> None:
        self.rate = rate

    def state(self, variable: Variable) -> Mapping[str, np.ndarray]:
        return {"velocity": np.zeros(variable.shape, np.float32)}

    def scalars(self) -> Mapping[str, float]:
        return {"rate": -self.rate}

    def build(
        self,
        parameter: Variable,
        weight: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        shards: ReplicaGrouping | None,
    ) -> None:
        graph = CONTEXT.graph
        velocity = graph.create(ScaledAddLhsInplace, [state["velocity"], gradient], ["v"], a=0.5, b=1.0).outputs[0]
        graph.create(ScaledAddLhsInplace, [weight, velocity, scalars["rate"]], ["w"], a=1.0, b_input=2)


@dataclass
class Network:
    """Stage ``i``: ``y_i = f_i(y_(i-1) W_i + sum of skips into i)``; loss = sum((y_last - target)^2)."""

    ir: Ir
    parts: list[StageGraph]
    weights: list[Variable]
    inputs: Stream
    targets: Stream
    losses: Stream
    skips: tuple[tuple[int, int], ...]
    training: Training
    outputs: list[StageOutput] = field(default_factory=list)


def network(
    stages: int,
    *,
    skips: Sequence[tuple[int, int]] = (),
    functions: Sequence[str] = (),
    ipus: Sequence[int] | None = None,
    replicas: int = 1,
    seed: int = 0,
    returned: str = "all",
    **training: object,
) -> Network:
    """``skips`` are (from stage, to stage) pairs: the result of one is added to the sum of the other."""
    rng = np.random.default_rng(seed)
    ir = Ir(replicas)
    main = ir.main_graph
    spec = TensorSpec((ROWS, WIDTH), FLOAT32)
    inputs = main.add(Stream("x", spec, main, "h2d"))
    targets = main.add(Stream("target", spec, main, "h2d"))
    losses = main.add(Stream("loss", TensorSpec((), FLOAT32), main, "d2h"))
    parts, weights = [], []
    for stage in range(stages):
        graph = ir.create_named_graph(f"layer{stage}")
        data = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.5
        weight = Variable(f"w{stage}", TensorSpec((WIDTH, WIDTH), FLOAT32), main, data, ir.grouping())
        weights.append(main.add(weight))
        sources: list[Source] = [HostInput(inputs) if stage == 0 else Activation(stage - 1, 0), Data(weight)]
        x, w = graph.add_input(spec, "x"), graph.add_input(weight.spec, "w")
        total = graph.create(MatMul, [x, w], ["z"]).outputs[0]
        for origin, destination in skips:
            if destination == stage:
                skip = graph.add_input(spec, f"skip{origin}")
                sources.append(Activation(origin, 0))
                total = graph.create(Add, [total, skip], ["z"]).outputs[0]
        function = FUNCTIONS[functions[stage] if functions else "tanh"][0]
        y = graph.create(function, [total], ["y"]).outputs[0]
        graph.add_output(y)
        if stage == stages - 1:
            target = graph.add_input(spec, "target")
            sources.append(HostInput(targets))
            difference = graph.create(Sub, [y, target], ["d"]).outputs[0]
            square = graph.create(Mul, [difference, difference], ["s"]).outputs[0]
            graph.add_output(graph.create(ReduceSum, [square], ["loss"], axes=(0, 1), keepdims=False).outputs[0])
        parts.append(StageGraph(graph, stage, ipus[stage] if ipus else stage, sources))
    train = Training(stages - 1, 1, weights, Momentum(), **training)
    outputs = [StageOutput(stages - 1, 1, losses, returned)]
    return Network(ir, parts, weights, inputs, targets, losses, tuple(skips), train, outputs)


def run_once(net: Network, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Losses of one run of the built program; the weights after it stand in their variables."""
    evaluator = Evaluator(net.ir)
    evaluator.load_variables()
    losses = evaluator.run({net.inputs: x, net.targets: target})[net.losses]
    evaluator.store_variables()
    return losses


def plain(
    weights: Sequence[np.ndarray],
    skips: Sequence[tuple[int, int]],
    x: np.ndarray,
    target: np.ndarray,
    updates: int,
    *,
    factor: float,
    functions: Sequence[str] = (),
    rate: float = 0.05,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Gradient accumulation written down: ``x`` and ``target`` are (updates * micro-batches, rows, width) in float64.

    Returns the weights after ``updates`` updates and the loss of each micro-batch.
    """
    w = [np.asarray(a, np.float64) for a in weights]
    velocity = [np.zeros_like(a) for a in w]
    stages, per_update = len(w), len(x) // updates
    losses = []
    used = [FUNCTIONS[functions[stage] if functions else "tanh"] for stage in range(stages)]
    for update in range(updates):
        total = [np.zeros_like(a) for a in w]
        for index in range(update * per_update, (update + 1) * per_update):
            y, zs = [], []
            for stage in range(stages):
                z = (x[index] if stage == 0 else y[stage - 1]) @ w[stage]
                z = z + sum(y[a] for a, b in skips if b == stage)
                zs.append(z)
                y.append(used[stage][1](z))
            losses.append(((y[-1] - target[index]) ** 2).sum())
            grads = [np.zeros_like(a) for a in y]
            grads[-1] = 2 * (y[-1] - target[index])
            for stage in reversed(range(stages)):
                dz = grads[stage] * used[stage][2](zs[stage], y[stage])
                total[stage] += (x[index] if stage == 0 else y[stage - 1]).T @ dz
                if stage:
                    grads[stage - 1] = grads[stage - 1] + dz @ w[stage].T
                for origin, destination in skips:
                    if destination == stage:
                        grads[origin] = grads[origin] + dz
        for stage in range(stages):
            velocity[stage] = 0.5 * velocity[stage] + factor * total[stage]
            w[stage] = w[stage] - rate * velocity[stage]
    return w, np.array(losses)

"""A small network in pipeline stages as a user writes it, and the same in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

CLASSES = 5


class Dense(addons.Module):
    """``tanh(x W + b)``, or without tanh."""

    def __init__(self, features: int, seed: int, activation: bool = True) -> None:
        super().__init__()
        self.features, self.seed, self.activation = features, seed, activation

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        rng = np.random.default_rng(self.seed)
        weight = self.add_variable_input("weight", partial(rng.normal, 0, 0.5, (x.shape[-1], self.features)), x.dtype)
        bias = self.add_variable_input("bias", partial(rng.normal, 0, 0.5, (self.features,)), x.dtype)
        y = x @ weight + bias
        return ops.tanh(y) if self.activation else y


@dataclass
class Layer:
    """Graphs and variables of a layer."""

    fwd: addons.GraphWithNamedArgs
    bwd: addons.GraphWithNamedArgs
    facts: addons.NamedVariableFactories
    bwd_facts: addons.NamedVariableFactories
    weights: Any = None
    state: Any = None
    call: Any = None

    def init(self) -> None:
        """Make the variables, in the current IPU's memory."""
        self.weights, self.state = self.facts.init(), self.bwd_facts.init()

    def forward(self, x: popxl.Tensor) -> popxl.Tensor:
        self.call = self.fwd.bind(self.weights).call_with_info(x)
        return self.call.outputs[0]

    def backward(self, dy: popxl.Tensor, activations: dict[popxl.Tensor, popxl.Tensor]) -> popxl.Tensor | None:
        return next(iter(self.bwd.bind(self.state).call(dy, args=activations)), None)

    def update(self, rate: float) -> None:
        for name, weight in self.weights.to_dict().items():
            ops.scaled_add_(weight, self.state.accum.to_dict()[name], b=-rate)
        ops.var_updates.accumulator_scale_(self.state.mean_accum_counter, 0.0)


@dataclass
class Network:
    """One layer per forward stage; layer ``i`` is on IPU ``i``."""

    layers: list[Layer]
    batch: int
    ir: popxl.Ir
    inputs: popxl.HostToDeviceStream
    labels: popxl.HostToDeviceStream
    losses: popxl.DeviceToHostStream
    schedules: dict[str, str] = field(default_factory=dict)


def network(
    stages: int, *, batch: int = 4, width: int = 6, features: int = 6, recompute: bool = False, replicas: int = 1
) -> Network:
    """Graphs for inputs with ``features`` and hidden layers of ``width``."""
    ir = popxl.Ir(replicas)
    layers = []
    with ir.main_graph:
        for stage in range(stages):
            last = stage == stages - 1
            with popxl.ipu(stage):
                spec = popxl.TensorSpec((batch, width if stage else features), popxl.float32)
                facts, fwd = Dense(CLASSES if last else width, stage, not last).create_graph(spec)
                wanted = [] if stage == 0 else [fwd.graph.inputs[0]]
                bwd_facts, bwd = addons.autodiff_with_accumulation(fwd, fwd.args.tensors, wanted)
            if recompute:
                bwd = addons.recompute_graph(bwd)
            layers.append(Layer(fwd, bwd, facts, bwd_facts))
        inputs = popxl.h2d_stream((batch, features), popxl.float32, "x")
        labels = popxl.h2d_stream((batch,), popxl.int32, "labels")
        losses = popxl.d2h_stream((), popxl.float32, "loss")
    return Network(layers, batch, ir, inputs, labels, losses)


def last_layer(net: Network, x: popxl.Tensor) -> popxl.Tensor | None:
    """Forward, loss and backward of the last layer."""
    layer = net.layers[-1]
    labels = ops.host_load(net.labels, "labels")
    loss, dx = addons.cross_entropy_with_grad(layer.forward(x), labels)
    ops.host_store(net.losses, loss)
    return layer.backward(dx, layer.bwd.grad_graph_info.inputs_dict(layer.call))


def pipelined(net: Network, steps: int, rate: float = 0.1) -> popxl.Ir:
    """The pipelined training program."""
    count = len(net.layers)
    with net.ir.main_graph, popxl.in_sequence(True):
        for ipu, layer in enumerate(net.layers):
            with popxl.ipu(ipu):
                layer.init()
        with addons.pipelined_execution(steps) as pipeline:
            with pipeline.stage(0), popxl.ipu(0):
                x = ops.host_load(net.inputs)
            for stage, layer in enumerate(net.layers[:-1]):
                with pipeline.stage(stage), popxl.ipu(stage):
                    x = layer.forward(x).copy_to_ipu(stage + 1)
            with pipeline.stage(count - 1), popxl.ipu(count - 1):
                dx = last_layer(net, x)
                if count > 1:
                    dx = dx.copy_to_ipu(count - 2)
            for stage in reversed(range(count - 1)):
                layer = net.layers[stage]
                with pipeline.stage(2 * count - 2 - stage), popxl.ipu(stage):
                    kept = pipeline.stash_and_restore_activations(layer.call, layer.bwd.grad_graph_info)
                    dx = layer.backward(dx, kept)
                    if stage:
                        dx = dx.copy_to_ipu(stage - 1)
        update(net, rate)
    net.ir.num_host_transfers = steps
    return net.ir


def sharded(net: Network, steps: int, rate: float = 0.1) -> popxl.Ir:
    """The same training, one micro-batch after the other."""
    with net.ir.main_graph, popxl.in_sequence(True):
        for ipu, layer in enumerate(net.layers):
            with popxl.ipu(ipu):
                layer.init()
        for _ in range(steps):
            with popxl.ipu(0):
                x = ops.host_load(net.inputs)
            for stage, layer in enumerate(net.layers[:-1]):
                with popxl.ipu(stage):
                    x = layer.forward(x).copy_to_ipu(stage + 1)
            with popxl.ipu(len(net.layers) - 1):
                dx = last_layer(net, x)
            for stage in reversed(range(len(net.layers) - 1)):
                dx = dx.copy_to_ipu(stage)
                layer = net.layers[stage]
                with popxl.ipu(stage):
                    dx = layer.backward(dx, layer.bwd.grad_graph_info.inputs_dict(layer.call))
        update(net, rate)
    net.ir.num_host_transfers = steps
    return net.ir


def update(net: Network, rate: float) -> None:
    """Reduce over replicas and update, each layer on its IPU."""
    for ipu, layer in enumerate(net.layers):
        with popxl.ipu(ipu):
            if net.ir.replication_factor > 1:
                for accumulated in layer.state.accum.tensors:
                    ops.collectives.replicated_all_reduce_(accumulated, op="mean")
            layer.update(rate)


# -- NumPy -------------------------------------------------------------------------------------------------------------

Weights = list[tuple[np.ndarray, np.ndarray]]


def data_of(session: popxl.Session, net: Network) -> Weights:
    """Weights and biases of the layers, float64 copies."""
    values = [session.get_tensors_data(layer.weights.tensors) for layer in net.layers]
    return [
        tuple(value[layer.weights.to_dict()[name]].astype(np.float64) for name in ("weight", "bias"))
        for layer, value in zip(net.layers, values)
    ]


def reference_step(weights: Weights, x: np.ndarray, labels: np.ndarray) -> tuple[float, Weights]:
    """Loss (mean over the batch) and gradients of one micro-batch, float64."""
    kept = [x.astype(np.float64)]
    for number, (weight, bias) in enumerate(weights):
        y = kept[-1] @ weight + bias
        kept.append(np.tanh(y) if number < len(weights) - 1 else y)
    logits = kept.pop()
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    dy = probabilities
    dy[rows, labels] -= 1
    dy /= len(labels)
    gradients: Weights = []
    for number in reversed(range(len(weights))):
        if number < len(weights) - 1:
            dy = dy * (1 - kept[number + 1] ** 2)
        gradients.insert(0, (kept[number].T @ dy, dy.sum(0)))
        dy = dy @ weights[number][0].T
    return float(loss), gradients


def reference_update(
    weights: Weights, x: np.ndarray, labels: np.ndarray, rate: float = 0.1
) -> tuple[np.ndarray, Weights]:
    """Losses in order and new weights of plain gradient accumulation over the micro-batches ``x``, ``labels``."""
    losses, total = [], [(np.zeros(w.shape), np.zeros(b.shape)) for w, b in weights]
    for one, label in zip(x, labels, strict=True):
        loss, gradients = reference_step(weights, one, label)
        losses.append(loss)
        total = [(a + g, b + h) for (a, b), (g, h) in zip(total, gradients)]
    new = [(w - rate * g / len(x), b - rate * h / len(x)) for (w, b), (g, h) in zip(weights, total)]
    return np.array(losses), new

"""Random popxl.addons trainings: networks of layers, trained plainly, in a pipeline over IPUs, or in phases from remote
buffers; PyTorch in float64, with accumulation written out, says what comes out.

A program trains for two runs: micro-batches from the host, gradients accumulated as means, an update by SGD or by
Adam's step, on one replica or two. Losses (outputs and gradients of the input in phases) and weights are compared.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

from .invariants import trace_problems
from .outcome import Outcome
from .stored import Stored

RUNS, RATE = 2, 0.1
ADAM = {"beta1": 0.75, "beta2": 0.875, "eps": 0.1, "weight_decay": 0.01}
TOLERANCE = 1e-3
ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "tanh": (ops.tanh, torch.tanh),
    "relu": (ops.relu, torch.relu),
    "gelu": (ops.gelu, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "swish": (ops.swish, torch.nn.functional.silu),
}
EXECUTIONS = ("plain", "pipeline", "phases")
MODES = ("compute", "io", "io_overlapped")


@dataclass
class Program(Stored):
    """A training. ``layers``: for each its width, activation, and norm (``layer``, ``group`` or none); the first takes
    ``width`` features, the last gives the classes. In phases all layers are alike, and ``mode`` says where transfers
    happen."""

    seed: int
    execution: str
    width: int
    layers: list[list[Any]]
    micro_batch: int
    accumulation: int
    replicas: int
    recompute: bool
    optimiser: str
    io_tiles: int
    mode: str

    def size(self) -> int:
        """Number of layers."""
        return len(self.layers)


def draw(r: random.Random) -> Program:
    """A random training."""
    execution, width = r.choice(EXECUTIONS), r.randint(2, 6)
    count = r.randint(2, 4) if execution == "pipeline" else r.randint(1, 4)
    layers = [[r.randint(2, 6), *_kind(r)] for _ in range(count)]
    accumulation, tiles = r.randint(1, 4), r.choice([0, 0, 32])
    if execution == "pipeline":
        accumulation = r.randint(4 * count - 2, 4 * count + 1)
    if execution == "phases":
        layers = [[width, *layers[0][1:]] for _ in layers]
        accumulation, tiles = r.randint(2, 4), 32
    return Program(
        r.randrange(1 << 20), execution, width, layers, r.randint(1, 3), accumulation, r.choice([1, 1, 2]),
        r.random() < 0.4, r.choice(["sgd", "sgd", "adam"]), tiles, r.choice(MODES),
    )  # fmt: skip


def _kind(r: random.Random) -> tuple[str, str]:
    return r.choice(list(ACTIVATIONS)), r.choice(["", "", "layer", "group"])


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of what each run gives, and of the weights at the end."""
    device = Device(program)
    got, start = device.train()
    want = _by_torch(program, device.data, start)
    outcome = Outcome(compared=sum(value.size for value in want.values()))
    for name, value in want.items():
        found = np.asarray(got[name], np.float64).reshape(value.shape)
        scale = max(1.0, float(np.abs(value).max()))
        if not np.allclose(found, value, rtol=TOLERANCE, atol=TOLERANCE * scale):
            far = float(np.abs(found - value).max())
            outcome.problems.append(f"{name}: differs by {far:.2g} of {scale:.2g}")
    if trace:
        outcome.problems += trace_problems(device.session.executable)
    return outcome


# -- by ipuperf --------------------------------------------------------------------------------------------------------


class Block(addons.Module):
    """A norm, a linear layer, an activation."""

    def __init__(self, width: int, activation: str, norm: str) -> None:
        super().__init__()
        norms = {"layer": addons.layers.LayerNorm, "group": lambda: addons.layers.GroupNorm(1)}
        self.norm = norms[norm]() if norm else None
        self.linear, self.activation = addons.layers.Linear(width), ACTIVATIONS[activation][0]

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return self.activation(self.linear(self.norm(x) if self.norm is not None else x))


class Layer:
    """Graphs and variables of a block."""

    def __init__(self, program: Program, number: int) -> None:
        width = program.layers[number - 1][0] if number else program.width
        spec = popxl.TensorSpec((program.micro_batch, width), popxl.float32)
        self.factories, self.forward = Block(*program.layers[number]).create_graph(spec)
        made = addons.autodiff_with_accumulation(self.forward, self.forward.args.tensors, self.forward.graph.inputs[:1])
        self.sums, self.backward = made
        if program.recompute:
            self.backward = addons.recompute_graph(self.backward)

    def init(self, program: Program) -> None:
        """Make the variables."""
        self.weights = self.factories.init("weights")
        self.state = self.sums.init_zero() if program.seed % 2 else self.sums.init()
        self.steps = {name: self._step(w, program) for name, w in self.weights.to_dict().items()}

    def _step(self, weight: popxl.Tensor, program: Program) -> Any:
        """Adam's step of a weight, with its state."""
        if program.optimiser != "adam":
            return None
        step = addons.optimizers.AdamOptimizerStep(cache=True)
        numbers = {"lr": RATE, "first_order_dtype": popxl.float32, **ADAM}
        factories, graph = step.create_graph(weight, weight.spec, **numbers)
        return graph.bind(factories.init())

    def update(self, program: Program) -> None:
        """All replicas use the mean of their gradients."""
        gradients = self.state.accum.to_dict()
        for name, weight in self.weights.to_dict().items():
            gradient = gradients[name]
            if program.replicas > 1:
                gradient = ops.collectives.replicated_all_reduce(gradient, "mean")
            if self.steps[name] is None:
                ops.scaled_add_(weight, gradient, b=-RATE)
            else:
                self.steps[name].call(weight, gradient)
        ops.var_updates.accumulator_zero_(self.state.mean_accum_counter)


class Device:
    """The program in popxl.addons, with its session and the data of its streams."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ir = popxl.Ir(program.replicas)
        self.ir.num_io_tiles = program.io_tiles
        self.ir.num_host_transfers = program.accumulation
        last = (program.micro_batch, program.layers[-1][0])
        with self.ir.main_graph, popxl.in_sequence(True):
            x = ((program.micro_batch, program.width), popxl.float32)
            given = (last, popxl.float32) if program.execution == "phases" else (last[:1], popxl.int32)
            self.inputs = addons.InputStreams(x=x, given=given)
            outputs = {"output": (last, popxl.float32), "dx": x} if program.execution == "phases" else {}
            self.outputs = addons.OutputStreams(**(outputs or {"loss": ((), popxl.float32)}))
            self.layers: list[Layer] = []
            getattr(self, f"_{program.execution}")()
        rng = np.random.default_rng(program.seed)
        lead = (RUNS, program.accumulation, program.replicas)
        given_data = rng.normal(size=(*lead, *last)) if outputs else rng.integers(0, last[1], (*lead, last[0]))
        self.data = [rng.normal(size=(*lead, *x[0])).astype(np.float32), given_data.astype(given[1].as_numpy())]
        state = addons.NamedTensors.from_dict({f"layer{i}": layer.weights for i, layer in enumerate(self.layers)})
        self.session = addons.TaskSession(self.inputs, self.outputs, state, 1, self.ir, "ipu_hw")

    def train(self) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
        """What each run gives and the weights, and those at the start."""
        program, got = self.program, {}
        lead = [n for n in (program.accumulation, program.replicas) if n > 1]
        rng = np.random.default_rng(program.seed + 1)
        variables = [t for layer in self.layers for t in layer.weights.to_dict().values()]
        drawn = {t: rng.normal(0, 0.6, t.shape).astype(np.float32) for t in variables}
        addons.write_variables_pb(self.session, addons.WeightsDict(drawn))
        start = self._weights()
        with self.session:
            for run in range(RUNS):
                feeds = [d[run].reshape((*lead, *d.shape[3:])) for d in self.data]
                found = self.session.run(dict(zip(self.inputs.streams, feeds, strict=True)))
                got |= {f"run {run}, {name}": found[stream] for name, stream in self.outputs.items()}
        for number, weights in enumerate(self._weights()):
            got |= {f"layer {number}, {name}": value for name, value in weights.items()}
        return got, start

    def _weights(self) -> list[dict[str, np.ndarray]]:
        read = self.session.get_tensor_data
        return [{n: np.array(read(t)) for n, t in layer.weights.to_dict().items()} for layer in self.layers]

    # -- plain and pipelined -------------------------------------------------------------------------------------------

    def _plain(self) -> None:
        """Every micro-batch after the other on one IPU."""
        self.layers = [Layer(self.program, number) for number in range(self.program.size())]
        for layer in self.layers:
            layer.init(self.program)
        for _ in range(self.program.accumulation):
            x, calls = ops.host_load(self.inputs.x), []
            for layer in self.layers:
                calls.append(layer.forward.bind(layer.weights).call_with_info(x))
                x = calls[-1].outputs[0]
            dx = self._loss(x)
            for layer, call in zip(self.layers[::-1], calls[::-1]):
                activations = layer.backward.grad_graph_info.inputs_dict(call)
                (dx,) = layer.backward.bind(layer.state).call(dx, args=activations)
        for layer in self.layers:
            layer.update(self.program)

    def _loss(self, x: popxl.Tensor) -> popxl.Tensor:
        """Store the loss of a micro-batch; its gradient."""
        loss, dx = addons.cross_entropy_with_grad(x, ops.host_load(self.inputs.given))
        ops.host_store(self.outputs.loss, loss)
        return dx

    def _pipeline(self) -> None:
        """A layer on each IPU; the last one goes forward and back in one stage."""
        program, count = self.program, self.program.size()
        for number in range(count):
            with popxl.ipu(number):
                self.layers.append(Layer(program, number))
                self.layers[-1].init(program)
        with addons.pipelined_execution(program.accumulation) as pipeline:
            calls: list[Any] = []
            with pipeline.stage(0), popxl.ipu(0):
                x = ops.host_load(self.inputs.x)
            for number, layer in enumerate(self.layers):
                with pipeline.stage(number), popxl.ipu(number):
                    calls.append(layer.forward.bind(layer.weights).call_with_info(x))
                    x = calls[-1].outputs[0]
                    if number < count - 1:
                        x = x.copy_to_ipu(number + 1)
                    else:
                        dx = self._back(number, self._loss(x), layer.backward.grad_graph_info.inputs_dict(calls[-1]))
            for number in reversed(range(count - 1)):
                with pipeline.stage(2 * count - 2 - number), popxl.ipu(number):
                    info = self.layers[number].backward.grad_graph_info
                    dx = self._back(number, dx, pipeline.stash_and_restore_activations(calls[number], info))
        for number, layer in enumerate(self.layers):
            with popxl.ipu(number):
                layer.update(program)

    def _back(self, number: int, dx: popxl.Tensor, activations: Any) -> popxl.Tensor:
        """The gradient of a layer's input, on the IPU before."""
        layer = self.layers[number]
        (dx,) = layer.backward.bind(layer.state).call(dx, args=activations)
        return dx.copy_to_ipu(number - 1) if number else dx

    # -- in phases -----------------------------------------------------------------------------------------------------

    def _phases(self) -> None:
        """All layers are rows of one graph; activations and gradients go through remote buffers."""
        program, steps, count = self.program, self.program.accumulation, self.program.size()
        first = Layer(program, 0)
        graph, back = first.forward.graph, first.backward.graph
        for _ in range(count):
            layer = object.__new__(Layer)
            layer.__dict__ |= vars(first)
            layer.init(program)
            self.layers.append(layer)
        xs = addons.batch_serial_buffer(graph.outputs[0], steps, count + 1)
        dxs = addons.batch_serial_buffer(back.inputs[0], steps, count + 1)
        loads = {graph.inputs[0]: (xs, 0), back.inputs[0]: addons.RemoteHandle(dxs, 1)}
        stores = {graph.outputs[0]: (xs, 1), back.outputs[0]: (dxs, 0)}
        forward, backward = addons.batch_serialise_fwd_and_grad(
            first.forward, first.backward, first.forward.args, steps, loads, {}, stores, None, count, program.mode
        )
        for step in range(steps):
            ops.remote_store(xs, step, ops.host_load(self.inputs.x))
            ops.remote_store(dxs, count * steps + step, ops.host_load(self.inputs.given))
        for row, layer in enumerate(self.layers):
            forward.graph.bind(layer.weights).call(row)
        for row, layer in reversed(list(enumerate(self.layers))):
            named = addons.NamedTensors.from_dict({**layer.weights.to_dict(), **layer.state.to_dict()})
            backward.graph.bind(named).call(row)
        for step in range(steps):
            ops.host_store(self.outputs.output, ops.remote_load(xs, count * steps + step))
            ops.host_store(self.outputs.dx, ops.remote_load(dxs, step))
        for layer in self.layers:
            layer.update(program)


# -- by PyTorch --------------------------------------------------------------------------------------------------------


def _by_torch(program: Program, data: list[np.ndarray], start: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What each run gives, and the weights at the end."""
    weights = [{n: torch.tensor(v).double().requires_grad_() for n, v in layer.items()} for layer in start]
    leaves = [w for layer in weights for w in layer.values()]
    states = [(torch.zeros_like(w), torch.zeros_like(w)) for w in leaves]
    want: dict[str, list[Any]] = {}
    number = program.accumulation * program.replicas
    for run in range(RUNS):
        for place in np.ndindex(program.accumulation, program.replicas):
            x = torch.tensor(data[0][(run, *place)]).double().requires_grad_()
            results = _sample(program, weights, x, torch.tensor(data[1][(run, *place)]), 1 / number)
            for name, value in results.items():
                want.setdefault(f"run {run}, {name}", []).append(value.detach().numpy())
        for leaf, state in zip(leaves, states):
            _updated(program, leaf, state, run + 1)
    found = {name: np.stack(values) for name, values in want.items()}
    for i, layer in enumerate(weights):
        found |= {f"layer {i}, {name}": w.detach().numpy() for name, w in layer.items()}
    return found


def _sample(program: Program, weights: list[Any], x: Any, given: Any, share: float) -> dict[str, Any]:
    """One micro-batch forward and back."""
    y = x
    for (_, activation, norm), layer in zip(program.layers, weights, strict=True):
        if norm:
            y = torch.nn.functional.layer_norm(y, y.shape[-1:], layer["norm.weight"], layer["norm.bias"], 1e-5)
        y = ACTIVATIONS[activation][1](y @ layer["linear.weight"] + layer["linear.bias"])
    if program.execution == "phases":
        y.backward(given.double() * share)
        return {"output": y, "dx": x.grad / share}
    loss = torch.nn.functional.cross_entropy(y, given.long())
    (loss * share).backward()
    return {"loss": loss}


def _updated(program: Program, weight: Any, state: tuple[Any, Any], step: int) -> None:
    """Change a weight by its gradient, which is cleared."""
    gradient, (first, second) = weight.grad, state
    weight.grad = None
    with torch.no_grad():
        if program.optimiser == "sgd":
            weight -= RATE * gradient
            return
        first.lerp_(gradient, 1 - ADAM["beta1"])
        second.lerp_(gradient**2, 1 - ADAM["beta2"])
        m, v = first / (1 - ADAM["beta1"] ** step), second / (1 - ADAM["beta2"] ** step)
        weight -= RATE * (m / (v.sqrt() + ADAM["eps"]) + ADAM["weight_decay"] * weight)

"""Random PyTorch modules trained through ``ipuperf.poptorch``, and by PyTorch with gradient accumulation written out.

Losses, outputs, weights and running statistics are compared after two calls. The epsilons of Adam and its kin are
large, so that a gradient that is nothing but rounding does not become a whole step. Where results differ, PyTorch
trains again from start weights moved by a unit in the last place: a program whose results then move as far is
ill-conditioned, which is counted and no failure (batch norm over two samples that are nearly equal divides rounding by
rounding).
"""

import copy
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import ipuperf.poptorch as poptorch

from ..invariants import trace_problems
from ..names import used_by
from ..outcome import Outcome
from ..stored import Stored

CALLS = 2
CLASSES = 5
RATE = 0.02


@dataclass
class Program(Stored):
    """A training: blocks of layers (each ``[name, arguments...]``), loss, optimiser, and how it is executed."""

    seed: int
    blocks: list[list[list[Any]]]
    sample: list[int]
    loss: str
    reduction: str
    optimiser: str
    weight_decay: float
    micro_batch: int
    accumulation: int
    replicas: int
    iterations: int
    cut: int | None
    execution: str
    mean: bool
    sharded_state: bool
    recompute: bool
    clip: float | None

    def size(self) -> int:
        """Number of layers."""
        return sum(len(b) for b in self.blocks)


class Scalars(nn.Module):
    """Scale and shift by 0-d parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.25)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


class Residual(nn.Module):
    """``x + alpha * f(x)`` with a 0-d ``alpha`` that starts at zero, as ReZero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.alpha = nn.Linear(width, width), nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.alpha * torch.tanh(self.inner(x))


class Attention(nn.Module):
    """One head of self attention with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.temperature = nn.Linear(width, width), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(1, 2) * self.temperature, -1)
        return x + self.out(weights @ v)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "linear": nn.Linear,
    "conv": nn.Conv2d,
    "layer_norm": nn.LayerNorm,
    "group_norm": nn.GroupNorm,
    "batch_norm1": nn.BatchNorm1d,
    "batch_norm2": nn.BatchNorm2d,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "max_pool": nn.MaxPool2d,
    "average_pool": nn.AvgPool2d,
    "adaptive": lambda: nn.AdaptiveAvgPool2d(1),
    "flatten": nn.Flatten,
    "scalars": Scalars,
    "residual": Residual,
    "attention": Attention,
    "identity": nn.Identity,
}
ACTIVATIONS = ("relu", "tanh", "gelu", "sigmoid", "silu", "leaky", "softplus", "elu")
OPTIMISERS: dict[str, Callable[[Any, Any, float], Any]] = {
    "sgd": lambda o, p, decay: o.SGD(p, lr=RATE, weight_decay=decay),
    "momentum": lambda o, p, decay: o.SGD(p, lr=RATE, momentum=0.9, weight_decay=decay),
    "adam": lambda o, p, decay: o.Adam(p, lr=RATE, eps=0.05, weight_decay=decay),
    "adamw": lambda o, p, decay: o.AdamW(p, lr=RATE, eps=0.05, weight_decay=decay),
    "rmsprop": lambda o, p, decay: o.RMSprop(p, lr=RATE, eps=0.05, weight_decay=decay),
}


def drawn_names() -> set[str]:
    """What the programs use, the optimisers among it."""
    optimisers = {name for make in OPTIMISERS.values() for name in make.__code__.co_names}
    return {*used_by(sys.modules[__name__]), *(f"poptorch.optim.{name}" for name in optimisers)}


def draw(r: random.Random) -> Program:
    """A random training."""
    blocks, sample = r.choice([_mlp, _mlp, _cnn, _sequence])(r)
    stages = r.choice([1, 1, 2])
    batch_norm = any(layer[0].startswith("batch_norm") for block in blocks for layer in block)
    replicas = 1 if batch_norm else r.choice([1, 1, 2])
    optimiser = r.choice(list(OPTIMISERS))
    return Program(
        seed=r.randrange(1 << 20),
        blocks=blocks,
        sample=sample,
        loss=r.choice(["cross_entropy", "nll", "mse", "smooth_l1", "bce"]),
        reduction=r.choice(["mean", "mean", "sum"]),
        optimiser=optimiser,
        weight_decay=r.choice([0.0, 0.01]),
        micro_batch=r.choice([2, 3, 4]),
        accumulation=r.choice([4, 5, 6]) if stages == 2 else r.choice([1, 1, 2, 4]),
        replicas=replicas,
        iterations=r.choice([1, 1, 2]),
        cut=r.randint(1, len(blocks) - 1) if stages == 2 else None,
        execution=r.choice(["pipelined", "pipelined", "sharded"]) if stages == 2 else "",
        mean=r.random() < 0.7,
        sharded_state=replicas > 1 and r.random() < 0.4,
        recompute=stages == 1 and r.random() < 0.2,
        clip=r.choice([None, None, None, 0.5]) if optimiser.startswith("adam") and replicas == 1 else None,
    )


def _mlp(r: random.Random) -> tuple[list[list[list[Any]]], list[int]]:
    widths = [r.choice([4, 7, 12]) for _ in range(r.randint(3, 5))]
    blocks = []
    for a, b in zip(widths, widths[1:]):
        block: list[list[Any]] = [["linear", a, b, r.random() < 0.8]]
        block += r.choice([[], [["layer_norm", b]], [["batch_norm1", b]], [["scalars"]], [["residual", b]]])
        blocks.append([*block, [r.choice(ACTIVATIONS)]])
    return [*blocks, [["linear", widths[-1], CLASSES]]], widths[:1]


def _cnn(r: random.Random) -> tuple[list[list[list[Any]]], list[int]]:
    channels, side = [r.choice([1, 3]), r.choice([4, 6]), r.choice([4, 8])], r.choice([8, 9])
    sample, blocks = [channels[0], side, side], []
    for a, b in zip(channels, channels[1:]):
        kernel, stride, padding = r.choice([1, 3]), r.choice([1, 2]), r.choice([0, 1])
        kernel = 1 if side + 2 * padding < kernel else kernel
        side = (side + 2 * padding - kernel) // stride + 1
        block: list[list[Any]] = [["conv", a, b, kernel, stride, padding]]
        block += r.choice([[], [["group_norm", 2, b]], [["batch_norm2", b]], [["scalars"]]])
        block.append([r.choice(ACTIVATIONS)])
        if side >= 4 and r.random() < 0.5:
            block.append([r.choice(["max_pool", "average_pool"]), 2])
            side //= 2
        blocks.append(block)
    small = r.random() < 0.5
    blocks[-1] += [["adaptive"], ["flatten"]] if small else [["flatten"]]
    width = channels[-1] * (1 if small else side * side)
    return [*blocks, [["linear", width, CLASSES]]], sample


def _sequence(r: random.Random) -> tuple[list[list[list[Any]]], list[int]]:
    length, width = r.choice([3, 5]), r.choice([4, 8])
    blocks: list[list[list[Any]]] = [[["attention", width]] for _ in range(r.randint(1, 3))]
    return [*blocks, [["flatten"], ["linear", length * width, CLASSES]]], [length, width]


class Network(nn.Module):
    """Blocks with a loss; gives the output of the last block and the loss."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        made = [nn.Sequential(*(LAYERS[name](*arguments) for name, *arguments in b)) for b in program.blocks]
        self.blocks = nn.ModuleList(made)
        self.loss, self.reduction = program.loss, program.reduction

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        return x, self._loss(x, y)

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        f, hot = nn.functional, nn.functional.one_hot(y, CLASSES).to(x.dtype)
        losses = {
            "cross_entropy": lambda: f.cross_entropy(x, y, reduction=self.reduction),
            "nll": lambda: f.nll_loss(f.log_softmax(x, -1), y, reduction=self.reduction),
            "mse": lambda: f.mse_loss(x, hot, reduction=self.reduction),
            "smooth_l1": lambda: f.smooth_l1_loss(x, hot, reduction=self.reduction),
            "bce": lambda: f.binary_cross_entropy_with_logits(x, hot, reduction=self.reduction),
        }
        return losses[self.loss]()


class Marked(nn.Module):
    """A network whose loss is marked for PopTorch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, loss = self.network(x, y)
        return output, poptorch.identity_loss(loss, reduction="none")


def options(program: Program) -> poptorch.Options:
    """PopTorch's options."""
    made = poptorch.Options().deviceIterations(program.iterations).replicationFactor(program.replicas)
    made.showCompilationProgressBar(False).outputMode(poptorch.OutputMode.All)
    kind = poptorch.ReductionType.Mean if program.mean else poptorch.ReductionType.Sum
    made.Training.gradientAccumulation(program.accumulation).accumulationAndReplicationReductionType(kind)
    if program.execution == "sharded":
        made.setExecutionStrategy(poptorch.ShardedExecution())
    if program.recompute:
        made._Popart.set("autoRecomputation", 1)
    if program.sharded_state:
        place = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        place.minElementsForReplicatedTensorSharding(2).minElementsForOffChip(2)
        made.TensorLocations.setOptimizerLocation(place)
    return made


Values = dict[str, torch.Tensor]
"""What a training gives, by name: outputs and losses of each call, weights and running statistics at the end."""


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of outputs, losses, weights and running statistics."""
    torch.manual_seed(program.seed)
    network = Network(program)
    plain, data = copy.deepcopy(network), _data(program)
    model = _compiled(program, network)
    got, want = _by_poptorch(model, network, data), _by_torch(program, copy.deepcopy(plain), data)
    outcome = Outcome(compared=sum(value.numel() for value in want.values()))
    wrong = [name for name, value in want.items() if not _close(got[name], value)]
    if wrong:
        _judge(wrong, got, want, _jittered(program, plain, data), outcome)
    if trace:
        outcome.problems += trace_problems(model.compiled_model.executable)
    model.destroy()
    return outcome


def _data(program: Program) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Samples and labels of each call."""
    count = program.micro_batch * program.accumulation * program.replicas * program.iterations
    return [(torch.randn(count, *program.sample), torch.randint(0, CLASSES, (count,))) for _ in range(CALLS)]


# -- the two trainings -------------------------------------------------------------------------------------------------


def _compiled(program: Program, network: Network) -> Any:
    if program.cut is not None:
        network.blocks[program.cut] = poptorch.BeginBlock(network.blocks[program.cut], "second", ipu_id=1)
    optimiser = OPTIMISERS[program.optimiser](poptorch.optim, network.parameters(), program.weight_decay)
    if program.clip is not None:
        optimiser.max_grad_norm = program.clip
    return poptorch.trainingModel(Marked(network), options(program), optimizer=optimiser)


def _by_poptorch(model: Any, network: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Values:
    found: Values = {}
    for call, (x, y) in enumerate(data):
        found[f"call {call}, output"], found[f"call {call}, loss"] = model(x, y)
    model.copyWeightsToHost()
    return found | _state(network)


def _by_torch(program: Program, plain: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Values:
    optimiser = OPTIMISERS[program.optimiser](torch.optim, plain.parameters(), program.weight_decay)
    found: Values = {}
    for call, (x, y) in enumerate(data):
        results = _accumulated(program, plain, optimiser, x, y)
        found[f"call {call}, output"], found[f"call {call}, loss"] = results
    return found | _state(plain)


def _accumulated(
    program: Program, plain: nn.Module, optimiser: Any, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and losses of all micro-batches; an update after those of each device iteration."""
    outputs, losses = [], []
    number = program.accumulation * program.replicas
    for xs, ys in zip(x.chunk(program.iterations), y.chunk(program.iterations)):
        optimiser.zero_grad()
        for x_part, y_part in zip(xs.split(program.micro_batch), ys.split(program.micro_batch)):
            output, loss = plain(x_part, y_part)
            (loss / number if program.mean else loss).backward()
            outputs.append(output.detach())
            losses.append(loss.detach())
        if program.clip is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), program.clip)
        optimiser.step()
    return torch.cat(outputs), torch.stack(losses)


def _state(network: nn.Module) -> Values:
    return {k: v.detach() for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}


# -- what may differ ---------------------------------------------------------------------------------------------------

TOLERANCE = 2e-3
JITTER = 2.0**-23
"""How far each start weight is moved, relative to itself: one or two units in the last place of float32."""
JITTERED_RUNS = 8
EXPLAINED = 4.0
"""A difference of at most so many times what the jitter does is the program's own. As differences are above
:data:`TOLERANCE`, the jitter then has grown at least ``TOLERANCE / EXPLAINED / JITTER``, about 4,000 times."""


def _scale(want: torch.Tensor) -> float:
    return max(1.0, float(want.abs().max()) if want.numel() else 0.0)


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.numel() != want.numel():
        return False
    a, b = got.detach().double().reshape(want.shape), want.double()
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * _scale(want))


def _jittered(program: Program, plain: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Values:
    """How far PyTorch's own results move when each start weight does by :data:`JITTER`; the largest element of each."""
    want, moved = _by_torch(program, copy.deepcopy(plain), data), {}
    for seed in range(JITTERED_RUNS):
        other, random_signs = copy.deepcopy(plain), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in other.parameters():
                weight *= 1 + JITTER * (2 * torch.randint(0, 2, weight.shape, generator=random_signs) - 1)
        for name, value in _by_torch(program, other, data).items():
            moved[name] = max(moved.get(name, 0.0), float((value - want[name]).abs().max()))
    return {name: torch.tensor(value) for name, value in moved.items()}


def _judge(wrong: list[str], got: Values, want: Values, moved: Values, outcome: Outcome) -> None:
    """Problems, unless PyTorch's own jitter explains every difference: then the program is ill-conditioned."""
    explained = []
    for name in wrong:
        a, b = got[name].detach(), want[name]
        if a.numel() != b.numel():
            outcome.problems.append(f"{name}: shape {tuple(a.shape)}, expected {tuple(b.shape)}")
            continue
        far = float((a.reshape(b.shape) - b).abs().max())
        text = f"{name}: differs by {far:.2g}, of PyTorch's own jitter {float(moved[name]):.2g}"
        explained += [text] if far <= EXPLAINED * float(moved[name]) else []
        outcome.problems.append(f"{text}; got {a.reshape(-1)[:3].tolist()}, expected {b.reshape(-1)[:3].tolist()}")
    if len(explained) == len(outcome.problems):
        outcome.problems, outcome.ill_conditioned = [], "; ".join(explained)

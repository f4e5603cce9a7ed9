"""Models for the executor's tests, and gradient accumulation written down with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import ipuperf.poptorch as poptorch

IN, HIDDEN, OUT = 6, 8, 4
BLOCKS = ("B0", "B1", "B2")
#: Parameters of :class:`Network`.
PARAMETERS = 8


class Network(nn.Module):
    """Three blocks; the loss belongs to the last. One parameter has no axes, one has a single element."""

    def __init__(self, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.third = nn.Linear(HIDDEN, OUT)
        self.heat = nn.Parameter(torch.tensor(0.75))
        self.offset = nn.Parameter(torch.tensor([0.25]))
        self.to(dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        with poptorch.Block("B0", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("B1", ipu_id=1):
            x = torch.tanh(self.second(x) * self.heat + self.offset)
        with poptorch.Block("B2", ipu_id=2):
            x = self.third(x)
            if y is None:
                return x
            return x, nn.functional.mse_loss(x, y)


def options(
    *,
    iterations: int = 1,
    accumulation: int = 6,
    replicas: int = 1,
    strategy: Any = None,
    mode: Any = poptorch.OutputMode.All,
    period: int | None = None,
) -> poptorch.Options:
    """Options without a progress bar; three stages take four IPUs."""
    made = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    made.autoRoundNumIPUs(True).outputMode(mode, period).showCompilationProgressBar(False)
    made.setExecutionStrategy(strategy or poptorch.PipelinedExecution(*BLOCKS))
    return made


def inference(iterations: int = 4, replicas: int = 1, **more: Any) -> Any:
    """Options of inference."""
    return options(iterations=iterations, accumulation=1, replicas=replicas, **more)


def batch(count: int, rows: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """``count`` micro-batches of inputs and targets."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count * rows, IN)), rng.normal(size=(count * rows, OUT))
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


def accumulate(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Sequence[torch.Tensor],
    *,
    iterations: int,
    accumulation: int,
    replicas: int = 1,
    reduction: str = "mean",
    loss_of: Callable[[Any], torch.Tensor] = lambda result: result[-1],
) -> list[Any]:
    """Plain gradient accumulation over micro-batches and replicas; what the module returned for each micro-batch."""
    per_update = accumulation * replicas
    micro_batches = list(zip(*(t.chunk(iterations * per_update) for t in inputs), strict=True))
    results = []
    for update in range(iterations):
        optimizer.zero_grad()
        for arguments in micro_batches[update * per_update : (update + 1) * per_update]:
            result = module(*arguments)
            results.append(result)
            (loss_of(result) / (per_update if reduction == "mean" else 1)).backward()
        optimizer.step()
    return results


def twins(make: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Two equal modules."""
    torch.manual_seed(seed)
    module = make()
    return module, copy.deepcopy(module)


def assert_same_weights(one: nn.Module, other: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """All parameters and buffers agree."""
    theirs = other.state_dict()
    for name, tensor in one.state_dict().items():
        mine, expected = tensor.float().numpy(), theirs[name].float().numpy()
        np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol, err_msg=name)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """PopTorch's AdamW with an epsilon that keeps tiny gradients from deciding signs."""
    return poptorch.optim.AdamW(parameters, lr=0.01, eps=1e-3, weight_decay=0.1)


def native_adamw(parameters: Any) -> torch.optim.Optimizer:
    """PyTorch's own with the same numbers."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3, weight_decay=0.1)


def compare(
    make_ours: Any = adamw,
    make_theirs: Any = native_adamw,
    *,
    network: Any = Network,
    iterations: int = 2,
    accumulation: int = 6,
    replicas: int = 1,
    reduction: str = "mean",
    calls: int = 2,
    change: Any = lambda opts: None,
    strategy: Any = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Any:
    """Train twins, ours on IPUs; losses and weights agree after each call. Our executor."""
    ours, theirs = twins(network)
    opts = options(iterations=iterations, accumulation=accumulation, replicas=replicas, strategy=strategy)
    if reduction == "sum":
        opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    change(opts)
    model = poptorch.trainingModel(ours, opts, make_ours(ours.parameters()))
    native = make_theirs(theirs.parameters())
    for call in range(calls):
        data = batch(iterations * accumulation * replicas, seed=call)
        _, losses = model(*data)
        expected = accumulate(
            theirs, native, data, iterations=iterations, accumulation=accumulation, replicas=replicas,
            reduction=reduction,
        )  # fmt: skip
        np.testing.assert_allclose(losses.numpy(), [r[-1].item() for r in expected], rtol=1e-5, atol=1e-6)
        assert_same_weights(ours, theirs, rtol, atol)
    return model


def close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Two tensors agree."""
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=rtol, atol=atol)

"""What upstream keeps under this name: classes of batches, and a comparison of training here and on the CPU
(``poptorch_geometric: utils.py``)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import MessagePassing

from ipuperf.frontends import poptorch

DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))


def set_aggregation_dim_size(model: torch.nn.Module, dim_size: int) -> None:
    """Let every message passing layer of a model aggregate to ``dim_size`` nodes, at least those of the batch.

    Each layer gets a class of its own over the one it has: hooks, which PyTorch Geometric offers for this, are not
    called during exports. Setting another size replaces the first.
    """
    for module in model.modules():
        if isinstance(module, MessagePassing):
            kind = getattr(type(module), "unsized", type(module))
            module.__class__ = type(kind.__name__, (_Sized, kind), {"unsized": kind})
            module.aggregation_dim_size = dim_size


class _Sized:
    """Before a message passing layer: it aggregates to ``aggregation_dim_size`` nodes."""

    aggregation_dim_size: int

    def aggregate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().aggregate(*args, **{**kwargs, "dim_size": self.aggregation_dim_size})  # type: ignore[misc]


class TrainingStepper:
    """Trains two copies of a model, one by PyTorch and one here, and compares them after every step.

    Args:
        model: gives its output and its loss.
        lr: learning rate.
        optimizer: makes the optimiser of parameters and ``lr``.
        options: of the model here.
        rtol, atol: as of ``torch.testing.assert_close``.
        enable_fp_exception: let a floating-point exception be an error.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lr: float = 0.001,
        optimizer: Callable[..., Any] = poptorch.optim.Adam,
        options: poptorch.Options | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        enable_fp_exception: bool = True,
    ) -> None:
        model.train()
        self.rtol, self.atol = rtol, atol
        self.options = options or poptorch.Options()
        if enable_fp_exception:
            self.options.Precision.enableFloatingPointExceptions(True)
        self.cpu_model, self.ipu_model = copy.deepcopy(model), copy.deepcopy(model)
        self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr)
        ipu_optimizer = optimizer(self.ipu_model.parameters(), lr=lr)
        self.training_model = poptorch.trainingModel(self.ipu_model, optimizer=ipu_optimizer, options=self.options)
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise ``AssertionError`` unless the parameters of both copies are close."""
        for (name, expected), actual in zip(
            self.cpu_model.named_parameters(), self.ipu_model.parameters(), strict=True
        ):
            self.assert_close(actual, expected, name)

    def cpu_step(self, batch: Sequence[Any]) -> tuple[Any, torch.Tensor]:
        """One step of the copy on the CPU: its output and loss."""
        self.optimizer.zero_grad()
        output, loss = self.cpu_model(*batch)
        loss.backward()
        self.optimizer.step()
        return output, loss

    def ipu_step(self, batch: Sequence[Any], copy_weights: bool = True) -> tuple[Any, torch.Tensor]:
        """One step of the copy here: its output and loss; ``copy_weights`` brings its weights to the host."""
        output, loss = self.training_model(*batch)
        if copy_weights:
            self.training_model.copyWeightsToHost()
        return output, loss

    def run(self, num_steps: int, batch: Sequence[Any]) -> None:
        """Train both on one batch.

        Raises:
            AssertionError: an output, a parameter or a loss differs.
        """
        losses = []
        for _ in range(num_steps):
            expected, wanted_loss = self.cpu_step(batch)
            actual, found_loss = self.ipu_step(batch)
            self.assert_close(actual, expected, "Output")
            self.check_parameters()
            losses.append((found_loss.detach(), wanted_loss.detach()))
        actual, expected = (torch.stack([loss.reshape(()) for loss in side]) for side in zip(*losses, strict=True))
        self.assert_close(actual, expected, "loss")

    def assert_close(self, actual: Any, expected: Any, id: str) -> None:
        """Raise ``AssertionError``, which names ``id``, unless both are close."""
        torch.testing.assert_close(
            actual, expected, rtol=self.rtol, atol=self.atol, msg=lambda text: f"{id} was not equal:\n\n{text}\n"
        )

    def benchmark(self, num_steps: int, batch: Sequence[Any], devices: Sequence[str] = ("ipu",)) -> dict[str, float]:
        """Seconds of this machine (not simulated ones) for ``num_steps`` steps after the first: ``ipu_time``,
        ``cpu_time``.

        Raises:
            NotImplementedError: another device than ``ipu`` and ``cpu``.
        """
        steps = {"ipu": lambda: self.ipu_step(batch, copy_weights=False), "cpu": lambda: self.cpu_step(batch)}
        differences = {}
        for device in [devices] if isinstance(devices, str) else devices:
            if device not in steps:
                raise NotImplementedError(f"benchmarking on {device!r}; there are {', '.join(steps)}")
            steps[device]()
            start = time.perf_counter()
            for _ in range(num_steps):
                steps[device]()
            differences[f"{device}_time"] = time.perf_counter() - start
        return differences

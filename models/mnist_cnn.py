"""The network of the PopTorch tutorial on pipelining: two convolutions and two linear layers in four blocks.

Written as a user writes it for PopTorch: ``import poptorch`` finds the simulator after ``ipuperf.install()``. The
tutorial's settings are the defaults of :class:`PipelineOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import poptorch
import torch
from torch import nn

from ipuperf.base.near_names import instead_of

if TYPE_CHECKING:
    from ipuperf.validation.cases import Case
    from ipuperf.validation.programs import Program

BLOCKS = ("B1", "B2", "B3", "B4")
STRATEGIES = ("pipelined", "sharded")


@dataclass(frozen=True)
class PipelineOptions:
    """How the network trains.

    Attributes:
        strategy: ``pipelined`` or ``sharded``.
        offload_optimiser: AdamW's moments live in Streaming Memory and are loaded for the weight update.
        split: blocks of each stage; stage ``i`` runs on IPU ``i``.
        batch_size, gradient_accumulation, device_iterations: images per micro-batch, micro-batches per weight update,
            weight updates per call.
        learning_rate: of AdamW.
        recompute: recompute forwards in the backward stages, PopTorch's default for pipelines (sharded never does).
        return_all: results of every micro-batch (``OutputMode.All``, as in the tutorial), not only of the last.
    """

    strategy: str = "pipelined"
    offload_optimiser: bool = False
    split: Sequence[Sequence[str]] = (("B1",), ("B2",), ("B3",), ("B4",))
    batch_size: int = 40
    gradient_accumulation: int = 10
    device_iterations: int = 10
    learning_rate: float = 1e-3
    recompute: bool = True
    return_all: bool = True

    @property
    def images_per_update(self) -> int:
        """Images of one weight update."""
        return self.batch_size * self.gradient_accumulation

    @property
    def images_per_call(self) -> int:
        """Images of one call of the model."""
        return self.images_per_update * self.device_iterations


class ConvLayer(nn.Module):
    """Convolution, max pooling, ReLU."""

    def __init__(self, in_channels: int, num_filters: int, kernel_size: int, pool_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_filters, kernel_size=kernel_size)
        self.pool = nn.MaxPool2d(kernel_size=pool_size)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, in_channels, height, width)`` to ``(batch, num_filters, ...)``."""
        return self.relu(self.pool(self.conv(x)))


class Network(nn.Module):
    """The classifier: ``(batch, 1, 28, 28)`` to ``(batch, 10)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(1, 10, 5, 2)
        self.layer2 = ConvLayer(10, 20, 5, 2)
        self.layer3 = nn.Linear(320, 256)
        self.layer3_act = nn.ReLU()
        self.layer4 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten classes."""
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = self.layer3_act(self.layer3(x.view(-1, 320)))
        with poptorch.Block("B4"):
            return self.layer4(x)


class NetworkWithLoss(nn.Module):
    """Scores, and with labels also the mean cross entropy."""

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """``labels`` are class numbers of shape ``(batch,)``."""
        output = self.model(images)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            loss = self.loss(output, labels)
        return output, loss


def poptorch_options(options: PipelineOptions) -> poptorch.Options:
    """The options of the training model.

    Raises:
        ValueError: an unknown strategy.
    """
    if options.strategy not in STRATEGIES:
        raise ValueError(f"strategy {options.strategy!r}{instead_of(options.strategy, STRATEGIES)}")
    found = poptorch.Options()
    found.deviceIterations(options.device_iterations)
    found.Training.gradientAccumulation(options.gradient_accumulation)
    stages = [poptorch.Stage(*blocks).ipu(ipu) for ipu, blocks in enumerate(options.split)]
    execution = poptorch.PipelinedExecution if options.strategy == "pipelined" else poptorch.ShardedExecution
    found.setExecutionStrategy(execution(*stages))
    if options.offload_optimiser:
        found.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    if not options.recompute:
        found._Popart.set("autoRecomputation", 0)
    found.outputMode(poptorch.OutputMode.All if options.return_all else poptorch.OutputMode.Final)
    found.showCompilationProgressBar(False)
    return found


def training_model(options: PipelineOptions = PipelineOptions(), seed: int = 0) -> poptorch.PoplarExecutor:
    """A new network, initialised by PyTorch from ``seed``, as a training model with AdamW; ``.model`` is the module."""
    torch.manual_seed(seed)
    model = NetworkWithLoss(Network())
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    return poptorch.trainingModel(model, poptorch_options(options), optimizer=optimizer)


def inference_model(
    training: poptorch.PoplarExecutor, options: PipelineOptions = PipelineOptions(), iterations: int = 100
) -> poptorch.PoplarExecutor:
    """The trained network for ``iterations`` micro-batches a call, pipelined or sharded like the training."""
    found = poptorch_options(options)
    found.deviceIterations(iterations)
    found.Training.gradientAccumulation(1)
    found.outputMode(poptorch.OutputMode.All)
    return poptorch.inferenceModel(training.model.model, found)


def compile_training(options: PipelineOptions) -> None:
    """Compile the training model; time does not depend on the data."""
    count = options.images_per_call
    training_model(options).compile(torch.zeros(count, 1, 28, 28), torch.zeros(count, dtype=torch.long))


def validation_program(case: Case) -> Program:
    """The program of a case of ``ipuperf validate``: pipelined training. ``config`` may say ``return_all``."""
    from ipuperf.runtime.settings import current_settings
    from ipuperf.validation.programs import Program, require

    require(case, mode=("training",), precision=("f32",), optimiser=("adamw",), recompute=("none",), offload=((),),
            sharding=(0,), io=("streams",), prefetch=(1,), pipeline=((1, 1, 1, 1),), replicas=(1,),
            config=({}, {"return_all": True}))  # fmt: skip
    options = PipelineOptions(
        batch_size=case.micro_batch, gradient_accumulation=case.accumulation, return_all=bool(case.config)
    )
    compile_training(options)
    executable = current_settings().executables[-1]
    return Program(executable, options.images_per_call, steps=options.device_iterations, updates=True)

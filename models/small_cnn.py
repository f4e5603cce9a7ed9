"""The network of the PopTorch tutorial on efficient data loading: two convolutions, a group norm, two linear layers.

One IPU for each replica; SGD with momentum, float32, images of 128 x 128 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.classifying import images_and_labels
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "SmallCnn",
    "SmallCnnOptions",
    "batch",
    "model",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]


@dataclass(frozen=True)
class SmallCnnOptions(RunOptions):
    """How it runs (default: as in the tutorial), and the side of the images."""

    image: int = 128
    micro_batch: int = 16
    gradient_accumulation: int = 1
    device_iterations: int = 50
    precision: str = "32.32"
    optimiser: str = "sgd"
    recompute: bool = False
    checkpoint_layers: bool = False


class SmallCnn(nn.Module):
    """``(batch, 1, image, image)`` to logarithms of probabilities of ten classes; with labels also the loss.

    As in the tutorial, the logarithm of the softmax is over the batch.
    """

    def __init__(self, options: SmallCnnOptions) -> None:
        super().__init__()
        side = (options.image - 2) // 2 - 4
        self.places = options.ipu_of_layer(1)
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(12 * side * side, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """``labels`` are of shape ``(batch,)``."""
        with poptorch.Block("Network", ipu_id=self.places[0]):
            x = self.pool(F.relu(self.conv1(images)))
            x = self.norm(F.relu(self.conv2(x)))
            x = F.relu(self.fc1(torch.flatten(x, 1)))
            x = F.log_softmax(self.fc2(x), 0)
            if labels is None:
                return x
            return x, poptorch.identity_loss(F.nll_loss(x, labels), "none")


def model(options: SmallCnnOptions) -> SmallCnn:
    """A new model, initialised by PyTorch."""
    return SmallCnn(options)


def batch(options: SmallCnnOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    shape = (1, options.image, options.image)
    return images_and_labels(options, shape, 10, device, seed)


_RUN = ModelRun(model, batch, {"tutorial": SmallCnnOptions()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program = _RUN.validation_program

"""The network of the PopTorch pipelining tutorial, compiled for four IPUs; needs PyTorch (extra ``torch``)."""

from __future__ import annotations

import importlib.util
from typing import Any

from ipuperf.runtime.executable import Executable
from ipuperf.runtime.settings import current_settings
from ipuperf.validation.errors import NotAvailable


def build(micro_batch: int, accumulation: int, updates: int) -> Executable:
    """``updates`` weight updates of ``accumulation`` micro-batches in one run: 5x5 convolutions to 10 and 20 channels,
    each pooled by two, linear layers 320-256-10, one stage each; AdamW; the last result goes to the host, as in the
    profile that the document shows.

    Raises:
        NotAvailable: PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotAvailable("needs PyTorch: pip install 'ipuperf[torch]'")
    import poptorch
    import torch

    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.deviceIterations(updates)
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(
        poptorch.PipelinedExecution(*[poptorch.Stage(f"B{i}").ipu(i - 1) for i in range(1, 5)])
    )
    model = _network()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.03)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    samples = micro_batch * accumulation * updates
    training.compile(torch.zeros(samples, 1, 28, 28), torch.zeros(samples, dtype=torch.long))
    return current_settings().executables[-1]


def _network() -> Any:
    """The module; its stages are blocks B1 to B4, the loss is part of the last one."""
    import poptorch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
            self.third = nn.Sequential(nn.Linear(320, 256), nn.ReLU())
            self.fourth = nn.Linear(256, 10)
            self.loss = nn.CrossEntropyLoss()

        def forward(self, images: Any, labels: Any) -> Any:
            with poptorch.Block("B1"):
                x = self.first(images)
            with poptorch.Block("B2"):
                x = self.second(x)
            with poptorch.Block("B3"):
                x = self.third(x.view(-1, 320))
            with poptorch.Block("B4"):
                x = self.fourth(x)
                loss = self.loss(x, labels)
            return x, loss

    return Network()

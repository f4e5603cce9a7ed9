"""Speed of PopTorch programs against PyTorch: training steps against eager float32, and how long compiling takes.

CPU seconds of one thread. A step is measured in turns with PyTorch's own of the same model; compiling is that of a
process that has compiled nothing before, against a Python loop in that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from bounds import LOOP, Row, cpu_seconds, in_turns
from torch import nn

import ipuperf

BATCH = 8
NEW, CACHED, AGAIN = "compile BERT-Large, 16 IPUs", "... from the cache on disk", "... with another accumulation"
BOUNDS = MappingProxyType(
    {
        "step: MNIST CNN, float32": 1.3,
        "step: ResNet-18 (CIFAR), float32": 1.3,
        "step: tiny BERT, float32": 0.85,
        "step: tiny BERT, float16": 0.95,
        NEW: 60.0,
        CACHED: 9.0,
        AGAIN: 6.0,
    }
)


class MnistCnn(nn.Module):
    """Two convolutions with pooling, two linear layers (the network of PopTorch's first tutorial)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Loss of ``(batch, 1, 28, 28)``."""
        return nn.functional.cross_entropy(self.classes(self.features(x)), labels)


class Block(nn.Module):
    """Two 3x3 convolutions with batch norms beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.norm_one, self.norm_two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        projected = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut: nn.Module = nn.Identity() if before == after and stride == 1 else projected

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, before, height, width)`` to ``(batch, after, ...)``."""
        y = self.norm_two(self.two(torch.relu(self.norm_one(self.one(x)))))
        return torch.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:], strict=False)]
        self.begin = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks, self.classes = nn.Sequential(*blocks), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        """Loss of ``(batch, 3, 32, 32)``."""
        return nn.functional.cross_entropy(self.classes(self.blocks(self.begin(x)).mean((2, 3))), labels)


def _images(channels: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, channels, size, size, generator=generator)
    return images, torch.randint(0, 10, (BATCH,), generator=generator)


def _eager(module: nn.Module, optimiser: torch.optim.Optimizer, batch: Any) -> Callable[[], object]:
    def step() -> None:
        optimiser.zero_grad()
        found = module(*batch)
        (found[0] if isinstance(found, tuple) else found).backward()
        optimiser.step()

    return step


def cnn(build: Callable[[], nn.Module], channels: int, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A training step (SGD with momentum, batch 8) here and in PyTorch."""
    import poptorch

    batch = _images(channels, size)
    torch.manual_seed(0)
    ours, theirs = build(), build()

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ours

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.inner(x, labels), "none")

    optimiser = poptorch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9)
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    model = poptorch.trainingModel(WithLoss(), options, optimizer=optimiser)
    eager = _eager(theirs.train(), torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9), batch)
    return lambda: model(*batch), eager


def tiny_bert(precision: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A training step (AdamW, 8 sequences of 128 tokens, 4 layers, hidden size 256) here and in PyTorch, float32."""
    from ipuperf.models import bert
    from ipuperf.models.ipu_run import cast, optimiser_of, poptorch_options
    from ipuperf.poptorch import trainingModel

    options = bert.base(
        layers=4, hidden=256, heads=4, feed_forward=1024, vocabulary=8192, layers_per_ipu=(4,), micro_batch=BATCH,
        gradient_accumulation=1, optimiser="adamw", precision=precision, recompute=False,
    )  # fmt: skip
    batch = bert.batch(options)
    ours = cast(bert.model(options), options)
    model = trainingModel(ours, poptorch_options(options), optimizer=optimiser_of(ours, options))
    theirs = bert.model(options)
    numbers = [value.long() if value.dtype == torch.int32 else value for value in batch]
    return lambda: model(*batch), _eager(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-4), numbers)


def steps(repeats: int) -> list[Row]:
    """A row for each model."""
    cases = {
        "MNIST CNN, float32": lambda: cnn(MnistCnn, 1, 28),
        "ResNet-18 (CIFAR), float32": lambda: cnn(ResNet18, 3, 32),
        "tiny BERT, float32": lambda: tiny_bert("32.32"),
        "tiny BERT, float16": lambda: tiny_bert("16.16"),
    }
    found = []
    for name, make in cases.items():
        seconds, reference = in_turns(*make(), repeats)
        found.append(Row(f"step: {name}", seconds, "PyTorch eager, float32", reference))
    return found


def compile_seconds(accumulation: int) -> float:
    """CPU seconds of compiling and lowering BERT-Large on 16 IPUs (four replicas of four stages)."""
    from ipuperf.models import bert, ipu_run

    options = bert.large(replicas=4, gradient_accumulation=accumulation)
    with torch.device("meta"), ipu_run._WithoutRandomNumbers():
        model = ipu_run.cast(bert.model(options), options).train()
    arguments = bert.batch(options, "meta")
    optimiser = ipu_run.optimiser_of(model, options)

    def compiled() -> None:
        model_options = ipu_run.poptorch_options(options)
        found = ipu_run.poptorch.compile_offline(model, model_options, *arguments, training=True, optimizer=optimiser)
        assert found.executable.device_program is not None

    return cpu_seconds(compiled)


def compiling() -> list[Row]:
    """Three rows: the first compilation of a process, the same from the cache on disk, and (after either) one more with
    another accumulation count."""
    with tempfile.TemporaryDirectory() as folder:
        new, cached = _compiling_process(folder), _compiling_process(folder)
    loop = (new[2] + cached[2]) / 2
    again = min(new[1], cached[1])
    return [Row(NEW, new[0], LOOP, loop), Row(CACHED, cached[0], LOOP, loop), Row(AGAIN, again, LOOP, loop)]


def _compiling_process(folder: str) -> tuple[float, ...]:
    """CPU seconds of two compilations and of the loop in a process of their own, with this cache."""
    code = (
        "import bounds, torch_models as t; t.prepare()\n"
        "print(t.compile_seconds(64), t.compile_seconds(128), bounds.loop_seconds())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "POPTORCH_CACHE_DIR": folder, "IPUPERF_CACHE": folder},
    )
    return tuple(float(word) for word in done.stdout.split()[-3:])


def prepare() -> None:
    """One thread, PopTorch under its name."""
    ipuperf.install()
    torch.set_num_threads(1)


def rows(repeats: int) -> list[Row]:
    """All rows."""
    prepare()
    return [*steps(min(repeats, 5)), *compiling()]

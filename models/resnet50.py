"""ResNet-50 v1.5 (the stride of a residual block is in its 3x3 convolution) with batch or group norm, and ResNeXt-101,
whose 3x3 convolutions are in groups.

``layers_per_ipu`` counts the sixteen residual blocks (of ResNeXt: 33): ``(16,)`` for one IPU, ``(7, 9)`` or
``(3, 4, 6, 3)`` for pipelines. The first convolution is with the first residual block, the classifier with the last.
Batch statistics are those of a micro-batch on one replica, or on several neighbouring ones (``norm_replicas``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.base.near_names import instead_of
from ipuperf.models.classifying import images_and_labels, scores_and_loss
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "ResNet50",
    "ResNet50Options",
    "batch",
    "mlperf",
    "model",
    "placed_layers",
    "poptorch_options",
    "pretraining",
    "resnext101",
    "simulate",
    "throughput",
    "validation_program",
]

NORMS = ("batch", "group", "folded")
_MEAN, _DEVIATION = 0.45, 0.226
"""Of the pixels of ImageNet, as the mean of the three channels."""


@dataclass(frozen=True)
class ResNet50Options(RunOptions):
    """Sizes and how it runs.

    Attributes:
        image: side of the square images; a multiple of 32.
        width: channels of the first convolution (64 in ResNet-50).
        blocks: residual blocks of each of the four groups.
        norm, groups: ``batch``, ``group`` (with so many groups) or ``folded``: no norms, but biases of convolutions,
            as an inference has it whose batch norms have been folded into the weights.
        cardinality, group_width: groups of the 3x3 convolution of a block, and channels of each in the first blocks; 0:
            as many channels as the width says.
        eight_bit_io: images arrive as bytes and are normalised on the IPU.
        label_smoothing: of the cross entropy.
        kept_blocks: with checkpoints, the residual blocks (from 0) whose results are checkpoints; empty: all but the
            last.
    """

    image: int = 224
    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    norm: str = "batch"
    groups: int = 4
    cardinality: int = 1
    group_width: int = 0
    eight_bit_io: bool = True
    label_smoothing: float = 0.1
    kept_blocks: tuple[int, ...] = ()
    layers_per_ipu: tuple[int, ...] = (16,)
    optimiser: str = "sgd"
    half_momentum: bool = True
    memory_proportions: tuple[float, ...] = (0.16,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in NORMS:
            raise ValueError(f"norm {self.norm!r}{instead_of(self.norm, NORMS)}")
        for block in self.kept_blocks:
            if not 0 <= block < sum(self.blocks):
                raise ValueError(f"kept_blocks {self.kept_blocks}: allowed are blocks 0 to {sum(self.blocks) - 1}")

    def keeps(self, block: int) -> bool:
        """Whether the result of a residual block is a checkpoint."""
        wanted = block in self.kept_blocks if self.kept_blocks else block < sum(self.blocks) - 1
        return wanted and self.training and self.recompute and self.checkpoint_layers


def pretraining(**changes: Any) -> ResNet50Options:
    """Training on ImageNet, one IPU for each replica.

    The checkpoints are those of configuration ``resnet50`` of ``examples:vision/cnns/pytorch/train/configs.yml``
    (sums of residual blocks; nothing of the last group is recomputed there but its activation functions, here nothing).
    """
    options = ResNet50Options(
        micro_batch=18, replicas=16, gradient_accumulation=57, kept_blocks=(0, 1, 2, 3, 5, 6, 7, 9, 11, 12)
    )
    return replace(options, **changes)


def mlperf(**changes: Any) -> ResNet50Options:
    """Training as submitted to MLPerf, one IPU for each replica.

    ``examples:vision/cnns/tensorflow1/training/configs.yml``, ``resnet50_mlperf_pod16_bs20``: seven stages on one IPU,
    of which a sequential schedule recomputes all but the last; a cut is a checkpoint here.
    """
    options = ResNet50Options(
        micro_batch=20,
        replicas=16,
        gradient_accumulation=6,
        kept_blocks=(0, 2, 3, 5, 7, 10),
        memory_proportions=(0.15,),
    )
    return replace(options, **changes)


def resnext101(**changes: Any) -> ResNet50Options:
    """ResNeXt-101 32x4d with group norm on two IPUs, as upstream trains it (the first IPU ends after the fourth block
    of the third group)."""
    options = ResNet50Options(
        blocks=(3, 4, 23, 3),
        norm="group",
        groups=32,
        strided_groups=True,
        cardinality=32,
        group_width=4,
        layers_per_ipu=(11, 22),
        micro_batch=6,
        replicas=8,
        gradient_accumulation=16,
    )
    return replace(options, **changes)


def _norm(options: ResNet50Options, channels: int) -> nn.Module:
    if options.norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(options.groups, channels) if options.norm == "group" else nn.Identity()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with norms, added to the input, which a 1x1 convolution fits where it must."""

    def __init__(self, options: ResNet50Options, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer, bias, groups = 4 * inner, options.norm == "folded", options.cardinality
        if options.group_width:
            inner = inner * groups * options.group_width // options.width
        self.reduce = nn.Conv2d(channels, inner, 1, bias=bias)
        self.reduce_norm = _norm(options, inner)
        self.spatial = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=groups, bias=bias)
        self.spatial_norm = _norm(options, inner)
        self.expand = nn.Conv2d(inner, outer, 1, bias=bias)
        self.expand_norm = _norm(options, outer)
        self.shortcut: nn.Module | None = None
        if channels != outer or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride=stride, bias=bias), _norm(options, outer)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, channels, height, width)``."""
        inner = F.relu(self.reduce_norm(self.reduce(x)))
        inner = F.relu(self.spatial_norm(self.spatial(inner)))
        inner = self.expand_norm(self.expand(inner))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    """The classifier; with labels it gives the loss too."""

    def __init__(self, options: ResNet50Options) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(sum(options.blocks))
        self.stem = nn.Conv2d(3, options.width, 7, stride=2, padding=3, bias=options.norm == "folded")
        self.stem_norm = _norm(options, options.width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        found, channels = [], options.width
        for group, count in enumerate(options.blocks):
            inner = options.width << group
            for number in range(count):
                found.append(Bottleneck(options, channels, inner, 2 if group and not number else 1))
                channels = 4 * inner
        self.blocks = nn.ModuleList(found)
        self.classifier = nn.Linear(channels, options.classes)

    def entered(self, images: torch.Tensor) -> torch.Tensor:
        """Images normalised where they are bytes, and through the first convolution."""
        if self.options.eight_bit_io:
            images = (images.to(self.stem.weight.dtype) - 255 * _MEAN) * (1 / (255 * _DEVIATION))
        return self.pool(F.relu(self.stem_norm(self.stem(images))))

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Scores; with ``labels`` of shape ``(batch,)`` scores and loss."""
        x, last = images, len(self.blocks) - 1
        for number, (ipu, block) in enumerate(zip(self.places, self.blocks, strict=True)):
            with poptorch.Block(f"Block{number}", ipu_id=ipu):
                x = block(x if number else self.entered(images))
                if self.options.keeps(number) and self.training:
                    x = poptorch.recomputationCheckpoint(x)
                if number < last:
                    continue
                scores = self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
                return scores_and_loss(scores, labels, self.options.label_smoothing)
        raise ValueError("the model has no residual blocks")


def model(options: ResNet50Options) -> ResNet50:
    """A new model, initialised by PyTorch."""
    return ResNet50(options)


def batch(options: ResNet50Options, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    shape = (3, options.image, options.image)
    return images_and_labels(options, shape, options.classes, device, seed, eight_bit=options.eight_bit_io)


_RUN = ModelRun(
    model,
    batch,
    {
        "mlperf": mlperf(),
        "pretraining": pretraining(),
        "inference": ResNet50Options(norm="folded", memory_proportions=()),
        "resnext101": resnext101(),
    },
)
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

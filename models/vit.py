"""ViT, the vision transformer: images as sequences of patches (B/16: base, patches of 16 x 16 pixels).

The patches are embedded on the IPU of the first layer and classified on that of the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import poptorch
import torch
from torch import nn

from ipuperf.models.attention import PreNormLayer
from ipuperf.models.classifying import images_and_labels, scores_and_loss
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "Vit",
    "VitOptions",
    "batch",
    "fine_tuning",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]


@dataclass(frozen=True)
class VitOptions(RunOptions):
    """Sizes (default: B/16 for images of 224 x 224) and how it runs.

    Attributes:
        image, patch: sides of images and patches in pixels.
        inner_dropout: probability to drop what the activation of a feed-forward part gives.
        split_qkv: three products instead of one for queries, keys and values.
        scale_scores: scores are scaled, not queries.
        attention_grain: attention is padded to a multiple of so many places.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    image: int = 224
    patch: int = 16
    classes: int = 1000
    dropout: float = 0.1
    attention_dropout: float = 0.0
    inner_dropout: float = 0.0
    split_qkv: bool = False
    scale_scores: bool = True
    attention_grain: int = 1
    epsilon: float = 1e-6
    layers_per_ipu: tuple[int, ...] = (3, 3, 3, 3)
    optimiser: str = "sgd"
    half_momentum: bool = True
    sharding: bool = True
    memory_proportions: tuple[float, ...] = (0.3,)

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2


def fine_tuning(**changes: Any) -> VitOptions:
    """Fine-tuning on ImageNet as upstream does it on sixteen IPUs."""
    options = VitOptions(micro_batch=17, gradient_accumulation=30, replicas=4, device_iterations=8)
    return replace(options, **changes)


class Vit(nn.Module):
    """The classifier; with labels it gives the loss too."""

    def __init__(self, options: VitOptions) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(options.layers)
        self.patches = nn.Conv2d(3, options.hidden, options.patch, stride=options.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, options.hidden))
        self.positions = nn.Parameter(torch.zeros(1, options.patches + 1, options.hidden))
        self.dropout = nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(
            PreNormLayer(
                options.hidden,
                options.heads,
                options.feed_forward,
                epsilon=options.epsilon,
                dropout=options.dropout,
                attention_dropout=options.attention_dropout,
                scale_scores=options.scale_scores,
                split_qkv=options.split_qkv,
                inner_dropout=options.inner_dropout,
                grain=options.attention_grain,
            )
            for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.hidden, options.epsilon)
        self.classifier = nn.Linear(options.hidden, options.classes)

    def embedded(self, images: torch.Tensor) -> torch.Tensor:
        """Patches behind a learned first token, with positions."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.first.expand(patches.shape[0], -1, -1)
        return self.dropout(torch.cat([first, patches], dim=1) + self.positions)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Scores of ``(batch, 3, image, image)``; with ``labels`` of shape ``(batch,)`` scores and loss."""
        with poptorch.Block("Embedding", ipu_id=self.places[0]):
            x = self.embedded(images)
        for number, (ipu, layer) in enumerate(zip(self.places, self.layers, strict=True)):
            with poptorch.Block(f"Layer{number}", ipu_id=ipu):
                x = layer(x)
                if self.options.checkpoint_layers and self.training:
                    x = poptorch.recomputationCheckpoint(x)
        with poptorch.Block("Classifier", ipu_id=self.places[-1]):
            return scores_and_loss(self.classifier(self.norm(x)[:, 0]), labels)


def model(options: VitOptions) -> Vit:
    """A new model, initialised by PyTorch."""
    return Vit(options)


def batch(options: VitOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    shape = (3, options.image, options.image)
    return images_and_labels(options, shape, options.classes, device, seed)


_RUN = ModelRun(model, batch, {"base": VitOptions(), "fine_tuning": fine_tuning()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

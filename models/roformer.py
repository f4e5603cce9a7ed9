"""RoFormer v2, a classifier of sequences: BERT without biases, with ReLU, rotary positions and norms without mean.

Sizes are those of ``roformer_v2_chinese_char_small``; post-norm layers, whose norms have no parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.classifying import scores_and_loss
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "Roformer",
    "RoformerOptions",
    "batch",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]

_MASKED_OUT = -10000.0


@dataclass(frozen=True)
class RoformerOptions(RunOptions):
    """Sizes (default: the small model) and how it runs."""

    layers: int = 6
    hidden: int = 384
    heads: int = 6
    feed_forward: int = 1536
    vocabulary: int = 12000
    sequence: int = 128
    classes: int = 2
    dropout: float = 0.1
    epsilon: float = 1e-7
    layers_per_ipu: tuple[int, ...] = (6,)


def rotations(sequence: int, size: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the angle by which each pair of neighbouring features turns: ``(sequence, size / 2)``."""
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(sequence, device=device)[:, None] * rates
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """``(..., sequence, size)``: features ``2i`` and ``2i + 1`` of each token turned by its angle ``i``."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    one, two = pairs[..., 0], pairs[..., 1]
    return torch.stack([one * cosine - two * sine, one * sine + two * cosine], dim=-1).reshape(x.shape)


class PlainNorm(nn.Module):
    """The last axis divided by the root of its mean square."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


class Layer(nn.Module):
    """Attention, add, norm; feed-forward with ReLU, add, norm."""

    def __init__(self, options: RoformerOptions) -> None:
        super().__init__()
        if options.hidden % (2 * options.heads):
            raise ValueError(f"hidden size {options.hidden} gives no even size to {options.heads} heads")
        hidden, size = options.hidden, options.hidden // options.heads
        self.heads, self.size = options.heads, size
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up, self.down = (
            nn.Linear(hidden, options.feed_forward, bias=False),
            nn.Linear(options.feed_forward, hidden, bias=False),
        )
        self.norm, self.dropout = PlainNorm(options.epsilon), nn.Dropout(options.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """``(batch, sequence, hidden)`` to the same."""
        shape = (x.shape[0], x.shape[1], self.heads, self.size)
        q, k, v = (linear(x).reshape(shape).transpose(1, 2) for linear in (self.query, self.key, self.value))
        scores = rotated(q, cosine, sine) @ rotated(k, cosine, sine).transpose(2, 3) * self.size**-0.5 + mask
        context = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape)
        x = self.norm(x + self.dropout(self.output(context)))
        return self.norm(x + self.dropout(self.down(F.relu(self.up(x)))))


class Roformer(nn.Module):
    """The classifier; with labels it gives the loss too."""

    def __init__(self, options: RoformerOptions) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(options.layers)
        self.words = nn.Embedding(options.vocabulary, options.hidden)
        self.segments = nn.Embedding(2, options.hidden)
        self.norm, self.dropout = PlainNorm(options.epsilon), nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.dense = nn.Linear(options.hidden, options.hidden)
        self.classifier = nn.Linear(options.hidden, options.classes)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> Any:
        """Scores of ``(batch, sequence)`` each; with ``labels`` of shape ``(batch,)`` scores and loss."""
        with poptorch.Block("Embeddings", ipu_id=self.places[0]):
            x = self.dropout(self.norm(self.words(tokens) + self.segments(segments)))
        size = self.options.hidden // self.options.heads
        for number, (ipu, layer) in enumerate(zip(self.places, self.layers, strict=True)):
            with poptorch.Block(f"Layer{number}", ipu_id=ipu):
                cosine, sine = (t.to(x.dtype) for t in rotations(tokens.shape[1], size, tokens.device))
                added = (mask[:, None, None, :].to(x.dtype) - 1) * -_MASKED_OUT
                x = layer(x, added, cosine, sine)
                if self.options.checkpoint_layers and self.training:
                    x = poptorch.recomputationCheckpoint(x)
        with poptorch.Block("Classifier", ipu_id=self.places[-1]):
            return scores_and_loss(self.classifier(self.dropout(self.dense(self.dropout(x[:, 0])))), labels)


def model(options: RoformerOptions) -> Roformer:
    """A new model, initialised by PyTorch."""
    return Roformer(options)


def batch(options: RoformerOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    rows = options.samples_per_call
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)

    def numbers(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32, device=device)

    shape = (rows, options.sequence)
    found = [numbers(options.vocabulary, *shape), numbers(2, *shape), numbers(2, *shape, low=1)]
    return [*found, numbers(options.classes, rows)] if options.training else found


_RUN = ModelRun(model, batch, {"small": RoformerOptions()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

"""CLIP for inference: how well each image fits each of some texts (default: ViT-B/32), or its encoder of texts alone.

Images are encoded by a vision transformer, texts by a causal transformer whose feature at the last token counts. All
runs on one IPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ipuperf.models.attention import PreNormLayer
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "Clip",
    "ClipOptions",
    "batch",
    "model",
    "poptorch_options",
    "simulate",
    "text_encoder",
    "throughput",
    "validation_program",
]


@dataclass(frozen=True)
class ClipOptions(RunOptions):
    """Sizes (default: ViT-B/32) and how it runs.

    Attributes:
        image, patch, image_hidden, image_heads: the encoder of images; ``layers`` of both encoders.
        texts, sequence, vocabulary, text_hidden, text_heads: the encoder of texts; the texts of a micro-batch.
        shared: size of the space in which images and texts are compared.
        images: False: the encoder of texts alone, a micro-batch of them; it gives the features of every token.
    """

    training: bool = False
    layers: int = 12
    image: int = 224
    patch: int = 32
    image_hidden: int = 768
    image_heads: int = 12
    texts: int = 100
    sequence: int = 77
    vocabulary: int = 49408
    text_hidden: int = 512
    text_heads: int = 8
    shared: int = 512
    images: bool = True
    epsilon: float = 1e-5
    layers_per_ipu: tuple[int, ...] = (12,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training or len(self.layers_per_ipu) > 1:
            raise ValueError(
                f"training {self.training}, {len(self.layers_per_ipu)} IPUs; allowed: inference on one IPU"
            )


def text_encoder(**changes: Any) -> ClipOptions:
    """The encoder of texts of ViT-L/14, as diffusion models use it."""
    return replace(ClipOptions(images=False, text_hidden=768, text_heads=12), **changes)


class QuickGelu(nn.Module):
    """``x sigmoid(1.702 x)``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return x * torch.sigmoid(1.702 * x)


def _transformer(options: ClipOptions, hidden: int, heads: int, *, causal: bool) -> nn.Sequential:
    layers = (
        PreNormLayer(hidden, heads, 4 * hidden, epsilon=options.epsilon, causal=causal, activation=QuickGelu())
        for _ in range(options.layers)
    )
    return nn.Sequential(*layers)


class Images(nn.Module):
    """``(batch, 3, image, image)`` to ``(batch, shared)``."""

    def __init__(self, options: ClipOptions) -> None:
        super().__init__()
        hidden, count = options.image_hidden, (options.image // options.patch) ** 2
        self.patches = nn.Conv2d(3, hidden, options.patch, stride=options.patch, bias=False)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, count + 1, hidden))
        self.norm_before, self.norm_after = (nn.LayerNorm(hidden, options.epsilon) for _ in range(2))
        self.layers = _transformer(options, hidden, options.image_heads, causal=False)
        self.projection = nn.Linear(hidden, options.shared, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features of the images."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(patches.shape[0], -1, -1), patches], dim=1) + self.positions
        return self.projection(self.norm_after(self.layers(self.norm_before(x))[:, 0]))


class Texts(nn.Module):
    """``(texts, sequence)`` to ``(texts, shared)``; alone to the features of every token."""

    def __init__(self, options: ClipOptions) -> None:
        super().__init__()
        hidden = options.text_hidden
        self.words = nn.Embedding(options.vocabulary, hidden)
        self.positions = nn.Parameter(torch.zeros(options.sequence, hidden))
        self.layers = _transformer(options, hidden, options.text_heads, causal=True)
        self.norm = nn.LayerNorm(hidden, options.epsilon)
        self.projection = nn.Linear(hidden, options.shared, bias=False) if options.images else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The last token of a text has the highest number."""
        x = self.norm(self.layers(self.words(tokens) + self.positions))
        if self.projection is None:
            return x
        places = torch.arange(tokens.shape[1], device=tokens.device)
        last = (places == tokens.argmax(1, keepdim=True)).to(x.dtype)  # a row with one 1 for each text
        return self.projection((last.unsqueeze(1) @ x).squeeze(1))


class Clip(nn.Module):
    """Scores of images for texts and of texts for images; without an encoder of images the features of tokens."""

    def __init__(self, options: ClipOptions) -> None:
        super().__init__()
        self.images = Images(options) if options.images else None
        self.texts = Texts(options)
        self.scale = nn.Parameter(torch.zeros(()) + 2.66) if options.images else None

    def forward(self, first: torch.Tensor, texts: torch.Tensor | None = None) -> Any:
        """Images and texts, or texts alone."""
        if self.images is None or self.scale is None:
            return self.texts(first)
        if texts is None:
            raise ValueError("images without texts; CLIP compares both")
        one, two = (x / x.norm(dim=1, keepdim=True) for x in (self.images(first), self.texts(texts)))
        scores = self.scale.exp() * one @ two.t()
        return scores, scores.t()


def model(options: ClipOptions) -> Clip:
    """A new model, initialised by PyTorch."""
    return Clip(options)


def batch(options: ClipOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    rows = options.samples_per_call
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)
    texts = options.texts * options.micro_batches_per_call if options.images else rows
    tokens = torch.randint(
        0, options.vocabulary, (texts, options.sequence), generator=generator, dtype=torch.int32, device=device
    )
    if not options.images:
        return [tokens]
    shape = (rows, 3, options.image, options.image)
    return [torch.randn(shape, generator=generator, device=device).to(options.dtype), tokens]


_RUN = ModelRun(model, batch, {"base": ClipOptions(), "text_encoder": text_encoder()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program = _RUN.validation_program

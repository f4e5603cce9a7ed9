"""Swin: a vision transformer whose tokens attend within windows, which are shifted in every other layer.

The bias of each pair of places in a window is a parameter of its own here; it is taken out of the table of relative
positions before the program is built, as exported models for inference have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.attention import UNSEEN, ExportedGelu, FeedForward
from ipuperf.models.classifying import images_and_labels, scores_and_loss
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "Swin",
    "SwinOptions",
    "batch",
    "large",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "throughput",
    "tiny",
    "validation_program",
]

_MASKED_OUT = -100.0


@dataclass(frozen=True)
class SwinOptions(RunOptions):
    """Sizes (default: Swin-T for images of 224 x 224) and how it runs.

    Attributes:
        image, patch, window: sides in pixels, pixels and patches.
        width: features of the first group; each further group has twice as many.
        depths, heads: layers and attention heads of each group. ``layers_per_ipu`` counts the layers of all groups.
        split_qkv, scale_scores: three products for queries, keys and values, and scores that are scaled in place of
            queries, as Hugging Face's Swin has both (``modeling_swin.py``). Microsoft's has neither.
        exported_gelu: GELU in single ops (:class:`~.attention.ExportedGelu`).
        attention_grain: attention is padded to a multiple of so many places, which the bias hides.
    """

    image: int = 224
    patch: int = 4
    window: int = 7
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    classes: int = 1000
    epsilon: float = 1e-5
    split_qkv: bool = False
    scale_scores: bool = False
    exported_gelu: bool = False
    attention_grain: int = 1
    layers_per_ipu: tuple[int, ...] = (12,)


def tiny(**changes: Any) -> SwinOptions:
    """Swin-T."""
    return replace(SwinOptions(), **changes)


def large(**changes: Any) -> SwinOptions:
    """Swin-L for images of 384 x 384 (windows of 12)."""
    options = SwinOptions(
        image=384, window=12, width=192, depths=(2, 2, 18, 2), heads=(6, 12, 24, 48), layers_per_ipu=(24,)
    )
    return replace(options, **changes)


def windows_of(x: torch.Tensor, window: int) -> torch.Tensor:
    """``(batch, side, side, features)`` to ``(batch * windows, window**2, features)``."""
    batch, side, _, features = x.shape
    parts = x.reshape(batch, side // window, window, side // window, window, features)
    return parts.transpose(2, 3).reshape(-1, window * window, features)


def joined(windows: torch.Tensor, window: int, side: int) -> torch.Tensor:
    """The inverse of :func:`windows_of`."""
    features, count = windows.shape[2], side // window
    parts = windows.reshape(-1, count, count, window, window, features)
    return parts.transpose(2, 3).reshape(-1, side, side, features)


def shift_mask(side: int, window: int) -> torch.Tensor:
    """What is added to the scores of shifted windows, ``(windows, window**2, window**2)``: the last windows hold
    patches of opposite edges, which must not see each other."""
    shift = window // 2
    region = torch.zeros(side)
    region[-window:] = 1
    region[-shift:] = 2
    regions = windows_of((3 * region[:, None] + region[None, :])[None, :, :, None], window).squeeze(2)
    return torch.where(regions[:, :, None] == regions[:, None, :], 0.0, _MASKED_OUT)


class WindowAttention(nn.Module):
    """Attention within the windows of ``(batch, side, side, hidden)``."""

    mask: torch.Tensor | None

    def __init__(self, options: SwinOptions, group: int, side: int, *, shifted: bool) -> None:
        super().__init__()
        hidden, heads, window = options.width << group, options.heads[group], options.window
        if side % window:
            raise ValueError(f"windows of {window} patches do not fill a side of {side} patches")
        self.heads, self.window, self.shift = heads, window, window // 2 if shifted else 0
        self.scale_scores = options.scale_scores
        places = window * window
        self.padding = -places % options.attention_grain
        widths = [hidden] * 3 if options.split_qkv else [3 * hidden]
        self.inputs = nn.ModuleList([nn.Linear(hidden, width) for width in widths])
        self.output = nn.Linear(hidden, hidden)
        bias = F.pad(torch.zeros(heads, places, places), (0, 0, 0, self.padding))
        self.bias = nn.Parameter(F.pad(bias, (0, self.padding), value=UNSEEN))
        mask = F.pad(shift_mask(side, window), (0, self.padding, 0, self.padding)) if shifted else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        side, hidden = x.shape[1], x.shape[3]
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        windows = windows_of(x, self.window)
        places = windows.shape[1]
        q, k, v = self.queries_keys_values(windows)
        if self.padding:
            q, k, v = (F.pad(part, (0, 0, 0, self.padding)) for part in (q, k, v))
        scale = (hidden // self.heads) ** -0.5
        scores = (q @ k.transpose(2, 3) * scale if self.scale_scores else q * scale @ k.transpose(2, 3)) + self.bias
        if self.mask is not None:
            count = self.mask.shape[0]
            apart = scores.reshape(-1, count, *scores.shape[1:]) + self.mask[:, None].to(scores.dtype)
            scores = apart.reshape(scores.shape)
        context = (torch.softmax(scores, -1) @ v)[:, :, :places].transpose(1, 2).reshape(windows.shape)
        x = joined(self.output(context), self.window, side)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x

    def queries_keys_values(self, windows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Three tensors ``(windows, heads, places, features of a head)``."""
        count, places, hidden = windows.shape
        shape = (count, places, self.heads, hidden // self.heads)
        if len(self.inputs) == 1:
            return self.inputs[0](windows).reshape(count, places, 3, *shape[2:]).permute(2, 0, 3, 1, 4).unbind(0)
        return [linear(windows).reshape(shape).transpose(1, 2) for linear in self.inputs]


class Layer(nn.Module):
    """Norm, attention, add; norm, feed-forward, add."""

    def __init__(self, options: SwinOptions, group: int, side: int, *, shifted: bool) -> None:
        super().__init__()
        hidden = options.width << group
        self.attention_norm = nn.LayerNorm(hidden, options.epsilon)
        self.attention = WindowAttention(options, group, side, shifted=shifted)
        self.feed_forward_norm = nn.LayerNorm(hidden, options.epsilon)
        self.feed_forward = FeedForward(hidden, 4 * hidden, ExportedGelu() if options.exported_gelu else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, side, side, hidden)`` to the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Merging(nn.Module):
    """Four neighbouring patches to one with twice the features."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * hidden, epsilon)
        self.reduction = nn.Linear(4 * hidden, 2 * hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, side, side, hidden)`` to ``(batch, side / 2, side / 2, 2 hidden)``."""
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(parts, dim=3)))


class Swin(nn.Module):
    """The classifier; with labels it gives the loss too."""

    def __init__(self, options: SwinOptions) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(sum(options.depths))
        self.patches = nn.Conv2d(3, options.width, options.patch, stride=options.patch)
        self.patch_norm = nn.LayerNorm(options.width, options.epsilon)
        side = options.image // options.patch
        layers: list[Layer] = []
        merging: dict[str, Merging] = {}
        for group, depth in enumerate(options.depths):
            if group:
                merging[str(len(layers))] = Merging(options.width << (group - 1), options.epsilon)
                side //= 2
            shifts = side > options.window  # a single window cannot be shifted
            layers += [Layer(options, group, side, shifted=bool(number % 2) and shifts) for number in range(depth)]
        self.layers, self.merging = nn.ModuleList(layers), nn.ModuleDict(merging)
        hidden = options.width << (len(options.depths) - 1)
        self.norm, self.classifier = nn.LayerNorm(hidden, options.epsilon), nn.Linear(hidden, options.classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Scores of ``(batch, 3, image, image)``; with ``labels`` of shape ``(batch,)`` scores and loss."""
        with poptorch.Block("Embedding", ipu_id=self.places[0]):
            x = self.patch_norm(self.patches(images).permute(0, 2, 3, 1))
        for number, (ipu, layer) in enumerate(zip(self.places, self.layers, strict=True)):
            with poptorch.Block(f"Layer{number}", ipu_id=ipu):
                if str(number) in self.merging:
                    x = self.merging[str(number)](x)
                x = layer(x)
                if self.options.checkpoint_layers and self.training:
                    x = poptorch.recomputationCheckpoint(x)
        with poptorch.Block("Classifier", ipu_id=self.places[-1]):
            return scores_and_loss(self.classifier(self.norm(x).mean((1, 2))), labels)


def model(options: SwinOptions) -> Swin:
    """A new model, initialised by PyTorch."""
    return Swin(options)


def batch(options: SwinOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    shape = (3, options.image, options.image)
    return images_and_labels(options, shape, options.classes, device, seed)


_RUN = ModelRun(model, batch, {"tiny": tiny(), "large": large()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

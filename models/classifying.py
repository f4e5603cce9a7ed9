"""What the classifiers of this package share: a batch of images with labels, and the end of a classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import poptorch
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from ipuperf.models.ipu_run import RunOptions


def images_and_labels(
    options: RunOptions,
    shape: tuple[int, ...],
    classes: int,
    device: str = "cpu",
    seed: int = 0,
    *,
    eight_bit: bool = False,
) -> list[torch.Tensor]:
    """Random arguments of one call: images of ``shape`` (channels, rows, columns), and in training their labels.

    Images are normal numbers of the type of the model, with ``eight_bit`` bytes. On ``meta`` only the shapes.
    """
    rows = options.samples_per_call
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)
    if eight_bit:
        images = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8, device=device)
    else:
        images = torch.randn((rows, *shape), generator=generator, device=device).to(options.dtype)
    labels = torch.randint(0, classes, (rows,), generator=generator, device=device)
    return [images, labels] if options.training else [images]


def scores_and_loss(scores: torch.Tensor, labels: torch.Tensor | None, smoothing: float = 0.0) -> Any:
    """Scores ``(batch, classes)``; with ``labels`` ``(batch,)`` also the loss, their mean cross entropy in float32."""
    if labels is None:
        return scores
    loss = F.cross_entropy(scores.float(), labels, label_smoothing=smoothing)
    return scores, poptorch.identity_loss(loss, "none")

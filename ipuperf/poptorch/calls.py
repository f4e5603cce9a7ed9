"""What surrounds the compilation of a call: one micro-batch of its arguments, and the modes of the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .export_structure import flatten, rebuild


def first_micro_batch(arguments: Any, factor: int) -> Any:
    """Arguments in which every tensor has only the first of the ``factor`` micro-batches along its axis 0."""

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if tensor.dim() == 0 else tensor[: tensor.shape[0] // factor]).detach()

    structure, tensors, _ = flatten(arguments)
    return rebuild(structure, lambda index: first(tensors[index]))


@contextmanager
def modes_kept(module: torch.nn.Module) -> Iterator[None]:
    """Afterwards each submodule is in training or evaluation mode as before."""
    modes = [(member, member.training) for member in module.modules()]
    try:
        yield
    finally:
        for member, mode in modes:
            member.training = mode

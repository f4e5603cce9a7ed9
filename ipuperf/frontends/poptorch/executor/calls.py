"""What surrounds the compilation of a call: one micro-batch of its arguments, and the modes of the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..export.structure import flatten, rebuild


def first_micro_batch(arguments: Any, factor: int) -> Any:
    """Arguments in which every tensor has only the first of the ``factor`` micro-batches along its axis 0."""

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if tensor.dim() == 0 else tensor[: tensor.shape[0] // factor]).detach()

    structure, tensors, _ = flatten(arguments)
    return rebuild(structure, lambda index: first(tensors[index]))


@dataclass(frozen=True)
class ExecutableInputs:
    """What a program was compiled for, by upstream's names (poptorch: ``python/_args_parser.py``).

    Attributes:
        args: values of ``forward``'s parameters in their order, tensors without numbers.
    """

    args: list[Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ExecutableInputs:
        """Those of one call."""
        structure, tensors, _ = flatten(dict(arguments))
        return cls(list(rebuild(structure, lambda index: tensors[index].detach().to("meta")).values()))


@contextmanager
def modes_kept(module: torch.nn.Module) -> Iterator[None]:
    """Afterwards each submodule is in training or evaluation mode as before."""
    modes = [(member, member.training) for member in module.modules()]
    try:
        yield
    finally:
        for member, mode in modes:
            member.training = mode

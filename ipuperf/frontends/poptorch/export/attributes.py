"""What ``forward`` may do with the attributes of a module: change a buffer's numbers, not put another tensor there, nor
give it another shape."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._subclasses import FakeTensor

from ..errors import Error, UnsupportedError

Layout = tuple[torch.Size, tuple[int, ...]]
"""Shape and strides of a tensor."""


def check_buffers(module: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    """Compare the buffers of ``module`` with those ``before`` a call of ``forward``, by name.

    Raises:
        Error: one is another tensor now, or gone.
    """
    now = buffers(module)
    for name, tensor in before.items():
        if name not in now:
            raise Error(f"Buffer {name} is removed from the model by its forward; a variable of a program stays")
        if now[name] is not tensor:
            raise Error(
                f"Buffer {name} is reassigned: forward puts another tensor there, and a variable of a program stays. "
                f"Change its numbers instead: self.{name}.copy_(new)"
            )


def layout(tensor: torch.Tensor) -> Layout:
    """How a tensor sees its memory; the question is no call of ``forward``'s."""
    with torch._C.DisableTorchFunction():
        return tensor.shape, tensor.stride()


def layouts(module: torch.nn.Module) -> dict[str, tuple[torch.Tensor, Layout]]:
    """The parameters and buffers of a module by name, each with its layout."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: (tensor, layout(tensor)) for name, tensor in named}


def check_layouts(before: Mapping[str, tuple[torch.Tensor, Layout]]) -> None:
    """Compare parameters and buffers with their layouts ``before`` a call of ``forward``.

    Raises:
        UnsupportedError: one has another shape now, or other strides.
    """
    for name, (tensor, was) in before.items():
        now = layout(tensor)
        if now != was:
            kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            raise UnsupportedError(
                f"forward changes the layout of {kind} {name!r} in place (t_, transpose_, squeeze_, unsqueeze_ ...), "
                f"from shape {tuple(was[0])}, strides {was[1]} to {tuple(now[0])}, {now[1]}; a variable of a program "
                f"keeps its shape: use {name}.t(), .squeeze() ..., whose result is another tensor"
            )


def buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a module by name, those with several names under each."""
    return dict(module.named_buffers(remove_duplicate=False))


class Attributes:
    """The attributes of a module and its parts before an export."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._before = [(names, dict(names)) for part in module.modules() for names in (vars(part), part._buffers)]

    def restore(self) -> None:
        """Let every attribute be again what it was where the export has left a stand-in for a tensor, or nothing."""
        for names, before in self._before:
            for name in [n for n, value in names.items() if isinstance(value, FakeTensor)]:
                del names[name]
            gone = {n: value for n, value in before.items() if isinstance(value, torch.Tensor) and n not in names}
            names.update(gone)

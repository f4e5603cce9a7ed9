"""Parameters and buffers that share memory.

On the IPUs each is a variable of its own; tensors that are the same view of one memory (tied parameters) are one
variable. Other views of it would not see what is written through one of them, as they do in PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from ..errors import UnsupportedError

View = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
"""Shape, strides, offset and type."""


def view_of(tensor: torch.Tensor) -> View:
    """How a tensor sees its memory."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype


def check_memory(tensors: Mapping[str, torch.Tensor], changed: Collection[str]) -> None:
    """Check that what changes shares memory with no other parameter or buffer of a program.

    Args:
        tensors: parameters and buffers by name.
        changed: names of those that the program changes.

    Raises:
        UnsupportedError: two of them are different views of the same elements, or elements of one are one.
    """
    for names in _overlapping(tensors):
        if not names.isdisjoint(changed):
            raise UnsupportedError(_told(names))


def overlap_of(module: torch.nn.Module) -> str:
    """What to say of parameters and buffers of a module that share memory; nothing where none do."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return next((_told(names) for names in _overlapping(tensors)), "")


def _told(names: set[str]) -> str:
    return (
        f"{' and '.join(repr(name) for name in sorted(names))}: a change of elements that several see is unsupported, "
        "on the IPUs each is a tensor of its own; use one parameter or buffer, and its views (.t(), slices) in forward"
    )


def _overlapping(tensors: Mapping[str, torch.Tensor]) -> Iterator[set[str]]:
    """Names of tensors that see elements of each other, or of themselves, in another place."""
    storages: dict[int, dict[View, str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel():
            storages.setdefault(tensor.untyped_storage()._cdata, {}).setdefault(view_of(tensor), name)
    for views in storages.values():
        if len(views) > 1 or any(_may_repeat(view) for view in views):
            yield from _meeting(views)


def _may_repeat(view: View) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(view[0], view[1], strict=True))


def _meeting(views: Mapping[View, str]) -> Iterator[set[str]]:
    seen: dict[int, str] = {}
    for (shape, strides, offset, dtype), name in views.items():
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        places = torch.arange(last + 1).as_strided(shape, strides, offset).reshape(-1)
        found = (places * dtype.itemsize).tolist()
        others = {seen[place] for place in found if place in seen}
        if others:
            yield {name, *others}
        if len(set(found)) < len(found):
            yield {name}
        seen.update(dict.fromkeys(found, name))

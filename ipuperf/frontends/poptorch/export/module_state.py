"""Parameters, buffers and plain tensors of a module, and what ``forward`` may do with them.

A program has a variable for each parameter and buffer. ``forward`` may change its numbers; it may not put another
tensor in its place, nor give it another shape. Tensors that are the same view of one memory (tied parameters) are one
variable. Other views of that memory would not see what is written through one of them, as they do in PyTorch.

Tensors that are plain attributes of modules are constants of the program, also where ``forward`` changes them. As
upstream, each call begins with the value that such a tensor had when the model was compiled. The host's tensor shows
what one ``forward`` makes of it, if that changes it as a whole and by numbers (``poptorch:
docs/user_guide/buffers.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.export.graph_signature import InputKind

from ..errors import Error, UnsupportedError

#: Shape and strides of a tensor.
Layout = tuple[torch.Size, tuple[int, ...]]


def check_buffers(module: torch.nn.Module, originals: Mapping[str, torch.Tensor]) -> None:
    """Compare the buffers of ``module`` with those ``before`` a call of ``forward``, by name.

    Raises:
        Error: one is another tensor now, or gone.
    """
    current = buffers(module)
    for name, tensor in originals.items():
        if name not in current:
            raise Error(f"Buffer {name} is removed from the model by its forward; a variable of a program stays")
        if current[name] is not tensor:
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


def check_dense(module: torch.nn.Module) -> None:
    """Raise :class:`UnsupportedError` for a parameter or buffer that is sparse."""
    for name, state in (*module.named_parameters(), *module.named_buffers()):
        if state.layout is not torch.strided:
            raise UnsupportedError(
                f"{name!r} is a tensor of layout {state.layout}; the IPU has dense tensors only: keep to_dense(), or "
                "indices and values of which forward makes a sparse_coo_tensor"
            )


def check_layouts(originals: Mapping[str, tuple[torch.Tensor, Layout]]) -> None:
    """Compare parameters and buffers with their layouts ``before`` a call of ``forward``.

    Raises:
        UnsupportedError: one has another shape now, or other strides.
    """
    for name, (tensor, was) in originals.items():
        current = layout(tensor)
        if current != was:
            kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            raise UnsupportedError(
                f"forward changes the layout of {kind} {name!r} in place (t_, transpose_, squeeze_, unsqueeze_ ...), "
                f"from shape {tuple(was[0])}, strides {was[1]} to {tuple(current[0])}, {current[1]}; a variable of a "
                f"program keeps its shape: use {name}.t(), .squeeze() ..., whose result is another tensor"
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
        for names, originals in self._before:
            for name in [n for n, value in names.items() if isinstance(value, FakeTensor)]:
                del names[name]
            gone = {n: value for n, value in originals.items() if isinstance(value, torch.Tensor) and n not in names}
            names.update(gone)


#: Shape, strides, offset and type.
View = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


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
        end = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        places = torch.arange(end + 1).as_strided(shape, strides, offset).reshape(-1)
        addresses = (places * dtype.itemsize).tolist()
        others = {seen[place] for place in addresses if place in seen}
        if others:
            yield {name, *others}
        if len(set(addresses)) < len(addresses):
            yield {name}
        seen.update(dict.fromkeys(addresses, name))


class PlainTensors:
    """The plain tensors of a module and what they hold before it is exported."""

    def __init__(self, module: torch.nn.Module) -> None:
        tensors = [value for part in module.modules() for value in vars(part).values() if type(value) is torch.Tensor]
        self._before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]

    def made_constant(self, program: torch.export.ExportedProgram) -> None:
        """Let ``program`` change a copy, beginning with what was held before."""
        graph = program.graph_module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target is None or not node.users:
                continue
            original = self._before_change(program.constants[spec.target])
            if original is None and not any(_changes(user, node) for user in node.users):
                continue
            if original is not None:
                program.constants[spec.target] = original
            _put_copy(graph, node, placeholders[-1])
        program.graph_module.recompile()

    def _before_change(self, tensor: Any) -> torch.Tensor | None:
        """What a tensor held that the export itself changed."""
        return next(
            (old for known, version, old in self._before if known is tensor and version != tensor._version), None
        )


def _changes(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether an op changes one of its operands in place."""
    if not isinstance(user.target, torch._ops.OpOverload):
        return False
    operands = zip(user.args, user.target._schema.arguments, strict=False)
    return any(
        operand is node and known.alias_info is not None and known.alias_info.is_write for operand, known in operands
    )


def _put_copy(graph: torch.fx.Graph, node: torch.fx.Node, placeholder: torch.fx.Node) -> None:
    """Let all users of ``node`` use a copy of it; placeholders stand before it, the last one ``last``."""
    users = list(node.users)
    with graph.inserting_after(placeholder):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**users[0].meta, "val": node.meta["val"]}
    for user in users:
        user.replace_input_with(node, copy)

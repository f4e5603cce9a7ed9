"""Tensors that are plain attributes of modules: constants of the program, also where ``forward`` changes them.

As upstream, each call begins with the value that such a tensor had when the model was compiled. The host's tensor
shows what one ``forward`` makes of it, if that changes it as a whole and by numbers (``poptorch:
docs/user_guide/buffers.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind


class PlainTensors:
    """The plain tensors of a module and what they hold before it is exported."""

    def __init__(self, module: torch.nn.Module) -> None:
        found = [value for part in module.modules() for value in vars(part).values() if type(value) is torch.Tensor]
        self._before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in found]

    def made_constant(self, program: torch.export.ExportedProgram) -> None:
        """Let ``program`` change a copy, beginning with what was held before."""
        graph = program.graph_module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target is None or not node.users:
                continue
            before = self._before_change(program.constants[spec.target])
            if before is None and not any(_changes(user, node) for user in node.users):
                continue
            if before is not None:
                program.constants[spec.target] = before
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
        given is node and known.alias_info is not None and known.alias_info.is_write for given, known in operands
    )


def _put_copy(graph: torch.fx.Graph, node: torch.fx.Node, last: torch.fx.Node) -> None:
    """Let all users of ``node`` use a copy of it; placeholders stand before it, the last one ``last``."""
    users = list(node.users)
    with graph.inserting_after(last):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**users[0].meta, "val": node.meta["val"]}
    for user in users:
        user.replace_input_with(node, copy)

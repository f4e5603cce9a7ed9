"""Which composite ops an export keeps whole.

``ExportedProgram.run_decompositions`` keeps every functional composite op that its table does not name, several hundred
of them, and to that end registers a dozen rules with each and takes them back: more than a third of the time of an
export. An export needs this for few: those of the program itself, those that have a handler here, and those that are
never decomposed. Any other one can only come up inside the decomposition of another op, and would be decomposed in the
round after (``export_trace``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._export import utils as export_utils
from torch.export import exported_program

from ipuperf.runtime.replacing import replaced

from ..aten.table import RANDOM, decomposition_of, handler_of

#: The function of PyTorch that lists them; a build without it keeps all.
_COLLECT = "_collect_all_valid_cia_ops"


def may_decompose(target: Any) -> bool:
    """Factories of constants are folded as they are, and random ops stay whole."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    takes_tensors = any("Tensor" in str(a.type) for a in target._schema.arguments)
    return takes_tensors and target.name().split("::")[-1].split(".")[0] not in RANDOM


@cache
def stays(target: Any) -> bool:
    """Whether a decomposition (``export_trace``) leaves a functional op of PyTorch as it is."""
    if handler_of(target) is None and may_decompose(target) and decomposition_of(target) is not None:
        return False
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    whole = not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), composite)
    return whole or export_utils._is_preservable_cia_op(target)


def few_composites(program: Any) -> AbstractContextManager[None]:
    """Within it ``run_decompositions`` of ``program`` looks only at the composite ops that it needs."""
    if not hasattr(exported_program, _COLLECT):
        return nullcontext()
    needed = _always() | _of(program)
    return replaced(exported_program, **{_COLLECT: lambda: needed})


@cache
def _always() -> frozenset[Any]:
    """PyTorch's own that have a handler, or are not decomposed at all."""
    composites = export_utils._collect_all_valid_cia_ops_for_aten_namespace()
    return frozenset(op for op in composites if handler_of(op) is not None or not may_decompose(op))


def _of(program: Any) -> frozenset[Any]:
    """Those of a program and of the regions within it."""
    targets = {
        node.target
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    }
    return frozenset(target for target in targets if export_utils._is_preservable_cia_op(target))

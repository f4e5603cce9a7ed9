"""What an exported program may not hold, said with the user's line before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.modules.module as module_hooks
import torch.utils._pytree as pytree
from torch.nn.modules.batchnorm import _NormBase

from ipuperf.ir import Variable
from ipuperf.pipelines import Data, StageGraph

from ..errors import Error, UnsupportedError
from ..log import logger
from ..options import Options


def check_not_compiled(module: torch.nn.Module) -> None:
    """Raise :class:`UnsupportedError` where a part of a module has no Python code: TorchScript's."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"module {name or type(module).__name__!r} is one of torch.jit.script or torch.jit.trace, which cannot "
                "be exported; give the module that it was made from (functions of torch.jit.script work)"
            )


def check_hooks(module: torch.nn.Module) -> None:
    """Raise :class:`UnsupportedError` where a parameter of a module that is trained has a hook of its gradient."""
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, kind, None) for kind in hooks):
            raise UnsupportedError(
                f"a hook of a parameter's gradient ({name}) is unsupported: it would not be called on the IPU"
            )


def hooks_of_all_modules() -> list[Any]:
    """The hooks that PyTorch calls for every module."""
    names = [name for name in vars(module_hooks) if name.startswith("_global_") and name.endswith("_hooks")]
    return [list(vars(module_hooks)[name].values()) for name in sorted(names)]


def check_exported(program: torch.export.ExportedProgram, line: Callable[[torch.fx.Node], str]) -> None:
    """Check the values and constants of an export.

    Args:
        line: the ``file:line`` that made a node.

    Raises:
        UnsupportedError: a shape that depends on data, or what a transform of
            ``torch.func`` inside a model left.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and _is_dynamic(node):
            raise UnsupportedError(
                f"{line(node)}: the shape of the result of {_named(node)} depends on data (how many elements a mask "
                "has, which numbers there are); the program of an IPU is static: keep all elements and choose with "
                "torch.where(mask, a, b), or compute the positions on the host"
            )
    for value in program.constants.values():
        if isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise UnsupportedError(
                "this use of a transform of torch.func inside a model is unsupported; torch.func.grad, vjp, jvp, "
                "jacrev and hessian work, also within torch.func.vmap"
            )


def check_replicated_buffers(
    parts: Sequence[StageGraph], variables: Mapping[str, Variable], module: torch.nn.Module, options: Options
) -> None:
    """Raise :class:`Error` where ``forward`` changes a buffer that replicas would have to share, as upstream does
    (``poptorch:source/InplaceOps.cpp``). Running statistics belong to PopART's norms and are left to each replica."""
    replicas = options.replication_factor
    if replicas == 1 or not options.broadcast_buffers:
        return
    changed = {variable for part in parts for variable in part.updates.values()}
    names = [
        name
        for name, variable in variables.items()
        if variable in changed and not isinstance(module.get_submodule(name.rpartition(".")[0]), _NormBase)
    ]
    if names:
        raise Error(
            f"forward changes {', '.join(names)}: PopTorch cannot bring the new value of one of {replicas} replicas to "
            "the others; poptorch.Options().broadcastBuffers(False) lets each replica keep its own"
        )


def tell_of_late_changes(parts: Sequence[StageGraph]) -> None:
    """Warn of what a pipeline does to a buffer that a stage reads and a later one changes."""
    for part in parts:
        for variable in part.updates.values():
            readers = [p.stage for p in parts if any(isinstance(s, Data) and s.tensor is variable for s in p.sources)]
            if min(readers, default=part.stage) < part.stage:
                logger.warning(
                    "%s is read in stage %d and changed in stage %d: in a pipeline the first is some micro-batches "
                    "ahead of the second and reads older values than PyTorch does",
                    variable.name,
                    min(readers),
                    part.stage,
                )


def _named(node: torch.fx.Node) -> str:
    return str(node.target).rpartition(".")[0].replace(".", "::")


def _is_dynamic(node: torch.fx.Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    shapes = [v.shape for v in values if isinstance(v, torch.Tensor)]
    return any(not isinstance(length, int) for shape in shapes for length in shape)

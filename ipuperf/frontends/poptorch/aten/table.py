"""From aten ops to ops of the IR: one table, made of the tables of the families."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch

from ipuperf.frontends.catalogue import taking_tensors

from . import random
from .lowering import Handler

#: Modules of this folder, each with the handlers of a family.
_FAMILIES = """
    rules attention bags elementwise indexing losses norms order products random recurrent reduce shape spectra strides
    poptorch_ops
""".split()

#: What lowers an op. Keys are names of aten ops, with the overload (``max.dim``) where overloads differ, and of
#: PopTorch's own ops (``ipuperf::name``).
HANDLERS: Mapping[str, Handler] = MappingProxyType(
    {
        name: taking_tensors(handler)
        for family in _FAMILIES
        for name, handler in import_module(f".{family}", __package__).HANDLERS.items()
    }
)

#: Functions of PyTorch whose result is a loss (those that PopTorch ends with an identity loss).
LOSS_FUNCTIONS = frozenset(
    """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
    gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss triplet_margin_with_distance_loss
    """.split()
)

#: Ops whose value is random: never folded.
RANDOM = frozenset({"dropout", "native_dropout", *(name.split(".")[0] for name in random.HANDLERS)})

#: Complex numbers are written by their parts (:mod:`..export.pairs`), where PyTorch would copy these into place.
_OF_PARTS = frozenset({"aten::complex", "aten::polar"})


def name_of(target: Any) -> str:
    """The op's name for messages: ``aten::conv2d``."""
    return target.name().split(".")[0] if isinstance(target, torch._ops.OpOverload) else str(target)


def is_view(target: Any) -> bool:
    """Whether an op gives another view of its operand, or one of several results."""
    if not isinstance(target, torch._ops.OpOverload):
        return bool(target is operator.getitem)
    aliases = [result.alias_info for result in target._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def handler_of(target: Any) -> Handler | None:
    """What lowers this op, None when nothing does."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    full = target.name()
    if target.namespace != "aten":
        return HANDLERS.get(full.split(".")[0])
    name = full.removeprefix("aten::")
    with_overload = name if "." in name else f"{name}.default"
    return HANDLERS.get(with_overload) or HANDLERS.get(name.split(".")[0])


def decomposition_of(target: Any) -> Handler | None:
    """PyTorch's own decomposition into simpler ops, for ops that have no handler."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or name_of(target) in _OF_PARTS:
        return None
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), composite):
        return partial(target._op_dk, composite)
    from torch._decomp import decomposition_table

    return decomposition_table.get(target)

"""Ops that a PopTorch program brings along: what is C++ on the device is said in Python.

:func:`register` gives a class (``docs/how-to/adding-a-custom-op.md``) the name by which ``poptorch.custom_op`` asks for
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ipuperf.functions import make_all
from ipuperf.ir import Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, NUMBER, Attribute, choice, optional
from ipuperf.ops import vertices
from ipuperf.ops.autograd_proxy import AutogradProxy
from ipuperf.ops.base import Op
from ipuperf.ops.custom import CustomOp
from ipuperf.ops.products.group_quantize import BlockQuantizeDecompress
from ipuperf.ops.updates.moving_average import ExpMovAvg
from ipuperf.ops.work import Copy, MatMul, Reduction, Vertices
from ipuperf.runtime import custom_ops as runtime_ops

from .aten.collective_ops import COLLECTIVES
from .aten.lowering import Lowering, Value
from .aten.popart_ops import NATIVE
from .blocks import recorder
from .errors import Error, InputError, UnsupportedError, checked_kinds, require

runtime_ops.register(("GroupQuantizeDecompress", "optimum.custom_ops", 1), BlockQuantizeDecompress)
runtime_ops.register(("AutogradProxy", "ai.graphcore", 1), AutogradProxy)


def register(name: str, domain: str, domain_version: int, op_class: type[CustomOp]) -> None:
    """Let ``poptorch.custom_op(inputs, name, domain, domain_version, ...)`` be an op of ``op_class``.

    Raises:
        TypeError: no subclass of :class:`CustomOp`.
    """
    runtime_ops.register((name, domain, domain_version), runtime_ops.described(op_class))


@checked_kinds()
def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """An op of a program's own, by the name it was given with :func:`register`; or ``FastGatherLastDim`` of domain
    ``poptorch.custom_ops``, a gather along the last axis, which PopTorch brings along, or ``GroupQuantizeDecompress``
    of Optimum Graphcore's domain ``optimum.custom_ops``; or an op of PopART's own (:mod:`.popart_ops`) or between
    replicas (:mod:`.collective_ops`); or one of a library in C++, once that is loaded
    (``ipuperf.cppimport.libraries``).

    Args:
        inputs: the operands.
        example_outputs: a tensor of the shape and type of each result.
        attributes: those that the op's class declares.

    Raises:
        InputError: attributes that are no strings or numbers, or lists of one kind of them.
        UnsupportedError: no op of this name; outside of a program.
        Error: results unlike the examples.
    """
    _check_attributes(attributes or {})
    if (name, domain, domain_version) == ("FastGatherLastDim", "poptorch.custom_ops", 1):
        return [_fast_gather(inputs, example_outputs, attributes or {})]
    identifier = (name, domain, domain_version)
    if identifier not in {**NATIVE, **COLLECTIVES} and runtime_ops.registered(identifier) is None:
        raise UnsupportedError(
            f"poptorch.custom_op ({name}) is not supported: there is no op {name!r} of domain {domain!r}, version "
            f"{domain_version}, here; load the library of its C++, or describe it in Python and register it with "
            "ipuperf.poptorch.custom_ops.register, see docs/how-to/adding-a-custom-op.md"
        )
    if recorder() is None:
        raise UnsupportedError(f"poptorch.custom_op ({name}) runs in a program only: wrap the model")
    description = json.dumps([name, domain, domain_version, dict(attributes or {})])
    results: list[torch.Tensor] = torch.ops.ipuperf.custom_op(list(inputs), list(example_outputs), description)
    if _keeps_mean(runtime_ops.registered(identifier)):
        inputs[1].detach().copy_(results[0])
    return results


def _keeps_mean(op_class: type[Op] | None) -> bool:
    """Whether an op's second operand takes its result."""
    return op_class is not None and issubclass(op_class, ExpMovAvg)


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    """What upstream's ``custom_op`` (``poptorch:python/ops.py``) refuses, whatever the op."""
    for key, value in attributes.items():
        members = value if isinstance(value, (list, tuple)) else [value]
        one_kind = all(isinstance(member, (float, int, str)) for member in members) and all(
            isinstance(member, type(members[0])) for member in members
        )
        if not isinstance(key, str) or not one_kind:
            raise InputError(
                f"custom_op: attribute {key!r} is {value!r}; a name and a number, a string, or a list of one kind of "
                "these are needed"
            )
        for text in (key, *members):
            if isinstance(text, str) and not text.isascii():
                raise InputError(f"custom_op: attribute {key!r}: {text!r} is not ASCII")


def _fast_gather(
    inputs: Sequence[torch.Tensor], example_outputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]
) -> torch.Tensor:
    data, index = inputs
    axis = attributes.get("axis", -1)
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1]:
        raise Error(
            f"FastGatherLastDim: data {tuple(data.shape)} and index {tuple(index.shape)} have to agree in all axes but "
            "the last"
        )
    require(axis == -1, f"FastGatherLastDim: axis {axis} given, it is always the last one, -1")
    shapes = [tuple(example.shape) for example in example_outputs]
    require(shapes == [tuple(index.shape)], f"FastGatherLastDim: example_outputs {shapes}, expected one like the index")
    return torch.gather(data, -1, index.long())


@torch.library.custom_op("ipuperf::custom_op", mutates_args=())
def _custom_op(inputs: list[torch.Tensor], examples: list[torch.Tensor], description: str) -> list[torch.Tensor]:
    raise UnsupportedError(f"poptorch.custom_op {description} runs in a program only: wrap the model")


@_custom_op.register_fake
def _(inputs: list[torch.Tensor], examples: list[torch.Tensor], given: str) -> list[torch.Tensor]:
    return [torch.empty(tuple(t.shape), dtype=t.dtype, device=inputs[0].device) for t in examples]


def _no_native_gradient(ctx: Any, *grads: Any) -> Any:
    raise UnsupportedError("poptorch.custom_op runs in a program only: wrap the model")


_custom_op.register_autograd(_no_native_gradient)


def lower_custom_op(
    low: Lowering, inputs: Sequence[Value], examples: Sequence[torch.Tensor | Tensor], description: str
) -> list[Tensor]:
    """The op in a program (see :mod:`~ipuperf.poptorch.aten.poptorch_ops`)."""
    name, domain, version, attributes = json.loads(description)
    names = [f"{low.naming}_{number}" for number in range(len(examples))]
    operands = [low.tensor(value) for value in inputs]
    identifier = (name, domain, version)
    if identifier in NATIVE:
        results = NATIVE[identifier](low, inputs, attributes)
    else:
        op_class = runtime_ops.registered(identifier)
        if identifier in COLLECTIVES:
            op_class, attributes_for = COLLECTIVES[identifier]
            attributes = attributes_for(operands[0], attributes)
        if op_class is None:
            raise low.unsupported(f"op {name!r} of domain {domain!r}, version {version}, is not registered here")
        results = make_all(op_class, operands, names, **attributes)
        if low.training and _keeps_mean(op_class):
            # PopART updates the mean after the loop of gradient accumulation; until then it stays what it is.
            weight, mean, factor = operands
            low.averages.append((weight, mean, factor))
            results = [mean]
    expected = [TensorSpec(tuple(example.shape), dtype) for example, dtype in zip(examples, low.dtypes, strict=True)]
    if [tensor.spec for tensor in results] != expected:
        shown = ", ".join(str(tensor.spec) for tensor in results)
        raise Error(
            f"{low.location}: poptorch.custom_op ({name}): the op gives {shown}; example_outputs say "
            f"{', '.join(map(str, expected))}"
        )
    return results


__all__ = ["FLAG", "INTEGER", "INTEGERS", "NUMBER", "Attribute", "Copy", "CustomOp", "MatMul", "Reduction"]
__all__ += ["TensorSpec", "Vertices", "choice", "custom_op", "optional", "register", "vertices"]

"""Exports, options and structures as JSON and arrays, and back: what files of executables and the cache hold.

Only what is listed here is written and read. A file names functions and classes of ipuperf and PyTorch's own ops, and
classes of the user that are loaded already; reading one runs no code of the file's choice (as reading a pickle would).
"""

from __future__ import annotations

import dataclasses
import enum
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from ipuperf.ir import FLOAT16, FLOAT32, DType

from .. import enums
from ..blocks import BlockUse
from ..multi_conv import MultiConv
from ..options import groups, popart, root, strategies, tensor_locations
from ..options.effects import Ledger
from .structure import Branch, Fixed, Leaf

_KIND = "~"
_NAMESPACES = ("aten", "prims", "ipuperf")
_CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Leaf, Fixed, Branch, BlockUse, MultiConv, Ledger, root.Options, groups._JitOptions, groups._PrecisionOptions,
        groups._TrainingOptions, groups._DistributedOptions, popart._PopartOptions,
        tensor_locations._TensorLocationOptions, tensor_locations.TensorLocationSettings,
        *(v for v in vars(strategies).values() if isinstance(v, type) and v.__module__ == strategies.__name__),
    )
}  # fmt: skip
_ENUMS: Mapping[str, type[enum.Enum]] = {
    name: kind for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, enum.Enum)
}
_DTYPES: Mapping[str, DType] = {dtype.name: dtype for dtype in (FLOAT16, FLOAT32)}
_CONTAINERS: Mapping[str, type] = {"tuple": tuple, "list": list, "dict": dict}
_TORCH = (torch.dtype, torch.layout, torch.memory_format)


class NotStorable(Exception):
    """A value that files cannot hold; the message names it."""


def encode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` as JSON; its tensors are appended to ``tensors``, one object once.

    Raises:
        NotStorable: it holds something of a class that is not listed.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, immutable_list):
        return [encode(item, tensors) for item in value]
    kind, content = _encoded(value, tensors)
    return {_KIND: kind, "v": content}


def _encoded(value: Any, tensors: list[torch.Tensor]) -> tuple[str, Any]:
    def inner(item: Any) -> Any:
        return encode(item, tensors)

    if type(value) in (tuple, torch.Size):
        return "tuple", [inner(item) for item in value]
    if type(value) in (dict, immutable_dict):
        return "dict", [[inner(key), inner(item)] for key, item in value.items()]
    if type(value) in (set, frozenset):
        return type(value).__name__, sorted((inner(item) for item in value), key=repr)
    if isinstance(value, torch.Tensor):
        return "tensor", _number_of(value, tensors)
    if isinstance(value, torch.fx.Node):
        return "node", value.name
    if isinstance(value, _TORCH):
        return "torch", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "device", str(value)
    if isinstance(value, enum.Enum) and _ENUMS.get(type(value).__name__) is type(value):
        return "enum", [type(value).__name__, value.name]
    if isinstance(value, DType) and _DTYPES.get(value.name) is value:
        return "DType", value.name
    if isinstance(value, complex):
        return "complex", [value.real, value.imag]
    if value is operator.getitem:
        return "getitem", None
    if isinstance(value, torch._ops.OpOverload) and value.namespace in _NAMESPACES:
        return "op", str(value)
    if isinstance(value, type):
        return "class", _name_of(value)
    if _CLASSES.get(type(value).__name__) is type(value):
        state = dict(zip(value._fields, value, strict=True)) if isinstance(value, BlockUse) else vars(value)
        return "object", [type(value).__name__, [[name, inner(item)] for name, item in state.items()]]
    raise NotStorable(f"{value!r} of type {type(value).__module__}.{type(value).__qualname__}")


def _number_of(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    for number, known in enumerate(tensors):
        if known is tensor:
            return number
    tensors.append(tensor)
    return len(tensors) - 1


def _name_of(kind: type) -> str:
    if _CONTAINERS.get(kind.__name__) is kind:
        return kind.__name__
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _loaded(name) is not kind:
        raise NotStorable(f"the class {name}, which is not found by its name")
    return name


def decode(value: Any, tensors: list[torch.Tensor], nodes: Mapping[str, torch.fx.Node] | None = None) -> Any:
    """The value again. ``ValueError``: not what :func:`encode` gives, or a class that is not loaded."""

    def inner(item: Any) -> Any:
        return decode(item, tensors, nodes)

    if isinstance(value, list):
        return [inner(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_KIND], value["v"]
    if kind == "node":
        return (nodes or {})[content]
    if kind == "tensor":
        return tensors[content]
    if kind == "object":
        return _object(content[0], {name: inner(item) for name, item in content[1]})
    if kind == "dict":
        return {inner(key): inner(item) for key, item in content}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](inner(item) for item in content)
    return _SIMPLE[kind](content)


def _object(name: str, state: Mapping[str, Any]) -> Any:
    kind = _CLASSES[name]
    if issubclass(kind, tuple):
        return kind(**state)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def _op(name: str) -> Any:
    namespace, op, overload = name.split(".")
    if namespace not in _NAMESPACES:
        raise ValueError(f"an op of the namespace {namespace}")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def _torch(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, _TORCH):
        raise ValueError(f"torch.{name} is neither a type nor a layout")
    return found


def _class(name: str) -> type:
    found = _CONTAINERS.get(name) or _loaded(name)
    good = isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, (tuple, list, Mapping)))
    if not good:
        raise ValueError(f"the class {name} is not loaded, or is no container; import it first")
    return found


def _loaded(name: str) -> Any:
    """What a loaded module has by this name, None where there is no such thing; nothing is imported."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


_SIMPLE: Mapping[str, Callable[[Any], Any]] = {
    "torch": _torch,
    "device": torch.device,
    "enum": lambda content: _ENUMS[content[0]][content[1]],
    "DType": _DTYPES.__getitem__,
    "complex": lambda content: complex(*content),
    "getitem": lambda content: operator.getitem,
    "op": _op,
    "class": _class,
}

"""Exports, options and structures as JSON and arrays, and back: what files of executables and the cache hold.

Only what is listed here is written and read. A file names functions and classes of ipuperf and PyTorch's own ops, and
reading one runs no code of its choice: containers of the user's must be loaded already. The numbers of parameters and
buffers are no part of a traced program.
"""

from __future__ import annotations

import dataclasses
import enum
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.immutable_collections import immutable_dict, immutable_list

from ipuperf.ir import FLOAT16, FLOAT32, DType

from .. import enums
from ..blocks import BlockUse
from ..multi_conv import MultiConv
from ..options import groups, popart, root, strategies
from ..options.effects import Ledger
from .lines import tags_of
from .reuse import Simplified
from .structure import Branch, Fixed, Leaf
from .surroundings import no_code
from .trace import Traced

_KIND = "~"
_NAMESPACES = ("aten", "prims", "ipuperf")
_CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Leaf, Fixed, Branch, BlockUse, MultiConv, Ledger, root.Options, groups._JitOptions, groups._PrecisionOptions,
        groups._TrainingOptions, groups._DistributedOptions, popart._PopartOptions,
        groups._TensorLocationOptions, groups.TensorLocationSettings,
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
        return [encode(member, tensors) for member in value]
    # A list stands for itself. All other containers are marked, so no dictionary can pass for a mark.
    kind, content = _encoded(value, tensors)
    return {_KIND: kind, "v": content}


def _encoded(value: Any, tensors: list[torch.Tensor]) -> tuple[str, Any]:
    def inner(member: Any) -> Any:
        return encode(member, tensors)

    if type(value) in (tuple, torch.Size):
        return "tuple", [inner(member) for member in value]
    if type(value) in (dict, immutable_dict):
        return "dict", [[inner(key), inner(member)] for key, member in value.items()]
    if type(value) in (set, frozenset):
        # Sorted, so that equal sets give equal files.
        return type(value).__name__, sorted((inner(member) for member in value), key=repr)
    if isinstance(value, torch.Tensor):
        return "tensor", _number_of(value, tensors)
    if isinstance(value, torch.fx.Node):
        return "node", value.name
    if isinstance(value, _TORCH):
        return "torch", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "device", str(value)
    # A user's class may have the name of one of ours, so the class itself is compared.
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
        return "object", [type(value).__name__, [[name, inner(member)] for name, member in state.items()]]
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
    # A local class is not found by its name, and neither would it be when the file is read.
    if _loaded(name) is not kind:
        raise NotStorable(f"the class {name}, which is not found by its name")
    return name


def decode(value: Any, tensors: list[torch.Tensor], nodes: Mapping[str, torch.fx.Node] | None = None) -> Any:
    """The value again. ``ValueError``: not what :func:`encode` gives, or a class that is not loaded."""

    def inner(member: Any) -> Any:
        return decode(member, tensors, nodes)

    if isinstance(value, list):
        return [inner(member) for member in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_KIND], value["v"]
    if kind == "node":
        return (nodes or {})[content]
    if kind == "tensor":
        return tensors[content]
    if kind == "object":
        return _object(content[0], {name: inner(member) for name, member in content[1]})
    if kind == "dict":
        return {inner(key): inner(member) for key, member in content}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](inner(member) for member in content)
    return _SIMPLE[kind](content)


def _object(name: str, state: Mapping[str, Any]) -> Any:
    kind = _CLASSES[name]
    if issubclass(kind, tuple):
        return kind(**state)
    # __init__ takes arguments, and this is the state they have led to.
    instance = kind.__new__(kind)
    instance.__dict__.update(state)
    return instance


def _op(name: str) -> Any:
    namespace, op, overload = name.split(".")
    if namespace not in _NAMESPACES:
        raise ValueError(f"an op of the namespace {namespace}")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def _torch(name: str) -> Any:
    value = getattr(torch, name)
    if not isinstance(value, _TORCH):
        raise ValueError(f"torch.{name} is neither a type nor a layout")
    return value


def _class(name: str) -> type:
    loaded = _CONTAINERS.get(name) or _loaded(name)
    # Rebuilding a value calls its class, so a file may name containers only.
    good = isinstance(loaded, type) and (dataclasses.is_dataclass(loaded) or issubclass(loaded, (tuple, list, Mapping)))
    if not good:
        raise ValueError(f"the class {name} is not loaded, or is no container; import it first")
    return loaded


def _loaded(name: str) -> Any:
    """What a loaded module has by this name, None where there is no such thing; nothing is imported."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


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


def stored(traced: Traced, tensors: list[torch.Tensor]) -> dict[str, Any]:
    """A traced program as JSON; its constants are appended to ``tensors``.

    Raises:
        NotStorable: it has regions of its own, a user's op, or a result of a class that no file can name.
    """
    program = traced.program
    return {
        "nodes": [_encoded_node(node, tensors) for node in program.graph.nodes],
        "inputs": [_input(spec) for spec in program.graph_signature.input_specs],
        "outputs": [[spec.kind.name, spec.target, _name(spec.arg)] for spec in program.graph_signature.output_specs],
        "constants": encode(dict(program.constants), tensors),
        "uses": encode(traced.uses, tensors),
        "results": encode(traced.results, tensors),
        "multi_convs": encode(traced.multi_convs, tensors),
    }


def restored(content: Mapping[str, Any], tensors: list[torch.Tensor]) -> Traced:
    """The traced program again."""
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    for op, name, target, args, kwargs, seen, tags in content["nodes"]:
        node = graph.create_node(
            op, decode(target, tensors), tuple(decode(args, tensors, nodes)), decode(kwargs, tensors, nodes), name
        )
        # The graph changes names that it takes for used, and the signature knows nodes by the old ones.
        node.name = name
        node.meta.update(val=_meta_value(seen), custom=tags)
        nodes[name] = node
    signature = ExportGraphSignature(
        [
            InputSpec(InputKind[kind], TensorArgument(name), target, persistent)
            for kind, target, persistent, name in content["inputs"]
        ],
        [OutputSpec(OutputKind[kind], TensorArgument(name), target) for kind, target, name in content["outputs"]],
    )
    with no_code():
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
    program = Simplified(module, signature, decode(content["constants"], tensors))
    uses, results, multi_convs = (decode(content[name], tensors) for name in ("uses", "results", "multi_convs"))
    return Traced(program, uses, results, multi_convs)


def lasting(traced: Traced) -> Traced:
    """The traced program without anything that the module could change later: constants are copies, marks anew.

    Raises:
        NotStorable: see :func:`stored`.
    """
    tensors: list[torch.Tensor] = []
    content = stored(traced, tensors)
    tensors = [tensor.detach().clone() for tensor in tensors]
    program = traced.program
    copied = Simplified(program.graph_module, program.graph_signature, decode(content["constants"], tensors))
    uses, results, multi_convs = (decode(content[name], tensors) for name in ("uses", "results", "multi_convs"))
    return Traced(copied, uses, results, multi_convs)


def _encoded_node(node: torch.fx.Node, tensors: list[torch.Tensor]) -> list[Any]:
    if node.op not in ("placeholder", "call_function", "output"):
        raise NotStorable(f"the region {node.target!r}")
    if node.target is torch.ops.ipuperf.own_gradient.default:
        raise NotStorable("the gradient of a custom autograd function")
    tags = dict(tags_of(node))
    if any(type(value) not in (bool, int, str, type(None)) for value in tags.values()):
        raise NotStorable(f"the annotations {tags!r}")
    arguments = encode(list(node.args), tensors), encode(dict(node.kwargs), tensors)
    return [node.op, node.name, encode(node.target, tensors), *arguments, _seen(node.meta.get("val")), tags]


def _input(spec: Any) -> list[Any]:
    return [spec.kind.name, spec.target, spec.persistent, _name(spec.arg)]


def _name(argument: Any) -> str:
    """Arguments and results that are no tensors are no part of an export: ``results`` has them."""
    if not isinstance(argument, TensorArgument):
        raise NotStorable(f"the argument {argument!r}")
    return argument.name


def _seen(value: Any) -> Any:
    """What the trace knows of a node's value."""
    if isinstance(value, (list, tuple)):
        return [_seen(member) for member in value]
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
            raise NotStorable(f"a value of shape {tuple(value.shape)} that depends on data")
        return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": str(value.dtype).split(".")[1]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise NotStorable(f"a value of type {type(value).__name__}")


def _meta_value(seen: Any) -> Any:
    if isinstance(seen, list):
        return [_meta_value(member) for member in seen]
    if isinstance(seen, dict):
        dtype = getattr(torch, seen["dtype"])
        return torch.empty_strided(seen["shape"], seen["stride"], dtype=dtype, device="meta")
    return seen

"""Traced programs as what files hold: nodes with their arguments, shapes and annotations; the signature; constants.

The numbers of parameters and buffers are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from .codec import NotStorable, decode, encode
from .lines import tags_of
from .reuse import Simplified
from .trace import Traced


def stored(traced: Traced, tensors: list[torch.Tensor]) -> dict[str, Any]:
    """A traced program as JSON; its constants are appended to ``tensors``.

    Raises:
        NotStorable: it has regions of its own, a user's op, or a result of a class that no file can name.
    """
    program = traced.program
    return {
        "nodes": [_node(node, tensors) for node in program.graph.nodes],
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
        node.name = name
        node.meta.update(val=_value(seen), custom=tags)
        nodes[name] = node
    signature = ExportGraphSignature(
        [InputSpec(InputKind[kind], TensorArgument(name), target, persistent) for kind, target, persistent, name in
         content["inputs"]],
        [OutputSpec(OutputKind[kind], TensorArgument(name), target) for kind, target, name in content["outputs"]],
    )  # fmt: skip
    program = Simplified(
        torch.fx.GraphModule(torch.nn.Module(), graph), signature, decode(content["constants"], tensors)
    )
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


def _node(node: torch.fx.Node, tensors: list[torch.Tensor]) -> list[Any]:
    if node.op not in ("placeholder", "call_function", "output"):
        raise NotStorable(f"the region {node.target!r}")
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
        return [_seen(item) for item in value]
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
            raise NotStorable(f"a value of shape {tuple(value.shape)} that depends on data")
        return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": str(value.dtype).split(".")[1]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise NotStorable(f"a value of type {type(value).__name__}")


def _value(seen: Any) -> Any:
    if isinstance(seen, list):
        return [_value(item) for item in seen]
    if isinstance(seen, dict):
        dtype = getattr(torch, seen["dtype"])
        return torch.empty_strided(seen["shape"], seen["stride"], dtype=dtype, device="meta")
    return seen

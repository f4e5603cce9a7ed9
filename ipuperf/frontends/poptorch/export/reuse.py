"""Programs that were simplified before.

PyTorch's ``run_decompositions`` traces a whole program again, which takes longer than the export itself. What it gives
follows from the program alone: two exports with the same ops, shapes, constants and annotations (a model that is
compiled with other options, another optimiser, or once more) are simplified once in a process. The numbers of
parameters and buffers play no part: both traces see stand-ins for them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.export.graph_signature import TensorArgument

Annotation = Callable[[torch.fx.Node], Any]

#: How many nodes are kept in all; the programs that were used last stay.
_NODES = 20_000
#: Of ops that mean the same throughout a process; a user's own op may be defined anew.
NAMESPACES = frozenset({"aten", "prims", "ipuperf"})


@dataclass(frozen=True)
class Simplified:
    """What the lowering reads of a ``torch.export.ExportedProgram``.

    Attributes:
        graph_module: its ops, with the regions within it.
        graph_signature: what inputs and outputs are.
        constants: tensors by the name that the signature gives them.
    """

    graph_module: torch.fx.GraphModule
    graph_signature: Any
    constants: Mapping[str, Any]

    @property
    def graph(self) -> torch.fx.Graph:
        """The ops."""
        return self.graph_module.graph


def with_graph(program: Any, graph: torch.fx.Graph) -> Simplified:
    """``program`` with other ops between the same inputs and outputs; what nothing reads goes."""
    graph.eliminate_dead_code()
    (output,) = graph.find_nodes(op="output")
    # The signature knows results by the names of nodes, and these nodes are new.
    specs = [
        replace(spec, arg=TensorArgument(name=node.name)) if isinstance(node, torch.fx.Node) else spec
        for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True)
    ]
    signature = replace(program.graph_signature, output_specs=specs)
    return Simplified(torch.fx.GraphModule(torch.nn.Module(), graph), signature, dict(program.constants))


class Unknown(Exception):
    """A program holds something that :func:`_content` cannot tell from another."""


class HasGraph(Protocol):
    """Something with a graph."""

    @property
    def graph(self) -> torch.fx.Graph:
        """Its ops."""


_Item = TypeVar("_Item", bound=HasGraph)


class Newest(Generic[_Item]):
    """What was used last, by content: as much as has ``nodes`` nodes together."""

    def __init__(self, nodes: int = _NODES) -> None:
        self.nodes = nodes
        self._found: OrderedDict[bytes, _Item] = OrderedDict()

    def get(self, key: bytes | None) -> _Item | None:
        """What is kept under ``key``, None where nothing is; it was used now."""
        if key is None or key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def put(self, key: bytes, entry: _Item) -> None:
        """Keep ``entry``; what was not used for the longest time goes."""
        self._found[key] = entry
        sizes = {key: len(entry_kept.graph.nodes) for key, entry_kept in self._found.items()}
        while sum(sizes.values()) > self.nodes:
            key, _ = self._found.popitem(last=False)
            del sizes[key]

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()


class Kept(Newest[Simplified]):
    """Simplified programs by their content."""

    def simplified(self, program: Any, simplify: Callable[[Any], Any], annotation: Annotation) -> Simplified:
        """``simplify(program)``, or what it gave for a program of the same content.

        The graph may be that of an earlier call: nobody changes it.

        Args:
            annotation: what is said of a node besides its op and its value.
        """
        key, constants = content(program, annotation), dict(program.constants)
        known = self.get(key)
        if known is not None:
            # The graph is shared; the constants are this program's own.
            return Simplified(known.graph_module, known.graph_signature, constants)
        done = simplify(program)
        result = Simplified(done.graph_module, done.graph_signature, dict(done.constants))
        # A constant that simplifying has made would be missing when another program uses the result.
        if key is not None and result.constants.keys() <= constants.keys():
            self.put(key, Simplified(result.graph_module, result.graph_signature, {}))
        return result


def content(program: Any, annotation: Annotation) -> bytes | None:
    """A digest of all that a simplification of an exported program may depend on; None where that is not known."""
    digest = hashlib.sha256()
    try:
        for part in _parts(program, annotation):
            digest.update(repr(part).encode())
            digest.update(b"\n")
    except Unknown:
        return None
    return digest.digest()


def surroundings() -> Any:
    """What PyTorch's decompositions look at besides a program."""
    types = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    return *types, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _parts(program: Any, annotation: Annotation) -> Iterator[Any]:
    yield surroundings()
    yield program.graph_signature
    yield from _states(program.state_dict)
    yield from ((name, _value(value)) for name, value in sorted(program.constants.items()))
    for name, module in program.graph_module.named_modules():
        if not isinstance(module, torch.fx.GraphModule):
            raise Unknown
        yield name
        for node in module.graph.nodes:
            yield _node(node, annotation)


def _node(node: torch.fx.Node, annotation: Annotation) -> tuple[Any, ...]:
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace not in NAMESPACES:
        raise Unknown
    named = target if isinstance(target, str) else f"{target} {getattr(target, '__name__', '')}"
    arguments = argument_of(node.args), argument_of(node.kwargs)
    return node.op, named, node.name, *arguments, seen_of(node.meta.get("val")), annotation(node)


def argument_of(value: Any) -> Any:
    """Arguments of a node: other nodes by their names, numbers and types as they are."""
    if isinstance(value, torch.fx.Node):
        return ("node", value.name)
    if isinstance(value, (list, tuple)):
        return [argument_of(member) for member in value]
    if isinstance(value, Mapping):
        return [(key, argument_of(member)) for key, member in value.items()]
    plain = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    if value is None or isinstance(value, plain):
        return value
    raise Unknown


def seen_of(value: Any) -> Any:
    """What a trace knows of the value of a node."""
    if isinstance(value, (list, tuple)):
        return [seen_of(member) for member in value]
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
            raise Unknown
        return tuple(value.shape), value.stride(), value.dtype, str(value.device), value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unknown


def _states(states: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    """Parameters and buffers: which of them are the same memory."""
    storages: dict[int, int] = {}
    for name, value in states.items():
        if value.layout != torch.strided:
            raise Unknown
        number = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        yield name, number, value.storage_offset(), seen_of(value)


def _value(value: Any) -> Any:
    """A constant, with its numbers where it has any: a trace may look at them."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_complex() or value.is_quantized:
        raise Unknown
    seen = seen_of(value)
    if value.device.type == "meta":
        return seen, None
    numbers = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
    return seen, hashlib.sha256(numbers.numpy().tobytes()).digest()

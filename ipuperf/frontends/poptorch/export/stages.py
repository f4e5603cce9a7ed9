"""From a traced program to one graph per stage."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from ipuperf.ir import CONTEXT, Ir, IrError, Op, Stream, Tensor, Variable
from ipuperf.ops import Conv, ConvTranspose

from ..aten.indexing import GROUPED, scatter_all, scatter_call
from ..aten.lowering import PLAIN_NORMS, ExportError, Lowering, Norms, ir_dtype
from ..aten.table import RANDOM, handler_of, is_view, name_of
from ..blocks import BEFORE_FIRST_BLOCK, NO_ACTIVE_BLOCK
from ..enums import OverlapMode
from ..errors import Error, PartitionError, UnsupportedError
from ..executor.partition import Partition
from . import own_gradients
from .bodies import BODY, Body, conditional
from .derivatives import GRAD
from .lines import MODULE, location_of_node, tags_of
from .parts import Flow, Part, Place
from .trace import BLOCK, LOSS, MULTI_CONV, Traced

_OVERLAP_INPUT, _OVERLAP_OUTPUT = "ipuperf::set_overlap_for_input", "ipuperf::set_overlap_for_output"
_CONDITIONAL = "ipuperf::conditional"
#: Marks that are no ops: the value they mark stands for them.
_OVERLAPS = (_OVERLAP_INPUT, _OVERLAP_OUTPUT)
#: Ops whose result holds anything: zeros here, so that a program is the same each time.
_WITHOUT_VALUES = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
#: What an export writes before a cast, without a tag of its own.
_ASSERTION = "aten::_assert_tensor_metadata"


class StageWriter:
    """Lowers the nodes of a traced program into its parts.

    Args:
        ir: the program that is built.
        traced: what to lower.
        training: whether a loss is needed and gradients flow.
        flows: values of the placeholders, by node.
        norms: how norms are done.
    """

    def __init__(
        self,
        ir: Ir,
        traced: Traced,
        training: bool,
        flows: Mapping[torch.fx.Node, Flow | torch.Tensor],
        norms: Norms = PLAIN_NORMS,
    ) -> None:
        self.ir = ir
        self.norms = norms
        self.traced = traced
        self.training = training
        self.values: dict[torch.fx.Node, Any] = dict(flows)
        self.losses: dict[Any, torch.fx.Node] = {}
        self._keys = 0
        self._known: dict[torch.fx.Node, bool] = {}
        self._places: dict[torch.fx.Node, Place] = {}
        self.parts: dict[Place, Part] = {}
        self._bodies: dict[str, Body] = {}
        self.checkpoints: list[Flow] = []
        self.overlapped: dict[Stream | torch.fx.Node, OverlapMode] = {}  # host inputs, and nodes that are results
        self.multi_convs: list[list[Op]] = [[] for _ in traced.multi_convs]
        self.tags = self._tags()

    # -- places ----------------------------------------------------------------------------------------------------

    def _next_key(self) -> int:
        # One counter for all parts: two random ops with one key would draw the same numbers.
        self._keys += 1
        return self._keys - 1

    def _tags(self) -> dict[torch.fx.Node, int]:
        """The block of each node that has to be computed; a node without a tag belongs to the block before it."""
        tags: dict[torch.fx.Node, int] = {}
        tag: int | None = BEFORE_FIRST_BLOCK
        for node in self.traced.program.graph.nodes:
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            tag = tags_of(node.next if name_of(node.target) == _ASSERTION else node).get(BLOCK, tag)
            # A constant runs nowhere, so it may stand outside of all blocks.
            if self._constant(node) or name_of(node.target) in _OVERLAPS:
                continue
            if tag is None:
                raise PartitionError(f"{NO_ACTIVE_BLOCK} ({location_of_node(node)}: {name_of(node.target)})")
            tags[node] = tag
        return tags

    @property
    def has_leading_ops(self) -> bool:
        """Whether anything is computed before the first block."""
        return BEFORE_FIRST_BLOCK in self.tags.values()

    def part(self, place: Place) -> Part:
        """The part of a stage on an IPU."""
        if place not in self.parts:
            name = f"stage{place.stage}"
            if any(earlier.stage == place.stage for earlier in self.parts):
                name += f"_ipu{place.ipu}"
            graph = self.ir.create_graph(name)
            self.parts[place] = Part(len(self.parts), place, graph, self.training, self._next_key, self.norms)
        return self.parts[place]

    def first_part(self) -> Part:
        """The part of the lowest stage."""
        return self.parts[min(self.parts)] if self.parts else self.part(Place(0, 0))

    def _site(self, node: torch.fx.Node) -> Part | Body:
        """Where the ops of a node go: the part of its stage, or a body of a conditional there."""
        site: Part | Body = self.part(self._places[node])
        path = ""
        for name in filter(None, (tags_of(node).get(BODY) or "").split("/")):
            path += f"/{name}"
            site = self._body(site, path, location_of_node(node))
        return site

    def _body(self, outer: Part | Body, path: str, location: str) -> Body:
        """The body of this path, which stands in ``outer``."""
        if path not in self._bodies:
            name = f"{outer.graph.name}{path}".replace("/", "_cond").replace(".", "_")
            self._bodies[path] = Body(outer, self.ir.create_graph(name))
        if self._bodies[path].outer is not outer:
            raise PartitionError(f"{location}: the bodies of a poptorch.cond have to be in the block it is called in")
        return self._bodies[path]

    # -- nodes -----------------------------------------------------------------------------------------------------

    def write(self, partition: Partition) -> None:
        """Lower all nodes into the stages that ``partition`` gives them."""
        for node, tag in self.tags.items():
            where = partition.place(tag)
            self._places[node] = self._place(node, Place(where.stage, where.ipu))
        # All places have to be known: a stream lives in the first part that reads it.
        self._prepare()
        for together in self._ordered():
            if len(together) > 1:
                self._write_together(together)
                continue
            (node,) = together
            if node.op == "call_function":
                self._note_loss(node)
                self.values[node] = self._value(node)
            elif node.op not in ("placeholder", "output"):
                raise UnsupportedError(f"{location_of_node(node)}: {node.op} {node.target} is unsupported")

    def _place(self, node: torch.fx.Node, place: Place) -> Place:
        """Where a node goes that is ``own`` by its block: a view of what a later stage has changed in place is made
        anew, and then by that stage."""
        if not is_view(node.target):
            return place
        places = [self._places[operand] for operand in node.all_input_nodes if operand in self._places]
        return max([place, *places], key=lambda place: place.stage)

    def _ordered(self) -> list[list[torch.fx.Node]]:
        """The nodes in order; scatters of one place that do not need each other's results stand together where there
        are several (poptorch: ``source/GNNOptimizations.cpp``), at the cost of the order of the others: first what
        needs no scatter, then what needs one, and so on."""
        depths: dict[torch.fx.Node, int] = {}
        layers: dict[int, tuple[dict[Any, list[torch.fx.Node]], list[torch.fx.Node]]] = {}
        nodes = list(self.traced.program.graph.nodes)
        for node in nodes:
            depth = max((depths[n] for n in node.all_input_nodes), default=0)
            together = node in self._places and name_of(node.target).removeprefix("aten::") in GROUPED
            depths[node] = depth + together
            scatters, others = layers.setdefault(depths[node], ({}, []))
            if together:
                # One op cannot stand in two bodies of conditionals, or let gradients through for some scatters only.
                kind = (self._places[node], tags_of(node).get(BODY, ""), tags_of(node).get(GRAD, True))
                scatters.setdefault(kind, []).append(node)
            else:
                others.append(node)
        # With nothing to join, the program's own order stays, and with it the schedule.
        if all(len(group) == 1 for scatters, _ in layers.values() for group in scatters.values()):
            return [[node] for node in nodes]
        ordered: list[list[torch.fx.Node]] = []
        for depth in sorted(layers):
            scatters, others = layers[depth]
            ordered += [*scatters.values(), *([node] for node in others)]
        return ordered

    def _write_together(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Lower scatters that do not need each other's results."""
        calls = []
        for node in nodes:
            self._note_loss(node)
            self._enter(node)
            args, kwargs = self._operands(node)
            calls.append(scatter_call(name_of(node.target).removeprefix("aten::"), *args, **kwargs))
        # The joined op carries the name and the user's line of the first scatter.
        low = self._enter(nodes[0])
        results = self._run(low, lambda: scatter_all(low, calls))
        for node, result in zip(nodes, results, strict=True):
            self._enter(node)
            self.values[node] = self._made(node, self._site(node), result, *self._origin(node))

    def _prepare(self) -> None:
        """Make the parts in the order of their stages, and find where each host input is used first."""
        for place in sorted(set(self._places.values())):
            self.part(place)
        for node, flow in self.values.items():
            used = [self._places[u] for u in _readers(node) if u in self._places]
            if isinstance(flow, Flow) and isinstance(flow.origin, Stream):
                flow.home = self.parts[min(used)] if used else self.first_part()
            elif isinstance(flow, Flow) and isinstance(flow.origin, Variable):
                self._check_variable(flow, flow.origin, sorted({p.ipu for p in used}))

    @staticmethod
    def _check_variable(flow: Flow, variable: Variable, ipus: Sequence[int]) -> None:
        """A variable lives on one IPU; a buffer that nothing changes becomes a constant of each IPU that uses it."""
        if len(ipus) <= 1:
            return
        if flow.constant_if_shared:
            flow.origin = variable.data
            return
        raise PartitionError(
            f"Can not copy variable tensor {variable.name!r} between virtual graphs when pipelining: it is used on "
            f"{' and '.join(f'IPU {i}' for i in ipus)}. All pipeline stages using this tensor should be on one IPU."
        )

    def _constant(self, node: torch.fx.Node) -> bool:
        """Whether a node's value is known now; remembers it (see :meth:`_folded`)."""
        if node not in self._known:
            inputs = node.all_input_nodes
            # A random op is no constant even with constant operands: each micro-batch draws anew.
            random = name_of(node.target).split("::")[-1] in RANDOM
            self._known[node] = not random and all(self._is_known(n) for n in inputs)
        return self._known[node]

    def _is_known(self, node: torch.fx.Node) -> bool:
        if node.op == "placeholder":
            return not isinstance(self.values.get(node), Flow)
        return self._constant(node)

    def _note_loss(self, node: torch.fx.Node) -> None:
        """The last node of a loss function is its loss."""
        loss = tags_of(node).get(LOSS)
        if name_of(node.target) == "ipuperf::identity_loss":
            self.losses[node] = node
        elif loss is not None and isinstance(node.meta.get("val"), torch.Tensor):
            self.losses[loss] = node

    def _value(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, torch.fx.Node)
            if self.values[source][index] is None:
                name = f"{location_of_node(node)}: {name_of(source.target)}"
                raise UnsupportedError(f"{name}: result {index} (of a pooling: the positions) is unsupported")
            return self.values[source][index]
        if self._constant(node):
            return self._folded(node)
        return self._lowered(node)

    def _folded(self, node: torch.fx.Node) -> Any:
        """The value of a node without data, computed by PyTorch on the host."""
        args = torch.fx.map_arg(node.args, lambda n: self.values[n])
        kwargs = dict(torch.fx.map_arg(node.kwargs, lambda n: self.values[n]))
        # Folding runs on the host, whatever device the program names.
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with torch.no_grad():
            value = cast(Callable[..., Any], node.target)(*args, **kwargs)
            return value.zero_() if name_of(node.target) in _WITHOUT_VALUES else value

    def _overlap(self, node: torch.fx.Node) -> Any:
        """Note a mark for overlapped I/O; the value is the marked one."""
        source, mode = node.args
        assert isinstance(source, torch.fx.Node)
        name, value = name_of(node.target).removeprefix("ipuperf::"), self.values[source]
        if name_of(node.target) == _OVERLAP_OUTPUT:
            # Only results leave the IPUs, so a mark anywhere else has no transfer to overlap.
            if not any(user.op == "output" for user in node.users):
                raise Error(
                    f"{location_of_node(node)}: poptorch.{name} applied on a node which is not a "
                    "tensor output to the model."
                )
            self.overlapped[node] = OverlapMode(mode)
        elif isinstance(value, Flow) and isinstance(value.origin, Stream):
            self.overlapped[value.origin] = OverlapMode(mode)
        else:
            raise Error(
                f"{location_of_node(node)}: poptorch.{name} applied on a node which is not a tensor input to the model."
            )
        return value

    def _lowered(self, node: torch.fx.Node) -> Any:
        if name_of(node.target) in _OVERLAPS:
            return self._overlap(node)
        if name_of(node.target) == _CONDITIONAL:
            return self._conditional(node)
        location = location_of_node(node)
        if name_of(node.target) in ("aten::item", "aten::_local_scalar_dense"):
            raise UnsupportedError(
                f"{location}: aten::item is unsupported: the program of an IPU is static, Python cannot have a "
                "tensor's value while it is built"
            )
        handler = own_gradients.lowered if name_of(node.target) == own_gradients.MARK else handler_of(node.target)
        if handler is None or not _accepts(handler, node):
            options = f" with the options {dict(node.kwargs)}" if handler is not None else ""
            raise UnsupportedError(f"{location}: {name_of(node.target)}{options} is unsupported")
        low = self._enter(node)
        args, kwargs = self._operands(node)
        ops_before = len(low.graph.ops)
        result = self._run(low, lambda: handler(low, *args, **kwargs))
        # A handler may write several ops (padding, bias); the scope wants the convolutions alone.
        if MULTI_CONV in tags_of(node):
            new = low.graph.ops[ops_before:]
            self.multi_convs[tags_of(node)[MULTI_CONV]] += [op for op in new if isinstance(op, (Conv, ConvTranspose))]
        flows = self._made(node, self._site(node), result, *self._origin(node))
        if low.target == "ipuperf::recomputation_checkpoint":
            self.checkpoints.append(flows)
            self._mark(flows)
        return flows

    def _conditional(self, node: torch.fx.Node) -> Any:
        """The results of one of the two bodies of ``poptorch.cond``, which have been lowered."""
        number, condition, *operands = node.args
        assert isinstance(condition, torch.fx.Node)
        site, around = self._site(node), tags_of(node).get(BODY) or ""
        bodies = []
        for name, results in zip(("then", "else"), operands, strict=True):
            path = f"{around and '/' + around}/{number}.{name}"
            bodies.append(self._body(site, path, location_of_node(node)))
            for result in cast(Sequence[torch.fx.Node], results):
                bodies[-1].add_result(self.values[result])
        low = self._enter(node)
        value = self.values[condition]
        known = low.tensor(value) if isinstance(value, torch.Tensor) else site.get(value)
        flows = self._run(low, lambda: conditional(low, known, *bodies))
        return self._made(node, site, flows, [], False, False)

    def _enter(self, node: torch.fx.Node) -> Lowering:
        """The lowering of a node's part, told that the node is next."""
        low = self._site(node).lowering
        low.location, low.naming, low.target = location_of_node(node), node.name, name_of(node.target)
        low.module = tags_of(node).get(MODULE)
        low.shapes, low.dtypes = _specs(node, low.target)
        operand = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
        if isinstance(operand, torch.Tensor):
            low.layout = tuple(operand.stride()), int(operand.storage_offset())
        return low

    def _operands(self, node: torch.fx.Node) -> tuple[Any, Any]:
        """The arguments of a node with values of its part in the place of nodes."""
        site, gradients = self._site(node), tags_of(node).get(GRAD, True)

        def operand(value: Any) -> Any:
            return _map_flows(value, lambda f: site.get(f) if isinstance(site, Body) else site.operand(f, gradients))

        args = torch.fx.map_arg(node.args, lambda n: operand(self.values[n]))
        return args, torch.fx.map_arg(node.kwargs, lambda n: operand(self.values[n]))

    def _origin(self, node: torch.fx.Node) -> tuple[list[Flow], bool, bool]:
        """The values that a node works on, whether one of them needs a gradient, and whether gradients stop there."""
        flows = [f for n in node.all_input_nodes for f in _flows(self.values[n])]
        gradients = tags_of(node).get(GRAD, True)
        return flows, any(f.needs_grad and not (f.blocked and gradients) for f in flows), not gradients

    @staticmethod
    def _run(low: Lowering, handler: Callable[[], Any]) -> Any:
        try:
            with CONTEXT.building(low):
                return handler()
        except IrError as error:
            raise ExportError(f"{low.location}: {low.target}: {error}") from error

    def _mark(self, flow: Flow) -> None:
        # Bodies of conditionals keep nothing for the backward pass; only ops of a stage do.
        if isinstance(flow.origin, Part) and flow.tensor is not None and flow.tensor not in flow.origin.checkpoints:
            flow.origin.checkpoints.append(flow.tensor)

    def _made(
        self,
        node: torch.fx.Node,
        site: Part | Body,
        result: Any,
        flows: Sequence[Flow],
        needs_grad: bool,
        blocked: bool,
    ) -> Any:
        """Results of a handler as values; a tensor that came in is the value it was."""

        def flow(value: Any, index: int) -> Any:
            if not isinstance(value, Tensor):
                return value
            _check(node, site.lowering, value, index)
            # A handler with nothing to do returns its operand; the flow stays the same, unless gradients end here.
            for old in flows:
                if site.get(old) is value and not (blocked and old.needs_grad and not old.blocked):
                    return old
            # Integers carry no gradient, whatever they are computed from.
            needs = needs_grad and value.dtype.is_floating_point
            return Flow(site, value, needs, blocked)

        if isinstance(result, (list, tuple)):
            return [flow(value, i) for i, value in enumerate(result)]
        return flow(result, 0)


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Nodes that use a value, also through marks."""
    for user in node.users:
        if user.op == "call_function" and name_of(user.target) in _OVERLAPS:
            yield from _readers(user)
        else:
            yield user


@functools.lru_cache(maxsize=1024)
def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(handler)


def _accepts(handler: Callable[..., Any], node: torch.fx.Node) -> bool:
    """Whether a handler takes the arguments of a node."""
    # The arguments are bound without a call: a TypeError from inside the handler is a defect, not a missing option.
    try:
        _signature(handler).bind(None, *node.args, **node.kwargs)
    except TypeError:
        return False
    return True


def _flows(value: Any) -> list[Flow]:
    if isinstance(value, Flow):
        return [value]
    if isinstance(value, (list, tuple)):
        return [f for v in value for f in _flows(v)]
    return []


def _map_flows(value: Any, function: Callable[[Flow], Any]) -> Any:
    if isinstance(value, Flow):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [_map_flows(v, function) for v in value]
    return value


def _specs(node: torch.fx.Node, target: str) -> tuple[list[tuple[int, ...]], list[Any]]:
    """Shapes and types of a node's results."""
    value = node.meta.get("val")
    items = value if isinstance(value, (list, tuple)) else [value]
    tensors = [v for v in items if isinstance(v, torch.Tensor)]
    for tensor in tensors:
        if any(not isinstance(n, int) for n in tensor.shape):
            raise UnsupportedError(
                f"{location_of_node(node)}: {target}: shape {tuple(tensor.shape)} depends on data; the program of an "
                "IPU is static"
            )
    where = f"{location_of_node(node)}: result of {target}"
    return [tuple(t.shape) for t in tensors], [ir_dtype(t.dtype, where) for t in tensors]


def _check(node: torch.fx.Node, low: Lowering, tensor: Tensor, index: int) -> None:
    """A handler must give what PyTorch gives."""
    value = node.meta.get("val")
    expected = value[index] if isinstance(value, (list, tuple)) else value
    if not isinstance(expected, torch.Tensor):
        return
    shape, dtype = tuple(expected.shape), ir_dtype(expected.dtype, low.target)
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ExportError(
            f"{low.location}: {low.target}: lowered to {tensor.spec}, PyTorch gives {shape} {dtype.name} (a defect of "
            "ipuperf)"
        )

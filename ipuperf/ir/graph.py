"""Graphs and the Ir that owns them.

An :class:`Ir` holds one main graph (name ``""``) and any number of subgraphs, the data of the main graph (variables,
constants, streams), remote buffers, and the counters that number ops (from 100), name clashes (``__t<k>``) and
subgraphs (``_subgraph(k)``), each one counter per Ir as upstream.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .builder import Operand
from .context import CONTEXT
from .dtype import DType, dtype_of
from .errors import ForeignTensorError, IrError
from .location import user_location
from .op import Op
from .replicas import ReplicaGrouping
from .tensor import Constant, RemoteBuffer, Stream, Tensor, TensorSpec, Variable

if TYPE_CHECKING:
    from .phase import Phase

OpT = TypeVar("OpT", bound=Op)
T = TypeVar("T")

FIRST_OP_ID = 100

#: How deep calls of graphs may be nested.
MAX_NESTING = 2500

#: Frames of Python's stack that a room needs at most to follow one call.
FRAMES_PER_CALL = 30


def derived(function: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Decorator: work out a function of a graph once while its program is frozen (:meth:`Ir.frozen`).

    Callers must not change the result, as all of them get the same one.
    """

    @wraps(function)
    def once(graph: Graph) -> T:
        facts = graph.facts
        if facts is None:
            return function(graph)
        if function not in facts:
            # Keyed by the undecorated function, so every derived function has a cache of its own.
            facts[function] = function(graph)
        fact: T = facts[function]
        return fact

    return once


class Graph:
    """A list of ops with inputs and outputs.

    Attributes:
        name: unique name; the main graph's is empty. It does not change.
        phase: phase of its ops where nobody states one (:mod:`.phase`); None: any phase.
        module: path of the user's module or function that it was made from; its ops' modules begin with it.
        scope: prefix of the ids of the graph's tensors: ``name/``, empty for the main graph.
        inputs, outputs: tensors in call order.
        ops: ops in creation order; the execution order comes from :func:`ipuperf.ir.schedule.schedule`.
        tensors: every tensor of the graph by id, in creation order.
        constraints: extra ordering, ``{op: ops that must come before it}``.
        created_hooks: called with each new op.
        own_gradient: whether the program, and not the ops, defines its gradient, which callers have to pass in.
        facts: while the Ir is frozen, the results of :func:`derived` functions for the graph; None otherwise.
    """

    def __init__(self, ir: Ir, name: str) -> None:
        self.ir = ir
        self.name = name
        self.scope = f"{name}/" if name else ""
        self.module = ""
        self.phase: Phase | None = CONTEXT.phases[-1] if CONTEXT.phases else None
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self.constraints: dict[Op, set[Op]] = {}
        self.created_hooks: dict[int, Callable[[Op], None]] = {}
        self.own_gradient = False
        self.version = 0
        self.facts: dict[Callable[[Graph], Any], Any] | None = None

    @property
    def is_main(self) -> bool:
        """True for the main graph."""
        return self.name == ""

    # -- tensors ---------------------------------------------------------------------------------------------------

    def tensor_id(self, name: str) -> str:
        """A free id for ``name`` under the active name scopes; a clash gets the Ir's next ``__t<k>``."""
        scopes = CONTEXT.scopes
        tensor_id = f"{self.scope}{'/'.join(scopes)}/{name}" if scopes else self.scope + name
        return f"{tensor_id}__t{next(self.ir.clash_counter)}" if tensor_id in self.tensors else tensor_id

    def add(self, tensor: Tensor) -> Tensor:
        """Register a tensor built elsewhere under its id."""
        if tensor.id in self.tensors:
            raise IrError(f"tensor {tensor.id!r} exists already in graph {self.name or 'main'!r}")
        self._thawed()
        self.tensors[tensor.id] = tensor
        self.version += 1
        return tensor

    def intermediate(self, spec: TensorSpec, name: str) -> Tensor:
        """A new tensor that an op will define."""
        self._thawed()
        return self._new(spec, name)

    def _new(self, spec: TensorSpec, name: str) -> Tensor:
        tensor_id = self.tensor_id(name)
        tensor = self.tensors[tensor_id] = Tensor(tensor_id, spec, self)
        self.version += 1
        return tensor

    def add_input(self, spec: TensorSpec, name: str, *, by_ref: bool = False) -> Tensor:
        """Append a graph input."""
        tensor = self.intermediate(spec, name)
        tensor.by_ref = by_ref
        self.inputs.append(tensor)
        return tensor

    def add_output(self, tensor: Tensor) -> Tensor:
        """Append a graph output; it must belong to this graph."""
        if tensor.graph is not self:
            raise ForeignTensorError(
                f"tensor {tensor.id!r} belongs to graph {tensor.graph.name or 'main'!r} and cannot be an output of "
                f"{self.name or 'main'!r}"
            )
        self._thawed()
        self.outputs.append(tensor)
        self.version += 1
        return tensor

    def constant(self, data: Any, dtype: DType | None = None, name: str = "t") -> Constant:
        """A constant of this graph with the given values, or with those of a constant of another graph."""
        if isinstance(data, Constant):
            array, dtype = data.data, data.dtype  # nobody writes into the data of a constant
        else:
            array = np.asarray(data) if dtype is None else np.asarray(data).astype(dtype.numpy)
        spec = TensorSpec(tuple(array.shape), dtype or dtype_of(array))
        constant = Constant(self.tensor_id(name), spec, self, array)
        self.add(constant)
        return constant

    # -- ops -------------------------------------------------------------------------------------------------------

    def create(self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> OpT:
        """Append an op: number it, apply its shape rule, create its outputs (named by ``names``), order and place it.

        Raises:
            ForeignTensorError: an operand belongs to another graph; IrError: an attribute that is unknown, missing or
                of a wrong type (:mod:`.attributes`); ShapeError / DTypeError from the op's rule.
        """
        return self.create_at(op_class, inputs, names, attributes, user_location())

    def require_own(self, user: str, tensor: Tensor) -> None:
        """Raise ForeignTensorError in the name of ``user``, an op or function, unless ``tensor`` belongs to this
        graph."""
        if tensor.graph is not self:
            raise ForeignTensorError(self._foreign(user, tensor))

    def create_at(
        self,
        op_class: type[OpT],
        inputs: Sequence[Tensor],
        names: Sequence[str],
        attributes: Mapping[str, Any],
        location: str,
        *,
        settled: bool = False,
    ) -> OpT:
        """:meth:`create` for builders, which know the op's ``location``. For ``settled`` see :class:`.op.Op`."""
        for tensor in inputs:
            if tensor.graph is not self:
                self.require_own(op_class.type, tensor)
        # Tested here first, as a call of _thawed for every op would be measurable.
        if self.facts is not None or self.ir.sealed:
            self._thawed()
        op = op_class(self, self.ir.next_op_id, inputs, attributes, location, settled=settled)
        # The shape rule may refuse the op, so the Ir is changed only after it.
        specs = op.infer()
        self.ir.next_op_id += 1
        for tensor in op.inputs:
            tensor.consumers.append(op)
        for spec, name in zip(specs, names, strict=True):
            self._define(op, spec, name)
        CONTEXT.place(op)
        # The op's own IPU wins over that of the context.
        fixed = op.fixed_ipu()
        if fixed is not None:
            op.ipu = fixed
        if op.ipu is not None:
            for output in op.outputs:
                output.ipu = op.ipu
        self.ops.append(op)
        self.version += 1
        if self.created_hooks:
            # A copy, as a hook may remove itself.
            for hook in list(self.created_hooks.values()):
                hook(op)
        return op

    def operate(self, op_class: type[Op], operands: Sequence[Operand]) -> Tensor:
        """The output of a new op in the active builder's graph, or here when no builder is active; see
        :class:`.operators.Operators`."""
        builder = CONTEXT.builder_of(self)
        return builder.op(op_class, builder.operands(*operands))

    def _thawed(self) -> None:
        """Raise unless the graph may change."""
        if self.facts is not None:
            raise IrError(f"graph {self.name or 'main'!r} cannot change while its program is lowered")
        if self.ir.sealed:
            raise IrError(
                f"graph {self.name or 'main'!r} cannot change after a Session was built from its Ir; build the whole "
                "program first, then the Session"
            )

    def _foreign(self, user: str, tensor: Tensor) -> str:
        """Message for an operand that does not belong here."""
        name, owner = self.name or "main", tensor.graph.name or "main"
        if tensor.graph.ir is not self.ir:
            return f"{user}: operand {tensor.id!r} belongs to another Ir (graph {owner!r}); it cannot be shared"
        return f"{user}: operand {tensor.id!r} belongs to graph {owner!r}, not to {name!r}; pass it in as a graph input"

    def _define(self, op: Op, spec: TensorSpec, name: str) -> Tensor:
        tensor_id = self.tensor_id(name)
        tensor = self.tensors[tensor_id] = Tensor(tensor_id, spec, self)
        self.version += 1
        tensor.producer = op
        op.outputs.append(tensor)
        return tensor

    def append_output(self, op: Op, spec: TensorSpec, name: str) -> Tensor:
        """Give an existing op (a call site) one more output."""
        self._thawed()
        return self._define(op, spec, name)

    def append_operand(self, op: Op, tensor: Tensor) -> None:
        """Give an existing op (a call site) one more operand, a tensor of this graph."""
        if tensor.graph is not self:
            raise ForeignTensorError(self._foreign(op.label, tensor))
        self._thawed()
        op.inputs.append(tensor)
        tensor.consumers.append(op)
        self.version += 1

    def constrain(self, before: Op, after: Op) -> None:
        """Require that ``before`` executes before ``after``."""
        self._thawed()
        earlier = self.constraints.get(after)
        if earlier is None:
            earlier = self.constraints[after] = set()
        earlier.add(before)
        self.version += 1

    # -- queries ---------------------------------------------------------------------------------------------------

    def called_graphs(self) -> Sequence[Graph]:
        """Subgraphs called by ops of this graph, each once, in creation order of the calls."""
        return callees(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name or 'main'!r}: {len(self.ops)} ops>"


@derived
def calling(graph: Graph) -> Sequence[Op]:
    """The ops that call graphs, in creation order."""
    return [op for op in graph.ops if op.called_graphs()]


@derived
def callees(graph: Graph) -> Sequence[Graph]:
    """:meth:`Graph.called_graphs`."""
    return tuple(dict.fromkeys([callee for op in calling(graph) for callee in op.called_graphs()]))


def callees_first(main: Graph) -> list[Graph]:
    """``main`` and all graphs that it calls, each once and behind the graphs it calls itself."""
    ordered: dict[Graph, None] = {}
    pending = [main]
    # A stack instead of recursion: calls may be nested deeper than Python's stack allows.
    while pending:
        calls = [callee for callee in pending[-1].called_graphs() if callee not in ordered]
        if not calls:
            ordered[pending.pop()] = None
        pending += calls
    return list(ordered)


@derived
def data_of(graph: Graph) -> list[Variable | Constant | Stream]:
    """The variables, constants and streams of ``graph``, in creation order."""
    return [tensor for tensor in graph.tensors.values() if isinstance(tensor, (Variable, Constant, Stream))]


class Ir:
    """A whole program.

    Attributes:
        main_graph: what one ``session.run`` executes.
        graphs: subgraphs by name.
        replication_factor: how many replicas run the program (data parallel).
        num_host_transfers: how often the streams are read and written per run.
        num_io_tiles: tiles of each IPU set aside for ops of the tile set ``io``; with 0 those run with the others.
        checks_ambiguity: whether an in-place change that nothing orders against another use of its tensor is an error;
            otherwise the schedule decides.
        sealed: whether a session runs the program, so that its graphs, buffers and numbers cannot change any more.
        weights_from_host, weights_to_host: graphs that run when variables are copied to and from the device (sharded
            remote variables are loaded there, not in ``run``); empty when nothing needs them.
    """

    def __init__(self, replication_factor: int = 1) -> None:
        self.clash_counter: Iterator[int] = itertools.count()
        self.next_op_id = FIRST_OP_ID
        self._subgraph_counter = itertools.count()
        self.replication_factor = replication_factor
        self.num_host_transfers = 1
        self.num_io_tiles = 0
        self.checks_ambiguity = True
        self.sealed = False
        self.main_graph = Graph(self, "")
        self.graphs: dict[str, Graph] = {}
        self.remote_buffers: list[RemoteBuffer] = []

    def take_op_id(self) -> int:
        """Consume the next op number (also for transforms that upstream counts as an op)."""
        self.next_op_id += 1
        return self.next_op_id - 1

    def create_graph(self, stem: str) -> Graph:
        """A new empty subgraph named ``<stem>_subgraph(k)``."""
        return self.create_named_graph(f"{stem}_subgraph({self.take_subgraph_number()})")

    def take_subgraph_number(self) -> int:
        """Consume the next ``k`` of ``_subgraph(k)`` (also for graphs that only upstream makes)."""
        return next(self._subgraph_counter)

    def create_named_graph(self, name: str) -> Graph:
        """A new empty subgraph with exactly this name."""
        self.main_graph._thawed()
        if name in self.graphs or not name:
            raise IrError(f"graph name {name!r} is taken or empty")
        graph = Graph(self, name)
        self.graphs[name] = graph
        return graph

    def grouping(self, stride: int = 1, group_size: int | None = None) -> ReplicaGrouping:
        """A replica grouping over this Ir's replicas (default: one group of all)."""
        return ReplicaGrouping(self.replication_factor, stride, group_size or 0)

    def remote_buffer(
        self, shape: Sequence[int], dtype: DType, entries: int, meta_shape: Sequence[int] = ()
    ) -> RemoteBuffer:
        """A new remote buffer; ids start at 1."""
        self.main_graph._thawed()
        if entries < 1:
            raise ValueError(
                f"remote buffer of {tuple(shape)} {dtype.name}: entries is {entries}, at least 1 is needed"
            )
        buffer = RemoteBuffer(len(self.remote_buffers) + 1, shape, dtype, entries, meta_shape)
        self.remote_buffers.append(buffer)
        return buffer

    def all_graphs(self) -> Iterable[Graph]:
        """The main graph, then the subgraphs in creation order."""
        return [self.main_graph, *self.graphs.values()]

    def variables(self) -> list[Variable]:
        """All variables, in creation order."""
        return [tensor for tensor in self.main_graph.tensors.values() if isinstance(tensor, Variable)]

    def streams(self, direction: str | None = None) -> list[Stream]:
        """Host streams, in creation order."""
        streams = [tensor for tensor in self.main_graph.tensors.values() if isinstance(tensor, Stream)]
        return [stream for stream in streams if direction is None or stream.direction == direction]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep the program unchanged inside, and work out what follows from its graphs (:func:`derived`) only once."""
        # Graphs that an outer ``frozen`` holds already keep their facts until that one ends.
        graphs = [graph for graph in self.all_graphs() if graph.facts is None]
        for graph in graphs:
            graph.facts = {}
        try:
            yield
        finally:
            for graph in graphs:
                graph.facts = None

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check what must hold before a program can be lowered or evaluated, and put calls in order; then as
        :meth:`frozen`. Facts that the check derived from the graphs stay known within it.

        Raises:
            IrError: calls are nested too deep or in a circle.
            AmbiguityError: nothing states a necessary order.
        """
        # Imported here, because the module of the schedule imports this one.
        from .schedule import call_order, check_ambiguity

        with ExitStack() as stack:
            stack.enter_context(self.frozen())
            graphs = self.callees_first()
            edges = [edge for graph in graphs for edge in call_order(graph)]
            if edges:
                # New constraints change the graphs, so the facts derived so far are dropped first.
                stack.close()
                for predecessor, successor in edges:
                    predecessor.graph.constrain(predecessor, successor)
                stack.enter_context(self.frozen())
            for graph in graphs if self.checks_ambiguity else ():
                check_ambiguity(graph)
            yield

    def callees_first(self) -> list[Graph]:
        """All graphs, each after those that it calls.

        Raises:
            IrError: a graph calls itself through others, or calls are nested more than :data:`MAX_NESTING` deep.
        """
        return list(self._checked_depths())

    def _checked_depths(self) -> dict[Graph, int]:
        """:meth:`_depths`; IrError where one exceeds :data:`MAX_NESTING`."""
        depths = self._depths()
        # An explicit limit gives an error that names the graph, instead of a RecursionError deep in some room.
        deepest = max(depths, key=depths.__getitem__)
        if depths[deepest] > MAX_NESTING:
            raise IrError(
                f"graph {deepest.name or 'main'!r}: calls are nested {depths[deepest]} deep; at most {MAX_NESTING} are "
                "allowed"
            )
        return depths

    def _depths(self) -> dict[Graph, int]:
        """How deep calls are nested in each graph, callees first (0: it calls none)."""
        depths: dict[Graph, int] = {}
        for start in self.all_graphs():
            # Walks with a path of its own: Python's stack would not hold MAX_NESTING calls.
            path: dict[Graph, Iterator[Graph]] = {} if start in depths else {start: iter(start.called_graphs())}
            while path:
                graph, callees = next(reversed(path.items()))
                callee = next((callee_graph for callee_graph in callees if callee_graph not in depths), None)
                if callee in path:
                    raise IrError(f"graph {callee.name!r} is called by itself through {graph.name!r}")
                if callee is not None:
                    path[callee] = iter(callee.called_graphs())
                    continue
                depths[graph] = max((1 + depths[callee_graph] for callee_graph in graph.called_graphs()), default=0)
                del path[graph]
        return depths

    @contextmanager
    def deep_calls(self) -> Iterator[None]:
        """Room on Python's stack for functions that follow calls, nested up to :data:`MAX_NESTING` deep."""
        previous_limit = sys.getrecursionlimit()
        nesting = max(self._checked_depths().values())
        sys.setrecursionlimit(previous_limit + FRAMES_PER_CALL * nesting)
        try:
            yield
        finally:
            sys.setrecursionlimit(previous_limit)


def below(graph: Graph) -> list[Graph]:
    """``graph`` and all graphs that it executes, directly or through others."""
    reached = {graph: None}
    pending = [graph]
    while pending:
        for callee in pending.pop().called_graphs():
            if callee not in reached:
                reached[callee] = None
                pending.append(callee)
    return list(reached)


def remap(tensors: Sequence[Tensor], mapping: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """``tensors``, each replaced by its image in ``mapping`` where there is one."""
    return [mapping.get(tensor, tensor) for tensor in tensors]

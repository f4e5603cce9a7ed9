"""Calls of subgraphs and loops over them.

Operands are matched with the callee's inputs anew at every use, because transforms append inputs and outputs to graphs
that are already called. A call copies its inputs in and its outputs out, so the caller does not see changes made
inside. The exception are inputs *by reference* (:attr:`ipuperf.ir.Tensor.by_ref` of the callee's input, or the index
in the op's attribute ``by_ref``). :mod:`ipuperf.numerics` compiles both ops itself (calls are inlined, and copies made
only where they can be observed), so they have no kernel of their own.

Semantics: ``docs/reference/popxl.md`` 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipuperf.ir import (
    Builder,
    Derivative,
    DTypeError,
    GradientBuilder,
    Graph,
    IrError,
    ShapeError,
    Tensor,
    TensorSpec,
    changes,
    derived,
    gradient_name,
    roots,
)
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, instance

from .base import Gradients, Op
from .shape import Init
from .work import CallGraph, Copy, ReadCondition, Work


@derived
def modified_graph_inputs(graph: Graph) -> set[int]:
    """Indices of ``graph``'s inputs whose storage its ops change, calls included."""
    changing = changes(graph)
    if not changing:
        return set()
    # An op may change an input through a view of
    # it, so both are traced back to their storage.
    root = roots(graph)
    changed = {root.get(op.inputs[i], op.inputs[i]) for op, indices in changing.items() for i in indices}
    return {i for i, tensor in enumerate(graph.inputs) if tensor in changed}


@derived
def _referenced_inputs(graph: Graph) -> frozenset[int]:
    """Indices of ``graph``'s inputs that every call passes by reference."""
    return frozenset([i for i, tensor in enumerate(graph.inputs) if tensor.by_ref])


class _Control(Op):
    """Base of ops that execute ``callee``."""

    callee = Attribute(instance(Graph))
    by_ref = Attribute(INTEGERS, ())

    def called_graphs(self) -> tuple[Graph, ...]:
        return (self.callee,)

    def references(self) -> frozenset[int]:
        """Indices of the inputs by reference: changes inside the callee reach the caller's tensors."""
        return _referenced_inputs(self.callee).union(self.by_ref)

    def modified_inputs(self) -> tuple[int, ...]:
        """Inputs by reference that the callee changes."""
        changed = modified_graph_inputs(self.callee)
        return tuple(sorted(changed.intersection(self.references(), range(len(self.inputs))))) if changed else ()

    def unseen_changes(self) -> tuple[int, ...]:
        """Changed inputs that the callee does not also return as an output."""
        # An output may be a view of a changed input; then the change is visible.
        root = roots(self.callee)
        returned = {root.get(t, t) for t in self.callee.outputs}
        return tuple(i for i in self.modified_inputs() if self.callee.inputs[i] not in returned)

    def check_operands(self) -> None:
        """Raise :class:`ShapeError` unless the operands fit the callee's inputs one by one."""
        _check_operands(self, self.callee, self.inputs)

    def copied_bytes(self) -> int:
        """Bytes of the operands that are passed by value."""
        references = self.references()
        return sum([tensor.spec.bytes for i, tensor in enumerate(self.inputs) if i not in references])


def _check_operands(op: Op, callee: Graph, operands: Sequence[Tensor]) -> None:
    if len(operands) != len(callee.inputs):
        raise ShapeError(
            f"{op.where()}: {len(operands)} operands for the {len(callee.inputs)} inputs of graph {callee.name!r}"
        )
    pairs = zip(operands, callee.inputs, strict=True)
    # Specs are mostly the same object, which is the quicker test.
    differing = [(t, parameter) for t, parameter in pairs if t.spec is not parameter.spec and t.spec != parameter.spec]
    if differing:
        operand, parameter = differing[0]
        more = f"; {len(differing) - 1} more operands differ" if len(differing) > 1 else ""
        raise ShapeError(
            f"{op.where()}: operand {operand.id!r} is {_full(operand)}, input {parameter.id!r} of graph "
            f"{callee.name!r} is {_full(parameter)}{more}"
        )


def _full(tensor: Tensor) -> str:
    meta = f" meta_shape {tensor.meta_shape}" if tensor.meta_shape else ""
    return f"{tensor.spec}{meta}"


def _copies(count: int) -> list[Work]:
    return [Copy(count)] if count else []


class Call(_Control):
    """Execute graph ``callee`` once; one output per output of the callee.

    Cost: a copy of the operands passed by value, the callee, a copy of its outputs.
    """

    def infer(self) -> list[TensorSpec]:
        """The specs of the callee's outputs; raises for the main graph and for operands that do not fit."""
        if self.callee.is_main:
            raise IrError(f"{self.where()}: the main graph cannot be called")
        self.check_operands()
        return [t.spec for t in self.callee.outputs]

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """Call the callee's gradient graph with the gradients and the forward tensors that it needs.

        Forward tensors inside the callee arrive as outputs that stitching has appended to this op.
        """
        way = _way_back(builder, self.callee, self.inputs, self.outputs, grads)
        if way is None:
            return [None] * len(self.inputs)
        result = way.call(builder, way.operands)
        return [result.get(t) for t in self.callee.inputs]

    def work(self) -> Sequence[Work]:
        """A copy of the operands passed by value, the callee, a copy of its outputs."""
        outputs = sum(t.spec.bytes for t in self.outputs)
        return [*_copies(self.copied_bytes()), CallGraph(self.callee), *_copies(outputs)]


@dataclass(frozen=True)
class _WayBack:
    """The derivative of a graph that an op executes, and the ``operands`` to pass to its gradient graph."""

    derivative: Derivative
    operands: Sequence[Tensor]

    def call(self, builder: Builder, operands: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Call the gradient graph; return the gradients that it gives for the differentiated graph's inputs."""
        graph = self.derivative.graph
        call = builder.create(Call, operands, [t.name for t in graph.outputs], callee=graph)
        return {c.tensor: t for c, t in zip(self.derivative.outputs, call.outputs, strict=True)}


def _way_back(
    builder: GradientBuilder,
    callee: Graph,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    grads: Gradients,
) -> _WayBack | None:
    """The derivative of ``callee``, which was executed with operands ``inputs`` and results ``outputs``.

    ``grads`` are the gradients of the results; the gradients of a result that is returned twice are added. None where
    no gradient reaches an input.
    """
    result_grads: dict[Tensor, Tensor] = {}
    for tensor, grad in zip(callee.outputs, grads):
        if grad is not None:
            result_grads[tensor] = (
                builder.op(builder.add_class, [result_grads[tensor], grad]) if tensor in result_grads else grad
            )
    # A derivative that exists already says itself which inputs it differentiates.
    known = builder.given_derivative(callee)
    required = reached_by_gradients(callee, result_grads) if known is None else {c.tensor for c in known.outputs}
    differentiated = [t for t in callee.inputs if t in required]
    if not differentiated:
        return None
    derivative = builder.derivative_of(callee, list(result_grads), differentiated)
    # Inputs come second: a tensor that is both input and output is read as the operand.
    values = dict(zip(callee.outputs, outputs)) | dict(zip(callee.inputs, inputs))
    operands = [
        result_grads[c.tensor] if c.is_gradient else builder.forward(values[c.tensor]) for c in derivative.inputs
    ]
    return _WayBack(derivative, operands)


def reached_by_gradients(graph: Graph, provided: Iterable[Tensor]) -> set[Tensor]:
    """Floating-point tensors of ``graph`` on which an output in ``provided`` depends differentiably."""
    reached = {t for t in provided if t.dtype.is_floating_point}
    for op in reversed(graph.ops):  # creation order defines before use
        if isinstance(op, Op) and op.flat:
            continue
        arriving = [t for t in op.outputs if t in reached]
        if not arriving:
            continue
        # A call passes gradients only to those operands that its graph uses differentiably.
        if isinstance(op, (Call, If)):
            indices = [op.outputs.index(t) for t in arriving]
            for callee, operands in op.calls():
                reached_inside = reached_by_gradients(callee, [callee.outputs[i] for i in indices])
                reached.update(t for t, parameter in zip(operands, callee.inputs) if parameter in reached_inside)
        else:
            reached.update(t for t in op.inputs if t.dtype.is_floating_point)
    return reached


class Loop(_Control):
    """Execute graph ``callee`` ``trip_count`` times.

    The first N inputs are loop carried, N being the number of the callee's outputs: the outputs of each iteration are
    the first N inputs of the next one. The op's outputs are those of the last iteration (with 0 trips the inputs
    themselves). The remaining inputs are the same in every iteration, unless they are by reference and changed inside.
    Carried inputs are always by value: the changed value is the output. There is no gradient, as upstream.

    ``conditional`` (attribute): each trip first checks whether to go on, as in an ONNX loop that has its number of
    trips and a condition as operands (upstream's ``poptorch.for_loop``). The answer is always yes.

    Cost: a copy of the operands passed by value, the callee ``trip_count`` times, and for each trip two copies of the
    carried values (PopART popx/op/loopx.cpp: into a clone of the result, then to where the callee reads them), but for
    those that the callee returns as they came. A conditional loop also pays for the condition and the counter.
    """

    trip_count = Attribute(INTEGER)
    conditional = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """The specs of the callee's outputs; raises for the main graph, a bad trip count and operands that do not
        fit."""
        if self.callee.is_main:
            raise IrError(f"{self.where()}: the main graph cannot be repeated")
        if self.trip_count < 0:
            raise IrError(f"{self.where()}: trip_count={self.trip_count}; a whole number of at least 0 is needed")
        self.check_operands()
        self.check_carried()
        return [t.spec for t in self.callee.outputs]

    @property
    def carried(self) -> int:
        """Number of loop-carried inputs."""
        return len(self.callee.outputs)

    def check_carried(self) -> None:
        """Raise :class:`ShapeError` unless each output of the callee fits the input that it becomes."""
        callee = self.callee
        # Output i becomes input i of the next trip.
        if self.carried > len(callee.inputs):
            raise ShapeError(
                f"{self.where()}: graph {callee.name!r} has {self.carried} outputs and only {len(callee.inputs)} "
                "inputs; each output is carried to the input of the same index"
            )
        for output, parameter in zip(callee.outputs, callee.inputs):
            if output.spec != parameter.spec:
                raise ShapeError(
                    f"{self.where()}: output {output.id!r} of graph {callee.name!r} is {_full(output)}, the input "
                    f"{parameter.id!r} that it is carried to is {_full(parameter)}"
                )

    def references(self) -> frozenset[int]:
        """As for a call, but never carried inputs."""
        # Carried inputs are by value: the changed value is the output.
        return super().references().difference(range(self.carried))

    def work(self) -> Sequence[Work]:
        """A copy of the operands passed by value, then for each trip the callee and a copy of the carried values."""
        carried = sum(t.spec.bytes for t in self.inputs[: self.carried])
        copied = self.copied_bytes()
        return [*_copies(copied), CallGraph(self.callee, self.trip_count), *_copies(carried * self.trip_count)]


class If(Op):
    """Execute graph ``then_branch`` where the boolean scalar ``inputs[0]`` is true, ``else_branch`` where it is not.

    After the condition come the operands of the first graph, then those of the second; all are by value. Both graphs
    give the same number of results, of the same shapes and types. Each replica takes its own branch: when replicas
    differ, both graphs are evaluated and each replica keeps its own results. This is refused where a branch
    communicates (collectives, remote buffers). Host transfers cannot stand in a branch, as their number per run would
    depend on data.

    The gradient is a conditional on the same condition between the gradients of the graphs. Those compute again the
    forward values that they need and that are neither operand nor result (as upstream, see
    :func:`ipuperf.ir.differentiate`).

    Cost: the condition goes to every tile of every IPU that a branch runs on; then come the longer branch, the copies
    of its operands and the copies of its results. (A program is simulated once, whatever its data are.) Memory is that
    of this branch, with the code of both and the operands of both. Which branch takes longer must be plain. Where one
    has more work on the tiles and the other more traffic of collectives, Streaming Memory or between IPUs, lowering
    raises. Semantics: popart: willow/src/op/if.cpp.
    """

    then_branch = Attribute(instance(Graph))
    else_branch = Attribute(instance(Graph))

    def called_graphs(self) -> tuple[Graph, ...]:
        """Both branches."""
        return (self.then_branch, self.else_branch)

    def calls(self) -> tuple[tuple[Graph, Sequence[Tensor]], ...]:
        """The branches, each with its own operands."""
        split = 1 + len(self.then_branch.inputs)
        return (self.then_branch, self.inputs[1:split]), (self.else_branch, self.inputs[split:])

    def infer(self) -> list[TensorSpec]:
        """The specs of the branches' outputs. Raises for a condition that is no boolean scalar, branches whose
        results differ, operands that do not fit, inputs by reference, host transfers inside and the main graph."""
        condition = self.inputs[0]
        # Each replica takes one branch as a whole, so one boolean decides.
        if condition.dtype.name != "bool" or condition.spec.elements != 1:
            raise DTypeError(
                f"{self.where()}: condition {condition.id!r} is {condition.spec}; a boolean scalar is needed"
            )
        for callee, operands in self.calls():
            self._check_branch(callee)
            _check_operands(self, callee, operands)
        then_specs, else_specs = ([t.spec for t in graph.outputs] for graph in self.called_graphs())
        if then_specs != else_specs:
            raise ShapeError(
                f"{self.where()}: graph {self.then_branch.name!r} gives {_listed(then_specs)}, graph "
                f"{self.else_branch.name!r} gives {_listed(else_specs)}; branches need the same results"
            )
        return then_specs

    def _check_branch(self, callee: Graph) -> None:
        if callee.is_main:
            raise IrError(f"{self.where()}: the main graph cannot be a branch")
        if any(t.by_ref for t in callee.inputs):
            raise IrError(f"{self.where()}: graph {callee.name!r} has inputs by reference; branches take values")
        if outside_of(callee, "stream"):
            raise IrError(
                f"{self.where()}: graph {callee.name!r} moves host data, whose amount per run would depend on the "
                "condition; load before the conditional and store after it"
            )

    @property
    def communicates(self) -> bool:
        """Whether a branch needs all replicas, or memory outside of the IPU."""
        return any(outside_of(graph, "group") or outside_of(graph, "buffer") for graph in self.called_graphs())

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """A conditional between the gradients of the two graphs. It has one result for each tensor that is an
        operand of either graph, and gives zeros where the executed graph did not read that tensor."""
        ways = [_way_back(builder, callee, passed, self.outputs, grads) for callee, passed in self.calls()]
        gained = [_parameters(way, *call) for way, call in zip(ways, self.calls(), strict=True)]
        # A tensor that several operands are has one gradient, which both branches give.
        operands_with_grads = list(dict.fromkeys(outer for pairs in gained for _, outer in pairs))
        if not operands_with_grads:
            return [None] * len(self.inputs)
        branches = [
            _backward(builder, way, pairs, operands_with_grads) for way, pairs in zip(ways, gained, strict=True)
        ]
        operands = [builder.forward(self.inputs[0]), *(t for way in ways if way is not None for t in way.operands)]
        names = [gradient_name(t) for t in operands_with_grads]
        conditional = builder.create(If, operands, names, then_branch=branches[0], else_branch=branches[1])
        result = dict(zip(operands_with_grads, conditional.outputs, strict=True))
        return [None, *(result.pop(outer, None) for outer in self.inputs[1:])]  # once, where it comes first

    def work(self) -> Sequence[Work]:
        """Read the condition, execute the branches (the lowering charges the longer one) and copy the results."""
        outputs = sum(t.spec.bytes for t in self.outputs)
        return [ReadCondition(), *(CallGraph(graph) for graph in self.called_graphs()), *_copies(outputs)]


def _parameters(way: _WayBack | None, callee: Graph, passed: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
    """(input, operand) for each input of a branch for which ``way`` gives a gradient."""
    differentiated = set() if way is None else {c.tensor for c in way.derivative.outputs}
    return [
        (parameter, operand)
        for parameter, operand in zip(callee.inputs, passed, strict=True)
        if parameter in differentiated
    ]


def _backward(
    builder: GradientBuilder,
    way: _WayBack | None,
    gained: Sequence[tuple[Tensor, Tensor]],
    targets: Sequence[Tensor],
) -> Graph:
    """A branch of the gradient of a conditional: the gradient of each tensor in ``targets``."""
    graph = builder.graph.ir.create_graph(builder.graph.name if way is None else way.derivative.graph.name)
    branch_builder = Builder(graph)
    grads: dict[Tensor, Tensor] = {}
    result = {} if way is None else way.call(branch_builder, [graph.add_input(t.spec, t.name) for t in way.operands])
    for parameter, outer in gained:
        grad = result[parameter]
        # The same tensor may be passed twice, so its gradients are added.
        grads[outer] = branch_builder.op(builder.add_class, [grads[outer], grad]) if outer in grads else grad
    for outer in targets:
        if outer not in grads:
            spec = outer.spec
            grads[outer] = branch_builder.op(Init, [], shape=spec.shape, dtype=spec.dtype, meta_shape=spec.meta_shape)
        graph.add_output(grads[outer])
    return graph


def outside_of(graph: Graph, attribute: str) -> bool:
    """Whether an op in ``graph`` or in a graph that it calls has this attribute (``stream``, ``buffer``,
    ``group``)."""
    return any(
        attribute in op.attributes or any(outside_of(callee, attribute) for callee in op.called_graphs())
        for op in graph.ops
    )


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs)) or "nothing"

"""Reverse-mode automatic differentiation of a graph.

``differentiate(fwd)`` builds ``<fwd>_bwd``. Its inputs are the gradients of the chosen outputs of ``fwd`` and those
forward tensors that the gradient ops need; its outputs are the gradients of the chosen inputs. Forward tensors that are
not inputs of ``fwd`` become available by *stitching*: they become extra outputs of ``fwd`` and of every existing call
of it (``docs/reference/popxl.md`` 6). A loop or a conditional cannot pass on extra results. Where one of them executes
``fwd``, the gradient graph runs the ops again whose results it needs (popart:
willow/src/transforms/autodiff/safeaddfwdoutputstitcher.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .builder import Builder
from .context import CONTEXT
from .errors import IrError
from .graph import Graph
from .op import Op
from .recompute import Recomputation, replay
from .schedule import schedule
from .tensor import Constant, Tensor


@dataclass(frozen=True)
class Connection:
    """What an input or output of a gradient graph stands for: a forward tensor's value or its gradient."""

    tensor: Tensor
    is_gradient: bool


@dataclass
class Derivative:
    """A gradient graph and what its inputs and outputs stand for.

    Attributes:
        forward: the differentiated graph.
        graph: the gradient graph.
        inputs: one :class:`Connection` per input, in order: the given gradients, then forward tensors by id.
        outputs: one per output: the required gradients, in the order asked for.
    """

    forward: Graph
    graph: Graph
    inputs: list[Connection] = field(default_factory=list)
    outputs: list[Connection] = field(default_factory=list)

    @property
    def forward_values(self) -> list[Tensor]:
        """The forward tensors whose values the gradient graph takes as inputs, by id."""
        return [connection.tensor for connection in self.inputs if not connection.is_gradient]

    def serves(self, provided: Sequence[Tensor], required: Sequence[Tensor]) -> bool:
        """Whether it takes exactly the gradients of ``provided`` and gives at least those of ``required``."""
        available = {connection.tensor for connection in self.outputs}
        return set(required) <= available and [
            connection.tensor for connection in self.inputs if connection.is_gradient
        ] == list(provided)


Join = Callable[["GradientBuilder", Sequence[Tensor], str], Tensor | None]
"""Makes ops whose result, of the given name, is the sum of gradients of one tensor; or gives None and makes no op."""


def gradient_name(tensor: Tensor) -> str:
    """Name of a tensor's gradient."""
    return f"Gradient___{tensor.name}"


class GradientBuilder(Builder):
    """The argument of :meth:`Op.gradient`: makes ops in the gradient graph and fetches forward values.

    ``known`` holds derivatives of called graphs that were made beforehand and must be used, and the first one of each
    graph that was made on the way. ``others`` holds all that were made on the way.
    """

    def __init__(
        self,
        derivative: Derivative,
        add_class: type[Op],
        join: Join | None,
        known: dict[Graph, Derivative],
        others: list[Derivative],
    ) -> None:
        super().__init__(derivative.graph)
        self.derivative = derivative
        self.add_class = add_class
        self.join = join
        self.known = known
        self.others = others
        self._forward: dict[Tensor, Tensor] = {}

    def forward(self, tensor: Tensor) -> Tensor:
        """The value of forward tensor ``tensor``, as a tensor of the gradient graph."""
        if tensor not in self._forward:
            image = Tensor(self.graph.tensor_id(tensor.name), tensor.spec, self.graph, ipu=tensor.ipu)
            self.graph.add(image)
            self._forward[tensor] = image
        return self._forward[tensor]

    def forward_inputs(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs of forward tensor and its image here, by forward id."""
        return sorted(self._forward.items(), key=lambda pair: pair[0].id)

    def given_derivative(self, callee: Graph) -> Derivative | None:
        """The derivative of a called graph that was made beforehand."""
        # Derivatives that were made on the way are in ``known`` too, but calls may still need others.
        made_here = any(derivative.forward is callee for derivative in self.others)
        return None if made_here else self.known.get(callee)

    def derivative_of(self, callee: Graph, provided: Sequence[Tensor], required: Sequence[Tensor]) -> Derivative:
        """The derivative of a called graph, made on first need.

        All calls that use the same results share it; calls that use others get one of their own.
        """
        # A program-defined gradient cannot be derived from the ops, so it has to be passed in.
        if callee not in self.known and callee.own_gradient:
            raise IrError(
                f"graph {callee.name!r} has been marked as unsafe to autodiff where it is called: its module defines "
                "build_grad; differentiate it itself and pass the result in called_graphs_grad_info"
            )
        prepared = self.given_derivative(callee)
        for derivative in self.others if prepared is None else [prepared]:
            if derivative.forward is callee and derivative.serves(provided, required):
                return derivative
        if prepared is not None:
            raise IrError(
                f"graph {callee.name!r} is called in ways that need different gradients; differentiate it beforehand "
                "with all outputs and inputs and pass the result as called_graphs_grad_info"
            )
        derivative_made = differentiate(
            callee, provided, required, add_class=self.add_class, join=self.join, known=self.known, others=self.others
        )
        self.known.setdefault(callee, derivative_made)
        self.others.append(derivative_made)
        return derivative_made


def _dependents(order: Sequence[Op], sources: Sequence[Tensor]) -> set[Tensor]:
    """Tensors whose value depends on any of ``sources`` through floating-point data flow."""
    reached = set(sources)
    for op in order:
        if any(tensor in reached for tensor in op.inputs):
            # No gradient flows through integers and bools.
            reached.update(tensor for tensor in op.outputs if tensor.dtype.category in ("float", "float8"))
    return reached


def differentiate(
    forward: Graph,
    provided: Sequence[Tensor] | None = None,
    required: Sequence[Tensor] | None = None,
    *,
    add_class: type[Op],
    join: Join | None = None,
    known: dict[Graph, Derivative] | None = None,
    recomputation: Recomputation | None = None,
    within: Sequence[Tensor] = (),
    others: list[Derivative] | None = None,
) -> Derivative:
    """Build the gradient graph of ``forward``.

    Args:
        forward: graph without ops that change tensors in place.
        provided: outputs whose gradients will be given (default: all).
        required: inputs whose gradients are wanted (default: all floating-point inputs).
        add_class: op class that adds two gradients of the same tensor.
        join: takes all gradients of a tensor that has several and makes ops whose result is their sum; or gives None,
            which leaves the sum to ``add_class``.
        known: derivatives of called graphs to use.
        recomputation: forward ops of ``forward`` itself (a call counts as one) that the gradient graph runs again;
            their results are not among its inputs. Default: none, or all but those that give results where a loop or a
            conditional executes ``forward``.
        within: other tensors of ``forward`` whose gradients are outputs as well, after the required ones.
        others: derivatives of called graphs that were made on the way; new ones are added.

    Raises:
        IrError: an in-place op, a tensor that is no output or input of the graph, or a required gradient that does not
            exist.
    """
    provided = list(forward.outputs if provided is None else provided)
    # Inputs of integer type have no gradient.
    required = (
        [tensor for tensor in forward.inputs if tensor.dtype.is_floating_point] if required is None else list(required)
    )
    _check(forward, provided, required)
    # Checked above are the caller's names; ``within`` may hold any tensor of the graph.
    required += [tensor for tensor in within if tensor not in required]
    derivative = _without_ops(forward)
    builder = GradientBuilder(
        derivative, add_class, join, {} if known is None else known, [] if others is None else others
    )
    grads = _Gradients(builder)
    # Gradient ops follow their forward ops, not the scopes and placement around this call.
    with CONTEXT.detached(), CONTEXT.phase("bwd"), CONTEXT.building(builder):
        for tensor in provided:
            grad = derivative.graph.add_input(tensor.spec, gradient_name(tensor))
            grads.collect(tensor, grad)  # an output that is listed twice has both gradients
            derivative.inputs.append(Connection(tensor, True))
        _backward(forward, builder, grads, required)
        _add_outputs(derivative, grads.of, required, provided)
    _add_forward_values(derivative, dict(builder.forward_inputs()), recomputation)
    # The caller has inputs and outputs of the graph already; only inner values need extra outputs.
    expose(forward, _inner(forward, derivative.forward_values))
    return derivative


def _without_ops(forward: Graph) -> Derivative:
    """A derivative whose graph is empty."""
    name = f"{forward.name or 'main'}_bwd"
    suffix = 0
    # A graph may be differentiated several times, with different outputs provided.
    while name in forward.ir.graphs:
        suffix += 1
        name = f"{forward.name or 'main'}_bwd_{suffix}"
    with CONTEXT.phase("bwd"):
        return Derivative(forward, forward.ir.create_named_graph(name))


def _add_outputs(
    derivative: Derivative, grads: Mapping[Tensor, Tensor], required: Sequence[Tensor], provided: Sequence[Tensor]
) -> None:
    for tensor in required:
        if tensor not in grads:
            raise IrError(
                f"autodiff of {derivative.forward.name!r}: no gradient reaches required input {tensor.id!r} from "
                f"{', '.join(tensor.id for tensor in provided)}; leave it out of grads_required"
            )
        derivative.graph.add_output(grads[tensor])
        derivative.outputs.append(Connection(tensor, True))


def _add_forward_values(
    derivative: Derivative, images: dict[Tensor, Tensor], recomputation: Recomputation | None
) -> None:
    """Make the forward values that the gradient graph reads (``images``) its inputs, or ops of it."""
    forward = derivative.forward
    # A loop or conditional cannot return extra values, so everything but the results runs again.
    if recomputation is None and _inner(forward, images) and any(site.type != "Call" for site in _sites(forward)):
        recomputation = Recomputation(frozenset(forward.ops), frozenset(forward.outputs), constants=True)
    external_images = images if recomputation is None else replay(forward, derivative.graph, images, recomputation)
    for source, image in sorted(external_images.items(), key=lambda pair: pair[0].id):
        derivative.graph.inputs.append(image)
        derivative.inputs.append(Connection(source, False))


def _check(forward: Graph, provided: Sequence[Tensor], required: Sequence[Tensor]) -> None:
    for op in forward.ops:
        if op.modified_inputs():
            raise IrError(f"The graph {forward.name} contains a modifying op {op.where()}; it cannot be differentiated")
    for tensor, group, role in [(tensor, forward.outputs, "output") for tensor in provided] + [
        (tensor, forward.inputs, "input") for tensor in required
    ]:
        if tensor not in group:
            raise IrError(f"autodiff of {forward.name!r}: {tensor.id!r} is not an {role} of the graph")


class _Gradients:
    """The gradients of forward tensors, as far as they are known. ``of`` maps each tensor to their sum."""

    def __init__(self, builder: GradientBuilder) -> None:
        self.of: dict[Tensor, Tensor] = {}
        self._builder = builder
        self._parts: dict[Tensor, list[Tensor]] = {}

    def collect(self, tensor: Tensor, grad: Tensor) -> None:
        """Add ``grad`` to the gradient of ``tensor``."""
        self._parts.setdefault(tensor, []).append(grad)
        if tensor in self.of:
            grad = self._builder.op(self._builder.add_class, [self.of[tensor], grad], gradient_name(tensor))
        self.of[tensor] = grad

    def complete(self, tensor: Tensor) -> Tensor | None:
        """The gradient of ``tensor`` when no part can follow any more. A result of ``join`` replaces the sum of the
        parts."""
        parts = self._parts.pop(tensor, [])
        # The sums made so far lose their readers and are dropped at the end.
        if self._builder.join is not None and len(parts) > 1:
            op_count, last_sum = len(self._builder.graph.ops), self.of[tensor].producer
            joined = self._builder.join(self._builder, parts, gradient_name(tensor))
            if joined is not None and last_sum is not None:
                self.of[tensor] = joined
                # The joined ops stand for the last sum, so they get its scope and line.
                _belong_to(last_sum, self._builder.graph.ops[op_count:])
        return self.of.get(tensor)


def _backward(forward: Graph, builder: GradientBuilder, grads: _Gradients, required: Sequence[Tensor]) -> None:
    """Walk the ops backwards and collect the gradient of each tensor in ``grads``."""
    order = schedule(forward)
    # Ops that no required input leads to would only make gradients that nobody reads.
    active = _dependents(order, required)
    for op in reversed(order):
        # All readers of the results have been walked, so nothing is added to these gradients later.
        out_grads = [grads.complete(tensor) for tensor in op.outputs]
        if all(grad is None for grad in out_grads) or not any(tensor in active for tensor in op.inputs):
            continue
        op_count = len(builder.graph.ops)
        in_grads = op.gradient(builder, out_grads)
        if len(in_grads) != len(op.inputs):
            raise IrError(f"{op.where()}: gradient gives {len(in_grads)} results for {len(op.inputs)} inputs")
        for tensor, grad in zip(op.inputs, in_grads, strict=True):
            if grad is not None and tensor in active:
                grads.collect(tensor, grad)
        _belong_to(op, builder.graph.ops[op_count:])
    required_grads = [grads.complete(tensor) for tensor in required]
    _drop_unused(builder, {grad for grad in required_grads if grad is not None})


def _belong_to(forward: Op, gradient_ops: Sequence[Op]) -> None:
    """Give gradient ops the scope, the module and the line of their forward op, where reports show them."""
    for op in gradient_ops:
        op.scope = op.scope or forward.scope
        op.module = forward.module or op.module
        op.location = forward.location or op.location


def _drop_unused(builder: GradientBuilder, results: set[Tensor]) -> None:
    """Remove gradient ops whose results nobody needs, and forward values that only they read.

    Ops without results stay, as they are there for what they do (send a gradient to the host).
    """
    graph = builder.graph
    needed = set(results)
    needed_ops: list[Op] = []
    for op in reversed(graph.ops):
        if not op.outputs or any(tensor in needed for tensor in op.outputs):
            needed_ops.append(op)
            needed.update(op.inputs)
    needed_set = set(needed_ops)
    removed = [op for op in graph.ops if op not in needed_set]
    graph.ops = needed_ops[::-1]
    for op in removed:
        # Consumers have one entry per use, so each operand takes out one.
        for tensor in op.inputs:
            tensor.consumers.remove(op)
        for tensor in op.outputs:
            del graph.tensors[tensor.id]
    for source, image in list(builder._forward.items()):
        if image not in needed:
            del builder._forward[source]
            del graph.tensors[image.id]
    # Gradient rules make their constants before anybody knows whether these are read.
    for tensor in [
        tensor for tensor in graph.tensors.values() if isinstance(tensor, Constant) and tensor not in needed
    ]:
        del graph.tensors[tensor.id]


def _inner(forward: Graph, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those of the tensors that are neither inputs nor outputs of the graph."""
    boundary = {*forward.inputs, *forward.outputs}
    return [tensor for tensor in tensors if tensor not in boundary]


def _sites(graph: Graph) -> list[Op]:
    """The ops that execute ``graph``."""
    return [op for caller in graph.ir.all_graphs() for op in caller.ops if graph in op.called_graphs()]


def expose(forward: Graph, tensors: Sequence[Tensor]) -> None:
    """Make those of the tensors outputs of the graph, and of every call of it, that are none yet.

    Raises:
        IrError: an op that is not a plain call executes the graph.
    """
    missing = [tensor for tensor in tensors if tensor not in forward.outputs]
    if not missing:
        return
    sites = _sites(forward)
    # All calls are checked first, so that an error leaves the graphs unchanged.
    for site in sites:
        if site.type != "Call":
            raise IrError(
                f"graph {forward.name!r} needs extra outputs, but {site.where()} is not a plain call and cannot pass "
                "them on; ask for them before the graph is used in a loop or conditional"
            )
    for tensor in missing:
        forward.add_output(tensor)
        for site in sites:
            name = f"autodiff_output__t{next(forward.ir.clash_counter)}"
            site.graph.append_output(site, tensor.spec, name)

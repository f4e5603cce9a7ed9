"""A PyTorch module as forward graphs of pipeline stages (:class:`~ipuperf.pipelines.StageGraph`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ipuperf.ir import Ir, Op, Stream, Tensor, TensorSpec, Variable
from ipuperf.pipelines import Data, HostInput, StageGraph

from ..aten.lowering import PLAIN_NORMS, ExportError, Norms, ir_dtype, narrowed, real_view, to_numpy
from ..aten.table import name_of
from ..blocks import BlockUse
from ..enums import OverlapMode
from ..errors import Error, UnsupportedError
from ..executor.partition import Partition, partition
from ..log import logger
from ..multi_conv import MultiConv
from ..optimisers.replica_groups import Whole, one_replica
from ..options.strategies import ExecutionStrategy, PipelinedExecution
from .cache import cached
from .checks import check_hooks
from .lines import location_of_node
from .module_state import check_memory, view_of
from .parts import Flow, Part
from .stages import StageWriter
from .structure import Signature, Structure, differences, flatten, rebuild
from .trace import Traced, trace

_PREFIX = "module."
_STATE_MUTATIONS = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION})
#: Ops after a loss that make another number of it.
_COMPUTING = frozenset(f"aten::{name}" for name in ("add", "sub", "mul", "div", "mean", "sum", "neg"))


@dataclass(frozen=True)
class InputSpec:
    """A tensor argument.

    Attributes:
        name: path in the arguments of ``forward``.
        shape: of a micro-batch.
        dtype: PyTorch's type.
        stream: host stream, None when the model does not use the input.
        overlap: how far ahead it is loaded on I/O tiles.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    stream: Stream | None
    overlap: OverlapMode = OverlapMode.NoOverlap

    def to_numpy(self, tensor: torch.Tensor) -> np.ndarray:
        """Values of any batch size in the type of the stream (int64 becomes int32, float64 float32)."""
        return to_numpy(tensor, f"input {self.name!r}")


@dataclass(frozen=True)
class OutputSpec:
    """A tensor of the result.

    Attributes:
        part, output: output ``output`` of the graph of ``parts[part]``; -1 for a constant.
        shape: of a micro-batch.
        dtype: PyTorch's type of what comes back, which the IPU has: int32 where PyTorch has int64, float32 where it has
            float64, as upstream.
        constant: the value when it does not depend on data.
        overlap: whether it is stored from I/O tiles while the next one is computed.
    """

    part: int
    output: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    constant: torch.Tensor | None = None
    overlap: OverlapMode = OverlapMode.NoOverlap

    def to_torch(self, array: np.ndarray) -> torch.Tensor:
        """A result in PyTorch's type."""
        # torch.from_numpy takes no arrays with negative strides.
        return torch.from_numpy(np.asarray(array, order="C")).to(self.dtype)


@dataclass
class ExportedModel:
    """Stage graphs of a module, and how its arguments and results map to them.

    Attributes:
        ir: the program; variables, constants and host streams stand in its main graph.
        parts: the stages, in order.
        inputs: tensor arguments, in the order of :meth:`tensors_of`.
        outputs: tensors of the result, in the order of the result's structure.
        written: what inputs become that ``forward`` changes in place, by their number in :attr:`inputs`.
        loss: ``(part, output)`` of the loss, None for inference.
        variables: variable of each parameter and buffer that is used, by its name in the module (tied parameters have
            several names and one variable).
        parameters: names in :attr:`variables` that are trainable parameters, one name for each variable.
        unused: names of parameters and buffers that the model does not use; they have no variable.
        checkpoints: ``(part, tensor)`` of ``recomputationCheckpoint`` marks.
        blocks: entries into blocks, in program order.
        multi_convs: the ``MultiConv`` scopes, each with the convolutions within.
        states: the module's parameters and buffers by name.
        partition: where the blocks are (it may count stages without ops, :attr:`parts` does not).
        traced: what was lowered.
        phases: the phase of each stage; -1 without phases.
        num_ipus: IPUs that are used, counted from 0.
    """

    ir: Ir
    parts: list[StageGraph]
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    written: dict[int, OutputSpec]
    loss: tuple[int, int] | None
    variables: dict[str, Variable]
    parameters: list[str]
    unused: list[str]
    checkpoints: list[tuple[int, Tensor]]
    blocks: list[BlockUse]
    multi_convs: list[tuple[MultiConv, list[Op]]]
    states: dict[str, torch.Tensor] = field(repr=False)
    partition: Partition
    phases: list[int]
    traced: Traced = field(repr=False)
    arguments: Structure = field(repr=False)
    results: Structure = field(repr=False)
    signature: Signature = field(repr=False)

    def trainable_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Name and PyTorch parameter of each trainable variable."""
        return [(name, self.states[name]) for name in self.parameters]

    @property
    def num_ipus(self) -> int:
        """One more than the highest IPU."""
        # The device reaches up to the highest IPU, also where a lower one stands idle.
        return 1 + max((part.ipu for part in self.parts), default=0)

    def tensors_of(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """The tensors in the arguments of a call, in the order of :attr:`inputs`.

        Raises:
            Error: the arguments have another structure than those the model was compiled with.
        """
        structure, tensors, _ = flatten(self.signature.bind(args, kwargs or {}), like=self.arguments)
        complaints = differences(self.arguments, structure)
        if complaints:
            raise Error("; ".join(complaints))
        return tensors

    def result_of(self, tensors: Sequence[Any]) -> Any:
        """The result with these tensors (in the order of :attr:`outputs`) in place of those of the trace."""
        return rebuild(self.results, lambda index: tensors[index])


def export_model(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strategy: ExecutionStrategy | None = None,
    training: bool = False,
    replication_factor: int = 1,
    auto_round_num_ipus: bool = False,
    norms: Norms = PLAIN_NORMS,
    cache: str | None = None,
    traced: Traced | None = None,
    grouped: Mapping[str, Any] = MappingProxyType({}),
) -> ExportedModel:
    """Build forward graphs for the stages of ``module``, called with one micro-batch.

    The module's own ``train()`` / ``eval()`` state decides about dropout and batch normalisation. Arguments may be
    nested; what is not a tensor is compiled in. Nothing is computed with data but what is constant.

    Args:
        strategy: places the blocks (default: ``PipelinedExecution()``).
        training: find the loss, and stop gradients at ``detach`` and ``no_grad``.
        replication_factor: of the program.
        auto_round_num_ipus: reserve more IPUs than are used where the system demands it.
        norms: how norms are done.
        cache: folder in which exports are kept (:mod:`~ipuperf.poptorch.export.cache`).
        traced: an export of this module for these arguments, instead of another.
        grouped: parameters that differ between groups of replicas (:mod:`~ipuperf.poptorch.optimisers.replica_groups`).

    Raises:
        ExportError: the module cannot be exported (control flow that depends on data ...).
        UnsupportedError: an op, option or type that is not supported; names the op and the user's line.
        PartitionError: an op outside of all blocks, a parameter on two IPUs, data that flows to an earlier stage.
        Error: no loss, or several.
    """
    # An export drops hooks of gradients; inference would never call them.
    if training:
        check_hooks(module)
    signature = Signature(module.forward)
    arguments, leaves, paths = flatten(signature.bind(args, kwargs or {}))
    _check_complex(leaves, paths)
    _warn_of_doubles(leaves, paths, module)
    with one_replica(module, grouped, replication_factor) as wholes:
        if traced is None:
            export = partial(trace, module, signature, arguments, leaves, training)
            traced = cached(cache, module, arguments, leaves, training, export)
        # The exporter reads shapes of parameters, so it is made while they are those of one replica.
        exporter = _Exporter(module, traced, leaves, paths, training, replication_factor, wholes)
        placeholders = exporter.placeholders()
    writer = StageWriter(exporter.ir, traced, training, placeholders, norms)
    places = partition(
        strategy or PipelinedExecution(),
        traced.uses,
        leading_ops=writer.has_leading_ops,
        replication_factor=replication_factor,
        auto_round_num_ipus=auto_round_num_ipus,
    )
    writer.write(places)
    return exporter.finish(writer, places, signature, arguments)


def _check_complex(leaves: Sequence[torch.Tensor], paths: Sequence[str]) -> None:
    for leaf, path in zip(leaves, paths, strict=True):
        if leaf.is_complex():
            raise UnsupportedError(
                f"argument {path!r} of the model is complex, which no stream of an IPU is; give torch.view_as_real(x) "
                "and call torch.view_as_complex in forward"
            )


def _warn_of_doubles(leaves: Sequence[torch.Tensor], paths: Sequence[str], module: torch.nn.Module) -> None:
    states = [*module.named_parameters(), *module.named_buffers()]
    names = [n for n, t in [*zip(paths, leaves, strict=True), *states] if t.dtype == torch.float64]
    if names:
        warnings.warn(f"float64 is float32 on the IPU: {', '.join(names)}", stacklevel=3)


class _Exporter:
    """Collects what :class:`ExportedModel` holds."""

    def __init__(
        self,
        module: torch.nn.Module,
        traced: Traced,
        leaves: Sequence[torch.Tensor],
        paths: Sequence[str],
        training: bool,
        replication_factor: int,
        wholes: Mapping[torch.nn.Parameter, Whole],
    ) -> None:
        self._wholes = wholes
        self.traced = traced
        self.leaves = leaves
        self.paths = paths
        self.training = training
        self.ir = Ir(replication_factor)
        self.states: dict[str, torch.Tensor] = {
            # Tied parameters stand here under each of their names: an export may use any of them.
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        self.trainable = {n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        # By memory, not by name: a tied parameter is trained under all its names.
        self._trained_places = {_place_of(self.states[name]) for name in self.trainable}
        self.variables: dict[str, Variable] = {}
        self.streams: list[Stream | None] = []
        self._by_storage: dict[Any, Variable] = {}

    def finish(
        self, writer: StageWriter, places: Partition, signature: Signature, arguments: Structure
    ) -> ExportedModel:
        """Loss, results, state updates; then everything that is not used goes."""
        loss = self._loss(writer) if self.training else None
        outputs, written = self._outputs(writer)
        self._updates(writer)
        if not writer.parts:
            raise ExportError("the model computes nothing: it has no result that is a tensor")
        parts = list(writer.parts.values())
        # Activations name the part that makes them by its index in this list.
        assert [part.index for part in parts] == list(range(len(parts)))
        numbers = {stage: n for n, stage in enumerate(sorted({part.place.stage for part in parts}))}
        phase_of = {place.stage: place.phase for place in places.used}
        stages = [part.description(numbers[part.place.stage]) for part in parts]
        # Only now is it known what is read: making the descriptions has pruned the graphs.
        self._drop_unused(stages)
        self._check_memory(stages)
        return ExportedModel(
            ir=self.ir,
            parts=stages,
            inputs=[
                InputSpec(path, tuple(leaf.shape), leaf.dtype, stream, _overlap_of(writer, stream))
                for path, leaf, stream in zip(self.paths, self.leaves, self.streams, strict=True)
            ],
            outputs=outputs,
            written=written,
            loss=loss,
            variables=self.variables,
            parameters=self._parameters(),
            unused=sorted(n for n in self.states if n not in self.variables),
            checkpoints=[(index, tensor) for index, part in enumerate(stages) for tensor in part.checkpoints],
            blocks=self.traced.uses,
            multi_convs=list(zip(self.traced.multi_convs, writer.multi_convs, strict=True)),
            states=self.states,
            partition=places,
            phases=[phase_of[stage] for stage in numbers],
            traced=self.traced,
            arguments=arguments,
            results=self.traced.results,
            signature=signature,
        )

    # -- inputs ----------------------------------------------------------------------------------------------------

    def placeholders(self) -> dict[torch.fx.Node, Flow | torch.Tensor]:
        """Values of the program's inputs: variables, streams and constants."""
        program = self.traced.program
        nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
        changed = {s.target for s in program.graph_signature.output_specs if s.kind in _STATE_MUTATIONS}
        flows: dict[torch.fx.Node, Flow | torch.Tensor] = {}
        position = 0
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                flows[node] = self._state(spec.target, fixed=spec.target not in changed)
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                flows[node] = _real(program.constants[spec.target])
            elif spec.kind == InputKind.USER_INPUT:
                flows[node] = self._host_input(position)
                position += 1
            else:
                raise UnsupportedError(_unordered(node, spec.kind.name))
        return flows

    def _state(self, target: str, *, fixed: bool) -> Flow:
        """A parameter or buffer; parameters with one storage are one variable."""
        name = target.removeprefix(_PREFIX)
        variable = self._variable_of(name)
        differentiable = self.training and variable.dtype.is_floating_point
        trained = differentiable and _place_of(self.states[name]) in self._trained_places
        blocked = trained and name not in self.trainable  # another name of a trained parameter, which has no gradient
        constant = fixed and not trained and not self._is_parameter(name)
        return Flow(variable, needs_grad=trained, blocked=blocked, name=name, constant_if_shared=constant)

    def _is_parameter(self, name: str) -> bool:
        return isinstance(self.states[name], torch.nn.Parameter)

    def _variable_of(self, name: str) -> Variable:
        tensor = self.states[name]
        key = _place_of(tensor)
        if key not in self._by_storage:
            graph = self.ir.main_graph
            values, grouping = self._wholes.get(tensor) or Whole(tensor, self.ir.grouping())  # type: ignore[call-overload]
            tensor, values = real_view(tensor), real_view(values.detach())
            data = to_numpy(values, f"parameter {name!r}" if self._is_parameter(name) else f"buffer {name!r}")
            spec = TensorSpec(tuple(tensor.shape), ir_dtype(tensor.dtype, name))
            # A single group has no leading axis of groups.
            data = data[0] if data.ndim > len(spec.shape) and grouping.num_groups == 1 else data
            variable = Variable(graph.tensor_id(name), spec, graph, data, grouping)
            graph.add(variable)
            self._by_storage[key] = variable
        self.variables[name] = self._by_storage[key]
        return self._by_storage[key]

    def _host_input(self, position: int) -> Flow:
        leaf, graph = self.leaves[position], self.ir.main_graph
        name = self.paths[position]
        spec = TensorSpec(tuple(leaf.shape), ir_dtype(leaf.dtype, f"input {name!r}"))
        stream = Stream(graph.tensor_id(name), spec, graph, "h2d")
        graph.add(stream)
        self.streams.append(stream)
        return Flow(stream, name=name)

    def _drop_unused(self, stages: Sequence[StageGraph]) -> None:
        """Forget variables and streams that no stage reads or writes."""
        sources = [source for part in stages for source in part.sources]
        read = {s.tensor for s in sources if isinstance(s, Data)} | {
            s.stream for s in sources if isinstance(s, HostInput)
        }
        used = read | {variable for part in stages for variable in part.updates.values()}
        used |= {variable for part in stages for each in part.averages for variable in (each.mean, each.variable)}
        tensors = self.ir.main_graph.tensors
        for tensor in [t for t in tensors.values() if isinstance(t, (Variable, Stream)) and t not in used]:
            del tensors[tensor.id]
        self.variables = {name: v for name, v in self.variables.items() if v in used}
        self.streams = [s if s in used else None for s in self.streams]

    def _parameters(self) -> list[str]:
        names: dict[Variable, str] = {}
        for name, variable in self.variables.items():
            if name in self.trainable:
                names.setdefault(variable, name)
        return list(names.values())

    # -- results ---------------------------------------------------------------------------------------------------

    def _outputs(self, writer: StageWriter) -> tuple[list[OutputSpec], dict[int, OutputSpec]]:
        """Results, and the new values of inputs that are changed in place. Where everything is known beforehand, the
        IPUs send the constants."""
        program = self.traced.program
        (result,) = [n for n in program.graph.nodes if n.op == "output"]
        constant = bool(writer.tags)
        specs: list[OutputSpec] = []
        written: dict[int, OutputSpec] = {}
        for spec, node in zip(program.graph_signature.output_specs, result.args[0], strict=True):
            if spec.kind == OutputKind.USER_OUTPUT:
                specs.append(self._output(writer, node, constant))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                number = list(program.graph_signature.user_inputs).index(spec.target)
                written[number] = self._output(writer, node, constant)
            elif spec.kind not in _STATE_MUTATIONS:
                raise UnsupportedError(f"result {spec.arg} of kind {spec.kind.name} is unsupported")
        return specs, written

    @staticmethod
    def _output(writer: StageWriter, node: torch.fx.Node, constant: bool) -> OutputSpec:
        value, meta = writer.values[node], node.meta["val"]
        if isinstance(value, torch.Tensor):
            if constant:
                known = _real(value).to(narrowed(value.dtype))
                return OutputSpec(-1, -1, tuple(value.shape), known.dtype, known)
            value = Flow(to_numpy(value, node.name), name=node.name)
        # What no op has made (an input, a variable) leaves from the part that holds it.
        part = value.origin if isinstance(value.origin, Part) else value.home or writer.first_part()
        mode = writer.overlapped.get(node, OverlapMode.NoOverlap)
        return OutputSpec(part.index, part.result(value), tuple(meta.shape), narrowed(meta.dtype), overlap=mode)

    def _updates(self, writer: StageWriter) -> None:
        """Buffers and frozen parameters that take a new value after each forward.

        Raises:
            UnsupportedError: a parameter that is trained is changed.
        """
        program = self.traced.program
        (result,) = [n for n in program.graph.nodes if n.op == "output"]
        for spec, node in zip(program.graph_signature.output_specs, result.args[0], strict=True):
            if spec.kind not in _STATE_MUTATIONS:
                continue
            name = spec.target.removeprefix(_PREFIX)
            if self.training and name in self.trainable:
                raise UnsupportedError(
                    f"forward changes parameter {name!r}, which the optimiser updates too; set requires_grad = False "
                    "of a parameter that forward changes, or change it on the host"
                )
            value = writer.values[node]
            if isinstance(value, torch.Tensor):
                value = Flow(to_numpy(value, name), name=name)
            # A mean that is kept with the weight update stays what it is in a forward.
            if value.origin is self._variable_of(name):
                continue
            part = value.origin if isinstance(value.origin, Part) else value.home or writer.first_part()
            index = part.result(value)
            # An output stands for one variable, so a second buffer with the same value takes a copy.
            part.updates[part.copied(value) if index in part.updates else index] = self._variable_of(name)

    def _check_memory(self, stages: Sequence[StageGraph]) -> None:
        """What is trained or changed shares memory with no other parameter or buffer that is used."""
        updated = {variable for part in stages for variable in part.updates.values()}
        trained = self.trainable if self.training else set()
        changed = {name for name, variable in self.variables.items() if variable in updated or name in trained}
        check_memory({name: self.states[name] for name in self.variables}, changed)

    def _loss(self, writer: StageWriter) -> tuple[int, int]:
        """The one loss that no other loss uses (PopTorch RemoveSurplusIdentityLosses)."""
        losses = dict.fromkeys(writer.losses.values())
        if not losses:
            raise Error("Couldn't find a loss in graph!")
        used = _ancestors(losses)
        final = [node for node in losses if node not in used]
        if len(final) != 1:
            raise Error(
                "Multiple independent losses found in graph. Graph must have one final loss. "
                "Wrap final graph loss in poptorch.identity_loss."
            )
        _tell_of_more_than(final[0])
        flow = writer.values[final[0]]
        if not isinstance(flow, Flow) or not isinstance(flow.origin, Part):
            raise Error("The loss does not depend on the model's parameters")
        assert flow.tensor is not None
        return flow.origin.index, flow.origin.result(flow)


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The memory that a tensor sees, and how."""
    return tensor.untyped_storage()._cdata, *view_of(tensor)


def _unordered(token: torch.fx.Node, kind: str) -> str:
    """What to say of an input that no program has: PyTorch's token orders ops with effects, such as those that check
    the result of a factorisation."""
    checks = [
        str(argument)
        for user in token.users
        for argument in user.args
        if isinstance(argument, (str, torch._ops.OpOverload))
    ]
    at = next((location_of_node(user) for user in token.users), "")
    return f"{at}: {' of '.join(checks) or f'input {token.name!r} of kind {kind}'} is unsupported"


def _overlap_of(writer: StageWriter, stream: Stream | None) -> OverlapMode:
    return OverlapMode.NoOverlap if stream is None else writer.overlapped.get(stream, OverlapMode.NoOverlap)


def _tell_of_more_than(loss: torch.fx.Node) -> None:
    """Warn where the model returns something that is computed from its loss: gradients are those of the loss alone."""
    # With identity_loss the user has said what is trained.
    if name_of(loss.target) == "ipuperf::identity_loss":
        return
    descendants, waiting = dict[torch.fx.Node, None](), [loss]
    while waiting:
        later = [user for user in waiting.pop().users if user not in descendants]
        descendants.update(dict.fromkeys(later))
        waiting += later
    computed = [node for node in descendants if name_of(node.target) in _COMPUTING]
    returned = _ancestors({next(iter(reversed(loss.graph.nodes))): None}) if computed else set()
    for node in computed:
        if node in returned:
            logger.warning(
                "%s: what the model computes from its loss (%s) is not trained: the gradients are those of the loss "
                "function's result. Wrap what shall be trained in poptorch.identity_loss.",
                location_of_node(node),
                name_of(node.target),
            )
            return


def _ancestors(losses: Mapping[torch.fx.Node, None]) -> set[torch.fx.Node]:
    """Nodes that some loss depends on."""
    ancestors: set[torch.fx.Node] = set()
    waiting = [n for loss in losses for n in loss.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting += node.all_input_nodes
    return ancestors


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A constant with data: zeros stand for a tensor without any (``meta``)."""
    tensor = tensor.detach()
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) if tensor.device.type == "meta" else tensor.cpu()

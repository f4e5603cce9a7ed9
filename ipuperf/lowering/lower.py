"""``lower(ir, machine) -> DeviceProgram``: graphs of ops become trees of steps on IPUs.

Each graph becomes one function per IPU that takes part in it; its operand layouts are those of its first call. A later
call with operands laid out differently copies them into place. Layouts of variables follow their first use: the
parameter operand of a matrix product lies as the product reads it, a stash lies so that each of its slices lies as what
is written to it, the buffer of a copy between IPUs lies as its source, everything else linearly. What is written to a
stash or buffer is known only after lowering, so programs that have them are lowered twice.

Copies between IPUs that follow each other directly in a graph's order, with nothing that takes time between them and
none of which reads or overwrites what another one writes or reads, become one exchange; likewise stream copies when the
sync pattern makes several IPUs stand during them. That is an assumption about Poplar's compiler, which is not public:
PopART itself (``transforms/mergecopies.cpp``) only gathers copies whose results one op reads.

Simplifications (``docs/accuracy.md``): a call copies operands only when their layout differs or the callee changes
them (unchanged operands and results are aliased, which PopART and Poplar do for most calls); code is never shared
between functions; element-wise ops are not fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipuperf.ir import Constant, Graph, Ir, IrError, RemoteBuffer, Stream, Tensor, Variable, roots, schedule
from ipuperf.ir import Op as Operation
from ipuperf.ops import work as w
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call as CallOp
from ipuperf.ops.control import Loop, modified_graph_inputs
from ipuperf.ops.dynamic import Dynamic
from ipuperf.ops.ipu_copy import IpuCopy

from .code import CodeBytes
from .layout import Layout, even, linear
from .memory import MemoryModel
from .program import (
    Call,
    DeviceProgram,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IpuTransfer,
    MemoryReport,
    OpInfo,
    Repeat,
    Sequence,
    Step,
    StreamCopy,
)
from .supersteps import OpSteps, Superstepper, local_copy, on_tile_copy, positions_of, stack

if TYPE_CHECKING:
    from ipuperf.machine import Machine

_UPDATE_TYPES = ("Adam", "Accumul", "ScaledAdd", "CopyVarUpdate", "ReplicatedAll", "ReplicatedReduce")
_PRODUCT_TYPES = ("MatMul", "Conv", "ConvDataGrad", "ConvTranspose", "ConvWeightsGrad")
_IO_TYPES = ("HostLoad", "HostStore", "RemoteLoad", "RemoteStore", "Init")


#: Who stands while any IPU copies to or from the host (PopART's ``SyncPattern``).
SYNC_PATTERNS = ("full", "single_pipeline", "replica_and_ladder")


@dataclass
class LoweredOp:
    """One op of a lowered graph: its local steps on ``ipu``, or the calls it makes.

    Attributes:
        shared: a step in which several IPUs take part, after the local ones.
        joined: the op's copy is part of the ``shared`` step of an earlier op.
        before: per IPU, copies of operands before the calls.
        after_trip: per IPU, copies of loop-carried values at the end of each trip.
        copied: indices of operands that the callee changes although they are passed by value, and that are therefore
            copied first (in ``before``).
    """

    op: Op
    ipu: int
    steps: OpSteps
    shared: InterIpuCopy | HostExchange | None = None
    joined: bool = False
    calls: list[tuple[LoweredGraph, int]] = field(default_factory=list)
    before: dict[int, list[Step]] = field(default_factory=dict)
    after_trip: dict[int, list[Step]] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)


@dataclass
class LoweredGraph:
    """A graph with its ops lowered in schedule order, and where its tensors lie."""

    graph: Graph
    ops: list[LoweredOp]
    layouts: dict[Tensor, Layout]


class Lowering:
    """State of lowering one program; use :func:`lower`.

    Args:
        wishes: layouts for variables and Init results, found by an earlier lowering (its ``wishes``).

    Attributes:
        homes: IPU on which each tensor lies; None for constants, which lie wherever they are used.
        storage: for tensors that share storage, the tensor that owns it, through calls.
        wishes: layouts that stashes and buffers should have, by owner of the storage.
    """

    def __init__(
        self,
        ir: Ir,
        machine: Machine,
        name: str,
        sync_pattern: str = "single_pipeline",
        wishes: Mapping[Tensor, Layout] | None = None,
    ) -> None:
        self.ir = ir
        self.machine = machine
        self.name = name
        self.sync_pattern = sync_pattern
        self.ipus = ipus_per_replica(ir)
        self.ops: list[OpInfo] = []
        self.graphs: dict[Graph, LoweredGraph] = {}
        self.parameters = _matmul_parameters(ir)
        self.low_confidence: dict[str, None] = {}
        self.homes: dict[Tensor, int | None] = {}
        self.storage: dict[Tensor, Tensor] = {}
        self.fixed = dict(wishes or {})
        self.wishes: dict[Tensor, Layout] = {}
        self._weak: set[Tensor] = set()

    # -- graphs ----------------------------------------------------------------------------------------------------

    def lower_graph(self, graph: Graph, operands: dict[Tensor, Layout]) -> LoweredGraph:
        """Lower ``graph`` with its inputs laid out as ``operands`` (once; later calls get the first result)."""
        if graph in self.graphs:
            return self.graphs[graph]
        layouts = dict(operands)
        for tensor in graph.tensors.values():
            if isinstance(tensor, (Variable, Constant, Stream)):
                layouts[tensor] = self.data_layout(tensor)
                self.homes[tensor] = None if isinstance(tensor, Constant) else home_of(tensor)
            elif tensor in self.fixed:
                layouts[tensor] = self.fixed[tensor]
        lowered = LoweredGraph(graph, [], layouts)
        self.graphs[graph] = lowered
        for op in schedule(graph):
            if not isinstance(op, Op):
                raise IrError(f"{op.where()}: not an op that can be lowered")
            lowered.ops.append(self.lower_op(op, layouts))
        merge_exchanges(lowered, self.standing)
        return lowered

    def lower_op(self, op: Op, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """Lower one op: local steps, or calls."""
        calls = [item for item in op.work() if isinstance(item, w.CallGraph)]
        op_id = self.register(op, 0 if calls else _flops(op))
        if calls:
            return self.lower_call(op, op_id, calls, layouts)
        steps = Superstepper(op, op_id, layouts, self.machine).run()
        self.low_confidence.update(dict.fromkeys(steps.low_confidence))
        ipu = op.attributes["destination"] if isinstance(op, IpuCopy) else op.ipu or 0
        self.place(op, ipu)
        self.wish(op, layouts)
        return LoweredOp(op, ipu, steps)

    def place(self, op: Op, ipu: int) -> None:
        """Note where the results of an op on ``ipu`` lie, and what they share storage with.

        Raises:
            IrError: an operand lies on another IPU.
        """
        for index, tensor in enumerate(op.inputs):
            wanted, home = reading_ipu(op, index), self.homes.get(tensor)
            if home is not None and home != wanted:
                raise IrError(
                    f"{op.where()}: it is on IPU {wanted} and its operand {tensor.id!r} lies on IPU {home}; copy it "
                    "there with an IpuCopy (ipu_copy), or place the op on that IPU"
                )
        aliases = op.aliases()
        for index, tensor in enumerate(op.outputs):
            self.homes[tensor] = ipu
            if index in aliases:
                source = op.inputs[aliases[index]]
                self.storage[tensor] = self.storage.get(source, source)

    def wish(self, op: Op, layouts: dict[Tensor, Layout]) -> None:
        """Note the layout that the storage of a stash or of the buffer of a copy should have."""
        weak = False
        if isinstance(op, IpuCopy) and len(op.inputs) == 2:
            target, layout = op.inputs[1], layouts[op.inputs[0]]
        elif isinstance(op, Dynamic) and op.base in op.inputs:
            target, (positions, count) = op.base, positions_of(op)
            part = op.part
            weak = count != 1 or part is None or part not in op.inputs
            unit = self.data_unit(target, positions) if weak or part is None else layouts[part]
            layout = stack(unit, op.axes, positions)
        else:
            return
        owner = self.storage.get(target, target)
        made = isinstance(owner, Variable) or (owner.producer is not None and owner.producer.type == "Init")
        if not made or owner.shape != target.shape or (owner in self.wishes and (weak or owner not in self._weak)):
            return
        self.wishes[owner] = layout
        if weak:
            self._weak.add(owner)
        else:
            self._weak.discard(owner)

    def data_unit(self, base: Tensor, positions: int) -> Layout:
        """Linear mapping of one position of a tensor that is sliced."""
        size = base.dtype.size
        return linear(
            base.spec.elements // positions, size, self.machine.chip.vector_width(size), self.machine.chip.tiles
        )

    def lower_call(self, op: Op, op_id: int, calls: list[w.CallGraph], layouts: dict[Tensor, Layout]) -> LoweredOp:
        """A call or loop: lower the callee, copy operands that lie elsewhere, lay out the results."""
        assert isinstance(op, (CallOp, Loop))
        lowered = LoweredOp(op, op.ipu or 0, OpSteps())
        for item in calls:
            callee = item.graph
            operands = dict(zip(callee.inputs, (layouts[t] for t in op.inputs), strict=True))
            self.pass_operands(op, callee)
            body = self.lower_graph(callee, operands)
            changed = modified_graph_inputs(callee)
            for index, (inner, outer) in enumerate(zip(callee.inputs, op.inputs, strict=True)):
                before = lowered.before.setdefault(self.home(inner), [])
                if index in changed and not op.by_reference(index):
                    lowered.copied.add(index)
                    before += on_tile_copy(op_id, inner, body.layouts[inner], self.machine)
                if body.layouts[inner].key != layouts[outer].key:
                    before += local_copy(
                        op_id, f"{op.type}/operand {inner.name}", body.layouts[inner], inner.dtype.size, self.machine
                    )
            for inner, outer in zip(callee.outputs, op.outputs, strict=True):
                layouts[outer] = body.layouts[inner]
                self.homes[outer] = self.homes.get(inner)
                self.storage[outer] = self.storage.get(inner, inner)
            if item.trips > 1:
                for inner, result in zip(callee.inputs, callee.outputs, strict=False):
                    self.check_carried(op, inner, result)
                    after = lowered.after_trip.setdefault(self.home(inner), [])
                    after += on_tile_copy(op_id, result, body.layouts[inner], self.machine)
            lowered.calls.append((body, item.trips))
        return lowered

    def pass_operands(self, op: CallOp | Loop, callee: Graph) -> None:
        """Note where the callee's inputs lie: with the operands of its first call.

        Raises:
            IrError: a later call has an operand on another IPU.
        """
        for index, (inner, outer) in enumerate(zip(callee.inputs, op.inputs, strict=True)):
            home = self.homes.get(outer)
            if home is None and isinstance(op, Loop) and index < op.carried:
                home = user_ipu(inner)
            if callee not in self.graphs:
                self.homes[inner] = home
                self.storage[inner] = self.storage.get(outer, outer)
            elif home is not None and self.homes[inner] not in (None, home):
                raise IrError(
                    f"{op.where()}: operand {outer.id!r} lies on IPU {home}, an earlier call of graph {callee.name!r} "
                    f"passes one on IPU {self.homes[inner]} there; use one graph for each placement"
                )

    def check_carried(self, op: Op, inner: Tensor, result: Tensor) -> None:
        """Raise unless a loop-carried value ends on the IPU where it begins."""
        begin, end = self.homes.get(inner), self.homes.get(result)
        if begin is not None and end is not None and begin != end:
            raise IrError(
                f"{op.where()}: output {result.id!r} lies on IPU {end} and is carried to {inner.id!r} on IPU {begin}; "
                "copy it back inside the loop"
            )

    def home(self, tensor: Tensor) -> int:
        """IPU on which a tensor lies; for a constant the first that uses it."""
        home = self.homes.get(tensor)
        return home if home is not None else user_ipu(tensor) or 0

    def holders(self, tensor: Constant) -> tuple[int, ...]:
        """IPUs that hold a constant: every one that reads it, or where it is stated to be when nobody does."""
        return tuple(users(tensor)) or (tensor.ipu or 0,)

    def standing(self, step: StreamCopy, ipu: int) -> tuple[int, ...]:
        """IPUs of the replica that stand while ``ipu`` does a stream copy, itself included."""
        if self.sync_pattern == "full":
            return tuple(range(self.ipus))
        if self.sync_pattern == "replica_and_ladder":
            return tuple(range(ipu % 2, self.ipus, 2))
        return (ipu,)

    def register(self, op: Op, flops: int) -> int:
        """Enter ``op`` into the op table."""
        phase = "bwd" if "_bwd" in op.graph.name else "fwd"
        if op.type.startswith(_UPDATE_TYPES):
            phase = "update"
        elif op.type.startswith(_IO_TYPES):
            phase = "io"
        elif op.type in ("Call", "Loop"):
            phase = "other"
        name = f"{op.graph.name or 'main'}/{op.label}"
        self.ops.append(OpInfo(len(self.ops), name, op.type, op.graph.name or "main", phase, flops))
        return len(self.ops) - 1

    def data_layout(self, tensor: Tensor) -> Layout:
        """Layout of a variable, constant or stream: parameters of products in grains of 16, others linearly."""
        chip = self.machine.chip
        elements, size = tensor.spec.elements, tensor.dtype.size
        if tensor in self.fixed:
            return self.fixed[tensor]
        if tensor in self.parameters and elements >= chip.tiles:
            return even(("parameter", elements, size), elements, chip.tiles, chip.tiles, 8)
        return linear(elements, size, chip.vector_width(size), chip.tiles)

    # -- the program -----------------------------------------------------------------------------------------------

    def program(self) -> DeviceProgram:
        """Lower the main graph and assemble the device program."""
        placement = self.machine.place(self.ir.replication_factor, self.ipus)
        main = self.lower_graph(self.ir.main_graph, {})
        ipus = range(self.ipus)
        functions = {
            f"{graph.name}@{ipu}": Sequence(-1, graph.name, tuple(self.steps_of(lowered, ipu)))
            for graph, lowered in self.graphs.items()
            if not graph.is_main
            for ipu in ipus
        }
        memory = MemoryModel(self, main, len(ipus)).report()
        warnings = [f"low confidence: {name}" for name in self.low_confidence]
        warnings += memory_warnings(memory, self.machine)
        return DeviceProgram(
            name=self.name,
            machine=self.machine.name,
            replicas=self.ir.replication_factor,
            placement=placement,
            ipus=tuple(Sequence(-1, "main", tuple(self.steps_of(main, ipu))) for ipu in ipus),
            functions=functions,
            ops=tuple(self.ops),
            memory=memory,
            streams={s.id: (s.direction, s.spec.bytes) for s in self.ir.streams()},
            warnings=tuple(warnings),
        )

    def steps_of(self, lowered: LoweredGraph, ipu: int) -> Iterable[Step]:
        """The steps of ``lowered`` on IPU ``ipu``, calls as :class:`Call` of the callee's function there."""
        for item in lowered.ops:
            if item.ipu == ipu:
                yield from item.steps.steps
            if item.shared is not None and ipu in item.shared.participants:
                yield item.shared
            yield from item.before.get(ipu, ())
            for body, trips in item.calls:
                copies = item.after_trip.get(ipu, ())
                if copies or ipu in ipus_of(body):
                    call = Call(-1, body.graph.name, f"{body.graph.name}@{ipu}")
                    trip = Sequence(-1, "body", (call, *copies))
                    yield call if trips == 1 else Repeat(-1, body.graph.name, trips, trip)

    def code_of(self, lowered: LoweredGraph, ipu: int) -> CodeBytes:
        """Always-live code of one graph on one IPU (each graph's code exists once, however often it is called)."""
        total = CodeBytes()
        for item in lowered.ops:
            if item.ipu == ipu:
                total += item.steps.code
            if ipu in item.steps.elsewhere:
                total += item.steps.elsewhere[ipu]
        return total


def ipus_per_replica(program: Ir) -> int:
    """IPUs that one replica uses: the largest IPU number of any op or tensor, plus one."""
    used = 0
    for graph in program.all_graphs():
        used = max([used, *(op.ipu or 0 for op in graph.ops), *(t.ipu or 0 for t in graph.tensors.values())])
        used = max([used, *(max(op.source, op.destination) for op in graph.ops if isinstance(op, IpuCopy))])
    return used + 1


def ipus_of(lowered: LoweredGraph) -> set[int]:
    """IPUs that take part in a graph, callees included."""
    found = {item.ipu for item in lowered.ops if not item.calls}
    for item in lowered.ops:
        if item.shared is not None:
            found.update(item.shared.participants)
        found.update(ipu for ipu, copies in item.before.items() if copies)
        for body, _ in item.calls:
            found |= ipus_of(body)
    return found


def reading_ipu(op: Operation, index: int) -> int:
    """The IPU on which an op reads its input ``index``: its own, or the source of a copy between IPUs."""
    if isinstance(op, IpuCopy):
        return op.source if index == 0 else op.destination
    return op.ipu or 0


def users(tensor: Tensor) -> dict[int, None]:
    """IPUs that read a tensor, through calls, in creation order of the ops."""
    found: dict[int, None] = {}
    for op in dict.fromkeys(tensor.consumers):
        for index, operand in enumerate(op.inputs):
            if operand is not tensor:
                continue
            callees = op.called_graphs()
            for callee in callees:
                if index < len(callee.inputs):
                    found.update(users(callee.inputs[index]))
            if not callees:
                found[reading_ipu(op, index)] = None
    return found


def user_ipu(tensor: Tensor) -> int | None:
    """The first IPU that reads a tensor; None when nobody does."""
    return next(iter(users(tensor)), None)


def home_of(tensor: Tensor) -> int:
    """Where a variable or stream lies: the stated IPU, else that of its first reader."""
    return tensor.ipu if tensor.ipu is not None else user_ipu(tensor) or 0


class _Merging:
    """An exchange that copies are being added to, from the ``head`` op on."""

    def __init__(self, head: LoweredOp, step: InterIpuCopy | StreamCopy, standing: tuple[int, ...]) -> None:
        self.head = head
        self.first = step
        self.exchange = head.op.attributes.get("exchange")
        self.standing = standing
        self.transfers: dict[tuple[int, int], int] = {}
        self.copies: list[HostCopy] = []
        self.count = 0
        self.read: set[Tensor] = set()
        self.written: set[Tensor] = set()

    def takes(
        self, item: LoweredOp, step: InterIpuCopy | StreamCopy, standing: tuple[int, ...], root: dict[Tensor, Tensor]
    ) -> bool:
        """Whether a copy may start together with those that are in it."""
        if type(step) is not type(self.first) or standing != self.standing:
            return False
        if isinstance(step, StreamCopy) and any((c.ipu, c.stream) == (item.ipu, step.stream) for c in self.copies):
            return False
        op = item.op
        if op.attributes.get("exchange") != self.exchange:
            return False
        changed = {root.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()}
        return not self.written & {root.get(t, t) for t in op.inputs} and not self.read & changed

    def add(self, item: LoweredOp, step: InterIpuCopy | StreamCopy, root: dict[Tensor, Tensor]) -> None:
        """Put a copy in; the head's step then holds it."""
        self.read.update(root.get(t, t) for t in item.op.inputs)
        self.passes(item.op, root)
        self.written.update(root.get(t, t) for t in item.op.outputs)
        self.count += 1
        if isinstance(step, InterIpuCopy):
            for copy in step.copies:
                pair = (copy.source, copy.destination)
                self.transfers[pair] = self.transfers.get(pair, 0) + copy.bytes
        else:
            self.copies.append(HostCopy(item.ipu, step.direction, step.bytes, step.stream))
        item.steps.steps, item.joined = [], item is not self.head
        name = self.first.name if self.count == 1 else f"{self.first.name} and {self.count - 1} more"
        if isinstance(self.first, InterIpuCopy):
            moves = tuple(IpuTransfer(*pair, size) for pair, size in self.transfers.items())
            self.head.shared = InterIpuCopy(self.first.op_id, name, moves)
        else:
            self.head.shared = HostExchange(self.first.op_id, name, tuple(self.copies), self.standing)

    def passes(self, op: Operation, root: dict[Tensor, Tensor]) -> None:
        """An op that takes no time: what it makes of a copied tensor depends on the copy too."""
        if self.written & {root.get(t, t) for t in op.inputs}:
            self.written.update(root.get(t, t) for t in op.outputs)


def merge_exchanges(lowered: LoweredGraph, standing: Callable[[StreamCopy, int], tuple[int, ...]]) -> None:
    """Join the copies of a lowered graph that may start together; see the module docstring.

    ``standing`` gives the IPUs that stand during a stream copy of an IPU; alone it stays a :class:`StreamCopy`.
    """
    root, group = roots(lowered.graph), None
    for item in lowered.ops:
        steps = item.steps.steps
        step = steps[0] if len(steps) == 1 else None
        party = standing(step, item.ipu) if isinstance(step, StreamCopy) else ()
        if isinstance(step, InterIpuCopy) or (isinstance(step, StreamCopy) and len(party) > 1):
            if group is None or not group.takes(item, step, party, root):
                group = _Merging(item, step, party)
            group.add(item, step, root)
        elif steps or item.calls:
            group = None
        elif group is not None:
            group.passes(item.op, root)


def _flops(op: Op) -> int:
    return sum(int(getattr(item, "flops", 0)) for item in op.work())


def _matmul_parameters(ir: Ir) -> set[Tensor]:
    """Tensors that end up, through calls, as an operand of a matrix product or a convolution."""
    found: set[Tensor] = set()
    changed = True
    graphs = list(ir.all_graphs())
    while changed:
        changed = False
        for graph in graphs:
            for op in graph.ops:
                wanted: list[Tensor] = []
                if op.type in _PRODUCT_TYPES:
                    wanted = list(op.inputs)
                for callee in op.called_graphs():
                    wanted += [o for i, o in zip(callee.inputs, op.inputs, strict=False) if i in found]
                for tensor in wanted:
                    if tensor not in found:
                        found.add(tensor)
                        changed = True
    return found


def memory_warnings(memory: MemoryReport, machine: Machine) -> list[str]:
    """One line per IPU that does not fit: which tile, how much over, the largest contributors."""
    lines = []
    for ipu, series in memory.max_tile.items():
        if not len(series):
            continue
        step = int(series.argmax())
        over = int(series[step]) - machine.chip.bytes_per_tile
        if over > 0:
            tile = int(memory.argmax_tile[ipu][step])
            lines.append(
                f"does not fit: IPU {ipu} tile {tile} needs {int(series[step]):,} bytes at program step {step} "
                f"({memory.step_names[ipu][step]}), {over:,} bytes over the {machine.chip.bytes_per_tile:,} there are; "
                f"largest: {', '.join(largest_contributors(memory, ipu, step, tile))}"
            )
    return lines


def largest_contributors(memory: MemoryReport, ipu: int, step: int, tile: int, count: int = 5) -> list[str]:
    """What takes most bytes on one tile at one step."""
    sizes: dict[str, int] = {}
    for variable in memory.variables:
        if variable.ipu == ipu and any(a <= step < b for a, b in variable.intervals):
            sizes[variable.name] = sizes.get(variable.name, 0) + int(variable.bytes.dense()[tile])
    for category, vector in memory.categories[ipu].items():
        sizes[category] = int(vector.dense()[tile])
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return [f"{name} {size:,}" for name, size in ranked[:count] if size]


class DoesNotFitError(IrError):
    """The program needs more In-Processor-Memory than a tile has, and ``strict_memory`` was asked for."""


def lower(
    ir: Ir,
    machine: Machine,
    *,
    name: str = "program",
    strict_memory: bool = False,
    sync_pattern: str = "single_pipeline",
) -> DeviceProgram:
    """Compile ``ir`` for ``machine``.

    Args:
        ir: the program; it is not changed.
        machine: where it runs; replicas x IPUs per replica have to fit.
        name: name of the program in reports.
        strict_memory: raise :class:`DoesNotFitError` instead of a warning when a tile's memory is exceeded.
        sync_pattern: which IPUs of a replica stand during the stream copies of one of them (PopART user guide,
            "Sync patterns"): ``single_pipeline`` none but itself, ``full`` all, ``replica_and_ladder`` those of its
            side of the ladder (the IPUs with even numbers, those with odd ones). Only host I/O follows the pattern;
            copies between IPUs synchronise those that take part, and other replicas never stand with this one.

    Raises:
        MachineError: the replicas cannot be placed; IrError: an op without a cost model, an operand on another IPU, an
            unknown sync pattern.
    """
    if sync_pattern not in SYNC_PATTERNS:
        raise IrError(f"sync_pattern is {sync_pattern!r}, allowed: {', '.join(SYNC_PATTERNS)}")
    ir.freeze_check()
    _check_remote(ir, machine)
    lowering = Lowering(ir, machine, name, sync_pattern)
    lowering.lower_graph(ir.main_graph, {})
    if lowering.wishes:
        lowering = Lowering(ir, machine, name, sync_pattern, lowering.wishes)
    program = lowering.program()
    problems = [line for line in program.warnings if line.startswith("does not fit")]
    if strict_memory and problems:
        raise DoesNotFitError("; ".join(problems))
    return program


def _check_remote(ir: Ir, machine: Machine) -> None:
    buffers: list[RemoteBuffer] = ir.remote_buffers
    if buffers:
        machine.ipu_machine.require_streaming_memory()

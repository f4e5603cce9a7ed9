"""``lower(ir, machine) -> DeviceProgram``: graphs of ops become trees of steps on IPUs.

Each graph becomes one function per IPU that takes part in it; its operand layouts are those of its first call. A later
call with operands laid out differently copies them into place. Layouts of variables follow their first use: the
parameter operand of a matrix product lies as the product reads it, everything else linearly.

Simplifications (``docs/accuracy.md``): a call copies operands only when their layout differs or the callee changes
them (unchanged operands and results are aliased, which PopART and Poplar do for most calls); code is never shared
between functions; element-wise ops are not fused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipuperf.ir import Constant, Graph, Ir, IrError, RemoteBuffer, Stream, Tensor, Variable, schedule
from ipuperf.ops import work as w
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call as CallOp
from ipuperf.ops.control import Loop, modified_graph_inputs

from .code import CodeBytes
from .layout import Layout, even, linear
from .memory import MemoryModel
from .program import Call, DeviceProgram, MemoryReport, OpInfo, Repeat, Sequence, Step
from .supersteps import OpSteps, Superstepper, local_copy, on_tile_copy

if TYPE_CHECKING:
    from ipuperf.machine import Machine

_UPDATE_TYPES = ("Adam", "Accumul", "ScaledAdd", "CopyVarUpdate", "ReplicatedAll", "ReplicatedReduce")
_IO_TYPES = ("HostLoad", "HostStore", "RemoteLoad", "RemoteStore", "Init")


@dataclass
class LoweredOp:
    """One op of a lowered graph: its local steps on ``ipu``, or the calls it makes.

    ``after_trip`` are the copies of loop-carried values at the end of each trip; ``copied`` the indices of operands
    that the callee changes although they are passed by value, and that are therefore copied first (in ``steps``).
    """

    op: Op
    ipu: int
    steps: OpSteps
    calls: list[tuple[LoweredGraph, int]] = field(default_factory=list)
    after_trip: list[Step] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)


@dataclass
class LoweredGraph:
    """A graph with its ops lowered in schedule order, and where its tensors lie."""

    graph: Graph
    ops: list[LoweredOp]
    layouts: dict[Tensor, Layout]


class Lowering:
    """State of lowering one program; use :func:`lower`."""

    def __init__(self, ir: Ir, machine: Machine, name: str) -> None:
        self.ir = ir
        self.machine = machine
        self.name = name
        self.ops: list[OpInfo] = []
        self.graphs: dict[Graph, LoweredGraph] = {}
        self.parameters = _matmul_parameters(ir)
        self.low_confidence: dict[str, None] = {}

    # -- graphs ----------------------------------------------------------------------------------------------------

    def lower_graph(self, graph: Graph, operands: dict[Tensor, Layout]) -> LoweredGraph:
        """Lower ``graph`` with its inputs laid out as ``operands`` (once; later calls get the first result)."""
        if graph in self.graphs:
            return self.graphs[graph]
        layouts = dict(operands)
        for tensor in graph.tensors.values():
            if isinstance(tensor, (Variable, Constant, Stream)):
                layouts[tensor] = self.data_layout(tensor)
        lowered = LoweredGraph(graph, [], layouts)
        self.graphs[graph] = lowered
        for op in schedule(graph):
            if not isinstance(op, Op):
                raise IrError(f"{op.where()}: not an op that can be lowered")
            lowered.ops.append(self.lower_op(op, layouts))
        return lowered

    def lower_op(self, op: Op, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """Lower one op: local steps, or calls."""
        calls = [item for item in op.work() if isinstance(item, w.CallGraph)]
        op_id = self.register(op, 0 if calls else _flops(op))
        if calls:
            return self.lower_call(op, op_id, calls, layouts)
        steps = Superstepper(op, op_id, layouts, self.machine).run()
        self.low_confidence.update(dict.fromkeys(steps.low_confidence))
        return LoweredOp(op, op.ipu or 0, steps)

    def lower_call(self, op: Op, op_id: int, calls: list[w.CallGraph], layouts: dict[Tensor, Layout]) -> LoweredOp:
        """A call or loop: lower the callee, copy operands that lie elsewhere, lay out the results."""
        assert isinstance(op, (CallOp, Loop))
        lowered = LoweredOp(op, op.ipu or 0, OpSteps())
        for item in calls:
            callee = item.graph
            operands = dict(zip(callee.inputs, (layouts[t] for t in op.inputs), strict=True))
            body = self.lower_graph(callee, operands)
            changed = modified_graph_inputs(callee)
            for index, (inner, outer) in enumerate(zip(callee.inputs, op.inputs, strict=True)):
                if index in changed and not op.by_reference(index):
                    lowered.copied.add(index)
                    lowered.steps.steps += on_tile_copy(op_id, inner, body.layouts[inner], self.machine)
                if body.layouts[inner].key != layouts[outer].key:
                    lowered.steps.steps += local_copy(
                        op_id, f"{op.type}/operand {inner.name}", body.layouts[inner], inner.dtype.size, self.machine
                    )
            for inner, outer in zip(callee.outputs, op.outputs, strict=True):
                layouts[outer] = body.layouts[inner]
            if item.trips > 1:
                for inner, result in zip(callee.inputs, callee.outputs, strict=False):
                    lowered.after_trip += on_tile_copy(op_id, result, body.layouts[inner], self.machine)
            lowered.calls.append((body, item.trips))
        return lowered

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
        if tensor in self.parameters and elements >= chip.tiles:
            return even(("parameter", elements, size), elements, chip.tiles, chip.tiles, 8)
        return linear(elements, size, chip.vector_width(size), chip.tiles)

    # -- the program -----------------------------------------------------------------------------------------------

    def program(self) -> DeviceProgram:
        """Lower the main graph and assemble the device program."""
        placement = self.machine.place(self.ir.replication_factor, ipus_per_replica(self.ir))
        main = self.lower_graph(self.ir.main_graph, {})
        ipus = range(ipus_per_replica(self.ir))
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
            for body, trips in item.calls:
                if ipu in ipus_of(body):
                    call = Call(-1, body.graph.name, f"{body.graph.name}@{ipu}")
                    copies = tuple(item.after_trip) if ipu == item.ipu else ()
                    trip = Sequence(-1, "body", (call, *copies))
                    yield call if trips == 1 else Repeat(-1, body.graph.name, trips, trip)

    def code_of(self, lowered: LoweredGraph, ipu: int) -> CodeBytes:
        """Always-live code of one graph on one IPU (each graph's code exists once, however often it is called)."""
        total = CodeBytes()
        for item in lowered.ops:
            if item.ipu == ipu:
                total += item.steps.code
        return total


def ipus_per_replica(program: Ir) -> int:
    """IPUs that one replica uses: the largest IPU number of any op or tensor, plus one."""
    used = 0
    for graph in program.all_graphs():
        used = max([used, *(op.ipu or 0 for op in graph.ops), *(t.ipu or 0 for t in graph.tensors.values())])
    return used + 1


def ipus_of(lowered: LoweredGraph) -> set[int]:
    """IPUs that take part in a graph, callees included."""
    found = {item.ipu for item in lowered.ops if not item.calls}
    for item in lowered.ops:
        for body, _ in item.calls:
            found |= ipus_of(body)
    return found


def _flops(op: Op) -> int:
    return sum(int(getattr(item, "flops", 0)) for item in op.work())


def _matmul_parameters(ir: Ir) -> set[Tensor]:
    """Tensors that end up, through calls, as an operand of a matrix product."""
    found: set[Tensor] = set()
    changed = True
    graphs = list(ir.all_graphs())
    while changed:
        changed = False
        for graph in graphs:
            for op in graph.ops:
                wanted: list[Tensor] = []
                if op.type == "MatMul":
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


def lower(ir: Ir, machine: Machine, *, name: str = "program", strict_memory: bool = False) -> DeviceProgram:
    """Compile ``ir`` for ``machine``.

    Args:
        ir: the program; it is not changed.
        machine: where it runs; replicas x IPUs per replica have to fit.
        name: name of the program in reports.
        strict_memory: raise :class:`DoesNotFitError` instead of a warning when a tile's memory is exceeded.

    Raises:
        MachineError: the replicas cannot be placed; IrError: an op without a cost model.
    """
    ir.freeze_check()
    _check_remote(ir, machine)
    program = Lowering(ir, machine, name).program()
    problems = [line for line in program.warnings if line.startswith("does not fit")]
    if strict_memory and problems:
        raise DoesNotFitError("; ".join(problems))
    return program


def _check_remote(ir: Ir, machine: Machine) -> None:
    buffers: list[RemoteBuffer] = ir.remote_buffers
    if buffers:
        machine.ipu_machine.require_streaming_memory()

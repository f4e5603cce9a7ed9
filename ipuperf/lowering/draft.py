"""How the data of a program lie on the tiles before they are computed with, and the draft that finds it out.

A parameter of a product lies as the product reads it. A stash lies so that each slice matches the tensor written to it.
The buffer of a copy between IPUs lies as its source. Everything else lies linearly. What is written to a stash or
buffer is known only once the ops before it are lowered. Programs that have them are therefore lowered first as a
:class:`_Draft`, which keeps layouts and no steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Ir, Tensor, Variable, calling
from ipuperf.ops.base import Op
from ipuperf.ops.selection.dynamic import Dynamic
from ipuperf.ops.transfers.ipu_copy import IpuCopy

from .layout import DataLayouts, Layout
from .lowered import CallingOp
from .supersteps import positions_of, stack

if TYPE_CHECKING:
    from .compilation import Compilation

_PRODUCT_TYPES = frozenset(
    [
        *("MatMul", "Conv", "ConvDataGrad", "ConvTranspose", "ConvWeightsGrad"),
        *("MultiConv", "MultiConvDataGrad", "MultiConvWeightsGrad"),
        *("MatMulPow2Scaled", "ConvPow2Scaled", "ConvTransposePow2Scaled"),
    ]
)


def lay_out_data(program: Compilation) -> Compilation:
    """The pass that lays out what exists before a graph runs."""
    ir, chip = program.ir, program.places.machine.chip
    program.data_layouts = DataLayouts(chip, _product_operands(ir), {})
    # Only stashes and buffers of copies need to know where what is written to them lies.
    if any(isinstance(op, (IpuCopy, Dynamic)) for graph in ir.all_graphs() for op in graph.ops):
        draft = _Draft(program)
        draft.lay_out_graph(ir.main_graph, {})
        program.data_layouts.wishes = draft.wishes
    return program


class _Draft:
    """Finds the layouts of all tensors, in execution order, for what is written to stashes and buffers.

    Attributes:
        wishes: layouts that stashes and buffers should have, by owner of the storage.
    """

    def __init__(self, program: Compilation) -> None:
        self._places = program.places
        self._cache = program.cache
        self._data = program.data_layouts
        self._graphs: dict[Graph, dict[Tensor, Layout]] = {}
        self.wishes: dict[Tensor, Layout] = {}
        self._weak: set[Tensor] = set()

    def lay_out_graph(self, graph: Graph, layouts: dict[Tensor, Layout]) -> None:
        """Lay out the tensors of ``graph``; ``layouts`` are those of its inputs at its first call."""
        self._graphs[graph] = layouts
        self._data.add_to(layouts, graph)
        for op in self._cache.order(graph):
            if isinstance(op, CallingOp):
                self._lay_out_call(op, layouts)
                continue
            assert isinstance(op, Op)
            if isinstance(op, (IpuCopy, Dynamic)):
                self._wish(op, layouts)
            aliases = op.aliases()
            for index, operand in aliases.items():
                layouts[op.outputs[index]] = layouts[op.inputs[operand]]
            # Results that share storage with an operand need no steps to be laid out.
            if len(aliases) < len(op.outputs):
                self._cache.steps(op, self._cache.facts(op), layouts)

    def _lay_out_call(self, op: CallingOp, layouts: dict[Tensor, Layout]) -> None:
        for callee, operands in op.calls():
            if callee not in self._graphs:
                inputs = zip(callee.inputs, operands, strict=True)
                self.lay_out_graph(callee, {callee_input: layouts[operand] for callee_input, operand in inputs})
        # Of a conditional, the first branch says how the results lie.
        first = op.called_graphs()[0]
        for callee_output, result in zip(first.outputs, op.outputs, strict=True):
            layouts[result] = self._graphs[first][callee_output]

    def _wish(self, op: Op, layouts: Mapping[Tensor, Layout]) -> None:
        """Note the layout that the storage of a stash, or of a copy's buffer, should have.

        A wish is weak where no tensor of one slice's shape is written; a later, stronger wish replaces it.
        """
        weak = False
        if isinstance(op, IpuCopy) and len(op.inputs) == 2:
            target, layout = op.inputs[1], layouts[op.inputs[0]]
        elif isinstance(op, Dynamic) and op.base in op.inputs:
            target, (positions, count), part = op.base, positions_of(op), op.part
            weak = count != 1 or part is None or part not in op.inputs
            if weak or part is None:
                unit = self._data.linear(target.spec.elements // positions, target.dtype.size)
            else:
                unit = layouts[part]
            layout = stack(unit, op.axes, positions)
        else:
            return
        owner = self._places.owner(target)
        # Only variables and results of Init get their layout from a wish; other storage follows the op that makes it.
        can_be_laid_out = isinstance(owner, Variable) or (owner.producer is not None and owner.producer.type == "Init")
        stronger = owner not in self.wishes or (owner in self._weak and not weak)
        # A layout for a view of another shape says nothing about the whole storage.
        if can_be_laid_out and owner.shape == target.shape and stronger:
            self.wishes[owner] = layout
            if weak:
                self._weak.add(owner)
            else:
                self._weak.discard(owner)


def _product_operands(ir: Ir) -> set[Tensor]:
    """Tensors that are operands of a matrix product or a convolution, directly or in a called graph."""
    parameters: set[Tensor] = set()
    operands: dict[Tensor, list[Tensor]] = {}  # of each input of a callee
    for graph in ir.all_graphs():
        for op in graph.ops:
            if op.type in _PRODUCT_TYPES:
                parameters.update(op.inputs)
        for op in calling(graph):
            for callee, passed in op.calls():
                for callee_input, operand in zip(callee.inputs, passed, strict=False):
                    operands.setdefault(callee_input, []).append(operand)
    # An operand may itself be the input of a graph, so calls are followed up to where the tensor comes from.
    waiting = list(parameters)
    while waiting:
        for operand in operands.get(waiting.pop(), ()):
            if operand not in parameters:
                parameters.add(operand)
                waiting.append(operand)
    return parameters

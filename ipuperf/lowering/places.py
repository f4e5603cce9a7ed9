"""Where the tensors of a program lie: on which IPU, and how on its tiles."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Constant, Graph, Ir, IrError, Tensor, Variable, calling, data_of
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call, If, Loop
from ipuperf.ops.selection.dynamic import Dynamic
from ipuperf.ops.transfers.ipu_copy import IpuCopy

from .layout import Layout, even, linear
from .placement import home_of, reading_ipu, user_ipu, users
from .supersteps import positions_of, stack
from .tile_sets import COMPUTE, TileSets

_PRODUCTS_OF_FLOAT8 = ("MatMulPow2Scaled", "ConvPow2Scaled", "ConvTransposePow2Scaled")
_MULTI_CONVS = ("MultiConv", "MultiConvDataGrad", "MultiConvWeightsGrad")
_PRODUCT_TYPES = frozenset(
    ["MatMul", "Conv", "ConvDataGrad", "ConvTranspose", "ConvWeightsGrad", *_MULTI_CONVS, *_PRODUCTS_OF_FLOAT8]
)


class Places:
    """Homes and layouts, filled while the graphs are walked in execution order.

    Args:
        tile_sets: how the tiles of an IPU are divided.
        draft_walk: an earlier walk over the same program. Homes, tile sets and storages do not depend on layouts, so
            they are taken from it; its ``wishes`` are the layouts of variables and Init results.

    Attributes:
        machine: the machine as the compute tiles see it.
        tile_set_of: the tile set of each tensor that has been placed; others lie on the compute tiles.
        homes: IPU on which each tensor lies; None for constants, which lie wherever they are used.
        storage: for tensors that share storage, the tensor that owns it, also across calls.
        wishes: layouts that stashes and buffers should have, by owner of the storage.
    """

    def __init__(self, ir: Ir, tile_sets: TileSets, draft_walk: Places | None = None) -> None:
        self.ir = ir
        self.tile_sets = tile_sets
        self.machine = tile_sets.machines[COMPUTE]
        self.draft_walk = draft_walk
        # The final walk goes on with the maps of the draft.
        self.tile_set_of: dict[Tensor, str] = draft_walk.tile_set_of if draft_walk else {}
        self.parameters: set[Tensor] = draft_walk.parameters if draft_walk else _matmul_parameters(ir)
        self.homes: dict[Tensor, int | None] = draft_walk.homes if draft_walk else {}
        self.storage: dict[Tensor, Tensor] = draft_walk.storage if draft_walk else {}
        self.fixed = draft_walk.wishes if draft_walk else {}
        self.wishes: dict[Tensor, Layout] = {}
        self._weak: set[Tensor] = set()

    def lay_out_data(self, graph: Graph, layouts: dict[Tensor, Layout]) -> None:
        """Lay out what exists before a graph runs: variables, constants, streams, and results with a wished layout."""
        # Results of Init get their wished layout before their op is lowered.
        layouts.update({tensor: layout for tensor, layout in self.fixed.items() if tensor.graph is graph})
        for tensor in data_of(graph):
            layouts[tensor] = self.data_layout(tensor)
            if self.draft_walk is None:
                self.homes[tensor] = None if isinstance(tensor, Constant) else home_of(tensor)

    def place(self, op: Op, ipu: int) -> None:
        """Note where the results of an op on ``ipu`` lie, and what they share storage with.

        Raises:
            IrError: an operand lies on another IPU or another tile set.
        """
        if self.tile_sets.io_tiles:
            self._place_on_tiles(op, ipu)
        copy, homes = isinstance(op, IpuCopy), self.homes
        for index, tensor in enumerate(op.inputs):
            home = homes.get(tensor)
            # Constants lie wherever they are used; an operand of a copy is checked against the IPU that reads it.
            if home is None or (home == ipu and not copy):
                continue
            if home != (required_ipu := reading_ipu(op, index) if copy else ipu):
                raise IrError(
                    f"{op.where()}: it is on IPU {required_ipu} and its operand {tensor.id!r} lies on IPU {home}; "
                    "copy it there with an IpuCopy (ipu_copy), or place the op on that IPU"
                )
        for tensor in op.outputs:
            homes[tensor] = ipu
        for index, operand in op.aliases().items():
            source = op.inputs[operand]
            self.storage[op.outputs[index]] = self.storage.get(source, source)

    def share(self, op: Op, layouts: dict[Tensor, Layout]) -> bool:
        """Lay out results that share storage with an operand as that operand; return whether all results do."""
        aliases = op.aliases()
        for index, operand in aliases.items():
            layouts[op.outputs[index]] = layouts[op.inputs[operand]]
        return len(aliases) == len(op.outputs)

    def _place_on_tiles(self, op: Op, ipu: int) -> None:
        """Note the tile set of an op's results; its operands must lie on the tiles that read them."""
        for index, tensor in enumerate(op.inputs):
            tile_set, required_set = self.tile_set_of.get(tensor, COMPUTE), self.tile_sets.reading(op, index)
            if tile_set != required_set and self.homes.get(tensor, ipu) is not None:
                raise IrError(
                    f"{op.where()}: it is on the {required_set} tiles, its operand {tensor.id!r} "
                    f"lies on the {tile_set} tiles; copy it there with an IoTileCopy (io_tile_copy), "
                    "or place the op on those tiles"
                )
        for tensor in op.outputs:
            self.tile_set_of[tensor] = self.tile_sets.of(op)

    def wish(self, op: Op, layouts: dict[Tensor, Layout]) -> None:
        """Note the layout that the storage of a stash, or of a copy's buffer, should have.

        A wish is weak where no tensor of one slice's shape is written; a later, stronger wish replaces it.
        """
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
        # Only variables and results of Init get their layout from a wish; other storage follows the op that makes it.
        can_be_laid_out = isinstance(owner, Variable) or (owner.producer is not None and owner.producer.type == "Init")
        if (
            not can_be_laid_out
            or owner.shape != target.shape
            or (owner in self.wishes and (weak or owner not in self._weak))
        ):
            return
        self.wishes[owner] = layout
        if weak:
            self._weak.add(owner)
        else:
            self._weak.discard(owner)

    def data_unit(self, base: Tensor, positions: int) -> Layout:
        """Linear mapping of one position of a sliced tensor."""
        size = base.dtype.size
        return linear(
            base.spec.elements // positions, size, self.machine.chip.vector_width(size), self.machine.chip.tiles
        )

    def pass_operands(self, op: Call | Loop | If, callee: Graph, operands: Sequence[Tensor], *, first: bool) -> None:
        """Note where the callee's inputs lie: where the operands of its first call lie.

        Raises:
            IrError: a later call has an operand on another IPU.
        """
        for index, (callee_input, operand) in enumerate(zip(callee.inputs, operands, strict=True)):
            if self.tile_sets.io_tiles:
                self._pass_tiles(op, callee_input, operand, first=first)
            home = self.homes.get(operand)
            # A constant that a loop carries becomes a value of the loop, so it needs a home: the IPU that uses it.
            if home is None and isinstance(op, Loop) and index < op.carried:
                home = user_ipu(callee_input)
            if first:
                self.homes[callee_input] = home
                self.storage[callee_input] = self.storage.get(operand, operand)
            elif home is not None and self.homes[callee_input] not in (None, home):
                raise IrError(
                    f"{op.where()}: operand {operand.id!r} lies on IPU {home}, an earlier call of graph "
                    f"{callee.name!r} passes one on IPU {self.homes[callee_input]} there; "
                    "use one graph for each placement"
                )

    def place_results(self, op: Call | Loop | If, callee: Graph) -> None:
        """Note that the results of a call lie where the callee leaves them."""
        for callee_output, result in zip(callee.outputs, op.outputs, strict=True):
            home = self.homes.get(callee_output)
            if home is not None and self.homes.get(result, home) not in (None, home):
                raise IrError(
                    f"{op.where()}: the branches leave result {result.id!r} on IPUs {self.homes[result]} and {home}; "
                    "copy one inside its branch"
                )
            self.homes[result] = home
            self.storage[result] = self.storage.get(callee_output, callee_output)
            if self.tile_sets.io_tiles:
                self.tile_set_of[result] = self.tile_set_of.get(callee_output, COMPUTE)

    def _pass_tiles(self, op: Call | Loop | If, callee_input: Tensor, operand: Tensor, *, first: bool) -> None:
        """Note the tile set of a callee's input, as :meth:`pass_operands` does its IPU.

        A constant lies on the tiles that read it first.
        """
        tile_set = self.tile_set_of.get(operand, COMPUTE)
        anywhere = self.homes.get(operand, 0) is None
        if first:
            self.tile_set_of[callee_input] = self.tile_sets.user(callee_input) if anywhere else tile_set
        elif tile_set != self.tile_set_of.get(callee_input, COMPUTE) and not anywhere:
            raise IrError(
                f"{op.where()}: operand {operand.id!r} lies on the {tile_set} tiles, an earlier call of the "
                "graph passes one on other tiles there; use one graph for each"
            )

    def check_carried(self, op: Op, callee_input: Tensor, result: Tensor) -> None:
        """Raise unless a loop-carried value ends on the IPU where it begins."""
        begin, end = self.homes.get(callee_input), self.homes.get(result)
        if begin is not None and end is not None and begin != end:
            raise IrError(
                f"{op.where()}: output {result.id!r} lies on IPU {end} and is carried to {callee_input.id!r} "
                f"on IPU {begin}; copy it back inside the loop"
            )

    def home(self, tensor: Tensor) -> int:
        """IPU on which a tensor lies; for a constant the first IPU that uses it."""
        home = self.homes.get(tensor)
        return home if home is not None else user_ipu(tensor) or 0

    def holders(self, tensor: Constant) -> tuple[int, ...]:
        """IPUs that hold a constant: all that read it, otherwise the one it is stated to be on."""
        return tuple(users(tensor)) or (tensor.ipu or 0,)

    def data_layout(self, tensor: Tensor) -> Layout:
        """Layout of a variable, constant or stream: parameters of products evenly in grains, others linearly."""
        chip = self.machine.chip
        elements, size = tensor.spec.elements, tensor.dtype.size
        if tensor in self.fixed:
            return self.fixed[tensor]
        # Small parameters lie linearly, as there is less than one element for each tile.
        if tensor in self.parameters and elements >= chip.tiles:
            return even(("parameter", elements, size), elements, chip.tiles, chip.tiles, 8)
        return linear(elements, size, chip.vector_width(size), chip.tiles)


def _matmul_parameters(ir: Ir) -> set[Tensor]:
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

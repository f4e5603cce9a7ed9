"""Where the tensors of a program lie: on which IPU, and how on its tiles."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Constant, Graph, Ir, IrError, Tensor, Variable, calling, data_of
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call, If, Loop
from ipuperf.ops.dynamic import Dynamic
from ipuperf.ops.ipu_copy import IpuCopy

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
        found: an earlier walk over the same program: homes, tile sets and storages are as it found them, for they do
            not depend on layouts, and its ``wishes`` are the layouts of variables and Init results.

    Attributes:
        machine: the machine as the compute tiles see it.
        tile_set_of: the tile set of tensors that do not lie on the compute tiles.
        homes: IPU on which each tensor lies; None for constants, which lie wherever they are used.
        storage: for tensors that share storage, the tensor that owns it, through calls.
        wishes: layouts that stashes and buffers should have, by owner of the storage.
    """

    def __init__(self, ir: Ir, tile_sets: TileSets, found: Places | None = None) -> None:
        self.ir = ir
        self.tile_sets = tile_sets
        self.machine = tile_sets.machines[COMPUTE]
        self.found = found
        self.tile_set_of: dict[Tensor, str] = found.tile_set_of if found else {}
        self.parameters: set[Tensor] = found.parameters if found else _matmul_parameters(ir)
        self.homes: dict[Tensor, int | None] = found.homes if found else {}
        self.storage: dict[Tensor, Tensor] = found.storage if found else {}
        self.fixed = found.wishes if found else {}
        self.wishes: dict[Tensor, Layout] = {}
        self._weak: set[Tensor] = set()

    def lay_out_data(self, graph: Graph, layouts: dict[Tensor, Layout]) -> None:
        """Homes and layouts of what is there before a graph runs: variables, constants, streams, wished-for results."""
        layouts.update({tensor: layout for tensor, layout in self.fixed.items() if tensor.graph is graph})
        for tensor in data_of(graph):
            layouts[tensor] = self.data_layout(tensor)
            if self.found is None:
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
            if home is None or (home == ipu and not copy):
                continue
            if home != (wanted := reading_ipu(op, index) if copy else ipu):
                raise IrError(
                    f"{op.where()}: it is on IPU {wanted} and its operand {tensor.id!r} lies on IPU {home}; copy it "
                    "there with an IpuCopy (ipu_copy), or place the op on that IPU"
                )
        for tensor in op.outputs:
            homes[tensor] = ipu
        for index, operand in op.aliases().items():
            source = op.inputs[operand]
            self.storage[op.outputs[index]] = self.storage.get(source, source)

    def share(self, op: Op, layouts: dict[Tensor, Layout]) -> bool:
        """Lay out results that share storage with an operand as that one lies; whether all results do."""
        aliases = op.aliases()
        for index, operand in aliases.items():
            layouts[op.outputs[index]] = layouts[op.inputs[operand]]
        return len(aliases) == len(op.outputs)

    def _place_on_tiles(self, op: Op, ipu: int) -> None:
        """Note the tile set of the results of an op, which has to be that of its operands."""
        for index, tensor in enumerate(op.inputs):
            lies, wanted = self.tile_set_of.get(tensor, COMPUTE), self.tile_sets.reading(op, index)
            if lies != wanted and self.homes.get(tensor, ipu) is not None:
                raise IrError(
                    f"{op.where()}: it is on the {wanted} tiles, its operand {tensor.id!r} lies on the {lies} tiles; "
                    "copy it there with an IoTileCopy (io_tile_copy), or place the op on those tiles"
                )
        for tensor in op.outputs:
            self.tile_set_of[tensor] = self.tile_sets.of(op)

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

    def pass_operands(self, op: Call | Loop | If, callee: Graph, operands: Sequence[Tensor], *, first: bool) -> None:
        """Note where the callee's inputs lie: with the operands of its first call.

        Raises:
            IrError: a later call has an operand on another IPU.
        """
        for index, (inner, outer) in enumerate(zip(callee.inputs, operands, strict=True)):
            if self.tile_sets.io_tiles:
                self._pass_tiles(op, inner, outer, first=first)
            home = self.homes.get(outer)
            if home is None and isinstance(op, Loop) and index < op.carried:
                home = user_ipu(inner)
            if first:
                self.homes[inner] = home
                self.storage[inner] = self.storage.get(outer, outer)
            elif home is not None and self.homes[inner] not in (None, home):
                raise IrError(
                    f"{op.where()}: operand {outer.id!r} lies on IPU {home}, an earlier call of graph {callee.name!r} "
                    f"passes one on IPU {self.homes[inner]} there; use one graph for each placement"
                )

    def place_results(self, op: Call | Loop | If, callee: Graph) -> None:
        """Note that the results of a call lie where the callee leaves them."""
        for inner, outer in zip(callee.outputs, op.outputs, strict=True):
            home = self.homes.get(inner)
            if home is not None and self.homes.get(outer, home) not in (None, home):
                raise IrError(
                    f"{op.where()}: the branches leave result {outer.id!r} on IPUs {self.homes[outer]} and {home}; "
                    "copy one inside its branch"
                )
            self.homes[outer] = home
            self.storage[outer] = self.storage.get(inner, inner)
            if self.tile_sets.io_tiles:
                self.tile_set_of[outer] = self.tile_set_of.get(inner, COMPUTE)

    def _pass_tiles(self, op: Call | Loop | If, inner: Tensor, outer: Tensor, *, first: bool) -> None:
        """As :meth:`pass_operands` for the tile set; a loop carries a constant on the tiles that read it first."""
        lies = self.tile_set_of.get(outer, COMPUTE)
        anywhere = self.homes.get(outer, 0) is None
        if first:
            self.tile_set_of[inner] = self.tile_sets.user(inner) if anywhere else lies
        elif lies != self.tile_set_of.get(inner, COMPUTE) and not anywhere:
            raise IrError(
                f"{op.where()}: operand {outer.id!r} lies on the {lies} tiles, an earlier call of the graph passes one "
                "on other tiles there; use one graph for each"
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

    def data_layout(self, tensor: Tensor) -> Layout:
        """Layout of a variable, constant or stream: parameters of products in grains of 16, others linearly."""
        chip = self.machine.chip
        elements, size = tensor.spec.elements, tensor.dtype.size
        if tensor in self.fixed:
            return self.fixed[tensor]
        if tensor in self.parameters and elements >= chip.tiles:
            return even(("parameter", elements, size), elements, chip.tiles, chip.tiles, 8)
        return linear(elements, size, chip.vector_width(size), chip.tiles)


def _matmul_parameters(ir: Ir) -> set[Tensor]:
    """Tensors that end up, through calls, as an operand of a matrix product or a convolution."""
    found: set[Tensor] = set()
    operands: dict[Tensor, list[Tensor]] = {}  # of each input of a callee
    for graph in ir.all_graphs():
        for op in graph.ops:
            if op.type in _PRODUCT_TYPES:
                found.update(op.inputs)
        for op in calling(graph):
            for callee, passed in op.calls():
                for inner, operand in zip(callee.inputs, passed, strict=False):
                    operands.setdefault(inner, []).append(operand)
    waiting = list(found)
    while waiting:
        for operand in operands.get(waiting.pop(), ()):
            if operand not in found:
                found.add(operand)
                waiting.append(operand)
    return found

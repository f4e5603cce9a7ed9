"""Where the tensors of a program lie: on which IPU, and on which of its tile sets. How they lie there is a layout.

The inputs of a called graph lie where the operands of its first call lie.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Constant, Graph, IrError, Tensor, data_of
from ipuperf.ops.base import Op
from ipuperf.ops.control import Loop
from ipuperf.ops.transfers.ipu_copy import IpuCopy

from .lowered import CallingOp
from .placement import home_of, reading_ipu, user_ipu, users
from .tile_sets import COMPUTE, IO, TileSets


class Places:
    """IPUs and tile sets of tensors.

    Args:
        tile_sets: how the tiles of an IPU are divided.

    Attributes:
        machine: the machine as the compute tiles see it.
        tile_set_of: the tile set of each tensor that has been placed; others lie on the compute tiles.
        homes: IPU on which each tensor lies; None for constants, which lie wherever they are used.
        storage: for tensors that share storage, the tensor that owns it, also across calls.
    """

    def __init__(self, tile_sets: TileSets) -> None:
        self.tile_sets = tile_sets
        self.machine = tile_sets.machines[COMPUTE]
        self.tile_set_of: dict[Tensor, str] = {}
        self.homes: dict[Tensor, int | None] = {}
        self.storage: dict[Tensor, Tensor] = {}

    def home(self, tensor: Tensor) -> int:
        """IPU on which a tensor lies; for a constant the first IPU that uses it."""
        home = self.homes.get(tensor)
        return home if home is not None else user_ipu(tensor) or 0

    def holders(self, tensor: Constant) -> tuple[int, ...]:
        """IPUs that hold a constant: all that read it, otherwise the one it is stated to be on."""
        return tuple(dict.fromkeys(users(tensor))) or (tensor.ipu or 0,)

    def owner(self, tensor: Tensor) -> Tensor:
        """The tensor whose storage ``tensor`` shares, itself where it shares none."""
        return self.storage.get(tensor, tensor)

    def on_io_tiles(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the I/O tiles."""
        return self.tile_set_of.get(tensor) == IO

    def place_data(self, graph: Graph) -> None:
        """Note where variables, constants and streams of a graph lie."""
        for tensor in data_of(graph):
            self.homes[tensor] = None if isinstance(tensor, Constant) else home_of(tensor)

    def place_op(self, op: Op) -> None:
        """Note where the results of an op lie, and what they share storage with.

        Raises:
            IrError: an operand lies on another IPU or another tile set.
        """
        if self.tile_sets.io_tiles:
            self._place_on_tiles(op, ipu_of(op))
        copy, homes, ipu = isinstance(op, IpuCopy), self.homes, ipu_of(op)
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
            self.storage[op.outputs[index]] = self.owner(source)

    def _place_on_tiles(self, op: Op, ipu: int) -> None:
        """Note the tile set of an op's results; its operands must lie on the tiles that read them."""
        for index, tensor in enumerate(op.inputs):
            tile_set, required_set = self.tile_set_of.get(tensor, COMPUTE), self.tile_sets.reading(op, index)
            # A constant has no home and lies on whichever tiles read it.
            if tile_set != required_set and self.homes.get(tensor, ipu) is not None:
                raise IrError(
                    f"{op.where()}: it is on the {required_set} tiles, its operand {tensor.id!r} "
                    f"lies on the {tile_set} tiles; copy it there with an IoTileCopy (io_tile_copy), "
                    "or place the op on those tiles"
                )
        for tensor in op.outputs:
            self.tile_set_of[tensor] = self.tile_sets.of(op)

    def pass_operands(self, op: CallingOp, callee: Graph, operands: Sequence[Tensor], *, first: bool) -> None:
        """Note where the callee's inputs lie: where the operands of its first call lie.

        Raises:
            IrError: a later call has an operand on another IPU.
        """
        homes = self.homes.get
        # Nearly all later calls pass what lies as at the first one.
        if not (first or self.tile_sets.io_tiles) and [*map(homes, operands)] == [*map(homes, callee.inputs)]:
            return
        for index, (callee_input, operand) in enumerate(zip(callee.inputs, operands, strict=True)):
            if self.tile_sets.io_tiles:
                self._pass_tiles(op, callee_input, operand, first=first)
            home = self.homes.get(operand)
            # A constant that a loop carries becomes a value of the loop, so it needs a home: the IPU that uses it.
            if home is None and isinstance(op, Loop) and index < op.carried:
                home = user_ipu(callee_input)
            if first:
                self.homes[callee_input] = home
                self.storage[callee_input] = self.owner(operand)
            elif home is not None and self.homes[callee_input] not in (None, home):
                raise IrError(
                    f"{op.where()}: operand {operand.id!r} lies on IPU {home}, an earlier call of graph "
                    f"{callee.name!r} passes one on IPU {self.homes[callee_input]} there; "
                    "use one graph for each placement"
                )

    def place_results(self, op: CallingOp, callee: Graph) -> None:
        """Note that the results of a call lie where the callee leaves them."""
        for callee_output, result in zip(callee.outputs, op.outputs, strict=True):
            home = self.homes.get(callee_output)
            if home is not None and self.homes.get(result, home) not in (None, home):
                raise IrError(
                    f"{op.where()}: the branches leave result {result.id!r} on IPUs {self.homes[result]} and {home}; "
                    "copy one inside its branch"
                )
            # A branch that leaves a constant says nothing about the place.
            if home is not None or result not in self.homes:
                self.homes[result] = home
            self.storage[result] = self.owner(callee_output)
            if self.tile_sets.io_tiles:
                self.tile_set_of[result] = self.tile_set_of.get(callee_output, COMPUTE)

    def _pass_tiles(self, op: CallingOp, callee_input: Tensor, operand: Tensor, *, first: bool) -> None:
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

    def check_carried(self, op: Loop) -> None:
        """Raise unless every loop-carried value ends on the IPU where it begins."""
        for callee_input, result in zip(op.callee.inputs, op.callee.outputs, strict=False):
            begin, end = self.homes.get(callee_input), self.homes.get(result)
            if begin is not None and end is not None and begin != end:
                raise IrError(
                    f"{op.where()}: output {result.id!r} lies on IPU {end} and is carried to {callee_input.id!r} "
                    f"on IPU {begin}; copy it back inside the loop"
                )


def ipu_of(op: Op) -> int:
    """The IPU on which the steps of an op run and its results lie."""
    return op.destination if isinstance(op, IpuCopy) else op.ipu or 0

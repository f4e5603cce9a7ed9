"""The copies that a call, loop or conditional makes of its operands and results.

A call copies an operand where it lies elsewhere than in the first call, or where the callee changes it although it is
passed by value. Unchanged operands and results are aliased, as by PopART's ``aliasZeroCopy``, which PopXL sets. Calls
of outlined functions copy them (:mod:`.function_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipuperf.ir import Tensor
from ipuperf.ops.control import If, Loop, modified_graph_inputs

from .layout import Layout
from .lowered import CallCopies, CallingOp, LoweredGraph
from .places import Places
from .steps import IoTiles, Step
from .supersteps import local_copies, on_tile_copies, trip_control


class CallCopier:
    """Makes the copies of one graph that an op executes.

    Args:
        places: where the tensors of the program lie.
        op, op_id: the op, and its number in the op table.
        body: the graph, lowered.

    Attributes:
        copies: the copies.
    """

    def __init__(self, places: Places, op: CallingOp, op_id: int, body: LoweredGraph) -> None:
        self._places = places
        self._machine = places.machine
        self._op = op
        self._op_id = op_id
        self._body = body
        self.copies = CallCopies()

    def copy_operands(self, operands: Sequence[Tensor], layouts: Mapping[Tensor, Layout]) -> None:
        """Add copies of operands that lie elsewhere, or that the callee changes although they are passed by value.

        Args:
            operands: the tensors passed to the inputs of the graph.
            layouts: where they lie.
        """
        op, op_id, callee = self._op, self._op_id, self._body.graph
        copied = modified_graph_inputs(callee)
        if not isinstance(op, If):
            # The program asks for changes of operands that it passes by reference.
            copied = copied - op.references()
        self.copies.copied.update(copied)
        # Calls of a graph mostly pass operands that lie alike; layouts live as long as the program is lowered.
        alike = tuple(map(id, map(layouts.__getitem__, operands)))
        if not copied and alike in self._body.fitting:
            return
        for index, (callee_input, operand) in enumerate(zip(callee.inputs, operands, strict=True)):
            layout, operand_layout = self._body.layouts[callee_input], layouts[operand]
            pieces = [(layout, callee_input.dtype.size)]
            if index in copied:
                self._add(self.copies.before, callee_input, on_tile_copies(op_id, pieces, self._machine))
            # Most layouts are the same object; that test comes first because comparing layouts is slow.
            if layout is not operand_layout and layout != operand_layout:
                name = f"{op.type}/operand {callee_input.name}"
                self._add(self.copies.before, callee_input, local_copies(op_id, name, pieces, self._machine))
        if not self.copies.before:
            self._body.fitting.add(alike)

    def copy_results(self) -> None:
        """Add copies of a branch's results to the results of the conditional."""
        # A result has one place whichever branch runs, so it cannot be an alias of one branch's tensor.
        for result in self._body.graph.outputs:
            pieces = [(self._body.layouts[result], result.dtype.size)]
            self._add(self.copies.after_trip, result, on_tile_copies(self._op_id, pieces, self._machine))

    def copy_carried(self) -> None:
        """Add copies of loop-carried values at the end of a trip (PopART popx/op/loopx.cpp).

        All results are first copied into clones, as another value of the loop may be an alias of one. The clones are
        then copied to where the body reads them, over the exchange where result and input lie differently. The copies
        of one IPU and tile set are made at once.

        An input that the body returns as it came would be copied to a clone and back. Earlier versions leave that out.
        That Poplar drops it is an assumption; PopLibs says so of copies between equal layouts (lib/poplin
        Convolution.cpp, convolutionImpl).
        """
        op, op_id, body, machine = self._op, self._op_id, self._body, self._machine
        sets: dict[tuple[int, bool], list[tuple[Tensor, Tensor]]] = {}
        for callee_input, result in zip(body.graph.inputs, body.graph.outputs, strict=False):
            if callee_input is result:
                continue
            place = (self._places.home(callee_input), self._places.on_io_tiles(callee_input))
            sets.setdefault(place, []).append((callee_input, result))
        if isinstance(op, Loop) and op.conditional:
            self.copies.after_trip.setdefault(op.ipu or 0, []).extend(trip_control(op_id, op.type, machine))
        for pairs in sets.values():
            stays: list[tuple[Layout, int]] = []
            moves: list[tuple[Layout, int]] = []
            moved_names = []
            for callee_input, result in pairs:
                layout, result_layout = body.layouts[callee_input], body.layouts[result]
                # Identity first: comparing layouts is slow.
                if layout is result_layout or layout == result_layout:
                    stays.append((layout, callee_input.dtype.size))
                else:
                    moves.append((layout, callee_input.dtype.size))
                    moved_names.append(callee_input.name)
            clones = [(body.layouts[result], result.dtype.size) for _, result in pairs]
            steps = [
                *on_tile_copies(op_id, clones, machine),
                *local_copies(op_id, f"{op.type}/carried {', '.join(moved_names)}", moves, machine),
                *on_tile_copies(op_id, stays, machine),
            ]
            # All pairs of a set share IPU and tile set, so the first one stands for all.
            self._add(self.copies.after_trip, pairs[0][0], steps)

    def _add(self, copies: dict[int, list[Step]], tensor: Tensor, steps: list[Step]) -> None:
        """Add ``steps`` on the IPU and the tile set where ``tensor`` lies."""
        if self._places.on_io_tiles(tensor):
            steps = [IoTiles(-1, "I/O tiles", tuple(steps))]
        copies.setdefault(self._places.home(tensor), []).extend(steps)

"""Code of graphs that waits in Streaming Memory until it is loaded.

Upstream: popart ``willow/src/op/exchange/codecopy.cpp``, ``python/popxl/ops/code_copy.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Graph, IrError, TensorSpec
from ipuperf.ir.attributes import Attribute, instance

from ..base import Arrays, Environment, Kernel, Op
from ..binding import sequence
from ..work import CodeLoad, Work


class RemoteCodeLoad(Op):
    """Load the code of graph ``code`` from Streaming Memory into the tiles. It has neither operands nor results.

    Cost: a remote transfer of the control and exchange code that the graph has on each tile; vertices and their state
    stay on the tiles. The code takes memory from here to the last call before the next load
    (:mod:`ipuperf.lowering.code_loading`).
    """

    waited_for = True
    own_phase = "io"

    code = Attribute(instance(Graph))

    def infer(self) -> list[TensorSpec]:
        """No output. Raises for the graph that contains the op."""
        # A graph that runs is on the tiles already.
        if self.code is self.graph:
            raise IrError(f"{self.where()}: the code of graph {self.code.name or 'main'!r} cannot be loaded by itself")
        return []

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """No values."""
        return sequence()

    def work(self) -> Sequence[Work]:
        """The transfer."""
        return [CodeLoad(self.code)]

"""What PopXL programs ask of ``ir._pb_ir``, PopART's own object below a ``popxl.Ir``: the session options."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.frontends.popart.session_options import PLAN_KEYS, SessionOptions

_PARTIALS = {"half": _ir.FLOAT16, "float": _ir.FLOAT32}
_CONFIGURED = (_k.MatMul, _k.Conv, _k.GroupNormalization)


class ConfiguredIr(_ir.Ir):
    """A program with the session options of PopXL.

    Attributes:
        options: the options. Those about plans and norms count for ops that are made after they are set, the others
            until a session is made.
        unplaced: ops made inside ``popxl.ipu(None)``.
        host_processes: that ``poprun`` would start for the replicas.
    """

    def __init__(self, replication_factor: int) -> None:
        super().__init__(replication_factor)
        self.unplaced: set[_ir.Op] = set()
        self.host_processes = 1
        this = weakref.ref(self)

        def changed(name: str, value: Any) -> None:
            program = this()
            assert program is not None
            program._option_changed(name, value)

        self.options = SessionOptions(changed)
        self.replicate(replication_factor)

    def replicate(self, replicas: int) -> None:
        """So many replicas run the program."""
        self.replication_factor = replicas
        if replicas > 1:
            self.options.keep("enableReplicatedGraphs", True)
        self.options.keep("replicatedGraphCount", replicas)

    def _option_changed(self, name: str, value: Any) -> None:
        """Do what the program has set an option for.

        Raises:
            RuntimeError: a session was made.
        """
        if self.sealed:
            raise RuntimeError(f"SessionOptions.{name} cannot be changed after a Session was built from the Ir")
        options = self.options
        if name == "numIOTiles":
            self.num_io_tiles = value
        elif name == "enableInplaceAmbiguityChecking":
            self.checks_ambiguity = value
        elif name == "enableReplicatedGraphs":
            self.replication_factor = options.replicatedGraphCount if value else 1
        elif name == "replicatedGraphCount" and options.enableReplicatedGraphs:
            self.replication_factor = value

    def plan_options(self, op_class: type[_ir.Op], operand: _ir.Tensor) -> dict[str, Any]:
        """Attributes that the options give a new product, convolution or norm whose first operand is ``operand``.

        Half partials are those of float16 operands; of wider ones they stay float32.

        Raises:
            ValueError: an unknown type of partial sums, or a memory proportion outside of [0, 1].
        """
        if issubclass(op_class, _k.GroupNormalization):
            return {"stable": bool(self.options.enableStableNorm)}
        matmul = issubclass(op_class, _k.MatMul)
        flags = self.options.matmulOptions if matmul else self.options.convolutionOptions
        plan: dict[str, Any] = {}
        partials = flags.get("partialsType", self.options.partialsTypeMatMuls if matmul else "")
        if partials:
            if partials.lower() not in _PARTIALS:
                raise ValueError(f"partials type {partials!r} of the session options; allowed: half, float")
            kind = _PARTIALS[partials.lower()]
            plan["partials_dtype"] = kind if kind.size >= operand.dtype.size else _ir.FLOAT32
        if PLAN_KEYS[0] in flags:
            share = flags[PLAN_KEYS[0]]
            plan["available_memory_proportion"] = float(share)
            if not 0 <= plan["available_memory_proportion"] <= 1:
                raise ValueError(f"availableMemoryProportion {share!r} of the session options; allowed: 0 to 1")
        return plan


def plan_options(op_class: type[_ir.Op], inputs: Sequence[_ir.Tensor]) -> dict[str, Any]:
    """:meth:`ConfiguredIr.plan_options` for a new op of any class; empty for those that no option is about."""
    if not issubclass(op_class, _CONFIGURED):
        return {}
    program = inputs[0].graph.ir
    return program.plan_options(op_class, inputs[0]) if isinstance(program, ConfiguredIr) else {}


class PbIr:
    """``ir._pb_ir``."""

    def __init__(self, program: ConfiguredIr) -> None:
        self._program = program

    def getSessionOptions(self) -> SessionOptions:
        """The options of the program."""
        return self._program.options

    def getId(self) -> int:
        """``ir.id``."""
        return id(self._program)

    def logIr(self) -> None:
        """The ops of all graphs in execution order, to the logger ``popart`` at level DEBUG."""
        import logging

        for graph in self._program.all_graphs():
            logging.getLogger("popart").debug("%s", _ir.format_schedule(graph))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"ir._pb_ir.{name} is not here: _pb_ir is PopART's native object, of which PopXL programs use "
            "getSessionOptions(), getId() and logIr(); see popxl.Ir and popxl.Graph for the rest"
        )

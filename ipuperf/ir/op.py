"""The base of all ops: identity, operands, aliasing, and the hooks that the rooms above fill in.

An op class states its shape rule here (:meth:`Op.infer`) and its gradient (:meth:`Op.gradient`). Its NumPy value and
its cost come with :class:`ipuperf.ops.base.Op`, so that this room needs neither NumPy kernels nor cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .attributes import Attribute, declared, give
from .errors import IrError
from .tensor import OPERATIONS, Tensor, TensorSpec, describe

if TYPE_CHECKING:
    from .autodiff import GradientBuilder
    from .graph import Graph
    from .phase import Phase


class Op:
    """One node of a graph.

    Args:
        settled: the attributes are complete and settled, as they come from an op of this class whose operands had the
            same specs.

    Class attributes:
        type: name that ``print_schedule`` shows, upstream's operation type; unless stated, the name of the class.
        operator: the function of Python's operators that makes it (:class:`.operators.Operators`), if any.
        declared: its attributes by name (:mod:`.attributes`).
        defaults: their values where none is given and none depends on the op.
        settles: whether an attribute depends on the op or has to be given.
        own_phase: phase of the class's ops where nobody states one; ``io`` holds everywhere. None: any phase.
        waited_for: whether the host, other replicas or memory outside the IPU wait for its ops.
        replaced: operands, by number, that only one result depends on, which is their new value (running statistics).

    Attributes:
        id: number from the Ir's counter (starts at 100, counts every op of every graph in creation order).
        graph: the graph that holds it.
        inputs, outputs: operands in order.
        attributes: the op's static parameters by name, settled; each is also a Python attribute with its type.
        ipu: IPU within the replica, or ``None`` when not stated (then IPU 0, or the operands' IPU).
        scope: name scope when it was created, for reports.
        module: path of the user's module that it belongs to, such as ``blocks.3.fc``; ``""`` where none is known.
        location: ``file:line`` of the user's code that created it, or ``""``.
        phase: the phase that its maker stated (:mod:`.phase`); ``recompute`` marks a forward op that runs again among
            the ops of a backward pass. None when nobody stated one.
    """

    type: ClassVar[str] = "Op"
    operator: ClassVar[str] = ""
    declared: ClassVar[Mapping[str, Attribute[Any]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    settles: ClassVar[bool] = False
    own_phase: ClassVar[Phase | None] = None
    waited_for: ClassVar[bool] = False
    replaced: ClassVar[Mapping[int, int]] = {}

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Bases have the type of `Op`; private classes that of the class they change.
        if not abstract and "type" not in vars(cls) and cls.__name__[0] != "_":
            cls.type = cls.__name__
        cls.declared = declared(cls)
        cls.defaults = {name: attribute.default for name, attribute in cls.declared.items()}
        cls.settles = not all(attribute.plain for attribute in cls.declared.values())
        if "operator" in vars(cls):
            # Only classes that state an operator themselves, so that subclasses do not take it over.
            OPERATIONS[cls.operator] = cls

    def __init__(
        self,
        graph: Graph,
        op_id: int,
        inputs: Sequence[Tensor],
        attributes: Mapping[str, Any],
        location: str = "",
        *,
        settled: bool = False,
    ) -> None:
        self.graph = graph
        self.id = op_id
        self.inputs: list[Tensor] = list(inputs)
        self.outputs: list[Tensor] = []
        self.attributes: dict[str, Any] = dict(attributes) if settled else {}
        self.ipu: int | None = None
        self.tile_set = "compute"
        self.scope = ""
        self.module = ""
        self.location = location
        self.phase: Phase | None = None
        # Settling looks at operands, so it comes after all other fields are set.
        if not settled and (attributes or self.declared):
            give(self, attributes)

    # -- rules that subclasses state -------------------------------------------------------------------------------

    def infer(self) -> list[TensorSpec]:
        """Shape rule: the specs of the outputs. Raises :class:`ShapeError` or :class:`DTypeError`."""
        raise IrError(f"{self.label}: op class {type(self).__name__} has no shape rule")

    def modified_inputs(self) -> tuple[int, ...]:
        """Indices of inputs whose storage this op changes."""
        return ()

    def unseen_changes(self) -> tuple[int, ...]:
        """Those of :meth:`modified_inputs` that no result of the op represents: what calls change by reference."""
        return ()

    def arranges(self, index: int) -> bool:
        """Whether the op brings input ``index`` into an order of its own, in whichever order it comes."""
        return False

    def aliases(self) -> dict[int, int]:
        """Outputs that share storage with an input: ``{output index: input index}`` (views and in-place results)."""
        return {}

    def called_graphs(self) -> tuple[Graph, ...]:
        """Subgraphs that this op executes."""
        return ()

    def calls(self) -> tuple[tuple[Graph, Sequence[Tensor]], ...]:
        """Each called graph with the operands that stand for its inputs, in the order of :meth:`called_graphs`."""
        graphs = self.called_graphs()
        return tuple([(graph, self.inputs) for graph in graphs]) if graphs else ()

    def movable(self) -> bool:
        """Whether the scheduler may move the op down to its first reader.

        Such an op works on one IPU, calls and changes nothing, and no other IPU, replica, host or memory outside waits
        for it.
        """
        return not (self.waited_for or self.called_graphs() or self.modified_inputs()) and self.fixed_ipu() is None

    def seen(self) -> bool:
        """Whether running the op has an effect even if nobody reads its results (it prints)."""
        return False

    def fixed_ipu(self) -> int | None:
        """The IPU on which the op's own attributes put it and its outputs; None: the context decides."""
        return None

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Build ops in the gradient graph: gradients of the outputs in, gradients of the inputs out.

        Use ``builder.forward(t)`` for the value of a forward tensor. ``None`` stands for "no gradient flows here".
        """
        raise IrError(f"{self.label} has no gradient; it cannot lie between a loss and a tensor that requires one")

    # -- names -----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """``Type.id`` as in ``print_schedule``; ``recompute/Type.id`` where :attr:`phase` is ``recompute``."""
        return f"recompute/{self.type}.{self.id}" if self.phase == "recompute" else f"{self.type}.{self.id}"

    def where(self) -> str:
        """Label, graph, operands and user location, for error messages."""
        graph = self.graph.name or "main graph"
        location = f" at {self.location}" if self.location else ""
        return f"{self.label} in {graph}{location} ({describe(self.inputs)})"

    def __repr__(self) -> str:
        return f"<{self.where()}>"

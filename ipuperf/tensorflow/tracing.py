"""Where a traced function's ops go: frames (graphs under construction) and the stack of them.

A :class:`Frame` is the main graph of a program, the body of a loop, a pipeline stage or a weight update. Ops of a frame
are ordered as they are written. A frame that uses a tensor of a frame around it captures it as a graph input: variables
by reference, everything else by value; constants are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipuperf.ir import CONTEXT, Builder, Constant, DType, Graph, Op, Tensor, Variable
from ipuperf.ir.builder import OpT
from ipuperf.ops import IncrementModInplace, IpuCopy, Loop

from .dtypes import to_host

if TYPE_CHECKING:
    from .program import TracedProgram


class Frame(Builder):
    """The op maker of a graph that is traced: its ops run as they are written.

    Attributes:
        program: the program that it belongs to.
        graph: the graph.
        outer: the frame that executes it; None for main graphs, stages and updates.
        executions: how often it runs in one run of the program.
        captured: tensors of outer frames that became inputs, in order of these inputs.
        accumulation: gradient accumulation of the optimisers in a loop body (see ``accumulation.py``), or None.
        update: in the weight update of a pipeline, the state and hyper-parameters of the variable being updated.
        reduced: whether gradients have been reduced over the replicas.
        offload: optimiser state that is first used here lives in Streaming Memory.
    """

    def __init__(self, program: TracedProgram, graph: Graph, outer: Frame | None = None, executions: int = 1) -> None:
        super().__init__(graph)
        self.program = program
        self.outer = outer
        self.executions = executions
        self.captured: list[Tensor] = []
        self.images: dict[Tensor, Tensor] = {}
        self.last: Op | None = None
        self.accumulation: Any = None
        self.update: Any = None
        self.reduced = False
        self.offload = False
        self._seed: Tensor | None = None

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` as a tensor of this frame's graph.

        Raises:
            ValueError: it belongs neither to this frame nor to one around it.
        """
        if tensor.graph is self.graph:
            return tensor
        if tensor not in self.images:
            self.images[tensor] = self.capture(tensor)
        return self.images[tensor]

    def capture(self, tensor: Tensor) -> Tensor:
        """A new input (or copied constant) that stands for a tensor of an outer frame."""
        name = tensor.name.rsplit("/", 1)[-1]
        if isinstance(tensor, Constant):
            return self.graph.constant(tensor.data, tensor.dtype, name)
        self.require_enclosing(tensor)
        image = self.graph.add_input(tensor.spec, name, by_ref=isinstance(tensor, Variable))
        image.ipu = tensor.ipu
        self.captured.append(tensor)
        return image

    def require_enclosing(self, tensor: Tensor) -> None:
        """Raise ValueError unless ``tensor`` is a value of a frame around this one."""
        outer = self.outer
        while outer is not None:
            if tensor.graph is outer.graph or (isinstance(tensor, Variable) and tensor.graph.ir is self.graph.ir):
                return
            outer = outer.outer
        raise ValueError(
            f"tensor {tensor.id!r} belongs to graph {tensor.graph.name or 'main'!r} and cannot be used in graph "
            f"{self.graph.name or 'main'!r}: pass it as an argument of the function that needs it"
        )

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """A new op. Its operands come to the IPU of the active shard, but those of a loop stay where they are; products
        and convolutions get the configured options."""
        if not issubclass(op_class, Loop):
            inputs = [self.bring(self.get(t)) for t in inputs]
        attributes = {**self.program.plan_attributes(op_class), **attributes}
        return super().create_with(op_class, inputs, names, attributes)

    def made(self, op: Op) -> None:
        """Execute a new op after all ops so far."""
        self.chain([op])

    def constant(self, value: Any, dtype: DType | None, name: str = "constant") -> Tensor:
        """A constant of a type that the IPU has."""
        return self.graph.constant(to_host(value, dtype), name=name)

    def bring(self, tensor: Tensor) -> Tensor:
        """``tensor`` on the IPU of the active shard: itself, or a copy between IPUs."""
        here, there = CONTEXT.ipus[-1] if CONTEXT.ipus else 0, tensor.ipu or 0
        if here == there or isinstance(tensor, Constant):
            return tensor
        names = [f"{tensor.name}_ipu{here}"]
        return super().create_with(IpuCopy, [tensor], names, {"source": there, "destination": here}).outputs[0]

    def chain(self, ops: Sequence[Op]) -> None:
        """Execute ``ops`` in this order, after all ops so far."""
        for op in ops:
            if self.last is not None:
                self.graph.constrain(self.last, op)
            self.last = op

    def seed(self) -> Tensor:
        """A random seed (``uint32``, shape (2,)) that is another one in each execution of the frame and replica."""
        if self._seed is None:
            variable = self.program.seed(f"{self.graph.name or 'main'}_seed")
            op = self.create(IncrementModInplace, [variable], ["seed"], increment=1, modulus=(1 << 32) - 1)
            self._seed = op.outputs[0]
        return self._seed

    def inner(self, stem: str, executions: int) -> Frame:
        """A new graph that this frame will execute."""
        return Frame(self.program, self.program.ir.create_graph(stem), self, executions)


def is_tracing() -> bool:
    """Whether a function is being traced."""
    return bool(CONTEXT.builders) and isinstance(CONTEXT.builder, Frame)


def current_frame() -> Frame:
    """The innermost frame.

    Raises:
        RuntimeError: nothing is being traced.
    """
    frame = CONTEXT.builder if CONTEXT.builders else None
    if not isinstance(frame, Frame):
        raise RuntimeError(
            "no IPU program is being traced: call this inside a function that is given to ipu_compiler.compile, "
            "IPUStrategy.run, loops.repeat or pipelining_ops.pipeline"
        )
    return frame


@contextmanager
def use_frame(frame: Frame) -> Iterator[Frame]:
    """Make ``frame`` the innermost one."""
    with CONTEXT.building(frame):
        yield frame


def map_structure(function: Callable[[Any], Any], value: Any) -> Any:
    """``function`` of each leaf of nested tuples, lists and dicts, in the same structure."""
    if isinstance(value, dict):
        return {k: map_structure(function, v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_structure(function, v) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_structure(function, v) for v in value)
    return function(value)


def leaves(value: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    found: list[Any] = []
    map_structure(found.append, value)
    return found


class Operation:
    """What has no value but an effect: an enqueue, a weight update, a pipeline, an initialiser.

    Effects of traced code happen where the code stands, so an operation need not be returned to take place. ``run`` is
    what a session does with it.
    """

    def __init__(self, name: str, action: Callable[[], Any] | None = None) -> None:
        self.name = name
        self._action = action

    def run(self) -> Any:
        """Do what the operation does on the host; nothing for operations inside a program."""
        return None if self._action is None else self._action()

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}>"

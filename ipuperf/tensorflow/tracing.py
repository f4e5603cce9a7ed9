"""Where a traced function's ops go: frames (graphs under construction) and the stack of them.

A :class:`Frame` is the main graph of a program, the body of a loop, a pipeline stage or a weight update. Ops of a frame
are ordered as they are written. A frame that uses a tensor of a frame around it captures it as a graph input: variables
by reference, everything else by value; constants are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ipuperf.ir import CONTEXT, Constant, Graph, Op, Tensor, Variable
from ipuperf.ops import IncrementModInplace, IpuCopy

if TYPE_CHECKING:
    from .program import Program

_FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("ipuperf_tensorflow_frames", default=())


class Frame:
    """A graph under construction.

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

    def __init__(self, program: Program, graph: Graph, outer: Frame | None = None, executions: int = 1) -> None:
        self.program = program
        self.graph = graph
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

    def create(self, op_class: type[Op], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> Op:
        """A new last op; operands may belong to outer frames."""
        operands = [self.bring(self.get(t)) for t in inputs]
        op = self.graph.create(op_class, operands, names, **attributes)
        self.chain([op])
        return op

    def call(self, op_class: type[Op], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> Op:
        """A new last op that executes a graph: its operands stay on the IPUs where they are."""
        op = self.graph.create(op_class, [self.get(t) for t in inputs], names, **attributes)
        self.chain([op])
        return op

    def bring(self, tensor: Tensor) -> Tensor:
        """``tensor`` on the IPU of the active shard: itself, or a copy between IPUs."""
        here, there = CONTEXT.ipus[-1] if CONTEXT.ipus else 0, tensor.ipu or 0
        if here == there or isinstance(tensor, Constant):
            return tensor
        copy = self.graph.create(IpuCopy, [tensor], [f"{tensor.name}_ipu{here}"], source=there, destination=here)
        self.chain([copy])
        return copy.outputs[0]

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


def frames() -> tuple[Frame, ...]:
    """The frames under construction, innermost last."""
    return _FRAMES.get()


def is_tracing() -> bool:
    """Whether a function is being traced."""
    return bool(_FRAMES.get())


def current_frame() -> Frame:
    """The innermost frame.

    Raises:
        RuntimeError: nothing is being traced.
    """
    stack = _FRAMES.get()
    if not stack:
        raise RuntimeError(
            "no IPU program is being traced: call this inside a function that is given to ipu_compiler.compile, "
            "IPUStrategy.run, loops.repeat or pipelining_ops.pipeline"
        )
    return stack[-1]


@contextmanager
def use_frame(frame: Frame) -> Iterator[Frame]:
    """Make ``frame`` the innermost one."""
    token = _FRAMES.set((*_FRAMES.get(), frame))
    try:
        yield frame
    finally:
        _FRAMES.reset(token)


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

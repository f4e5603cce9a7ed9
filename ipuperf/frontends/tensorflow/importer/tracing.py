"""Where imported ops go: frames, the graphs of a program under construction.

A :class:`Frame` is the main graph of a program, the body of a loop, a pipeline stage or a weight update. Ops of a frame
are ordered as they are made. A frame that uses a tensor of a frame around it captures it as a graph input: variables
by reference, everything else by value; constants are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ipuperf.ir import CONTEXT, Constant, DType, Graph, Op, Tensor, Variable
from ipuperf.ir.builder import OpT
from ipuperf.ops import CopyVarUpdate, IncrementModInplace, IpuCopy, Loop
from ipuperf.pipelines.remote import remote_load, remote_store

from . import Place, Resource, Value
from .collectives import reduces
from .multi_convs import join_multi_convs
from .origins import phase_of, shard_of
from .values import DTYPES, narrowed

if TYPE_CHECKING:
    from ..programs.program import TracedProgram


_CHANGES = ("Assign", "Resource")
"""How the types of ops begin that change a variable, or read one where it is."""
_UPDATES = ("ResourceApply", "ResourceSparseApply")


class Frame(Place):
    """The op maker of a graph that is built: its ops run as they are written.

    Attributes:
        program: the program that it belongs to.
        graph: the graph.
        outer: the frame that executes it; None for main graphs, stages and updates.
        executions: how often it runs in one run of the program.
        captured: tensors of outer frames that became inputs, in order of these inputs.
        accumulation: gradient accumulation of the optimisers in a loop body (see ``accumulation.py``), or None.
        offload: optimiser state that is first used here lives in Streaming Memory.
        reduced: gradients that come in have been reduced over the replicas.
        reduced_before: accumulated gradients were reduced before they were added up.
        loaded: what has been loaded of variables in Streaming Memory.
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
        self.offload = False
        self.reduced = False
        self.reduced_before = False
        self.loaded: dict[Resource, Tensor] = {}
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
            return self.graph.constant(tensor, tensor.dtype, name)
        self.require_enclosing(tensor)
        image = self.graph.add_input(tensor.spec, name, by_ref=isinstance(tensor, Variable))
        image.ipu = tensor.ipu
        self.captured.append(tensor)
        return image

    def require_enclosing(self, tensor: Tensor) -> None:
        """Raise ValueError unless ``tensor`` is a value of a frame around this one."""
        outer = self.outer
        while outer is not None:
            # A variable belongs to the whole program, so every frame that is executed may use it.
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
        and convolutions, and norms, get the configured options."""
        # A loop gets variables by reference: a copy on another IPU would take the changes instead.
        if not issubclass(op_class, Loop):
            inputs = [self.bring(self.get(t)) for t in inputs]
        return super().create_with(op_class, inputs, names, {**self.configured(op_class), **attributes})

    def configured(self, op_class: type[Op]) -> dict[str, Any]:
        """The options of products, convolutions and norms."""
        return self.program.plan_attributes(op_class)

    def made(self, op: Op) -> None:
        """Execute a new op after all ops so far."""
        self.chain([op])

    def constant(self, value: Any, dtype: DType | None, name: str = "constant") -> Tensor:
        """A constant of a type that the IPU has."""
        return self.graph.constant(narrowed(np.asarray(value), dtype), name=name)

    def bring(self, tensor: Tensor) -> Tensor:
        """``tensor`` on the IPU of the active shard: itself, or a copy between IPUs."""
        # No shard stands for the first one, on both sides.
        target, there = CONTEXT.ipus[-1] if CONTEXT.ipus else 0, tensor.ipu or 0
        if target == there or isinstance(tensor, Constant):
            return tensor
        names = [f"{tensor.name}_ipu{target}"]
        return super().create_with(IpuCopy, [tensor], names, {"source": there, "destination": target}).outputs[0]

    def chain(self, ops: Sequence[Op]) -> None:
        """Execute ``ops`` in this order, after all ops so far."""
        for op in ops:
            if self.last is not None:
                self.graph.constrain(self.last, op)
            self.last = op

    @contextmanager
    def inserting(self, place: int) -> Iterator[None]:
        """Ops made within execute after the first ``place`` ops of the graph and before those that follow them."""
        ops = self.graph.ops
        # The ops that follow are set aside, so that new ones stand before them in the graph.
        following = ops[place:]
        del ops[place:]
        yield
        added = ops[place:]
        ops += following
        if following:
            for op in added:
                self.graph.constrain(op, following[0])
        elif added:
            self.last = added[-1]

    # -- what the importer asks (:class:`.graph.Place`) ----------------------------------------------------------------

    @contextmanager
    def surroundings(self, op: tf.Operation, operands: Sequence[Value]) -> Iterator[None]:
        """Shard and phase of an op while it is imported; what changes a variable is where the variable is."""
        phase, handles = phase_of(op), [value for value in operands if isinstance(value, Resource)]
        shard = self.shard(op, handles if op.type.startswith(_CHANGES) else [])
        # This is noted and not refused: how many replicas there are is not known yet.
        if op.type.startswith(_UPDATES) and not self._reduces(op):
            self.program.unreduced.append(self.program.name_of(handles[0]))
        with ExitStack() as stack:
            if shard is not None:
                stack.enter_context(CONTEXT.on_ipu(shard))
            if phase is not None:
                stack.enter_context(CONTEXT.phase(phase))
            yield

    def imported(self, graph: tf.Graph, start: int) -> None:
        """Make one op of the convolutions of a ``multi_conv``."""
        join_multi_convs(self, graph, start)

    def shard(self, op: tf.Operation, changed: Sequence[Resource]) -> int | None:
        """The shard of an op: that of the variable that it changes, or the one that it was made on."""
        return (self.program.variable(changed[0], self.offload).ipu or 0) if changed else shard_of(op)

    def _reduces(self, op: tf.Operation) -> bool:
        """Whether the gradient of an update has been reduced over the replicas."""
        return self.reduced or self.reduced_before or any(reduces(tensor) for tensor in op.inputs)

    def read(self, resource: Resource) -> Tensor:
        """The variable's tensor; of one in Streaming Memory what has been loaded."""
        variable = self.program.variable(resource, self.offload)
        if variable.remote is None:
            return self.get(variable)
        if resource not in self.loaded:
            with CONTEXT.on_ipu(variable.ipu or 0):
                self.loaded[resource] = remote_load(*variable.remote, variable.name.rpartition("/")[2])
        return self.loaded[resource]

    def assign(self, resource: Resource, value: Tensor) -> None:
        """Copy a value into the variable."""
        self.program.changes(resource)
        target, variable = self.read(resource), self.program.variable(resource)
        with CONTEXT.on_ipu(variable.ipu or 0):
            assigned = self.create(CopyVarUpdate, [target, value], [f"{variable.name}_assigned"]).outputs[0]
            # A weight update stores all that it has loaded together, at its end (`store_loaded`).
            if variable.remote is not None and not self.offload:
                remote_store(*variable.remote, assigned)

    def in_place(self, resource: Resource) -> Tensor | None:
        """The variable's tensor, which is changed; None for one in Streaming Memory outside of a weight update."""
        self.program.changes(resource)
        tensor = self.read(resource)
        return tensor if self.offload or self.program.variable(resource).remote is None else None

    def store_loaded(self) -> None:
        """Bring what has been loaded from Streaming Memory back there."""
        for resource, tensor in self.loaded.items():
            variable = self.program.variable(resource)
            assert variable.remote is not None
            with CONTEXT.on_ipu(variable.ipu or 0):
                remote_store(*variable.remote, tensor)
        self.loaded = {}

    def next_element(self, resource: Resource, specs: Sequence[tf.TensorSpec]) -> Sequence[Tensor]:
        """The next element of an iterator of the host, loaded here."""
        feed = self.program.iterator(resource, specs)
        return feed.load(self, feed)

    def seed(self) -> Tensor:
        """A random seed (``uint32``, shape (2,)) that is another one in each execution of the frame and replica."""
        # One increment serves the whole frame; keys tell its random ops apart.
        if self._seed is None:
            variable = self.program.seed(f"{self.graph.name or 'main'}_seed")
            with CONTEXT.on_ipu(0):
                op = self.create(IncrementModInplace, [variable], ["seed"], increment=1, modulus=(1 << 32) - 1)
            self._seed = op.outputs[0]
        return self._seed

    def random_key(self) -> int:
        """A number that tells random ops of the program apart."""
        return self.program.random_key()

    def inner(self, stem: str, executions: int) -> Frame:
        """A new graph that this frame will execute, so often in a run of the program."""
        return Frame(self.program, self.program.ir.create_graph(stem), self, executions)


def frame_of(place: Place, what: str) -> Frame:
    """``place`` as a frame.

    Raises:
        NotImplementedError: it is a branch of a conditional; ``what`` cannot stand there.
    """
    if not isinstance(place, Frame):
        raise NotImplementedError(
            f"{what} in a branch of a tf.cond: how often it runs would depend on data; put it before or "
            "behind the tf.cond"
        )
    return place


@contextmanager
def use_frame(frame: Frame) -> Iterator[Frame]:
    """Make ``frame`` the active builder."""
    with CONTEXT.building(frame):
        yield frame


def device_dtype(dtype: tf.DType) -> DType:
    """The IPU's type for one of TensorFlow's.

    Raises:
        TypeError: there is none.
    """
    if dtype not in DTYPES:
        raise TypeError(f"Unsupported data type {dtype.name}: the IPU has {', '.join(d.name for d in DTYPES)}")
    return DTYPES[dtype]

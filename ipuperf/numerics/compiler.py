"""Turns a graph into a flat list of bound kernels.

One walk over the graph's order binds each op to the arrays that it reads and writes. It frees the memory of a tensor as
soon as its last reader is bound, so that later ops reuse it. Calls are inlined: their operands are bound directly and
their results are the callee's own arrays. Copies are made only where they can be observed. Loops become a Python loop
over the compiled body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from ipuperf.ir import Constant, Graph, Op, RemoteBuffer, Stream, Tensor, Variable
from ipuperf.ops import base
from ipuperf.ops.binding import sequence
from ipuperf.ops.control import Call, If, Loop
from ipuperf.ops.crew import divided

from .errors import EvaluationError
from .exceptions import CheckedKernel, checks
from .memory import Block, Pool, Scratch
from .plan import Plan, dead_ops, make_plan
from .streams import InputCursor, OutputCursor

Code = list[Callable[[], object]]
#: Pairs of inputs of a graph that live in the same memory.
Pairs = tuple[tuple[int, int], ...]


class Compiler:
    """Compiles graphs; it is also the :class:`ipuperf.ops.base.Environment` that kernels see.

    Attributes:
        variables, buffers: device arrays, by variable and remote buffer; they must hold all that the graphs use.
        readers, writers: positions in the streams that compiled ops use.

    Ops that compute raise the kinds ``exceptions`` of floating-point exceptions (:mod:`.exceptions`).
    """

    def __init__(
        self,
        replicas: int,
        variables: dict[Variable, np.ndarray],
        buffers: dict[RemoteBuffer, np.ndarray],
        *,
        exceptions: Collection[str] = (),
    ) -> None:
        self._replicas = replicas
        self._exceptions = exceptions
        self.variables = variables
        self.buffers = buffers
        self.readers: dict[Stream, InputCursor] = {}
        self.writers: dict[Stream, OutputCursor] = {}
        self.pool = Pool()
        self._scratch = Scratch()
        self._constants: dict[Constant, np.ndarray] = {}
        self._plans: dict[tuple[Graph, Pairs], Plan] = {}
        self._lent: list[Block] = []

    # -- services for kernels --------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """Length of the leading axis of all arrays."""
        return self._replicas

    def scratch(self, shape: Sequence[int], dtype: np.dtype | type, slot: int = 0) -> np.ndarray:
        """Temporary memory shared by all kernels."""
        return self._scratch.array(shape, dtype, slot)

    def stream_reader(self, stream: Stream) -> Callable[[], np.ndarray]:
        """A function giving the next slice of an input stream of the current run."""
        return self.readers.setdefault(stream, InputCursor(stream)).reader()

    def stream_writer(self, stream: Stream) -> Callable[[np.ndarray], None]:
        """A function storing the next slice of an output stream of the current run."""
        return self.writers.setdefault(stream, OutputCursor(stream)).writer()

    def remote(self, buffer: RemoteBuffer) -> np.ndarray:
        """The contents of a remote buffer, ``(R, entries, *shape)``."""
        return self.buffers[buffer]

    def compile(self, graph: Graph, inputs: Sequence[np.ndarray]) -> tuple[base.Kernel, list[np.ndarray]]:
        """A kernel that executes ``graph``, and the arrays of its outputs, which are valid until the calling op is
        done.

        The kernel changes an input only where the graph takes it by reference.
        """
        code: Code = []
        operands, temporary = self._by_value(
            graph, inputs, {index for index, tensor in enumerate(graph.inputs) if tensor.by_ref}, code
        )
        results = self.frame(graph, operands, code)
        self._lent += temporary + [block for _, block in results if block]
        return sequence(*code), [array for array, _ in results]

    @property
    def memory_bytes(self) -> int:
        """Bytes of intermediates, temporaries and constants."""
        return self.pool.bytes + self._scratch.bytes + sum(array.nbytes for array in self._constants.values())

    # -- helpers ---------------------------------------------------------------------------------------------------

    def plan(self, graph: Graph, shared: Pairs = ()) -> Plan:
        """The (cached) analysis of a graph, some of whose inputs share memory (see :func:`make_plan`)."""
        key = (graph, shared)
        if key not in self._plans:
            self._plans[key] = make_plan(graph, shared)
        return self._plans[key]

    def new(self, tensor: Tensor) -> tuple[np.ndarray, Block]:
        """Memory for a tensor on all replicas."""
        return self.allocate((self._replicas, *tensor.shape), tensor.dtype.numpy)

    def allocate(self, shape: Sequence[int], dtype: np.dtype) -> tuple[np.ndarray, Block]:
        """Memory for an array."""
        block = self.pool.acquire(shape, dtype)
        return block.array(shape, dtype), block

    def constant(self, tensor: Constant) -> np.ndarray:
        """A constant's array, one row per replica, made once."""
        if tensor not in self._constants:
            value = np.asarray(tensor.data, dtype=tensor.dtype.numpy).reshape(tensor.shape)
            self._constants[tensor] = np.ascontiguousarray(np.broadcast_to(value, (self._replicas, *tensor.shape)))
        return self._constants[tensor]

    def _by_value(
        self, graph: Graph, arrays: Sequence[np.ndarray], references: Container[int], code: Code
    ) -> tuple[list[np.ndarray], list[Block]]:
        """The arrays to bind to ``graph``'s inputs, and the blocks of those that are copies, made by ``code``.

        An operand by value is copied when the graph changes it, or changes an operand by reference (one of
        ``references``) that shares its memory. Others are bound as they are.
        """
        changed = self.plan(graph).changed_inputs()
        # A change by reference is seen at once, also through a by-value operand in the same memory.
        changed_references = [arrays[index] for index in changed if index in references]
        bound, blocks = list(arrays), []
        for index, array in enumerate(arrays):
            if index in references:
                continue
            # may_share_memory compares bounds only: it may copy too often, but never too rarely.
            if index in changed or any(np.may_share_memory(array, reference) for reference in changed_references):
                copy, block = self.allocate(array.shape, array.dtype)
                code.append(partial(np.copyto, copy, array))
                bound[index] = copy
                blocks.append(block)
        return bound, blocks

    # -- graphs ----------------------------------------------------------------------------------------------------

    def frame(
        self,
        graph: Graph,
        inputs: Sequence[np.ndarray],
        code: Code,
        needed: Sequence[bool] | None = None,
        in_place: Sequence[np.ndarray] = (),
        constants: Sequence[bool] | None = None,
    ) -> list[tuple[np.ndarray, Block | None]]:
        """Append the kernels of ``graph`` to ``code``.

        Returns, for each output, its array and the block that holds it and nothing else; the caller releases it. An
        output that shares memory with an input, a constant or another output is copied at the end, except

        * outputs that are not ``needed`` (any array may come back; ops that only they depend on are left out),
        * output ``k`` when it is exactly ``in_place[k]`` (a loop-carried value changed in place), and
        * constants where ``constants[k]`` says that the caller does not change them; the last two come without a block.
        """
        if len(inputs) != len(graph.inputs):
            raise EvaluationError(f"graph {graph.name!r} has {len(graph.inputs)} inputs, {len(inputs)} are given")
        frame = _Frame(self, graph, inputs, code)
        if needed is not None:
            frame.dead = dead_ops(frame.plan, needed)
        frame.bind_all()
        results: list[tuple[np.ndarray, Block | None]] = []
        handed_over: set[Tensor] = set()
        for index, tensor in enumerate(graph.outputs):
            array, block, group = frame.array(tensor), frame.block(tensor), frame.plan.group(tensor)
            if needed is not None and not needed[index]:
                results.append((array, None))
            elif block is not None and group not in handed_over:
                handed_over.add(group)
                frame.hand_over(block)
                results.append((array, block))
            elif (index < len(in_place) and _same_memory(array, in_place[index])) or (
                constants is not None and constants[index] and isinstance(tensor, Constant)
            ):
                results.append((array, None))
            else:
                copy, fresh = self.new(tensor)
                code.append(partial(np.copyto, copy, array))
                results.append((copy, fresh))
        frame.release_rest()
        return results

    def bind_kernel(self, op: base.Op, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], code: Code) -> None:
        """Append the op's kernel. Memory lent to it while binding is free again afterwards."""
        # Kernels may compile graphs, which bind kernels of their own: the list is kept per kernel.
        lent_before, self._lent = self._lent, []
        bound = self._unchanged(op, inputs, code)
        kernel = divided(op.kernel(bound, outputs, self))
        checked = self._exceptions and checks(op)
        code.append(CheckedKernel(op, kernel, bound, outputs, self._exceptions) if checked else kernel)
        for block in self._lent:
            self.pool.release(block)
        self._lent = lent_before

    def _unchanged(self, op: base.Op, inputs: Sequence[np.ndarray], code: Code) -> list[np.ndarray]:
        """The operands, with copies of those that share memory with one that ``op`` changes (``x += transpose(x)``).

        An op reads what its operands held before it, in whatever order its kernel writes.
        """
        changed = op.modified_inputs()
        bound = list(inputs)
        for index, array in enumerate(inputs):
            if index not in changed and any(
                np.may_share_memory(array, inputs[changed_index]) for changed_index in changed
            ):
                bound[index], block = self.allocate(array.shape, array.dtype)
                code.append(partial(np.copyto, bound[index], array))
                self._lent.append(block)
        return bound


class _Frame:
    """One graph bound to given input arrays."""

    def __init__(self, compiler: Compiler, graph: Graph, inputs: Sequence[np.ndarray], code: Code) -> None:
        self.compiler = compiler
        self.graph = graph
        self.code = code
        # Sharing matters only where something is changed; otherwise one plan serves all calls.
        self.plan = compiler.plan(graph, _sharing(inputs) if compiler.plan(graph).changed_inputs() else ())
        self._arrays: dict[Tensor, np.ndarray] = dict(zip(graph.inputs, inputs))
        self._blocks: dict[Tensor, Block] = {}
        self._held_blocks: dict[Tensor, list[Block]] = {}
        self._ending: dict[int, list[Tensor]] = {}
        self.dead: set[Op] = set()
        for group, position in self.plan.last_use.items():
            # Outputs outlive the frame, so nothing ends them within it.
            if group not in self.plan.output_groups:
                self._ending.setdefault(position, []).append(group)

    # -- tensors ---------------------------------------------------------------------------------------------------

    def array(self, tensor: Tensor) -> np.ndarray:
        """The array that holds a tensor at this point."""
        array = self._arrays.get(tensor)
        if array is not None:
            return array
        if isinstance(tensor, Constant):
            if changes := self.plan.changes.get(self.plan.group(tensor)):
                changer = self.plan.order[changes[0]].where()
                raise EvaluationError(f"{changer}: constant {tensor.id!r} is changed in place; copy it first")
            return self.compiler.constant(tensor)
        if isinstance(tensor, Variable):
            if tensor.remote is not None:
                raise EvaluationError(
                    f"variable {tensor.id!r} lives in Streaming Memory and is used as a tensor; load it first"
                )
            return self.compiler.variables[tensor]
        raise EvaluationError(f"tensor {tensor.id!r} of graph {self.graph.name or 'main'!r} has no value here")

    def block(self, tensor: Tensor) -> Block | None:
        """The block that holds a tensor, when it belongs to this frame."""
        return self._blocks.get(tensor)

    def define(self, tensor: Tensor, array: np.ndarray, block: Block | None, fresh: bool) -> None:
        """Record where a tensor lives; a ``fresh`` block is held until its storage group ends."""
        self._arrays[tensor] = array
        if block is None:
            return
        self._blocks[tensor] = block
        if fresh:
            self._held_blocks.setdefault(self.plan.group(tensor), []).append(block)

    def hand_over(self, block: Block) -> None:
        """Leave a block to the caller, who releases it."""
        for blocks in self._held_blocks.values():
            if block in blocks:
                blocks.remove(block)

    def release_rest(self) -> None:
        """Free the blocks that the frame still holds."""
        for blocks in self._held_blocks.values():
            for block in blocks:
                self.compiler.pool.release(block)
        self._held_blocks.clear()

    # -- ops -------------------------------------------------------------------------------------------------------

    def bind_all(self) -> None:
        """Bind the ops in order and free each storage group after its last reader."""
        for position, op in enumerate(self.plan.order):
            if isinstance(op, Call):
                self._call(op, position)
            elif isinstance(op, Loop):
                self._loop(op)
            elif isinstance(op, If):
                self._conditional(op)
            elif isinstance(op, base.Op):
                self._op(op)
            else:
                raise EvaluationError(f"{op.where()}: {type(op).__name__} has no NumPy value")
            # Only after the op is bound: its results must not lie where its operands are.
            for group in self._ending.get(position, ()):
                for block in self._held_blocks.pop(group, ()):
                    self.compiler.pool.release(block)

    def _op(self, op: base.Op) -> None:
        inputs = [self.array(tensor) for tensor in op.inputs]
        if op in self.plan.elided or op.aliases():
            views = self._views(op, inputs)
            if views is not None:
                for tensor, view in zip(op.outputs, views, strict=True):
                    self.define(
                        tensor, view, self.block(op.inputs[op.aliases().get(op.outputs.index(tensor), 0)]), False
                    )
                return
        outputs = [self._output(op, index, inputs) for index in range(len(op.outputs))]
        if op not in self.plan.unread and op not in self.dead:
            self.compiler.bind_kernel(op, inputs, outputs, self.code)

    def _views(self, op: base.Op, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The outputs as views of the inputs, or None when the op computes them."""
        if op in self.plan.elided and op.rearranges:  # the plan knows the order, the op alone does not
            views: list[np.ndarray] | None = [op.arrange(inputs[0])]
        else:
            views = op.view(inputs, self.compiler)
        if views is None:
            return None
        for index, view in enumerate(views):
            source = inputs[op.aliases().get(index, 0)]
            # NumPy made a copy (a reshape of a strided array), so the op must compute its result.
            if view.size and not np.may_share_memory(view, source):
                return None
        return views

    def _output(self, op: base.Op, index: int, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The array of an output: the operand's for in-place results, otherwise new memory."""
        tensor, source = op.outputs[index], op.aliases().get(index)
        if source is not None:
            operand = op.inputs[source]
            if source in op.modified_inputs():
                if inputs[source].shape != (self.compiler.replicas, *tensor.shape):
                    raise EvaluationError(f"{op.where()}: an in-place result must have its operand's shape")
                self.define(tensor, inputs[source], self.block(operand), False)
                return inputs[source]
            # Nobody else reads the operand, so its memory can take the new values.
            if op.overwrites and operand.producer is not None and len(operand.consumers) == 1 and self.block(operand):
                self.define(tensor, inputs[source], self.block(operand), False)
                return inputs[source]
            if not op.overwrites and tensor in self.plan.written:
                raise EvaluationError(
                    f"{op.where()}: its result cannot be a view of {operand.id!r} as it lies in memory, but that "
                    "storage is changed in place; use the copying form of the op"
                )
        array, block = self.compiler.new(tensor)
        self.define(tensor, array, block, True)
        return array

    # -- control flow ----------------------------------------------------------------------------------------------

    def _call(self, op: Call, position: int) -> None:
        """Inline a call."""
        op.check_operands()
        compiler, plan, callee = self.compiler, self.plan, op.callee
        if len(op.outputs) > len(callee.outputs):
            raise EvaluationError(
                f"{op.where()}: {len(op.outputs)} results, graph {callee.name!r} has {len(callee.outputs)}"
            )
        bound, copies = compiler._by_value(
            callee, [self.array(tensor) for tensor in op.inputs], op.references(), self.code
        )
        # A call may have fewer results than its graph; the further ones are not needed.
        groups = [plan.group(tensor) for tensor in op.outputs] + [None] * (len(callee.outputs) - len(op.outputs))
        needed = [
            group is not None and (group in plan.output_groups or plan.last_use[group] > position) for group in groups
        ]
        constants = [
            group is not None and group not in plan.output_groups and group not in plan.changes for group in groups
        ]
        results = compiler.frame(callee, bound, self.code, needed, constants=constants)
        for tensor, (array, block) in zip(op.outputs, results):
            self.define(tensor, array, block, True)
        for copy in copies:
            compiler.pool.release(copy)

    def _loop(self, op: Loop) -> None:
        """A Python loop over the compiled body; carried values live in the arrays of the results."""
        op.check_operands()
        op.check_carried()
        compiler, callee, carried = self.compiler, op.callee, op.carried
        inputs = [self.array(tensor) for tensor in op.inputs]
        state: list[np.ndarray] = []
        for tensor, initial in zip(op.outputs, inputs):
            array, block = compiler.new(tensor)
            self.define(tensor, array, block, True)
            # Carried values get arrays of their own, as every trip writes them.
            self.code.append(partial(np.copyto, array, initial))
            state.append(array)
        body: Code = []
        # The loop owns the arrays of carried values and writes them in every trip, so they need no copies.
        references = op.references().union(range(carried))
        bound, copies = compiler._by_value(callee, [*state, *inputs[carried:]], references, body)
        results = compiler.frame(callee, bound, body, in_place=state)
        for array, (result, result_block) in zip(state, results):
            if result_block is not None:
                # Copied at the end of the trip, when every op of it has read the old value.
                body.append(partial(np.copyto, array, result))
                copies.append(result_block)
        # Ops after the loop may take this memory, as the loop is over when they run.
        for copy in copies:
            compiler.pool.release(copy)
        self.code.append(_repeat(op, body))

    def _conditional(self, op: If) -> None:
        """Compile both branches. A run executes those that a replica takes, each into the rows of its replicas."""
        results = []
        for tensor in op.outputs:
            array, block = self.compiler.new(tensor)
            self.define(tensor, array, block, True)
            results.append(array)
        condition = self.array(op.inputs[0]).reshape(-1)
        bodies = [self._branch(callee, operands, results) for callee, operands in op.calls()]
        self.code.append(_either(op, condition, bodies[0], bodies[1], results))

    def _branch(
        self, callee: Graph, operands: Sequence[Tensor], results: Sequence[np.ndarray]
    ) -> tuple[base.Kernel, list[np.ndarray]]:
        """A branch and the arrays of its results."""
        compiler = self.compiler
        body: Code = []
        inputs = [self.array(tensor) for tensor in operands]
        if len(inputs) != len(callee.inputs):
            raise EvaluationError(f"branch {callee.name!r}: {len(inputs)} operands for {len(callee.inputs)} inputs")
        bound, copies = compiler._by_value(callee, inputs, (), body)
        branch_results = compiler.frame(callee, bound, body)
        # A branch's results are copied out before the other branch runs, so both may use the same memory.
        for block in (*copies, *(result_block for _, result_block in branch_results if result_block is not None)):
            compiler.pool.release(block)
        return sequence(*body), [array for array, _ in branch_results[: len(results)]]


def _sharing(arrays: Sequence[np.ndarray]) -> Pairs:
    """Pairs of arrays whose memory may overlap: one passed twice by reference, or two views of one tensor."""
    bounds = sorted((*_bounds(array), index) for index, array in enumerate(arrays) if array.size)
    pairs, end, last = list[tuple[int, int]](), 0, 0
    for low, high, index in bounds:
        if low < end:
            # Storage groups are transitive, so the neighbour stands for every array that reaches this far.
            pairs.append((last, index))
        last, end = index, max(end, high)
    return tuple(pairs)


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of an array and of the one behind its last."""
    start = array.__array_interface__["data"][0]
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(step for step in steps if step < 0), start + sum(
        step for step in steps if step > 0
    ) + array.itemsize


def _same_memory(left: np.ndarray, right: np.ndarray) -> bool:
    """True when two arrays are the same elements in the same order."""
    return (
        left.ctypes.data == right.ctypes.data
        and left.strides == right.strides
        and left.shape == right.shape
        and left.dtype == right.dtype
    )


#: Largest number of trips of a loop whose numbers are computed. PopART counts trips in an ``int`` (popart:
#: ``willow/include/popart/op/loop.hpp``).
_MOST_TRIPS = 2**31 - 1


def _repeat(op: Loop, body: Code) -> base.Kernel:
    steps, trips = tuple(body), op.trip_count

    def run() -> None:
        if trips > _MOST_TRIPS:
            raise EvaluationError(
                f"{op.where()}: {trips} trips; numbers are computed trip by trip, of at most {_MOST_TRIPS} trips; "
                "the time of more is there without numbers: ipuperf.simulate_session"
            )
        for _ in repeat(None, trips):
            for step in steps:
                step()

    return run


_Branch = tuple[base.Kernel, list[np.ndarray]]


def _either(op: If, condition: np.ndarray, then: _Branch, otherwise: _Branch, results: list[np.ndarray]) -> base.Kernel:
    """A function that runs the branches that any replica takes and keeps each replica's own results."""

    def take(branch: _Branch, chosen: np.ndarray) -> None:
        branch[0]()
        for result, branch_result in zip(results, branch[1], strict=True):
            result[chosen] = branch_result[chosen]

    def run() -> None:
        # Read at run time: the condition is computed by earlier steps of the same run.
        chosen = condition.astype(bool)
        if op.communicates and chosen.any() != chosen.all():
            raise EvaluationError(
                f"{op.where()}: replicas differ in the condition and a branch communicates with other replicas or "
                "Streaming Memory; make the condition the same on all replicas"
            )
        if chosen.any():
            take(then, chosen)
        if not chosen.all():
            take(otherwise, ~chosen)

    return run

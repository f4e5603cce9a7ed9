"""Tools with which kernels bind arrays: alignment, flattening, fp16 widening, blocking, and safe views.

All arrays have the replica axis first. A *step* is a call without arguments, mostly a ``functools.partial`` of a ufunc
with its output given. A kernel is one step or several run in order, so that nothing is looked up or allocated while a
program runs. Kernels let NaN and infinity arise as on the device; the evaluator is expected to run them under
``np.errstate(all="ignore")``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf import ir
from ipuperf.ir import Tensor

from . import half
from .base import Arrays, Environment, Kernel, Op
from .crew import SLOTS, divided, ranges, share, together
from .formula import OUTPUT, Chain, Instruction, Place

Step = Callable[[], Any]

#: Elements per block of a chain of passes over large arrays, so that intermediates stay in the level-2 cache.
BLOCK = 1 << 14


def sequence(*steps: Step) -> Kernel:
    """A kernel that runs ``steps`` in order, large ones in pieces (:func:`.crew.divided`)."""
    ordered = [divided(step) for step in steps]
    if len(ordered) == 1:
        return ordered[0]

    def run() -> None:
        for step in ordered:
            step()

    return run


def working_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which arithmetic is done: float32 for float16, otherwise the type itself."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def scalar(value: float, dtype: np.dtype) -> np.ndarray:
    """A 0-d constant (the cheapest scalar operand of a ufunc)."""
    return np.asarray(value, dtype=dtype)


def align(array: np.ndarray, rank: int) -> np.ndarray:
    """``array`` of shape ``(R, *s)`` with axes of length 1 inserted after the replica axis, ``rank`` axes in all."""
    added = [np.newaxis] * (rank - array.ndim)
    index = (slice(None), *added)
    return array[index]


def operands(arrays: Arrays, out: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Views of ``arrays`` and ``out`` that broadcast together with as few axes as possible.

    Equal contiguous shapes become 1-D, scalars of a single replica become 0-d, and a single replica's axis is dropped.
    """
    aligned = [align(a, out.ndim) for a in arrays]
    full = [a for a in aligned if a.shape == out.shape]
    single = out.shape[0] == 1
    # A scalar with several replicas has one value for each, so it cannot become 0-d.
    scalars_ok = all(a.shape == out.shape or (single and a.size == 1) for a in aligned)
    if scalars_ok and out.flags.c_contiguous and all(a.flags.c_contiguous for a in full):
        return [a.reshape(-1) if a.shape == out.shape else a.reshape(()) for a in aligned], out.reshape(-1)
    if single:
        return [a[0] for a in aligned], out[0]
    return aligned, out


def elementwise(chain: Chain, inputs: Arrays, out: np.ndarray, env: Environment) -> Kernel:
    """Bind a compiled formula.

    fp16 operands are widened to float32 temporaries and the result is rounded once. Contiguous operands of one shape
    are processed in blocks of :data:`BLOCK` elements. ``out`` may be the first input if the formula was compiled for
    that.
    """
    arrays, result = operands(inputs, out)
    size = result.size
    # Small or broadcast operands are one block: cutting
    # them would cost more than the cache saves.
    if result.ndim != 1 or any(a.shape != result.shape for a in arrays) or size <= 2 * BLOCK:
        return sequence(*_block(chain, arrays, result, env, result.shape, 0))
    blocks = [slice(at, min(at + BLOCK, size)) for at in range(0, size, BLOCK)]
    pieces = []
    for number, piece in enumerate(ranges(len(blocks), share(size))):
        # All blocks of a piece use the same temporaries, which have the size of a full block.
        bound = [_block(chain, [a[b] for a in arrays], result[b], env, (BLOCK,), SLOTS * number) for b in blocks[piece]]
        pieces.append(sequence(*(step for steps in bound for step in steps)))
    return together(pieces)


def one_pass(ufunc: np.ufunc, inputs: Arrays, out: np.ndarray, env: Environment) -> Kernel:
    """Bind one ufunc call; with fp16 among the operands in float32 blocks, as :func:`elementwise`."""
    if out.dtype == np.float16:
        places: tuple[Place, ...] = tuple(("input", i) for i in range(len(inputs)))
        return elementwise(Chain((Instruction(ufunc, places, OUTPUT),), 0), inputs, out, env)
    arrays, result = operands(inputs, out)
    return partial(ufunc, *arrays, out=result)


def _block(
    chain: Chain, arrays: Arrays, result: np.ndarray, env: Environment, shape: tuple[int, ...], slot: int
) -> list[Step]:
    """Steps of one block; fp16 goes through float32 temporaries. Slots are used from ``slot`` on."""
    dtype = working_dtype(result.dtype)
    part = slice(0, len(result)) if result.ndim == 1 else slice(None)
    temps = [env.scratch(shape, dtype, slot + i)[part] for i in range(chain.temporaries)]
    # The first slots belong to the chain's own temporaries.
    slot += chain.temporaries
    steps: list[Step] = []
    wide: list[np.ndarray] = []
    for array in arrays:
        if array.dtype == np.float16:
            widened_shape = shape if array.shape == result.shape else array.shape
            narrow, array = array, env.scratch(widened_shape, dtype, slot=slot)
            array = array[part] if widened_shape is shape else array
            steps.append(half.copy(array, narrow))
            slot += 1
        wide.append(array)
    if result.dtype != np.float16:
        return [*steps, *chain.bind(wide, result, temps)]
    target = env.scratch(shape, dtype, slot=slot)[part]
    return [*steps, *chain.bind(wide, target, temps), half.copy(result, target)]


def widened(array: np.ndarray, env: Environment, slot: int) -> tuple[np.ndarray, list[Step]]:
    """``array`` for arithmetic: itself, or for fp16 a float32 temporary with the same memory order and the step
    that fills it."""
    if array.dtype != np.float16:
        return array, []
    if array.ndim >= 2 and array.strides[-1] > array.strides[-2]:
        view = array.swapaxes(-1, -2)
        # A transposed operand stays transposed, so that
        # BLAS need not be given a rearranged copy.
        copy = env.scratch(view.shape, np.float32, slot=slot)
        return copy.swapaxes(-1, -2), [half.copy(copy, view)]
    copy = env.scratch(array.shape, np.float32, slot=slot)
    return copy, [half.copy(copy, array)]


def contiguous(array: np.ndarray, env: Environment, slot: int) -> tuple[np.ndarray, list[Step]]:
    """``array`` in C order and working type: itself, or a temporary and the step that fills it."""
    dtype = working_dtype(array.dtype)
    if array.flags.c_contiguous and array.dtype == dtype:
        return array, []
    copy = env.scratch(array.shape, dtype, slot=slot)
    return copy, [half.copy(copy, array)]


def result_buffer(out: np.ndarray, env: Environment, slot: int) -> tuple[np.ndarray, list[Step]]:
    """A C-ordered array of working type to compute ``out`` in, and the steps that round or copy it to ``out``."""
    dtype = working_dtype(out.dtype)
    if out.flags.c_contiguous and out.dtype == dtype:
        return out, []
    buffer = env.scratch(out.shape, dtype, slot=slot)
    return buffer, [half.copy(out, buffer)]


class WorkingArrays:
    """Operands and results in C order and working type (:func:`contiguous`, :func:`result_buffer`).

    Their temporaries take the slots from 0 on, first those of the operands, then those of the results.

    Attributes:
        operands, results: the arrays.
    """

    def __init__(self, inputs: Arrays, outputs: Arrays, env: Environment) -> None:
        read = [contiguous(array, env, slot) for slot, array in enumerate(inputs)]
        written = [result_buffer(array, env, slot) for slot, array in enumerate(outputs, len(read))]
        self.operands, self.results = [array for array, _ in read], [array for array, _ in written]
        self._before, self._after = ([step for _, steps in bound for step in steps] for bound in (read, written))

    def kernel(self, *steps: Step) -> Kernel:
        """Read the operands, run ``steps``, round the results."""
        return sequence(*self._before, *steps, *self._after)


# -- views -------------------------------------------------------------------------------------------------------------


def shares_safely(op: Op) -> bool:
    """Whether the NumPy value of a copying op (Reshape, Transpose, Slice...) may be a view of its first input:
    :func:`shares_unseen` holds, and the result does not leave the graph."""
    return shares_unseen(op) and _storages(op.outputs).isdisjoint(op.graph.outputs)


def shares_unseen(op: Op) -> bool:
    """Whether the results of a copying op may be views of its first input on the device.

    True when nothing can tell the difference. No op of the graph may change the storage of the input after ``op`` read
    it, or the storage of a result. Where a result leaves the graph, the input must be made in the graph and stay
    there. Changes that made the input (``HostLoad`` into an ``Init``) come before and do not count. Any other change
    counts, whatever its order.
    """
    made_by: set[ir.Op] = set()
    root = op.inputs[0]
    while root.producer is not None:
        aliases = root.producer.aliases()
        output = root.producer.outputs.index(root)
        # Here the storage begins: this output is not that of an operand.
        if output not in aliases:
            break
        made_by.add(root.producer)
        root = root.producer.inputs[aliases[output]]
    source, storage, leaving = storage_of(root), _storages(op.outputs), op.graph.outputs
    # A caller could change the storage of a result that is also an input or another output.
    if not storage.isdisjoint(leaving) and (root.producer is None or not source.isdisjoint(leaving)):
        return False
    return not (changers(source) - made_by) and not changers(storage)


def _storages(tensors: Sequence[Tensor]) -> set[Tensor]:
    storages: set[Tensor] = set()
    return storages.union(*map(storage_of, tensors))


def storage_of(root: Tensor) -> set[Tensor]:
    """``root`` and all tensors of its graph that share its storage through aliasing ops."""
    storage = {root}
    stack = [root]
    while stack:
        tensor = stack.pop()
        for consumer in set(tensor.consumers):
            for output, index in consumer.aliases().items():
                alias = consumer.outputs[output]
                if consumer.inputs[index] is tensor and alias not in storage:
                    storage.add(alias)
                    stack.append(alias)
    return storage


def changers(storage: set[Tensor]) -> set[ir.Op]:
    """Ops that change any of the tensors in place."""
    ops: set[ir.Op] = set()
    for tensor in storage:
        for consumer in set(tensor.consumers):
            if any(consumer.inputs[index] is tensor for index in consumer.modified_inputs()):
                ops.add(consumer)
    return ops

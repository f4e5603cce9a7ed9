"""Ops whose C++ was recorded: views of tensors, and the steps of a program over them.

A recording is what a library said when it was asked for an op (:mod:`ipuperf.frontends.cppimport.recorder`). Its
tensors are nodes: operands, variables, constants, and views of these. Values are the steps by NumPy. The cost is that
of the same steps elsewhere: copies, vertices, reductions, products.

Simplifications: what lies between the steps of an op is spread as its result is, so only the op's operands arrive over
the exchange. A step that writes into an operand writes into a copy of it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuperf.ir import FLOAT32, DType, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import Attribute, instance
from ipuperf.ir.dtype import ALL_DTYPES

from . import vertices
from .base import Arrays, Gradients
from .custom import CustomOp
from .elementwise.arithmetic import elementwise_work
from .updates.update_vertices import fused_cycles, scaled_add_cycles, type_names
from .work import Copy, Lookup, MatMul, TableUpdate, Vertices, Work

#: A program repeats its steps at most so often; more would be a list too long to look at.
_MOST_REPEATS = 1000
#: How a gradient op reads a tensor of its op: ``popart::GradOpInType``.
_IN, _OUT = 0, 1


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor of a recording: what it is, of which nodes, its shape and type, and what else it takes."""

    kind: str
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: DType
    args: Any

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Step:
    """A call: its name, the nodes that it reads and writes, and what else it takes."""

    call: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    args: Any


@dataclass(frozen=True)
class GradientOp:
    """A gradient op: what it reads, ``(place, number, kind)``, and for which operands it gives gradients."""

    type: str
    reads: tuple[tuple[int, int, int], ...]
    gives: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Recording:
    """What a library said of one op for operands of some shapes and types."""

    type: str
    nodes: tuple[RecordedTensor, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    gradients: tuple[GradientOp, ...]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Recording:
        """The recording of a library's answer."""
        nodes = [
            RecordedTensor(kind, tuple(sources), tuple(shape), ALL_DTYPES[dtype], args)
            for kind, sources, shape, dtype, args in answer["nodes"]
        ]
        gradients = [
            GradientOp(name, tuple(tuple(read) for read in sorted(reads)), tuple(tuple(give) for give in gives))
            for name, reads, gives in answer["gradients"]
        ]
        steps = tuple(_steps(answer["steps"]))
        return cls(answer["type"], tuple(nodes), steps, tuple(answer["results"]), tuple(gradients))


def _steps(answer: Sequence[Sequence[Any]]) -> Iterator[Step]:
    for entry in answer:
        if entry[0] != "repeat":
            call, reads, writes, args = entry
            yield Step(call, tuple(reads), tuple(writes), args)
            continue
        _, count, body = entry
        if count > _MOST_REPEATS:
            raise IrError(f"a program that repeats {count} times is not recorded; at most {_MOST_REPEATS} times")
        for _ in range(count):
            yield from _steps(body)


class RecordingSource(ABC):
    """Where recordings of one op come from; a plain value, compared by what is in it."""

    @abstractmethod
    def record(self, op: RecordedOp) -> Recording:
        """The recording for the operands of ``op``. IrError for what the library refuses or nobody knows."""

    @abstractmethod
    def gradient(self, number: int, forward: RecordedOp) -> RecordingSource:
        """The source of the gradient op of this number."""


class RecordedOp(CustomOp, abstract=True):
    """An op that a library recorded. Its subclasses are made by :func:`recorded_class`."""

    source = Attribute(instance(RecordingSource))  # type: ignore[type-abstract]

    @property
    def recording(self) -> Recording:
        """What the library says for the operands."""
        return self.source.record(self)

    def infer(self) -> list[TensorSpec]:
        """The results of ``setup()``."""
        recording = self.recording
        return [TensorSpec(recording.nodes[n].shape, recording.nodes[n].dtype) for n in recording.results]

    def value(self, *operands: np.ndarray) -> Arrays:
        """Run the steps."""
        return _Run(self.recording, operands).results()

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The library's gradient ops (``getGradOps``); an error where it has none."""
        recording = self.recording
        if not recording.gradients:
            raise IrError(f"{self.where()}: its C++ has no gradient op (getGradOps)")
        results: list[Tensor | None] = [None] * len(self.inputs)
        for number, gradient in enumerate(recording.gradients):
            operands = [self._operand(builder, grads, place, kind) for _, place, kind in gradient.reads]
            names = [f"{gradient.type}_out{place}" for place, _ in gradient.gives]
            op_class = recorded_class(gradient.type)
            made = builder.create(op_class, operands, names, source=self.source.gradient(number, self))
            for place, operand in gradient.gives:
                earlier, now = results[operand], made.outputs[place]
                results[operand] = now if earlier is None else earlier + now
        return results

    def _operand(self, builder: GradientBuilder, grads: Gradients, place: int, kind: int) -> Tensor:
        if kind in (_IN, _OUT):
            return builder.forward((self.inputs if kind == _IN else self.outputs)[place])
        grad = grads[place]
        return (
            builder.graph.constant(np.zeros(self.outputs[place].shape), self.outputs[place].dtype, "zero")
            if (grad is None)
            else grad
        )

    def work(self) -> Sequence[Work]:
        """The work of each step."""
        recording = self.recording
        works = [work for step in recording.steps for work in _work_of(recording, step)]
        return _with_reads(recording, works, len(self.inputs))

    def views(self) -> dict[int, int]:
        """Results that are views of operands, where nothing is computed."""
        recording = self.recording
        if recording.steps:
            return {}
        roots = [(number, _inputs(recording.nodes, node)) for number, node in enumerate(recording.results)]
        return {number: next(iter(inputs)) for number, inputs in roots if inputs}


@functools.cache
def recorded_class(name: str, made: Callable[..., None] | None = None) -> type[RecordedOp]:
    """The class of the recorded ops that schedules and reports call ``name``; ``made`` is its constructor if it has
    one of its own."""
    members: dict[str, Any] = {"__doc__": f"``{name}``, recorded from C++.", "__module__": __name__}
    return type(name, (RecordedOp,), members if made is None else {**members, "__init__": made})


# -- values ------------------------------------------------------------------------------------------------------------


def _numpy(dtype: DType) -> np.dtype:
    """The type in which values are held: float16 as float32, rounded where it is written."""
    return np.dtype(np.float32) if dtype.name == "float16" else dtype.numpy


class _Run:
    """The steps of a recording for one replica's operands."""

    def __init__(self, recording: Recording, operands: Sequence[np.ndarray]) -> None:
        self.nodes = recording.nodes
        self.recording = recording
        self.leaves: dict[int, np.ndarray] = {}
        self.operands = operands
        self.changed: set[int] = set()
        for step in recording.steps:
            for root in {root for node in step.writes for root in _roots(self.nodes, node)}:
                self.changed.add(root)

    def results(self) -> list[np.ndarray]:
        """The results after all steps."""
        for step in self.recording.steps:
            reads = [self.read(node) for node in step.reads]
            (target,) = step.writes
            self.write(target, _VALUES[step.call](self, step, reads))
        return [self.read(node) for node in self.recording.results]

    def read(self, number: int) -> np.ndarray:
        """A node's array: a view where NumPy can give one."""
        node = self.nodes[number]
        if not node.sources:
            if number not in self.leaves:
                self.leaves[number] = self._leaf(node, number)
            return self.leaves[number]
        arrays = [self.read(source) for source in node.sources]
        return _VIEWS[node.kind](self, node, arrays)

    def _leaf(self, node: RecordedTensor, number: int) -> np.ndarray:
        if node.kind == "input":
            # An operand must not change.
            operand = np.asarray(self.operands[node.args])
            return operand.copy() if number in self.changed else operand
        array = np.zeros(node.shape, _numpy(node.dtype))
        if node.kind == "constant":
            # One value fills the whole shape.
            array[...] = np.asarray(node.args).reshape(node.shape if len(node.args) > 1 else ())
        return array

    def write(self, number: int, value: np.ndarray) -> None:
        """Write through views, whatever they are."""
        node = self.nodes[number]
        value = np.asarray(value).reshape(node.shape)
        if not node.sources:
            if node.dtype.name == "float16":
                value = value.astype(np.float16)
            self.read(number)[...] = value.astype(_numpy(node.dtype))
        elif node.kind == "concat":
            start = 0
            for source in node.sources:
                length = self.nodes[source].shape[node.args]
                self.write(source, np.take(value, range(start, start + length), node.args))
                start += length
        elif node.kind == "reshape":
            self.write(node.sources[0], value)
        elif node.kind == "dimShuffle":
            self.write(node.sources[0], value.transpose(np.argsort(node.args)))
        elif node.kind == "reinterpret":
            self.write(node.sources[0], _reinterpreted(value, node.dtype, self.nodes[node.sources[0]].dtype))
        elif node.kind in ("slice", "reverse", "subSample"):
            # These are views of what is read here, so what is around them stays.
            whole = self.read(node.sources[0]).copy()
            _VIEWS[node.kind](self, node, [whole])[...] = value
            self.write(node.sources[0], whole)
        else:
            raise IrError(f"{self.recording.type}: its C++ writes into a tensor whose elements are in it several times")


def _reinterpreted(array: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """The same bits as another type."""
    bits = np.ascontiguousarray(array.astype(source.numpy)).view(target.numpy)
    return bits.astype(_numpy(target))


def _along(axis: int, part: slice) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, part)


#: Views by name: ``(run, node, arrays of the sources) -> array``.
_VIEWS: Mapping[str, Callable[[_Run, RecordedTensor, Arrays], np.ndarray]] = {
    "slice": lambda run, node, arrays: arrays[0][tuple(slice(a, b) for a, b in zip(*node.args))],
    "reshape": lambda run, node, arrays: arrays[0].reshape(node.shape),
    "dimShuffle": lambda run, node, arrays: arrays[0].transpose(node.args),
    "reverse": lambda run, node, arrays: np.flip(arrays[0], node.args),
    "subSample": lambda run, node, arrays: arrays[0][_along(node.args[1], slice(None, None, node.args[0]))],
    "broadcast": lambda run, node, arrays: np.concatenate([arrays[0]] * node.args[0], node.args[1]),
    "concat": lambda run, node, arrays: np.concatenate(arrays, node.args),
    "reinterpret": lambda run, node, arrays: _reinterpreted(arrays[0], run.nodes[node.sources[0]].dtype, node.dtype),
}


def _divide(a: Any, b: Any) -> Any:
    if np.result_type(a, b).kind != "f":
        return np.trunc(np.true_divide(a, b)).astype(np.result_type(a, b))
    return np.true_divide(a, b)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _erf(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64).astype(np.asarray(x).dtype)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


#: ``popops::expr`` and popnn's activations by PopLibs' names, in NumPy.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"ABSOLUTE": np.abs, "ASIN": np.arcsin, "BITWISE_NOT": np.invert, "CBRT": np.cbrt, "CEIL": np.ceil},
    **{"COS": np.cos, "ERF": _erf, "EXPONENT": np.exp, "EXPONENT_MINUS_ONE": np.expm1, "FLOOR": np.floor},
    **{"GELU_ERF": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), "INVERSE": lambda x: 1 / x},
    **{"IS_FINITE": np.isfinite, "IS_INF": np.isinf, "IS_NAN": np.isnan, "LOGARITHM": np.log},
    **{"LOGARITHM_ONE_PLUS": np.log1p, "LOGICAL_NOT": np.logical_not, "NEGATE": np.negative, "NEARBY_INT": np.rint},
    **{"RELU": lambda x: np.maximum(x, 0), "RSQRT": lambda x: 1 / np.sqrt(x), "SIGMOID": _sigmoid},
    # Halves are rounded away from zero.
    **{"ROUND": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "SIGNUM": np.sign, "SIN": np.sin},
    **{"SQRT": np.sqrt, "SQUARE": np.square, "TAN": np.tan, "TANH": np.tanh, "TRUNC": np.trunc},
    **{"ADD": np.add, "ATAN2": np.arctan2, "BITWISE_AND": np.bitwise_and, "BITWISE_OR": np.bitwise_or},
    **{"BITWISE_XOR": np.bitwise_xor, "DIVIDE": _divide, "EQUAL": np.equal, "GREATER_THAN_EQUAL": np.greater_equal},
    **{"GREATER_THAN": np.greater, "LESS_THAN_EQUAL": np.less_equal, "LESS_THAN": np.less},
    **{"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or, "MAXIMUM": np.maximum, "MINIMUM": np.minimum},
    **{"MULTIPLY": np.multiply, "NOT_EQUAL": np.not_equal, "POWER": np.power, "REMAINDER": np.fmod},
    **{"SHIFT_LEFT": np.left_shift, "SHIFT_RIGHT_SIGN_EXTEND": np.right_shift, "SUBTRACT": np.subtract},
    **{"VARIANCE_TO_INV_STD_DEV": lambda x, epsilon: 1 / np.sqrt(x + epsilon)},
    **{"INV_STD_DEV_TO_VARIANCE": lambda x, epsilon: 1 / np.square(x) - epsilon},
    **{"SELECT": lambda a, b, condition: np.where(condition, a, b), "CLAMP": np.clip},
    **{"GELU": _gelu, "SWISH": lambda x: x * _sigmoid(x), "SOFTMAX": _softmax},
    **{"HARD_SIGMOID": lambda x: np.clip(0.2 * x + 0.5, 0, 1)},
}


def _evaluated(tree: Sequence[Any], operands: Arrays) -> Any:
    """An expression's value; a constant takes the type of what stands beside it."""
    name, *inner = tree
    if name == "in":
        return operands[inner[0]]
    if name == "const":
        value, kind = inner
        return value if kind.startswith("float") else bool(value) if kind == "bool" else int(value)
    if name == "cast":
        return np.asarray(_evaluated(inner[0], operands)).astype(_numpy(ALL_DTYPES[inner[1]]))
    if name not in FUNCTIONS:
        raise IrError(f"popops' {name} has no value here; known are {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name](*[_evaluated(each, operands) for each in inner])


_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"ADD": np.sum, "MUL": np.prod, "MIN": np.min, "MAX": np.max, "LOGICAL_AND": np.all, "LOGICAL_OR": np.any},
    **{"SQUARE_ADD": lambda x, axis: np.square(x).sum(axis), "LOG_ADD": lambda x, axis: np.logaddexp.reduce(x, axis)},
}


def _reduce(run: _Run, step: Step, reads: Arrays) -> Any:
    name, axes, update = step.args
    result = _REDUCTIONS[name](reads[0], tuple(axes))
    result = result * reads[1] if len(reads) > 1 else result
    return result + run.read(step.writes[0]).reshape(result.shape) if update else result


def _scaled_add(_run: _Run, step: Step, reads: Arrays) -> Any:
    a, b, *factor = reads
    first, second = step.args
    return first * a + second * b * (factor[0] if factor else 1)


def _rows(_run: _Run, step: Step, reads: Arrays) -> Any:
    table, indices = reads
    places = indices[..., 0].astype(np.int64)
    return table[np.arange(len(table))[:, None], places] if step.args else table[places]


def _add_rows(_run: _Run, step: Step, reads: Arrays) -> Any:
    table, rows, indices, scale = reads
    places, result = indices[..., 0].astype(np.int64), table.copy()
    where = (np.arange(len(table))[:, None], places) if step.args else places
    np.add.at(result, where, rows.reshape(*places.shape, rows.shape[-1]) * scale)
    return result


#: Steps by name: ``(run, step, arrays that it reads) -> what it writes``.
_VALUES: Mapping[str, Callable[[_Run, Step, Arrays], Any]] = {
    "copy": lambda run, step, reads: reads[0],
    "cast": lambda run, step, reads: reads[0],
    "fill": lambda run, step, reads: np.full(run.nodes[step.writes[0]].shape, step.args),
    "map": lambda run, step, reads: np.broadcast_to(_evaluated(step.args, reads), run.nodes[step.writes[0]].shape),
    "nonLinearity": lambda run, step, reads: FUNCTIONS[step.args](reads[0]),
    "reduce": _reduce,
    "scaledAdd": _scaled_add,
    "matMul": lambda run, step, reads: np.matmul(*reads),
    "multiSlice": lambda run, step, reads: _rows(run, step, reads),
    "multiUpdateAdd": _add_rows,
}

# -- cost --------------------------------------------------------------------------------------------------------------


def _roots(nodes: Sequence[RecordedTensor], number: int) -> set[int]:
    """The nodes of which a node is a view."""
    sources = nodes[number].sources
    return {root for source in sources for root in _roots(nodes, source)} if sources else {number}


def _inputs(nodes: Sequence[RecordedTensor], number: int) -> set[int]:
    """The numbers of the operands of which a node is a view."""
    return {nodes[root].args for root in _roots(nodes, number) if nodes[root].kind == "input"}


def _with_reads(recording: Recording, works: list[Work], count: int) -> list[Work]:
    """The works; the first vertices bring in what all steps read of each operand, once."""
    nodes = recording.nodes
    reads, is_whole = [0] * count, True
    for step in recording.steps:
        of_step = [0] * count
        for number in dict.fromkeys(step.reads):
            for operand in _inputs(nodes, number):
                is_whole = is_whole and nodes[number].kind == "input"
                target = nodes[step.writes[0]].elements
                of_step[operand] += max(nodes[number].elements, target if step.call == "map" else 0)
        reads = [max(pair) for pair in zip(reads, of_step, strict=True)]
    if is_whole:
        return works
    return [replace(work, operands=tuple(reads)) if isinstance(work, Vertices) else work for work in works]


def _expression_work(recording: Recording, step: Step) -> list[Work]:
    """The vertices of an expression.

    popops generates one for several operations on tensors of one shape and scalars that hold no element twice
    (``lib/popops/ExpressionGenerator.cpp`` analyseExpr). Otherwise each operation is a compute set of its own.
    """
    nodes, out = recording.nodes, recording.nodes[step.writes[0]]
    operands = [nodes[number] for number in step.reads]
    shapes = {node.shape for node in operands if node.elements != 1}
    repeated = any(_repeats(nodes, number) for number in step.reads)
    operations = _operations(step.args)
    if operations > 1 and len(shapes) <= 1 and not repeated:
        dtype, scalars = _computed_in(operands, out), sum(node.elements == 1 for node in operands)
        cycles = fused_cycles(dtype, len(operands) - scalars, scalars, operations)
        vertex = f"popops::map::{recording.type}<{vertices.poplar_type(dtype)}>"
        return [Vertices(vertex, out.elements, cycles, operations * out.elements, low_confidence=True)]
    works: list[Work] = []
    _operation_works(step.args, operands, works, step.writes[0] in step.reads)
    return works


def _repeats(nodes: Sequence[RecordedTensor], number: int) -> bool:
    node = nodes[number]
    return node.kind == "broadcast" or any(_repeats(nodes, source) for source in node.sources)


def _operations(tree: Sequence[Any]) -> int:
    if tree[0] in ("in", "const"):
        return 0
    return 1 + sum(_operations(inner) for inner in tree[1:] if isinstance(inner, list))


def _computed_in(operands: Sequence[RecordedTensor], out: RecordedTensor) -> DType:
    """The type of an expression's operands: that of the result, or of what it compares."""
    return next((node.dtype for node in operands if node.dtype.name != "bool"), out.dtype)


#: PopLibs' tables have one figure for comparisons that differ in their direction.
_AS = {"GREATER_THAN_EQUAL": "GREATER_THAN", "LESS_THAN": "GREATER_THAN", "LESS_THAN_EQUAL": "GREATER_THAN"}


def _operation_works(
    tree: Sequence[Any],
    operands: Sequence[RecordedTensor],
    works: list[Work],
    in_place: bool = False,
) -> tuple[tuple[int, ...], DType]:
    """Add a compute set for each operation; the shape and type of the value."""
    name, *inner = tree
    if name == "in":
        return operands[inner[0]].shape, operands[inner[0]].dtype
    if name == "const":
        return (), FLOAT32
    if name == "cast":
        shape, dtype = _operation_works(inner[0], operands, works)
        target = ALL_DTYPES[inner[1]]
        works.append(vertices.cast(dtype, target, math.prod(shape)))
        return shape, target
    values = [_operation_works(each, operands, works) for each in inner]
    shape = tuple(np.broadcast_shapes(*[shape for shape, _ in values]))
    types = [dtype for (_, dtype), each in zip(values, inner, strict=True) if each[0] != "const"] or [values[0][1]]
    dtype, elements = types[0], math.prod(shape)
    # An intermediate value is changed in place.
    in_place = in_place or inner[0][0] not in ("in", "const")
    if name == "SELECT":
        works.append(vertices.select(dtype, elements))
    elif name == "CLAMP":
        works.append(vertices.clamp(dtype, elements))
    elif len(values) == 1:
        works.append(vertices.unary(name, dtype, elements, in_place=in_place))
    else:
        (lhs, _), (rhs, _) = values
        works += elementwise_work(_AS.get(name, name), dtype, lhs, rhs, shape, in_place=in_place)
    is_truth = FUNCTIONS.get(name) in _TRUTHS
    return shape, ALL_DTYPES["bool"] if is_truth else dtype


_TRUTHS: tuple[Any, ...] = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_TRUTHS += (np.logical_and, np.logical_or, np.logical_not, np.isfinite, np.isinf, np.isnan)


def _activation_work(recording: Recording, step: Step) -> list[Work]:
    node = recording.nodes[step.reads[0]]
    if step.args in vertices.NON_LINEARITY:
        return [vertices.non_linearity(step.args, node.dtype, node.elements, 1)]
    if step.args == "SOFTMAX":
        rows = node.elements // max(1, node.shape[-1])
        whole = (rows, node.shape[-1])
        dtype = node.dtype
        return [
            vertices.reduction("MAX", dtype, node.elements, rows, run=node.shape[-1]),
            *elementwise_work("SUBTRACT", dtype, whole, (rows, 1), whole),
            vertices.unary("EXPONENT", dtype, node.elements, in_place=True),
            vertices.reduction("ADD", dtype, node.elements, rows, run=node.shape[-1]),
            *elementwise_work("DIVIDE", dtype, whole, (rows, 1), whole, in_place=True),
        ]
    in_place = step.reads == step.writes
    return [vertices.unary(step.args, node.dtype, node.elements, in_place=in_place)]


def _reduction_work(recording: Recording, step: Step) -> list[Work]:
    """A reduction without a vertex of its own in PopLibs' tables costs what the largest element does."""
    source, out = (recording.nodes[number] for number in (step.reads[0], step.writes[0]))
    name, axes, _ = step.args
    if source.elements == out.elements:
        return [Copy(out.elements * out.dtype.size)]
    run = 1
    for axis in reversed(range(len(source.shape))):
        if axis not in axes:
            break
        run *= source.shape[axis]
    known = name if name in vertices.REDUCTION_CYCLES else "MAX"
    operand = min(_inputs(recording.nodes, step.reads[0]), default=0)
    return [vertices.reduction(known, source.dtype, source.elements, out.elements, operand, run)]


def _scaled_work(recording: Recording, step: Step) -> list[Work]:
    a, b = (recording.nodes[number] for number in step.reads[:2])
    if not a.dtype.is_floating_point:
        return [
            *elementwise_work("MULTIPLY", b.dtype, b.shape, (), b.shape),
            vertices.binary("ADD", a.dtype, a.elements),
        ]
    cycles = scaled_add_cycles(a.dtype, b.dtype, len(step.reads) > 2, step.args[0] != 1)
    vertex = f"popops::ScaledAddSupervisor<{type_names(a.dtype, b.dtype)}>"
    return [Vertices(vertex, a.elements, cycles, flops=2 * a.elements)]


def _product_work(recording: Recording, step: Step) -> list[Work]:
    a, b, out = (recording.nodes[number] for number in (*step.reads, *step.writes))
    groups, rows, depth = a.shape
    return [MatMul(groups, rows, depth, b.shape[2], a.dtype, out.dtype, FLOAT32)]


def _lookup_work(recording: Recording, step: Step) -> list[Work]:
    table, indices = recording.nodes[step.reads[0]], recording.nodes[step.reads[-1 if step.call == "multiSlice" else 2]]
    groups = table.shape[0] if step.args else 1
    count, (entries, width) = indices.elements // groups, table.shape[-2:]
    kind = Lookup if step.call == "multiSlice" else TableUpdate
    return [kind(entries, width, count, table.dtype, groups)]


#: Works of steps by name.
_WORKS: Mapping[str, Callable[[Recording, Step], list[Work]]] = {
    "copy": lambda recording, step: [
        Copy(recording.nodes[step.writes[0]].elements * recording.nodes[step.writes[0]].dtype.size)
    ],
    "cast": lambda recording, step: [
        vertices.cast(
            recording.nodes[step.reads[0]].dtype,
            recording.nodes[step.writes[0]].dtype,
            recording.nodes[step.writes[0]].elements,
        )
    ],
    "fill": lambda recording, step: [
        vertices.fill(recording.nodes[step.writes[0]].dtype, recording.nodes[step.writes[0]].elements)
    ],
    "map": _expression_work,
    "nonLinearity": _activation_work,
    "reduce": _reduction_work,
    "scaledAdd": _scaled_work,
    "matMul": _product_work,
    "multiSlice": _lookup_work,
    "multiUpdateAdd": _lookup_work,
}


def _work_of(recording: Recording, step: Step) -> list[Work]:
    """The works of a step; none where it writes nothing."""
    return _WORKS[step.call](recording, step) if recording.nodes[step.writes[0]].elements else []

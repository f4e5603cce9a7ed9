"""Every op that changes an operand, at every kind of shape and memory layout, against plain NumPy.

The cases are a table by op class, and the table is compared with the classes of :mod:`ipuperf.ops`: an op that changes
an operand cannot be forgotten. Each case runs in the evaluator, all its ways in one program, on variables of 1 and 3
replicas that are whole, or views in place (transposed; the middle of a larger variable; every third element), and what
lies around them has to stay as it was.
"""

import importlib
import inspect
import itertools
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.numerics import Evaluator
from ipuperf.ops.shape import ReshapeInplace, SliceInplace, TransposeInplace

Arrays = Sequence[np.ndarray]
#: Shapes of the tensor that changes.
SHAPES = ((), (0,), (1,), (5,), (2, 3), (3, 1, 2), (0, 2))
#: Of the Adam family: large beside the moments, so that a result without it is wrong.
EPSILON = 0.125
LAYOUTS = ("whole", "transposed", "middle", "strided")
#: Called graphs change what their ops change: :mod:`tests.numerics.test_evaluator`.
ELSEWHERE = {ops.Call, ops.Loop}


# -- a tensor that is a part of a variable -----------------------------------------------------------------------------


def _view(variable: ir.Tensor, op: type[ops.Op], **attributes: Any) -> ir.Tensor:
    return variable.graph.create(op, [variable], ["view"], **attributes).outputs[0]


def whole_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Shape of the variable that holds a tensor of ``shape``."""
    return {
        "whole": shape,
        "transposed": shape[::-1],
        "middle": (3, *shape),
        "strided": (*shape, 3),
    }[layout]


def tensor_part(variable: ir.Tensor, shape: tuple[int, ...], layout: str) -> ir.Tensor:
    """The part of the variable, as a view in place."""
    if layout == "whole":
        return variable
    if layout == "transposed":
        return _view(variable, TransposeInplace, permutation=None)
    axis = 0 if layout == "middle" else len(shape)
    return _view(_view(variable, SliceInplace, axis=[axis], start=[1], stop=[2], step=[1]), ReshapeInplace, shape=shape)


def array_part(array: np.ndarray, layout: str) -> np.ndarray:
    """The same part of an array ``(R, ...)``."""
    if layout == "whole":
        return array
    if layout == "transposed":
        return array.transpose(0, *range(array.ndim - 1, 0, -1))
    return array[:, 1] if layout == "middle" else array[..., 1]


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One way to use an op.

    Attributes:
        op: the class.
        value: NumPy's result for the operands ``(R, *shape)``.
        others: shapes of the other operands; ``...`` is the shape of the one that changes.
        position: where the operand that changes stands.
        counter: the operand that changes has one element and is not the result; ``value`` gives (result, new counter).
        attributes: of the op; callables are given (program, shape, dtype).
        dtypes: allowed types.
        positions: how many positions the operands of whole numbers (type ``int32``) may name, by their index.
        fits: shapes that the op has a meaning for.
    """

    op: type[ops.Op]
    value: Callable[..., Any]
    others: tuple[Any, ...] = ()
    position: int = 0
    counter: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float16")
    positions: dict[int, int] = field(default_factory=dict)
    fits: Callable[[tuple[int, ...]], bool] = lambda shape: True


def _mean(t: np.ndarray, x: np.ndarray, f: Any) -> np.ndarray:
    return t * f / (f + 1) + x / (f + 1)


#: Values by kind of accumulation.
KINDS: dict[str, Callable[[Any, Any, Any], np.ndarray]] = {
    "add": lambda t, x, f: t + f * x,
    "mean": _mean,
    "square": lambda t, x, f: t + f * x * x,
    "moving_average": lambda t, x, f: f * t + (1 - f) * x,
    "moving_average_square": lambda t, x, f: f * t + (1 - f) * x * x,
}


def _factor(f: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A factor of one element per replica, to be multiplied with ``like``."""
    return f.reshape(len(f), *[1] * (like.ndim - 1))


def _accumulations() -> list[Case]:
    found = []
    for kind, rule in KINDS.items():
        found.append(
            Case(ops.Accumulate, lambda t, x, r=rule: r(t, x, 0.25), (...,), attributes={"kind": kind, "factor": 0.25})
        )
        for scalar in ((), (1,), (1, 1)):
            found.append(
                Case(
                    ops.Accumulate,
                    lambda t, x, f, r=rule: r(t, x, _factor(f, t)),
                    (..., scalar),
                    attributes={"kind": kind},
                )
            )
    return found


def _adam(mode: str, m: Any, v: Any, w: Any, t: Any) -> tuple[np.ndarray, np.ndarray]:
    """Kingma and Ba, algorithms 1 and 2 (the step alone), with epsilon outside of the root and decoupled decay."""
    step = _factor(t + 1, m)
    mean = m / (1 - 0.75**step)
    spread = np.abs(v) if mode == "adamax" else np.sqrt(np.abs(v) / (1 - 0.5**step))
    return mean / (spread + EPSILON) + 0.5 * w, t + 1


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _spread(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``t + x`` where x has fewer axes than t, behind the replicas."""
    return t + x.reshape(len(x), *[1] * (t.ndim - x.ndim), *x.shape[1:])


def _updated(t: np.ndarray, index: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Two rows of axis 0 replaced from ``index`` on, going round at the end."""
    for replica, start in enumerate(index.reshape(len(index))):
        for k in range(part.shape[1]):
            t[replica, (start + k) % t.shape[1]] = part[replica, k]
    return t


def _stream(program: ir.Ir, shape: tuple[int, ...], dtype: ir.DType) -> ir.Stream:
    stream = ir.Stream(program.main_graph.tensor_id("source"), ir.TensorSpec(shape, dtype), program.main_graph, "h2d")
    program.main_graph.add(stream)
    return stream


#: What a stream or a remote buffer delivers: (R, *shape) filled with 1, 2, ... by replica.
def _delivered(t: np.ndarray, *offset: np.ndarray) -> np.ndarray:
    entry = offset[0].reshape(len(t)) if offset else np.zeros(len(t))
    return np.broadcast_to(_factor(np.arange(len(t)) + 1 + 100 * entry, t), t.shape)


def _trusted(t, x, r1, r2, rate=0.5):
    squared = np.broadcast_to(r1 / np.where(r2 == 0, 1, r2), r1.shape).astype(np.float64)
    ratio = np.where((r1 == 0) | (r2 == 0), 1.0, np.sqrt(squared))
    return t - _factor(rate * ratio, t) * x


def _trusted_by(t, x, r1, r2, rate):
    return _trusted(t, x, r1, r2, rate)


def _limited(t, x, r1, r2, most):
    squared = np.minimum(r1, np.square(most.astype(np.float64)))
    return _trusted(t, x, np.where(most == 0, 0, squared), r2)


def _sparse(t, x, rows, factor):
    out = np.array(t)
    for replica, own in enumerate(rows):
        for k, row in enumerate(own):
            out[replica, row] += (1.0 if factor is None else factor) * x[replica, k]
    return out


CASES = [
    *_accumulations(),
    Case(ops.AccumulatorScale, lambda t: 0.5 * t, attributes={"factor": 0.5}),
    Case(ops.AccumulatorScale, lambda t: 0 * t, attributes={"factor": 0.0}),
    Case(ops.AccumulatorScale, lambda t, f: _factor(f, t) * t, ((),)),
    Case(ops.AccumulatorScale, lambda t, f: _factor(f, t) * t, ((1,),)),
    Case(ops.AccumulatorZero, lambda t: 0 * t),
    Case(ops.Accumulate, lambda t, x: t + x, (...,), attributes={"kind": "add"}, dtypes=("int32", "uint32")),
    Case(ops.AdamVarUpdate, _trusted, (..., (), ()), attributes={"lr": 0.5}),
    Case(ops.AdamVarUpdate, _trusted_by, (..., (), (), ()), attributes={"lr_input": 4}),
    Case(ops.AdamVarUpdate, _limited, (..., (), (), ()), attributes={"lr": 0.5, "max_norm_input": 4}),
    *(
        Case(
            ops.SparseAccumulate,
            lambda t, x, rows, factor=factor: _sparse(t, x, rows, factor),
            ("two rows", (2,)),
            attributes={"axis": 0, "factor": factor},
            positions={2: 2},
            fits=lambda shape: len(shape) > 0 and shape[0] > 1,
        )
        for factor in (None, 0.5)
    ),
    *(
        Case(
            ops.AdamUpdater,
            lambda m, v, w, t, mode=mode: _adam(mode, m, v, w, t),
            (..., ..., ...),
            position=3,
            counter=True,
            attributes={
                "mode": mode, "has_weight": True, "has_step": True, "weight_decay": 0.5, "beta1": 0.75, "beta2": 0.5,
                "epsilon": EPSILON,
            },
        )
        for mode in ("adam", "adamax", "lamb")
    ),
    Case(ops.AddLhsInplace, lambda t, x: t + x, (...,)),
    Case(ops.AddLhsInplace, _spread, ((),)),
    Case(ops.AddLhsInplace, _spread, ((1,),), fits=lambda shape: len(shape) > 0),
    Case(ops.AddLhsInplace, _spread, ((3,),), fits=lambda shape: shape[-1:] == (3,)),
    Case(ops.AddLhsInplace, lambda t, x: t + x, (...,), dtypes=("int32",)),
    Case(ops.CopyVarUpdate, lambda t, x: x, (...,), dtypes=("float32", "float16", "int32", "bool")),
    Case(
        ops.DynamicUpdateInplace, _updated, ((1,), "two rows"), attributes={"axes": (0,), "sizes": (2,)},
        positions={1: 2}, fits=lambda shape: len(shape) > 0 and shape[0] > 1,
    ),
    Case(ops.ExpInplace, np.exp),
    Case(ops.GeluErfInplace, _gelu_erf),
    Case(ops.GeluInplace, _gelu),
    Case(ops.HostLoad, _delivered, attributes={"in_place": True, "stream": _stream}),
    Case(
        ops.IncrementModInplace, lambda t: (t + 3) % 7, attributes={"increment": 3, "modulus": 7},
        dtypes=("uint32", "int32"),
    ),
    Case(ops.IoTileCopy, lambda x, t: x, (...,), position=1, attributes={"destination": "io"}),
    Case(ops.IpuCopy, lambda x, t: x, (...,), position=1, attributes={"source": 0, "destination": 1}),
    Case(ops.SwishInplace, lambda t: t / (1 + np.exp(-t))),
    Case(ops.ReluInplace, lambda t: np.maximum(t, 0)),
    Case(
        ops.RemoteLoadInplace, _delivered, ((1,),), positions={1: 8},
        attributes={"buffer": lambda program, shape, dtype: program.remote_buffer(shape, dtype, 8)},
    ),
    Case(
        ops.ReplicatedAllReduceInplace, lambda t: np.broadcast_to(t.sum(0), t.shape),
        attributes={"group": lambda program, *_: program.grouping()},
    ),
    Case(ops.ScaledAddLhsInplace, lambda t, x: 0.5 * t - 2 * x, (...,), attributes={"a": 0.5, "b": -2.0}),
    Case(ops.ScaledAddLhsInplace, lambda t, x: t + x, (...,)),
    Case(ops.ScaledAddLhsInplace, lambda t, x: t - 0.5 * x, (...,), attributes={"b": -0.5}),
    Case(ops.ScaledAddLhsInplace, lambda t, x, b: t + _factor(b, t) * x, (..., ()), attributes={"b_input": 2}),
    Case(
        ops.ScaledAddLhsInplace, lambda t, x, a, b: _factor(a, t) * t + _factor(b, t) * x, (..., (1,), ()),
        attributes={"a_input": 2, "b_input": 3},
    ),
]  # fmt: skip


def changing_ops() -> set[type[ops.Op]]:
    """The op classes of :mod:`ipuperf.ops` that change an operand (most say so by ``in_place``)."""
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(ops.__path__, "ipuperf.ops.")]
    classes = {c for m in modules for c in vars(m).values() if inspect.isclass(c) and issubclass(c, ops.Op)}
    return {
        c for c in classes
        if (c.in_place or c.modified_inputs is not ops.Op.modified_inputs)
        and not c.__name__.startswith("_")
    }  # fmt: skip


def test_no_op_is_forgotten() -> None:
    assert changing_ops() == {case.op for case in CASES} | ELSEWHERE


# -- running a case ----------------------------------------------------------------------------------------------------


def _numbers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Small multiples of 1/4 from 1/4 on (exact in float16), or small whole numbers from 0 on."""
    whole = rng.integers(0, 2 if dtype == "bool" else 6, shape)
    return ((whole + 1) / 4 if dtype.startswith("float") else whole).astype(dtype)


class Way(NamedTuple):
    """The shape of the tensor that changes, the type, and the layout of each operand."""

    shape: tuple[int, ...]
    dtype: str
    layouts: tuple[str, ...]


class Bound:
    """A program with one op for each way, whose operands are parts of variables of its own."""

    def __init__(self, case: Case, ways: Sequence[Way], replicas: int) -> None:
        self.case = case
        self.program = ir.Ir(replicas)
        self.variables: list[list[ir.Variable]] = []
        self.results: list[ir.Stream] = []
        attributes = [self._add(way) for way in ways]
        self.evaluator = Evaluator(self.program)
        self.feeds: dict[ir.Stream, np.ndarray] = {}
        for way, variables, given in zip(ways, self.variables, attributes, strict=True):
            self._fill(way, variables, given)

    def _add(self, way: Way) -> dict[str, Any]:
        """An op with its variables, and a stream for its result; the op's attributes."""
        case, main = self.case, self.program.main_graph
        special = {...: way.shape, "two rows": (2, *way.shape[1:])}
        shapes = [special.get(own, own) for own in case.others]
        shapes.insert(case.position, (1,) if case.counter else way.shape)
        variables, tensors = [], []
        for index, own in enumerate(shapes):
            kind = "int32" if index in case.positions else way.dtype
            held = whole_shape(own, way.layouts[index])
            spec = ir.TensorSpec(held, ir.dtype_of(np.empty(0, kind)))
            name = main.tensor_id(f"v{len(self.variables)}.{index}")
            variable = ir.Variable(name, spec, main, np.zeros(held, kind), self.program.grouping())
            main.add(variable)
            variables.append(variable)
            tensors.append(tensor_part(variable, own, way.layouts[index]))
        type_ = ir.dtype_of(np.empty(0, way.dtype))
        attributes = {k: v(self.program, way.shape, type_) if callable(v) else v for k, v in case.attributes.items()}
        op = main.create(case.op, tensors, ["out"], **attributes)
        result = ir.Stream(main.tensor_id("result"), op.outputs[0].spec, main, "d2h")
        main.add(result)
        main.create(ops.HostStore, [op.outputs[0]], [], stream=result)
        self.variables.append(variables)
        self.results.append(result)
        return attributes

    def _fill(self, way: Way, variables: Sequence[ir.Variable], attributes: dict[str, Any]) -> None:
        """Numbers for the variables, and what a stream or remote buffer delivers."""
        rng = np.random.default_rng(5)
        for index, variable in enumerate(variables):
            array = self.evaluator.variables[variable]
            array[...] = _numbers(rng, array.shape, array.dtype.name) % self.case.positions.get(index, 100)
        replicas = self.program.replication_factor
        delivered = np.zeros((replicas, *way.shape))
        for value in attributes.values():
            if isinstance(value, ir.Stream):
                self.feeds[value] = _delivered(delivered).astype(way.dtype)[np.newaxis]
            elif isinstance(value, ir.RemoteBuffer):
                for entry in range(8):
                    self.evaluator.remote[value][:, entry] = _delivered(delivered, np.full(replicas, entry))

    def arrays(self) -> list[list[np.ndarray]]:
        """Copies of the variables of each way, whole."""
        return [[self.evaluator.variables[v].copy() for v in variables] for variables in self.variables]


def expectation(case: Case, way: Way, before: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The result of an op, and all its variables after it."""
    operands = [array_part(a, layout).copy() for a, layout in zip(before, way.layouts, strict=True)]
    value = case.value(*[a.astype(np.float64) if a.dtype.kind == "f" else a for a in operands])
    result, changed = value if case.counter else (value, value)
    after = [a.copy() for a in before]
    part = array_part(after[case.position], way.layouts[case.position])
    part[...] = np.reshape(changed, part.shape)
    return result, after


def check(case: Case, ways: Sequence[Way], replicas: int) -> None:
    with ir.CONTEXT.sequence(True):
        bound = Bound(case, ways, replicas)
    expected = [expectation(case, way, before) for way, before in zip(ways, bound.arrays(), strict=True)]
    found = bound.evaluator.run(bound.feeds)
    for way, stream, now, (result, after) in zip(ways, bound.results, bound.arrays(), expected, strict=True):
        where = f"{case.op.__name__} {case.attributes} x {replicas} {way}"
        _same(found[stream][0], result, way.dtype, f"result of {where}")
        for index, (array, wanted) in enumerate(zip(now, after, strict=True)):
            _same(array, wanted, way.dtype, f"operand {index} of {where}")


def _same(found: np.ndarray, wanted: np.ndarray, dtype: str, what: str) -> None:
    if np.shape(found) == np.shape(wanted) and np.array_equal(found, wanted):  # most are, and this is ten times quicker
        return
    tolerance = {"float16": 2e-3, "float32": 1e-6}.get(dtype, 0)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=what)


def _layouts(count: int) -> list[tuple[str, ...]]:
    """The same layout for all, and each layout beside whole operands."""
    same = [(layout,) * count for layout in LAYOUTS]
    one = [tuple("middle" if i == k else "whole" for i in range(count)) for k in range(count)]
    return list(dict.fromkeys([*same, *one]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op.__name__)
@pytest.mark.parametrize("replicas", [1, 3])
def test_changes_its_operand(case: Case, replicas: int) -> None:
    layouts = _layouts(len(case.others) + 1)
    check(case, [Way(*way) for way in itertools.product(filter(case.fits, SHAPES), case.dtypes, layouts)], replicas)


# -- operands that share memory ----------------------------------------------------------------------------------------

#: Cases with one more operand of the same shape that the op reads.
PAIRS = [case for case in CASES if case.others[:1] == (...,) and not case.counter]


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.op.__name__)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("sharing", ["itself", "transposed", "shifted"])
def test_reads_what_its_operands_held_before(case: Case, replicas: int, sharing: str) -> None:
    """``x += transpose(x)`` and the like, larger than the pieces in which kernels go through memory."""
    side = 300
    dtype, rng = case.dtypes[0], np.random.default_rng(8)
    held = (side + 1, side) if sharing == "shifted" else (side, side)
    parts: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "itself": lambda a: a, "transposed": lambda a: a.swapaxes(1, 2), "shifted": lambda a: a[:, 1:]
    }  # fmt: skip
    program = ir.Ir(replicas)
    main = program.main_graph
    with ir.CONTEXT.sequence(True):
        spec = ir.TensorSpec(held, ir.dtype_of(np.empty(0, dtype)))
        variable = ir.Variable("v", spec, main, np.zeros(held, dtype), program.grouping())
        main.add(variable)
        rows = {"axis": [0], "step": [1]}
        target = _view(variable, SliceInplace, start=[0], stop=[side], **rows) if sharing == "shifted" else variable
        other = variable
        if sharing == "transposed":
            other = _view(variable, TransposeInplace, permutation=None)
        elif sharing == "shifted":
            other = _view(variable, SliceInplace, start=[1], stop=[side + 1], **rows)
        factors = [main.constant(np.full(own, 0.5, dtype)) for own in case.others[1:]]
        operands = [target, other, *factors] if case.position == 0 else [other, target, *factors]
        main.create(case.op, operands, ["out"], **case.attributes)
    evaluator = Evaluator(program)
    array = evaluator.variables[variable]
    array[...] = _numbers(rng, array.shape, dtype)
    wide = array.astype(np.float64) if array.dtype.kind == "f" else array.copy()
    x = wide[:, :side].copy()
    y = parts[sharing](wide).copy()
    half = [np.full(replicas, 0.5) for _ in factors]
    expected = wide.copy()
    expected[:, :side] = case.value(*([x, y] if case.position == 0 else [y, x]), *half)
    evaluator.run({})
    np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-6)

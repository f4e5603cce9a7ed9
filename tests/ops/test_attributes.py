"""Every op class of the project declares what it reads; typos, wrong types and foreign operands are errors."""

import ast
import importlib.util
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.functions import arithmetic, reductions, shapes
from ipuperf.ir import CONTEXT, FLOAT16, FLOAT32, DTypeError, IrError, ShapeError
from ipuperf.validation.handwritten import HandPlacedAdd, HandPlacedTriad

if importlib.util.find_spec("tensorflow") is None:
    FRONT_END: set[type[ir.Op]] = set()
else:
    from ipuperf.tensorflow.pipelining.custom_gradients import GradientTap
    from ipuperf.tensorflow.programs.outfeed import OutfeedStore

    FRONT_END = {GradientTap, OutfeedStore}
ROOMS = (Path(ops.__file__).parent, Path(ir.__file__).parent)
#: What every op has besides its attributes.
COMMON = frozenset(vars(ir.Ir().main_graph.create(ops.Init, [], ["t"], shape=(), dtype=FLOAT32)))


def classes(base: type = ir.Op) -> Iterator[type[ir.Op]]:
    """All op classes of the project below ``base``."""
    for found in base.__subclasses__():
        if found.__module__.startswith("ipuperf."):
            yield found
        yield from classes(found)


CLASSES = sorted(set(classes()), key=lambda c: (c.__module__, c.__name__))


def reads(op_class: type) -> Iterator[str]:
    """Names that the class's own source reads from ``self``, by dot or from ``self.attributes``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(op_class)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
        if isinstance(node, ast.Subscript) and _is_attributes(node.value) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)


def _is_attributes(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "attributes"


def test_the_classes_are_found():
    assert {ops.MatMul, ops.Loop, HandPlacedAdd, HandPlacedTriad, *FRONT_END} < set(CLASSES)
    assert len(CLASSES) > 150


@pytest.mark.parametrize("op_class", CLASSES, ids=lambda c: c.__name__)
def test_what_a_class_reads_is_declared(op_class: type[ir.Op]) -> None:
    known = COMMON.union(*(vars(base).get("__annotations__", ()) for base in op_class.__mro__))
    unknown = {name for name in reads(op_class) if name not in known and not hasattr(op_class, name)}
    assert not unknown, f"{op_class.__name__} reads {sorted(unknown)}"


def test_only_declarations_write_attributes():
    """Shape rules, and everything else in these rooms, leave the attributes of an op as they are."""
    writes = []
    for path in (p for room in ROOMS for p in room.glob("*.py") if p != ROOMS[1] / "attributes.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del))
            called = isinstance(node, ast.Attribute) and node.attr in ("setdefault", "update", "pop", "get", "clear")
            if (stored or called) and _is_attributes(node.value):
                writes.append(f"{path.name}:{node.lineno}")
    assert not writes


# -- canonical forms ---------------------------------------------------------------------------------------------------

X = np.zeros((1, 2, 6, 8, 8), np.float32)
W = np.zeros((1, 6, 3, 3, 3), np.float32)
INDEX = np.zeros((1, 4), np.int32)
SEED = np.zeros((1, 2), np.uint32)
CANONICAL: list[tuple[Any, list[np.ndarray], dict[str, Any], dict[str, Any]]] = [
    (ops.Softmax, [X], {}, {"axis": 3}),
    (ops.LogSoftmax, [X], {"axis": np.int64(-2)}, {"axis": 2}),
    (ops.ReduceSum, [X], {"axes": [-1, 0]}, {"axes": (0, 3), "keepdims": False}),
    (ops.ReduceMean, [X], {"axes": 1, "keepdims": np.True_}, {"axes": (1,), "keepdims": True}),
    (ops.ReduceMax, [X], {}, {"axes": (0, 1, 2, 3)}),
    (ops.ArgMax, [X], {"axis": -1}, {"axis": 3, "keepdim": False}),
    (ops.CumSum, [X], {"axis": -4}, {"axis": 0, "exclusive": False, "reverse": False}),
    (ops.Reshape, [X], {"shape": [2, -1]}, {"shape": (2, 384)}),
    (ops.Transpose, [X], {}, {"permutation": (3, 2, 1, 0)}),
    (ops.Transpose, [X], {"permutation": [0, -1, 1, 2]}, {"permutation": (0, 3, 1, 2)}),
    (ops.Concat, [X, X], {"axis": -1}, {"axis": 3}),
    (ops.Gather, [X, INDEX], {"axis": -3, "padding_idx": -1}, {"axis": 1, "padding_idx": 5}),
    (ops.OneHot, [INDEX, np.zeros((1, 2), np.float32)], {"depth": 5}, {"axis": 1, "depth": 5}),
    (ops.Dropout, [X, SEED], {"p": 0.5}, {"key": 100, "mask_shape": (2, 6, 8, 8)}),
    (ops.RandomNormal, [SEED], {"shape": [3], "dtype": "float16"}, {"dtype": FLOAT16, "mean": 0.0, "key": 100}),
    (ops.DynamicSlice, [X, SEED[:, :1]], {"axes": [-1], "sizes": [2]}, {"axes": (3,), "sizes": (2,)}),
    (ops.MaxPool, [X], {"kernel_size": 2}, {"strides": (2, 2), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}),
    (ops.AveragePool, [X], {"kernel_size": [4, 2], "ceil_mode": True}, {"strides": (4, 2), "ceil_mode": True}),
    (ops.Conv, [X, W], {"groups": 2, "padding": 1}, {"strides": (1, 1), "padding": ((1, 1), (1, 1))}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op_class", "arrays", "attributes", "wanted"), CANONICAL, ids=lambda v: getattr(v, "__name__", "")
)
def test_canonical_forms(bench, op_class, arrays, attributes, wanted):  # fmt: skip
    """They are there when the op is; the shape rule adds nothing, a copy has them too, and they can be compared."""
    op = bench.op(op_class, *arrays, **attributes)
    found = dict(op.attributes)
    assert {name: found[name] for name in wanted} == wanted
    assert list(found) == list(op_class.declared)
    hash(tuple(found.items()))
    op.infer()
    assert op.attributes == found
    copy = op.graph.create(op_class, op.inputs, ["copy"], **op.attributes)
    assert (copy.attributes, copy.outputs[0].spec) == (found, op.outputs[0].spec)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_class", "arrays", "attributes", "error", "message"),
    [
        (ops.ReduceSum, [X], {"axis": (0,)}, IrError, r"axis=\(0,\) .did you mean axes.*; allowed: axes, keepdims"),
        (ops.ReduceSum, [X], {"keep_dims": True}, IrError, "did you mean keepdims"),
        (ops.Gelu, [X], {"approximate": False}, IrError, "no attribute approximate=False; this op takes none"),
        (ops.ReduceSum, [X], {"axes": (0, True)}, IrError, r"axes=\(0, True\); a whole number"),
        (ops.ReduceSum, [X], {"axes": (4,)}, ShapeError, "axis 4 is out of range for rank 4"),
        (ops.ReduceSum, [X], {"axes": (0, -4)}, ShapeError, r"axes \(0, -4\) name an axis twice"),
        (ops.Softmax, [X], {"axis": 1.0}, IrError, "axis=1.0; a whole number is needed"),
        (ops.Softmax, [X], {"axis": True}, IrError, "axis=True; a whole number is needed"),
        (ops.Elu, [X], {"alpha": "1"}, IrError, "alpha='1'; a number is needed"),
        (ops.CumSum, [X], {"reverse": 1}, IrError, "reverse=1; True or False is needed"),
        (ops.TopK, [X], {}, IrError, "attribute k is missing; a whole number is needed"),
        (ops.Cast, [X], {}, IrError, "attribute dtype is missing; a DType is needed"),
        (ops.Cast, [X], {"dtype": np.float32}, DTypeError, "dtype=.*float32.*; a DType is needed"),
        (ops.Conv, [X, W], {"groups": 2, "strides": (1, True)}, ShapeError, r"strides=\(1, True\); an integer"),
        (ops.Conv, [X, W], {"groups": 2, "strides": None}, ShapeError, "strides=None; an integer of at least 1"),
        (ops.Conv, [X, W], {"groups": 2, "padding": ((1, 1), 1)}, ShapeError, "a pair \\(before, after\\) is needed"),
        (ops.Conv, [X, W], {"groups": 2, "stride": 2}, IrError, "did you mean strides"),
        (ops.GlobalAveragePool, [X], {"output_size": 2}, IrError, "no attribute output_size=2; this op takes none"),
        (ops.ConvTranspose, [X, W], {"input_size": (9, 9)}, IrError, "no attribute input_size"),
        (ops.AccumulatorZero, [X], {"factor": 0.5}, IrError, "factor=0.5; allowed: 0.0"),
        (ops.Accumulate, [X, X], {"factor_input": 2}, IrError, "did you mean factor"),
        (ops.Loop, [], {"callee": "body", "trip_count": 2}, IrError, "callee='body'; a Graph is needed"),
    ],
)  # fmt: skip
def test_bad_attributes(bench, op_class, arrays, attributes, error, message):
    with pytest.raises(error, match=message) as caught:
        bench.op(op_class, *arrays, **attributes)
    assert isinstance(caught.value, IrError)
    assert op_class.type in str(caught.value)


def test_the_error_names_the_users_line():
    graph = ir.Ir().main_graph
    x = graph.add_input(ir.TensorSpec((2, 3), FLOAT32), "x")
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(IrError) as caught:
        graph.create(ops.ReduceSum, [x], ["y"], axis=(0,))
    assert f"ReduceSum.100 in main graph at {__file__}:{line}" in str(caught.value)


def test_an_op_outside_any_graph():
    x = ir.Ir().main_graph.add_input(ir.TensorSpec((2, 3), FLOAT32), "x")
    for make in (lambda: arithmetic.exp(x), lambda: reductions.sum(x, axis=0), lambda: shapes.concat([x, x])):
        with pytest.raises(IrError, match="no graph is active: create tensors and ops inside"):
            make()


def test_operands_of_two_programs():
    programs = [ir.Ir().main_graph, ir.Ir().main_graph]
    x, y = (graph.add_input(ir.TensorSpec((2, 3), FLOAT32), name) for graph, name in zip(programs, "xy", strict=True))
    message = "operand 'y' belongs to another Ir .*it cannot be shared"
    with CONTEXT.use_graph(programs[0]):
        for make in (lambda: arithmetic.add(x, y), lambda: x + y, lambda: shapes.concat([x, y])):
            with pytest.raises(IrError, match=message):
                make()
    with pytest.raises(IrError, match=message):
        x * y
    with pytest.raises(IrError, match="Add: " + message):
        programs[0].create(ops.Add, [x, y], ["z"])
    assert all(not graph.ops for graph in programs)

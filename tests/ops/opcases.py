"""A table of ops: every class of :mod:`ipuperf.ops` with operands and attributes that reach its branches.

A case is a line of ``opcases.txt``: the class, its operands by type (:data:`LETTERS`) and shape, its attributes.
"""

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ipuperf import ir, ops
from ipuperf.ir import dtype as types
from ipuperf.machine import load_machine
from ipuperf.ops.products.multi_conv import ConvolutionPart
from ipuperf.ops.work import Work

REPLICAS = 4
CHIP = load_machine("gc200-1").chip
ELEMENTS = np.array([0, 1, 7, 100, 4097])
CASES = (Path(__file__).parent / "opcases.txt").read_text(encoding="utf-8").splitlines()


def room(case: str) -> str:
    """The module of the op of a case."""
    return getattr(ops, case.split("(")[0]).__module__.rpartition(".")[2]


class Call(NamedTuple):
    """An op to be made: its class, its operands (specs, or data of constants) and its attributes."""

    op_class: type[ops.Op]
    operands: tuple[Any, ...]
    attributes: dict[str, Any]


LETTERS = {"h": types.FLOAT16, "f": types.FLOAT32, "d": types.FLOAT64, "i": types.INT32, "u": types.UINT32,
           "s": types.UINT32, "b": types.BOOL, "w": types.UINT16, "v": types.INT16, "e4": types.FLOAT8_143,
           "e5": types.FLOAT8_152}  # fmt: skip


class Place:
    """A program of several replicas, and what cases name in it."""

    def __init__(self) -> None:
        self.program = ir.Ir(REPLICAS)
        self.graph = self.program.create_graph("case")

    def call(self, case: str) -> Call:
        """The op of a case."""
        return eval(case, dict(self._names()))

    def _names(self) -> dict[str, Any]:
        made = {"group": self.program.grouping, "callee": self._callee(), "stream": self._stream}
        return NAMES | made | {"buffer": lambda *shape: self.program.remote_buffer(shape, types.FLOAT32, 2)}

    def _stream(self, direction: str, *shape: int) -> ir.Stream:
        stream = ir.Stream("stream", ir.TensorSpec(shape, types.FLOAT32), self.program.main_graph, direction)
        self.program.main_graph.add(stream)
        return stream

    def _callee(self) -> ir.Graph:
        graph = self.program.create_graph("callee")
        x = graph.add_input(ir.TensorSpec((3, 5), types.FLOAT32), "x")
        graph.add_output(graph.create(ops.Exp, [x], ["y"]).outputs[0])
        return graph

    def op(self, call: Call) -> ops.Op:
        """An op that stands in no graph, with results."""
        made = call.op_class(self.graph, 100, [self._operand(operand) for operand in call.operands], call.attributes)
        made.outputs = [ir.Tensor(f"y{n}", spec, self.graph) for n, spec in enumerate(made.infer())]
        return made

    def _operand(self, operand: Any) -> ir.Tensor:
        if isinstance(operand, ir.TensorSpec):
            return ir.Tensor("x", operand, self.graph)
        return self.graph.constant(operand)


def digest(array: np.ndarray) -> str:
    """A sum of the finite values with weights that differ, and how many others there are."""
    flat = array.astype(np.float64).reshape(-1)
    parts = np.where(np.isfinite(flat), flat, 0) * np.cos(np.arange(flat.size))
    most, other = float(np.sum(np.abs(parts))), int(np.sum(~np.isfinite(flat)))
    digits = 3 if array.dtype.kind == "f" and array.dtype.itemsize < 8 else 6  # functions of float32 differ a little
    shown = str(round(float(np.sum(parts)), digits - math.floor(math.log10(most)))) if most else "0"
    return f"{shown} and {other}" if other else shown


def told(value: Any) -> str:
    """A value as text; of a work its fields, with cycles for some numbers of elements."""
    if isinstance(value, Work):
        given = {field.name: getattr(value, field.name) for field in fields(value)} | {
            "flops": value.flops,
            "": value.outlining.value,
        }
        shown = [f"{name}={_field(name, item)}" for name, item in given.items() if item not in (None, False)]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(told, value))})"
    return value.name if isinstance(value, ir.Graph) else str(value)


def _field(name: str, value: Any) -> str:
    """Cycles, or bytes, of so many elements; other fields as they are."""
    if name == "reduced" and value is not None:
        return str(np.asarray(value(ELEMENTS)).tolist())
    if name != "cycles":
        return told(value)
    return str(np.asarray(value(ELEMENTS, CHIP)).tolist())


def _parts(*kinds: str, **attributes: Any) -> tuple[ConvolutionPart, ...]:
    """Convolutions of two axes with these attributes and the defaults of the others."""
    given = {"strides": (1, 1), "dilation": (1, 1), "padding": ((0, 0), (0, 0)), "groups": 1,
             "partials_dtype": types.FLOAT32, "available_memory_proportion": None, **attributes}  # fmt: skip
    more = {"ConvTranspose": {"output_padding": (0, 0)}}
    return tuple(ConvolutionPart(kind, tuple({**given, **more.get(kind, {})}.items())) for kind in kinds)


def _spec(dtype: ir.DType, *shape: int) -> ir.TensorSpec:
    return ir.TensorSpec(shape, dtype)


def _call(op_class: type[ops.Op], *operands: Any, **attributes: Any) -> Call:
    return Call(op_class, operands, attributes)


NAMES: dict[str, Any] = {
    **{name: partial(_call, thing) for name, thing in vars(ops).items() if isinstance(thing, type)},
    **{letter: partial(_spec, dtype) for letter, dtype in LETTERS.items()},
    "meta": lambda spec, *shape: ir.TensorSpec(spec.shape, spec.dtype, shape),
    "const": np.float32, "number": np.int32, "parts": _parts, "types": types,
}  # fmt: skip
"""What cases name, wherever they stand."""

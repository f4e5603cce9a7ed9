"""Attributes of ops, with toy ops: what is accepted, what is refused with which words, and when values are settled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.ir import DTypeError, IrError, ShapeError
from ipuperf.ir.attributes import (
    DTYPE,
    FLAG,
    FLOATING,
    INTEGER,
    INTEGERS,
    NAMED_FLOATING,
    NUMBER,
    WHOLE,
    Attribute,
    Kind,
    choice,
    instance,
    many,
    one_or_many,
    optional,
)


def _not_negative(op: Base, axis: int) -> int:
    op.require(axis < 2, f"axis {axis}")
    return axis % 2


class Base(ir.Op):
    """A toy with a required and an optional attribute."""

    type = "Base"

    size = Attribute(INTEGER)
    keepdims = Attribute(FLAG, False)

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise ShapeError(f"{self.where()}: {message}")

    def infer(self) -> list[ir.TensorSpec]:
        return [ir.TensorSpec((self.size,), ir.FLOAT32)]


class Derived(Base):
    """Adds one, which is settled, and one that follows from two others; another default for a third."""

    type = "Derived"

    axis = Attribute(INTEGER, -1, settle=_not_negative)
    whole = Attribute(
        optional(INTEGER), None, settle=lambda op, given: op.size * 10 + op.axis if given is None else given
    )
    keepdims = Attribute(FLAG, True)


def make(op_class: type[ir.Op], **attributes: Any) -> Any:
    return ir.Ir().main_graph.create(op_class, [], ["y"], **attributes)


def test_attributes_are_read_by_name_and_inherited():
    op = make(Derived, size=3)
    assert (op.size, op.axis, op.whole, op.keepdims) == (3, 1, 31, True)
    assert op.attributes == {"size": 3, "axis": 1, "whole": 31, "keepdims": True}
    assert list(Derived.declared) == ["size", "axis", "whole", "keepdims"]
    assert list(Base.declared) == ["size", "keepdims"]
    assert isinstance(Derived.size, Attribute)


def test_settled_values_settle_to_themselves():
    op = make(Derived, size=3, axis=-2, keepdims=False)
    assert make(Derived, **op.attributes).attributes == op.attributes


def test_a_later_decision_is_checked_too():
    op = make(Derived, size=3)
    op.size = np.int32(5)
    assert op.attributes["size"] == 5
    with pytest.raises(IrError, match=r"Derived\.100 .*: size='5'; a whole number is needed"):
        op.size = "5"


@pytest.mark.parametrize(
    ("op_class", "attributes", "message"),
    [
        (
            Base,
            {"size": 3, "keep_dims": True},
            "keep_dims=True \\(did you mean keepdims\\?\\); allowed: size, keepdims",
        ),
        (Base, {"size": 3, "colour": 1}, "no attribute colour=1; allowed: size, keepdims"),
        (Base, {"size": 3, "axis": 1}, "no attribute axis=1"),
        (Base, {"keepdims": True}, "attribute size is missing; a whole number is needed"),
        (Base, {"size": None}, "size=None; a whole number is needed"),
        (Base, {"size": np.zeros((40, 40))}, r"size=array\(.* \.\.\.; a whole number is needed"),
    ],
)
def test_errors_name_op_attribute_value_allowed_and_line(op_class, attributes, message):
    with pytest.raises(IrError, match=message) as caught:
        make(op_class, **attributes)
    assert "\n" not in str(caught.value)
    assert f"Base.100 in main graph at {__file__}:" in str(caught.value)


def test_nothing_is_left_of_an_op_that_was_refused():
    graph = ir.Ir().main_graph
    with pytest.raises(IrError):
        graph.create(Base, [], ["y"], size=True)
    assert (graph.ops, graph.tensors, graph.ir.next_op_id) == ([], {}, 100)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (INTEGER, np.int64(3), 3),
        (INTEGER, np.array(3), 3),
        (NUMBER, 2, 2.0),
        (NUMBER, np.float32(0.5), 0.5),
        (NUMBER, np.float16(0.1), float(np.float16(0.1))),
        (NUMBER, np.array(0.5), 0.5),
        (WHOLE, 3.0, 3),
        (WHOLE, 2**62 + 1, 2**62 + 1),
        (FLAG, np.True_, True),
        (INTEGERS, [1, np.int32(2)], (1, 2)),
        (INTEGERS, np.array([1, 2]), (1, 2)),
        (INTEGERS, range(2), (0, 1)),
        (DTYPE, ir.INT32, ir.INT32),
        (FLOATING, ir.FLOAT16, ir.FLOAT16),
        (NAMED_FLOATING, "float16", ir.FLOAT16),
        (optional(INTEGER), None, None),
        (one_or_many(INTEGER), 4, (4,)),
        (one_or_many(optional(INTEGER)), None, (None,)),
        (many(NUMBER), [1, 2], (1.0, 2.0)),
        (choice("a", "b"), "b", "b"),
    ],
)
def test_natural_values_are_converted(kind: Kind, given: Any, found: Any) -> None:
    made = kind.convert(given)
    assert (made, type(made)) == (found, type(found))
    hash(made)


@pytest.mark.parametrize(
    ("kind", "given", "error", "message"),
    [
        (INTEGER, True, IrError, "=True; a whole number"),
        (INTEGER, np.True_, IrError, "a whole number"),
        (INTEGER, 3.0, IrError, "=3.0; a whole number"),
        (INTEGER, "3", IrError, "='3'; a whole number"),
        (NUMBER, False, IrError, "=False; a number"),
        (NUMBER, "0.5", IrError, "a number"),
        (NUMBER, 1j, IrError, "a number"),
        (WHOLE, 0.5, IrError, "=0.5; a whole number"),
        (WHOLE, float("nan"), IrError, "a whole number"),
        (WHOLE, float("inf"), IrError, "a whole number"),
        (WHOLE, True, IrError, "a whole number"),
        (FLAG, 1, IrError, "=1; True or False"),
        (INTEGERS, 3, IrError, "a tuple of whole numbers"),
        (INTEGERS, (1, True), IrError, "a tuple of whole numbers"),
        (INTEGERS, "12", IrError, "a tuple of whole numbers"),
        (DTYPE, "float32", DTypeError, "='float32'; a DType is needed"),
        (DTYPE, np.float32, DTypeError, "a DType is needed"),
        (FLOATING, ir.INT32, DTypeError, "=int32; a floating-point DType"),
        (optional(FLOATING), ir.INT32, DTypeError, "a floating-point DType or None is needed"),
        (NAMED_FLOATING, "int32", DTypeError, "allowed: float16, float32, float64"),
        (NAMED_FLOATING, "half", DTypeError, "allowed: float16, float32, float64"),
        (one_or_many(INTEGER), (1, None), IrError, "a whole number is needed, or a tuple of these"),
        (choice("a", "b"), "c", IrError, "='c'; allowed: a, b"),
        (choice("a", "b"), ["a"], IrError, "allowed: a, b"),
        (instance(ir.Graph), "main", IrError, "='main'; a Graph is needed"),
    ],
)
def test_other_values_are_refused(kind: Kind, given: Any, error: type[Exception], message: str) -> None:
    class Toy(ir.Op):
        """Takes one value."""

        value = Attribute(kind)

    with pytest.raises(error, match=message) as caught:
        make(Toy, value=given)
    assert isinstance(caught.value, IrError)
    assert "value=" in str(caught.value)

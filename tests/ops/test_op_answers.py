"""What every op says of itself: results, attributes, work with its cycles; and what it refuses."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from answers import together
from opcases import CASES, LETTERS, Call, Place, room, told
from rows import Golden

from ipuperf import ir, ops


def said(op: ops.Op) -> str:
    """Results, attributes, and what the op does to its operands."""
    kept = ", ".join(f"{name}={told(value)}" for name, value in op.attributes.items() if value is not None)
    kinds = [name for name in ("flat", "overwrites", "renames", "rearranges", "replaced") if getattr(op, name)]
    flags = [op.modified_inputs(), op.aliases(), op.views(), op.movable(), op.seen(), op.fixed_ipu(), op.own_phase]
    flags += [op.circumstances(), *kinds]
    specs = [f"{t.shape} {t.dtype} {t.spec.meta_shape}" for t in op.outputs]
    return f"{op.type} -> {', '.join(specs)} ({kept}) {flags}"


def test_no_op_is_forgotten() -> None:
    classes = {
        name for name in ops.__all__ if isinstance(thing := getattr(ops, name), type) and issubclass(thing, ops.Op)
    }
    assert {case.split("(")[0] for case in CASES} == classes - {"Op"}


def test_every_op_asks_for_the_same_work(golden: Golden) -> None:
    """All at once: a line that runs when its module is imported meets this test first."""
    lines = []
    for case in CASES:
        place = Place()
        op = place.op(place.call(case))
        works = [f"    {told(work)}" for work in op.work()]
        lines += [case, f"    {said(op)}", *works]
    golden(lines)


def spoiled(call: Call) -> Iterator[tuple[str, Call]]:
    """The call with one operand or attribute left out, doubled or of another kind in turn."""
    operands, attributes = call.operands, call.attributes
    for n, operand in enumerate(operands):
        if isinstance(operand, ir.TensorSpec):
            for how, other in _other_operands(operand):
                yield f"{n} {how}", call._replace(operands=(*operands[:n], other, *operands[n + 1 :]))
        yield f"-{n}", call._replace(operands=(*operands[:n], *operands[n + 1 :]))
    yield "+", call._replace(operands=(*operands, *operands[-1:]))
    for name, value in attributes.items():
        yield f"-{name}", call._replace(attributes={k: v for k, v in attributes.items() if k != name})
        for other in _other_values(value):
            yield f"{name}={other}", call._replace(attributes={**attributes, name: other})


def _other_operands(spec: ir.TensorSpec) -> Iterator[tuple[str, ir.TensorSpec]]:
    shape = spec.shape
    yield from ((f"{other}", replace(spec, dtype=other)) for other in (LETTERS["h"], LETTERS["f"], LETTERS["i"]))
    yield from ((f"axis {n}", replace(spec, shape=(*shape[:n], k + 1, *shape[n + 1 :]))) for n, k in enumerate(shape))
    yield "more axes", replace(spec, shape=(1, *shape))
    yield "fewer axes", replace(spec, shape=shape[1:])
    yield "empty", replace(spec, shape=(0, *shape[1:]))


def _other_values(value: Any) -> Iterator[Any]:
    yield from (None, "x", (), -1, 0, 1.5, True)
    if isinstance(value, tuple) and value and all(isinstance(member, int) for member in value):
        yield from (value[:-1], (*value, 1), value[::-1], (0, *value[1:]), (*value[:-1], value[-1] + 1))
    elif isinstance(value, int | float):
        yield from (value + 1, -value)


def outcome(call: Call, place: Place) -> str:
    """The op with its work, or why there is none; of an error of Python's the class alone."""
    try:
        op = place.op(call)
        return f"{said(op)} {told(op.work())}"
    except ir.IrError as error:
        return f"{type(error).__name__}: {re.sub(r'case_subgraph.0./', '', str(error))}"
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        return type(error).__name__


@together(CASES, room)
def test_every_spoiled_op(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        place = Place()
        lines += [case, *(f"    {how}: {outcome(call, place)}" for how, call in spoiled(place.call(case)))]
    golden(lines)

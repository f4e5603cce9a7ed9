"""Ops that are lowered in a way of their own, with their gradients, on chips of few tiles, as golden rows: recurrences,
convolutions of images, tables, conditionals and loops with conditions, several convolutions at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from lowered import figures, small
from rows import Golden

from ipuperf import ops
from ipuperf.ir import BOOL, FLOAT16, FLOAT32, INT32, DType, Graph, Ir, Tensor, TensorSpec, Variable
from ipuperf.lowering import OUTLINE_THRESHOLD, NewValues, lower, new_values_program, weight_copies_program
from ipuperf.machine import load_machine
from ipuperf.ops.products.multi_conv import multi_conv_of
from ipuperf.ops.recurrent.cells import CELLS

POD4 = load_machine("pod4")
CHIPS = ((70, 40), (120, 1), (33, 8))
"""Tiles, and by what the memory of each is divided."""
Shape = tuple[int, ...]
Build = Callable[..., Tensor]


def variable(graph: Graph, name: str, shape: Shape, dtype: DType = FLOAT32, ipu: int | None = None) -> Tensor:
    """A variable of the main graph."""
    data = np.zeros(shape, dtype.numpy)
    made = Variable(graph.tensor_id(name), TensorSpec(shape, dtype), graph, data, graph.ir.grouping())
    made.ipu = ipu
    return graph.add(made)


def trained(build: Build, *operands: tuple[Shape, DType]) -> Ir:
    """A program that calls a graph, then its gradient."""
    program = Ir()
    main, net = program.main_graph, program.create_graph("net")
    inputs = [net.add_input(TensorSpec(shape, dtype), f"x{n}") for n, (shape, dtype) in enumerate(operands)]
    result = net.add_output(build(net, *inputs))
    derivative = ops.autodiff(net, [result], [t for t in inputs if t.dtype.is_floating_point])
    for connection in derivative.inputs:
        if not connection.is_gradient and connection.tensor not in (*inputs, *net.outputs):
            net.add_output(connection.tensor)
    given = [variable(main, f"x{n}", shape, dtype) for n, (shape, dtype) in enumerate(operands)]
    made = main.create(ops.Call, given, [f"y{n}" for n in range(len(net.outputs))], callee=net).outputs
    known = dict(zip((*inputs, *net.outputs), (*given, *made), strict=True))
    back = [variable(main, "grad", result.shape, result.dtype) if each.is_gradient else known[each.tensor]
            for each in derivative.inputs]  # fmt: skip
    names = [f"d{n}" for n in range(len(derivative.graph.outputs))]
    main.create(ops.Call, back, names, callee=derivative.graph)
    return program


def one(kind: type[ops.Op], *operands: tuple[Shape, DType], **attributes: Any) -> Ir:
    """An op with its gradient."""
    return trained(lambda graph, *given: graph.create(kind, given, ["y"], **attributes).outputs[0], *operands)


def recurrence(name: str, gates: int, time: int, units: int, dtype: DType = FLOAT32, **attributes: Any) -> Ir:
    """A recurrent layer of 3 sequences."""
    kind, wide = CELLS[name], gates * units
    shapes: list[Shape] = [(time, 3, 24), (wide, 24), (wide, units), *[(wide,)] * (2 if name == "gru" else 1)]
    operands = [(shape, dtype) for shape in (*shapes, *[(3, units)] * kind.states)]
    operands += [((3,), INT32)] if attributes.get("lengths") else []
    operands += [((time, 3), dtype)] if attributes.get("scored") else []
    results = [f"y{n}" for n in range(2 * kind.states + (kind.kept > 0))]

    def build(graph: Graph, *given: Tensor) -> Tensor:
        return graph.create(ops.Recurrent, given, results, cell=name, trains=True, **attributes).outputs[0]

    return trained(build, *operands)


def several(plan_type: str) -> Ir:
    """Two convolutions as one op."""

    def build(graph: Graph, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        first = graph.create(ops.Conv, [x, w], ["a"], groups=2, padding=1)
        second = graph.create(ops.Conv, [x, v], ["b"], padding=1)
        multi_conv_of([first, second], plan_type=plan_type)
        return graph.create(ops.Add, [first.outputs[0], second.outputs[0]], ["y"]).outputs[0]

    return trained(build, ((2, 8, 9, 9), FLOAT16), ((12, 4, 3, 3), FLOAT16), ((12, 8, 3, 3), FLOAT16))


def branch(program: Ir, name: str, kinds: Sequence[type[ops.Op]], ipu: int, home: int = 0) -> Graph:
    """Some ops on an IPU, with operand and result on another, or the same."""
    graph = program.create_graph(name)
    t = graph.add_input(TensorSpec((40, 30), FLOAT32), "t")
    if ipu != home:
        (t,) = graph.create(ops.IpuCopy, [t], ["there"], source=home, destination=ipu).outputs
    for kind in kinds:
        callee = {"callee": branch(program, f"{name}_inner", [ops.Sqrt], ipu, ipu)} if kind is ops.Call else {}
        op = graph.create(kind, [t], [name], **callee)
        op.ipu, t = ipu, op.outputs[0]
    if ipu != home:
        (t,) = graph.create(ops.IpuCopy, [t], ["back"], source=ipu, destination=home).outputs
    graph.add_output(t)
    return graph


def conditional(longer: int, ipus: Sequence[int] = (0, 0)) -> Ir:
    """One of two branches, of which either may be longer, each on an IPU."""
    program = Ir()
    main, kinds = program.main_graph, [(ops.Exp,), (ops.Exp, ops.Call, ops.Sin)][:: 1 if longer else -1]
    graphs = [branch(program, f"branch{n}", each, ipu) for n, (each, ipu) in enumerate(zip(kinds, ipus, strict=True))]
    given = [variable(main, "c", (), BOOL), variable(main, "a", (40, 30)), variable(main, "b", (40, 30))]
    (y,) = main.create(ops.If, given, ["y"], then_branch=graphs[0], else_branch=graphs[1]).outputs
    main.create(ops.Add, [y, y], ["sum"])
    return program


def looped(**attributes: Any) -> Ir:
    """A loop of which one carried value lies elsewhere at the end of a trip."""
    program = Ir()
    main, body = program.main_graph, program.create_graph("body")
    shapes = [((32, 16), FLOAT32), ((16, 16), FLOAT32), ((32,), INT32)]
    _, table, index = (body.add_input(TensorSpec(*each), name) for each, name in zip(shapes, "bti", strict=True))
    for tensor in (body.create(ops.Gather, [table, index], ["rows"], axis=0).outputs[0], table, index):
        body.add_output(tensor)
    given = [variable(main, name, *each) for each, name in zip(shapes, "bti", strict=True)]
    main.create(ops.Loop, given, ["x", "y", "z"], callee=body, **attributes)
    return program


def repeated_layers(count: int) -> Ir:
    """Layers that share code where code is shared."""
    program = Ir()
    main = program.main_graph
    x = variable(main, "x", (24, 36))
    for number in range(count):
        x = main.create(ops.MatMul, [x, variable(main, f"w{number}", (36, 36))], ["y"]).outputs[0]
        x = main.create(ops.Tanh, [x], ["y"]).outputs[0]
        main.create(ops.AddLhsInplace, [variable(main, f"sum{number}", (24, 36)), x], ["s"])
    return program


GATES = {"lstm": 4, "gru": 3, "rnn": 1}
TABLE = ((70, 48), FLOAT32), ((90,), INT32)
UPDATED = ((2000, 40), FLOAT32), ((2000,), INT32)
PROGRAMS: Mapping[str, Mapping[str, Callable[[], Ir]]] = {
    **{f"{cell} of {time}": {cell: partial(recurrence, cell, gates, time, 20)}
       for cell, gates in GATES.items() for time in (3, 60)},
    "lengths": {"gru": partial(recurrence, "gru", 3, 6, 20, lengths=True, scored=True),
                "lstm": partial(recurrence, "lstm", 4, 6, 20, lengths=True)},
    "half lstm": {"half lstm": partial(recurrence, "lstm", 4, 20, 16, FLOAT16)},
    "images": {
        "image": partial(one, ops.Conv, ((2, 3, 12, 12), FLOAT16), ((8, 3, 3, 3), FLOAT16), padding=1),
        "grey": partial(one, ops.Conv, ((4, 1, 10, 10), FLOAT32), ((6, 1, 3, 3), FLOAT32), strides=2),
    },
    "deep": {
        "groups": partial(one, ops.Conv, ((2, 8, 9, 9), FLOAT16), ((8, 4, 3, 3), FLOAT16), groups=2),
        "transposed": partial(one, ops.ConvTranspose, ((2, 8, 5, 5), FLOAT32), ((8, 6, 3, 3), FLOAT32), strides=2),
    },
    "tables": {"rows": partial(one, ops.Gather, *TABLE, axis=0),
               "parts of rows": partial(one, ops.Gather, ((700, 8), FLOAT16), ((20,), INT32), axis=0)},
    **{f"updates {name}": {name: partial(one, ops.ScatterReduce, *UPDATED, axis=0, axis_size=30, reduction=name)}
       for name in ("sum", "max")},
    "branches": {"then": partial(conditional, 0), "else": partial(conditional, 1),
                 "other IPUs": partial(conditional, 1, (0, 1))},
    "loops": {"plain": partial(looped, trip_count=3), "conditional": partial(looped, trip_count=3, conditional=True),
              "one trip": partial(looped, trip_count=1)},
    **{f"{plan_type} convolutions": {plan_type: partial(several, plan_type)} for plan_type in ("parallel", "serial")},
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROGRAMS)
def test_ops_are_lowered_the_same(name: str, golden: Golden) -> None:
    chips = CHIPS[list(PROGRAMS).index(name) % 2 :]
    programs = [(make, chip) for make in PROGRAMS[name].values() for chip in chips[:2]]
    golden([figures(lower(make(), small(POD4, *chip))) for make, chip in programs])


@pytest.mark.parametrize("threshold", [None, 0.1, OUTLINE_THRESHOLD, 1001.0])
def test_layers_share_code(threshold: float | None, golden: Golden) -> None:
    chip = small(POD4, *CHIPS[1])
    golden([figures(lower(repeated_layers(count), chip, outlining=threshold)) for count in (2, 5)])


@pytest.mark.parametrize("scalars", [(0, 0), (3, 0), (2, 1)])
def test_programs_beside_the_main_one(scalars: tuple[int, int], golden: Golden) -> None:
    """New values and weights, on two IPUs."""
    program = conditional(1, (0, 1))
    main = lower(program, POD4)
    weights = [t for t in program.main_graph.tensors.values() if isinstance(t, Variable)]
    beside = [new_values_program(NewValues("values", scalars, shared), main) for shared in (0, 2)]
    beside += [weight_copies_program(weights, direction, main) for direction in ("h2d", "d2h")]
    golden([figures(each) for each in beside])

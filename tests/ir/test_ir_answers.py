"""What the functions and classes of the ir answer, raise and write into a program: a golden row for each call."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answers import called_lines, listed, spoiled_lines, together
from rows import Golden

from ipuperf import ir as base
from ipuperf import ops
from ipuperf.ir import CONTEXT, FLOAT32, attributes, dtype, float8, graph, location, replicas
from ipuperf.ir.builder import is_host_data

CALLS = """
x + y, 1 + x, x - y, 1 - x, x * y, 2.0 * x, x / y, 1 / x
x // y
x % y, 3 % x, x ** y, 2 ** x
x @ y.graph.operate(ops.Transpose, [y]), abs(x), -x
x < y, x <= 1, x > y, x >= 1
~(x < y), (x < y) & (x > 1), (x < y) | (x > 1), True & (x < y), False | (x < y)
x + "a"
x + np.ones(3)
"a" - x
x.operate("nothing", x), x.operate("add", x, y)
np.ones(3) @ x
[getattr(operators, f"__{name}__")(recorder, 5) for name in BOTH]
[getattr(operators, f"__{name}__")(recorder) for name in ("neg", "abs", "invert")]
operators.operate(recorder, "add")
{name: function(7, 2) for name, function in PYTHON.items() if name not in ("negate", "abs", "logical_not", "matmul")}, PYTHON["negate"](3), PYTHON["abs"](-3), PYTHON["logical_not"](3)
[(d.name, d.size, d.is_floating_point, d.is_integer, str(d.numpy)) for d in base.ALL_DTYPES.values()]
dtype.dtype_of(np.zeros(2, np.int8)), dtype.dtype_of(np.float16(1)), dtype.dtype_of(np.zeros(2, [("float8_143", "uint8")])), dtype.dtype_of(np.zeros(2, [("float8_152", "uint8")]))
dtype.dtype_of(np.zeros(2, np.complex64))
dtype.dtype_of(np.zeros(2, [("other", "uint8")]))
dtype.converted(np.float32([-128.9, 127.9]), np.dtype(np.int8), "x")
dtype.converted(np.float32([-129]), np.dtype(np.int8), "x")
dtype.converted(np.float32([128]), np.dtype(np.int8), "x")
dtype.converted(np.float32([np.nan]), np.dtype(np.int8), "x")
dtype.converted(np.float32([-0.5]), np.dtype(np.uint8), "x"), dtype.converted(np.zeros(0), np.dtype(np.int8), "x")
dtype.converted(np.array([1e6]), np.dtype(np.float16), "x"), dtype.converted(np.array([300]), np.dtype(np.float32), "x")
dtype.converted(np.array([300]), np.dtype(np.uint8), "x")
float8.values(base.FLOAT8_143)[:128].tolist()
float8.values(base.FLOAT8_152)[:128].tolist()
float8.values(base.FLOAT8_143)[128:], float8.values(base.FLOAT8_152)[128:]
float8.decoded(float8.encoded(grid, base.FLOAT8_143), base.FLOAT8_143)
float8.decoded(float8.encoded(grid, base.FLOAT8_152), base.FLOAT8_152)
[float8.encoded(np.array(ties), d, scale, nan) for d in (base.FLOAT8_143, base.FLOAT8_152) for scale in (0, 1, -2) for nan in (False, True)]
float8.encoded(np.array([1.0, 1.0]), base.FLOAT8_143, np.array([0, 3])), float8.encoded(np.float32(3), base.FLOAT8_152).shape
[(s, k.kind.needed, k.kind.error.__name__) for s, k in ops.MatMul.declared.items()]
attributes.optional(attributes.INTEGER).convert(None), attributes.optional(attributes.INTEGER).needed, attributes.optional(attributes.INTEGER).exact == {int, type(None)}
attributes.many(attributes.INTEGER).convert([np.int8(1), 2]), attributes.many(attributes.FLAG).needed, attributes.one_or_many(attributes.INTEGER).convert(3), attributes.one_or_many(attributes.INTEGER).convert((3, 4)), attributes.one_or_many(attributes.INTEGER).needed
attributes.INTEGER.convert(True)
attributes.INTEGER.convert(1.0)
attributes.INTEGER.convert(np.bool_(True))
attributes.NUMBER.convert(np.array(2)), attributes.NUMBER.convert(3), attributes.NUMBER.convert(np.float16(1.5))
attributes.NUMBER.convert(np.array([2.0]))
attributes.NUMBER.convert(True)
attributes.NUMBER.convert(np.bool_(True))
attributes.NUMBER.convert("1")
attributes.WHOLE.convert(3.0), attributes.WHOLE.convert(4), attributes.WHOLE.convert(np.float32(2))
attributes.WHOLE.convert(3.5)
attributes.WHOLE.convert(True)
attributes.FLAG.convert(np.bool_(False))
attributes.FLAG.convert(1)
attributes.INTEGERS.convert(range(3)), attributes.INTEGERS.convert(np.array([1, 2])), attributes.INTEGERS.needed
attributes.INTEGERS.convert("ab")
attributes.DTYPE.convert("float32")
attributes.FLOATING.convert(base.INT32)
attributes.NAMED_FLOATING.convert("float16"), attributes.NAMED_FLOATING.convert(base.FLOAT32)
attributes.NAMED_FLOATING.convert("int32")
attributes.NAMED_FLOATING.convert("float3")
attributes.choice("a", 3).convert(3), attributes.choice("a", 3).needed
attributes.choice("a", 3).convert("b")
attributes.instance(dict).convert({}), attributes.instance(dict).needed
attributes.instance(dict).convert([])
build.create(ops.Softmax, [x], ["s"], axi=1)
build.create(ops.Softmax, [x], ["s"], nothing_like_it=1)
build.create(ops.Exp, [x], ["s"], axis=1)
build.create(ops.Softmax, [x], ["s"], axis="x" * 200)
build.create(ops.Softmax, [x], ["s"])
build.create(ops.Softmax, [x], ["s"], axis=5)
build.create(ops.Transpose, [x], ["s"], permutation=(1, 0)).permutation
s = build.create(ops.Transpose, [x], ["s"], permutation=(1, 0)); setattr(s, "permutation", [0, 1]); s.attributes
s = build.create(ops.Transpose, [x], ["s"], permutation=(1, 0)); setattr(s, "permutation", 5)
build.create(ops.Sum, [x], ["s"], axes=(0,), keepdims=1)
build.op(ops.Exp, [x]), build.op(ops.Exp, [x], "named"), build.op(ops.Exp, [x], "named")
build.copy(build.create(ops.Exp, [x], ["e"]), [y])
build.operands(x, 2, [1.0, 2.0]), build.operands(1, 2.5), build.operands(x, y)
build.operands(x, "a")
build.operands({}, x)
[is_host_data(v) for v in (True, 1, 1.5, np.ones(2), np.float32(1), [1], (1,), range(2), "a", None, {}, x)]
base.Builder(inner).create(ops.Exp, [x], ["e"])
main.create(base.Op, [x], ["e"])
main.add_output(inner.inputs[0])
main.add_output(x), main.outputs
main.add(x)
main.constant(3), main.constant([1.5], FLOAT32), main.constant([1.5], FLOAT32, "named"), main.constant(np.int64([1]), base.INT32)
main.constant(np.array(["a"]))
inner.add_input(base.TensorSpec((2,), FLOAT32), "r", by_ref=True).by_ref, inner.inputs
main.intermediate(base.TensorSpec((2,), FLOAT32), "i"), main.intermediate(base.TensorSpec((2,), FLOAT32), "i"), main.tensor_id("i"), main.tensor_id("free")
main.require_own("what", x), main.require_own("what", inner.inputs[0])
base.Ir().main_graph.require_own("what", x)
main.append_operand(call, y), call.inputs
main.append_operand(call, inner.inputs[0])
main.append_output(call, base.TensorSpec((2,), FLOAT32), "more"), call.outputs
main.constrain(x.producer, call), needs(main)
main.called_graphs(), inner.called_graphs(), base.calling(main), base.below(main), base.below(inner)
main, inner, main.is_main, inner.is_main, main.scope, inner.scope
base.data_of(main)
ir.create_graph("stem"), ir.create_graph("stem"), ir.create_named_graph("exact"), ir.take_subgraph_number()
ir.create_named_graph("")
ir.create_named_graph("exact"); ir.create_named_graph("exact")
ir.take_op_id(), ir.take_op_id(), ir.next_op_id
ir.grouping(), ir.grouping(2), ir.grouping(1, 2)
ir.grouping(3)
ir.remote_buffer([2, 3], FLOAT32, 4), ir.remote_buffer((6,), FLOAT32, 1, (2, 3)).meta_shape, ir.remote_buffers
ir.remote_buffer((2,), FLOAT32, 0)
ir.all_graphs(), ir.variables(), ir.streams(), ir.streams("h2d"), ir.streams("d2h")
base.Ir(), base.Ir().replication_factor, ir.num_host_transfers, ir.num_io_tiles, ir.checks_ambiguity, ir.sealed
setattr(ir, "sealed", True); main.add_input(base.TensorSpec((), FLOAT32), "late")
setattr(ir, "sealed", True); x + y
setattr(ir, "sealed", True); ir.remote_buffer((2,), FLOAT32, 1)
setattr(ir, "sealed", True); ir.create_graph("late")
setattr(ir, "sealed", True); main.constrain(x.producer, call)
setattr(ir, "sealed", True); main.add_output(x)
setattr(ir, "sealed", True); main.append_operand(call, x)
setattr(ir, "sealed", True); main.append_output(call, x.spec, "late")
within(ir.frozen(), lambda: x + y)
within(ir.frozen(), lambda: main.constant(3))
within(ir.frozen(), lambda: base.schedule(main) is base.schedule(main)), base.schedule(main) is base.schedule(main), main.facts
within(ir.checked(), lambda: sorted(f.__name__ for f in main.facts)), main.facts
nested(3, 3).callees_first()
nested(3, 2).callees_first()
nested(3, 3)._depths()
recursive.callees_first()
before = sys.getrecursionlimit(); within(nested(3, 5).deep_calls(), lambda: sys.getrecursionlimit() - before), sys.getrecursionlimit() - before
graph.remap([x, y], {x: y})
base.expose(inner, [inner.tensors["inner_subgraph(0)/exp_out"]]), inner.outputs, call.outputs
base.gradient_name(x), base.describe([x, y]), base.describe([])
x.name, x.shape, x.dtype, x.meta_shape, x.spec.elements, x.spec.bytes, str(x.spec), inner.inputs[0].name, x
base.Tensor("odd", x.spec, inner).name, base.Tensor("odd", x.spec, main).name
v.replica_shape, v.host_shape, v.in_sync, w.replica_shape, w.host_shape, v.retrieval, v.remote, v.shard_over
base.Stream("s", x.spec, main, "both")
base.Stream("s", x.spec, main, "h2d").transfers
[op.label for op in base.schedule(main)], base.format_schedule(main), base.format_schedule(inner, {inner.inputs[0]: "named"})
x.producer.where(), x.producer, x.producer.label, x.producer.movable(), call.movable(), call.calls(), x.producer.calls(), x.producer.seen(), call.unseen_changes()
x.producer.gradient(None, [])
base.Op.gradient(call, None, [])
base.Op.infer(call)
[(g.assignment, g.groups, g.num_groups, g.regular, g.finest()) for g in (base.ReplicaGrouping(8, 2, 2), base.ReplicaGrouping(8, 4), base.ReplicaGrouping(4))]
base.ReplicaGrouping(4, 2, 1), base.ReplicaGrouping(4, 1, 4).transpose(), base.ReplicaGrouping(8, 2, 2).transpose(), base.ReplicaGrouping(8, 2, 2).transpose().transpose()
base.ReplicaGrouping(4, 0)
base.ReplicaGrouping(4, -1)
base.ReplicaGrouping(4, 1, 3)
base.ReplicaGrouping(4, 1, -1)
base.grouping_of([0, 1, 1, 0]), base.grouping_of([0, 1, 1, 0]).finest(), base.grouping_of([0, 0, 1, 1]), base.grouping_of([0, 1]), base.grouping_of([0, 0])
[base.grouping_of(a).finest() for a in ([0, 0, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 1, 1, 1, 0], [0, 1, 2, 0, 2, 1], [0, 0, 1, 2, 1, 2])]
base.grouping_of([1, 0])
base.grouping_of([0, 0, 1])
replicas._pieces((0, 1, 4, 5, 9), 1), replicas._pieces((0,), 1)
within(CONTEXT.sequence("other"), lambda: 1)
within(CONTEXT.sequence(True), lambda: [x + y, x * y, x - y]), needs(main)
within(CONTEXT.sequence(True), lambda: [x + y, within(CONTEXT.sequence(False), lambda: [x * y, x - y]), x / y]), needs(main)
within(CONTEXT.sequence(False), lambda: [x + y, within(CONTEXT.sequence(True), lambda: [x * y, x - y]), x / y]), needs(main)
within(CONTEXT.sequence(True), lambda: [x + y, within(CONTEXT.sequence("pass"), lambda: [x * y, x - y]), x / y]), needs(main)
within(CONTEXT.scope("a"), lambda: within(CONTEXT.scope("b"), lambda: (x + y).producer.scope))
within(CONTEXT.on_ipu(3), lambda: [(x + y).ipu, (x + y).producer.ipu, within(CONTEXT.on_ipu(None), lambda: (x + y).ipu)])
within(CONTEXT.on_tiles("io"), lambda: (x + y).producer.tile_set), (x + y).producer.tile_set
within(CONTEXT.phase("bwd"), lambda: [(x + y).producer.phase, within(CONTEXT.phase(None), lambda: (x + y).producer.phase)]), (x + y).producer.phase
within(CONTEXT.scope("a"), lambda: within(CONTEXT.on_ipu(1), lambda: within(CONTEXT.detached(), lambda: [(x + y).producer.scope, (x + y).ipu]) + [(x + y).producer.scope, (x + y).ipu]))
within(CONTEXT.on_tiles("io"), lambda: within(CONTEXT.detached(2, base.Builder(main), "update"), lambda: [(x + y).producer.tile_set, (x + y).ipu, (x + y).producer.phase, len(CONTEXT.builders), CONTEXT.phases])), len(CONTEXT.builders), CONTEXT.phases
within(CONTEXT.detached(0, base.Builder(base.Ir().main_graph)), lambda: 1)
within(CONTEXT.use_graph(base.Ir().main_graph), lambda: 1)
within(CONTEXT.use_graph(inner), lambda: CONTEXT.graph), CONTEXT.graph, CONTEXT.builder_of(inner).graph
base.BuildContext().graph
base.BuildContext().builder_of(inner).graph
within(build.named("n"), lambda: [build.op(ops.Exp, [x]), build.op(ops.Exp, [x], "own")]), build.naming
within(build.set("location", "here:1"), lambda: build.op(ops.Exp, [x]).producer.location), build.location
location._PASSED_OVER["ipuperf.a"], location._PASSED_OVER["mine.ipuperf"]
"""  # noqa: E501
BOTH = [
    f"{side}{name}"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or")
    for side in ("", "r")
] + ["lt", "le", "gt", "ge"]


class Recorder(base.Operators):
    """Says what each operator asks for."""

    def operate(self, function: str, *operands: Any) -> Any:
        return function, ["itself" if value is self else value for value in operands]

    def __repr__(self) -> str:
        return "recorder"


def needs(graph: base.Graph) -> list[tuple[int, list[int]]]:
    """The constraints of a graph by the ids of its ops."""
    return sorted((op.id, sorted(other.id for other in before)) for op, before in graph.constraints.items())


def within(context: Any, act: Any) -> Any:
    with context:
        return act()


@contextmanager
def program() -> Iterator[dict[str, Any]]:
    """The names that the expressions use, in a new program on four replicas whose main graph is open."""
    ir = base.Ir(4)
    main, inner = ir.main_graph, ir.create_graph("inner")
    spec = base.TensorSpec((2, 4), FLOAT32)
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    with CONTEXT.use_graph(inner):
        inner.add_output(abs(-inner.add_input(spec, "x")) + 1)
        CONTEXT.builder.op(ops.Exp, inner.inputs)

    def nested(deep: int, most: int) -> base.Ir:
        monkeypatch.setattr(graph, "MAX_NESTING", most)
        other = base.Ir()
        above = other.main_graph
        for number in range(deep):
            below = other.create_named_graph(f"g{number}")
            above.create(ops.Call, [], [], callee=below)
            above = below
        return other

    recursive = base.Ir()
    one, two = recursive.create_graph("one"), recursive.create_graph("two")
    one.create(ops.Call, [], [], callee=two)
    two.create(ops.Call, [], [], callee=one)
    with CONTEXT.use_graph(main), pytest.MonkeyPatch.context() as monkeypatch:
        w = main.add(base.Variable("w", spec, main, data, ir.grouping()))
        v = main.add(
            base.Variable("v", base.TensorSpec((4,), FLOAT32, (2, 4)), main, np.stack([data] * 2), ir.grouping(1, 2))
        )
        main.add(base.Stream("in", spec, main, "h2d"))
        main.add(base.Stream("out", spec, main, "d2h"))
        x, y = w + 1, main.constant(data, name="y")
        yield {
            "base": base, "ops": ops, "np": np, "sys": sys, "ir": ir, "main": main, "inner": inner,
            "x": x, "y": y, "v": v, "w": w, "attributes": attributes, "dtype": dtype, "float8": float8, "graph": graph,
            "replicas": replicas,
            "location": location, "CONTEXT": CONTEXT, "FLOAT32": FLOAT32,
            "is_host_data": is_host_data, "build": CONTEXT.builder, "within": within, "needs": needs, "nested": nested,
            "recursive": recursive, "recorder": Recorder(), "operators": base.Operators, "BOTH": BOTH,
            "PYTHON": base.operators.PYTHON, "call": main.create(ops.Call, [x], ["c"], callee=inner),
            "grid": np.ldexp(np.arange(-17, 17) / 16, np.arange(-12, 22)),
            "ties": [0.0, -0.0, 2.0**-11, 3 * 2.0**-12, 1.0625, 1.1875, 232,
                     248, 247.9, -248, 57344, 61440, 1e9, np.inf, np.nan],
        }  # fmt: skip


@together(listed(CALLS))
def test_every_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with program() as names:
            lines += called_lines(case, names, names["ir"])
    golden(lines)


@together(line for line in listed(CALLS) if line.startswith(("build.", "ir.", "base.")))
def test_every_spoiled_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with program() as names:
            lines += spoiled_lines(case, names, names["ir"])
    golden(lines)


def test_what_can_be_detached_and_goes_to_no_host_is_no_data() -> None:
    assert not is_host_data(SimpleNamespace(detach=len))

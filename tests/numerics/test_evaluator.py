"""The evaluator against plain NumPy: storage, control flow, streams, remote buffers, replicas."""

import weakref

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import EvaluationError, Evaluator, StreamedInput
from ipuperf.ops import Accumulate, CopyVarUpdate, ScaledAddLhsInplace
from ipuperf.ops.control import Call, Loop
from ipuperf.ops.elementwise.arithmetic import Add, AddLhsInplace, Mul, Sub
from ipuperf.ops.products.matmul import MatMul
from ipuperf.ops.shape import Init, Reshape, Transpose, TransposeInplace
from ipuperf.ops.transfers.remote import RemoteEntryError, RemoteLoad, RemoteStore

F32 = ir.FLOAT32


def spec(*shape, dtype=F32):
    return ir.TensorSpec(shape, dtype)


def test_values_pass_through_streams(program):
    p = program()
    x = p.stream("x", (2, 3))
    loaded = p.load(x)
    out = p.store(p.op(Add, [loaded, loaded]))
    evaluator = p.evaluator()
    data = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    assert evaluator.required_inputs() == [x]
    assert evaluator.produced_outputs() == [out]
    first = evaluator.run({x: data})[out]
    np.testing.assert_array_equal(first, 2 * data)
    evaluator.run({x: -data})
    np.testing.assert_array_equal(first, 2 * data)  # results of a run survive the next one


def test_in_place_changes_the_variables_array(program):
    p = program()
    w = p.variable("w", np.ones((3,), np.float32))
    p.op(AddLhsInplace, [w, p.main.constant(np.float32(2))])
    evaluator = p.evaluator()
    array = evaluator.variables[w]
    evaluator.run()
    evaluator.run()
    assert evaluator.variables[w] is array
    np.testing.assert_array_equal(array, np.full((1, 3), 5, np.float32))
    np.testing.assert_array_equal(w.data, 1)
    host = w.data
    evaluator.store_variables()
    assert w.data is host
    np.testing.assert_array_equal(host, 5)


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("second", ["itself", "transposed", "another"])
def test_a_tensor_passed_twice_by_reference(program, second, looped):
    """What the callee read of one operand stays, though it then changes the other, which is the same memory."""
    p = program()
    w, other = (p.variable(n, np.arange(4, dtype=np.float32).reshape(2, 2)) for n in ("w", "z"))
    total = p.variable("total", np.zeros((2, 2), np.float32))
    callee = p.ir.create_graph("f")
    a, b, t = (callee.add_input(spec(2, 2), n, by_ref=True) for n in "abt")
    turned = p.op(Transpose, [a], callee, permutation=(1, 0))
    p.op(AddLhsInplace, [b, callee.constant(np.float32(10))], callee)
    p.op(AddLhsInplace, [t, turned], callee)
    twin = {"itself": w, "another": other}.get(second) or p.op(TransposeInplace, [w], permutation=(1, 0))
    p.op(Loop if looped else Call, [w, twin, total], callee=callee, **({"trip_count": 1} if looped else {}))
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.variables[total][0], [[0, 2], [1, 3]])
    np.testing.assert_array_equal(evaluator.variables[other if second == "another" else w][0], [[10, 11], [12, 13]])


def test_in_place_through_a_view_is_seen_by_the_source(program):
    p = program()
    w = p.variable("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    view = p.op(TransposeInplace, [w], permutation=(1, 0))
    p.op(AddLhsInplace, [view, p.main.constant(np.array([10, 20], np.float32))])
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.variables[w][0], [[10, 11, 12], [23, 24, 25]])


@pytest.mark.parametrize("reuse_after", [False, True])
def test_transpose_keeps_the_old_value_when_its_source_changes(program, reuse_after):
    p = program()
    w = p.variable("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    turned = p.op(Transpose, [w], permutation=(1, 0))
    early = p.store(p.op(Add, [turned, turned]), "early")
    p.op(AddLhsInplace, [w, p.main.constant(np.float32(100))])
    late = p.store(p.op(Add, [turned, turned]), "late") if reuse_after else None
    evaluator = p.evaluator()
    result = evaluator.run()
    expected = 2 * np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(result[early][0, 0], expected)
    if late:
        np.testing.assert_array_equal(result[late][0, 0], expected)


def test_chain_of_copies_keeps_the_old_value(program):
    p = program()
    w = p.variable("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    flat = p.op(Reshape, [p.op(Transpose, [w], permutation=(1, 0))], shape=(6,))
    again = p.op(Reshape, [flat], shape=(2, 3))
    p.op(AddLhsInplace, [w, p.main.constant(np.float32(100))])
    out = p.store(again)
    expected = np.arange(6, dtype=np.float32).reshape(2, 3).T.reshape(2, 3)
    np.testing.assert_array_equal(p.evaluator().run()[out][0, 0], expected)


# -- calls ---------------------------------------------------------------------------------------------------------


def adding_graph(p, by_ref):
    graph = p.ir.create_graph("add")
    target = graph.add_input(spec(2), "target", by_ref=by_ref)
    value = graph.add_input(spec(2), "value")
    graph.add_output(p.op(AddLhsInplace, [target, value], graph))
    return graph


@pytest.mark.parametrize("by_ref", [False, True])
def test_call_by_value_and_by_reference(program, by_ref):
    p = program()
    graph = adding_graph(p, by_ref)
    w = p.variable("w", np.array([1, 2], np.float32))
    v = p.variable("v", np.array([10, 20], np.float32))
    (result,) = p.op(Call, [w, v], callee=graph)
    assert result.producer.modified_inputs() == ((0,) if by_ref else ())
    out = p.store(result)
    evaluator = p.evaluator()
    np.testing.assert_array_equal(evaluator.run()[out][0, 0], [11, 22])
    np.testing.assert_array_equal(evaluator.variables[w][0], [11, 22] if by_ref else [1, 2])


def test_by_reference_at_one_call_site_only(program):
    p = program()
    graph = adding_graph(p, False)
    w = p.variable("w", np.array([1, 2], np.float32))
    v = p.variable("v", np.array([10, 20], np.float32))
    p.op(Call, [w, v], callee=graph)
    p.op(Call, [w, v], callee=graph, by_ref=(0,))
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.variables[w][0], [11, 22])


def test_call_results_do_not_alias_the_callers_tensors(program):
    p = program()
    graph = p.ir.create_graph("same")
    x = graph.add_input(spec(2), "x")
    graph.add_output(x)
    graph.add_output(x)
    w = p.variable("w", np.array([1, 2], np.float32))
    first, second = p.op(Call, [w], callee=graph)
    p.op(AddLhsInplace, [first, p.main.constant(np.float32(5))])
    p.op(AddLhsInplace, [w, p.main.constant(np.float32(100))])
    a, b, c = (p.store(t, n) for t, n in ((first, "a"), (second, "b"), (w, "c")))
    result = p.evaluator().run()
    np.testing.assert_array_equal([result[s][0, 0] for s in (a, b, c)], [[6, 7], [1, 2], [101, 102]])


def test_call_results_that_share_memory_inside_are_apart_outside(program):
    p = program()
    graph = p.ir.create_graph("views")
    x = graph.add_input(spec(2, 2), "x")
    y = p.op(Add, [x, x], graph)
    for tensor in (y, p.op(TransposeInplace, [y], graph, permutation=(1, 0)), y):
        graph.add_output(tensor)
    w = p.variable("w", np.array([[1, 2], [3, 4]], np.float32))
    first, second, third = p.op(Call, [w], callee=graph)
    p.op(AddLhsInplace, [first, p.main.constant(np.float32(5))])
    streams = [p.store(t, n) for t, n in ((first, "a"), (second, "b"), (third, "c"))]
    result = p.evaluator().run()
    expected = [[[7, 9], [11, 13]], [[2, 6], [4, 8]], [[2, 4], [6, 8]]]
    np.testing.assert_array_equal([result[s][0, 0] for s in streams], expected)


def test_value_operand_that_shares_memory_with_a_changed_one(program):
    p = program()
    graph = p.ir.create_graph("both")
    target = graph.add_input(spec(2), "target", by_ref=True)
    value = graph.add_input(spec(2), "value")
    p.op(AddLhsInplace, [target, value], graph)
    graph.add_output(p.op(Add, [value, value], graph))
    w = p.variable("w", np.array([1, 2], np.float32))
    (result,) = p.op(Call, [w, w], callee=graph)
    out = p.store(result)
    evaluator = p.evaluator()
    np.testing.assert_array_equal(evaluator.run()[out][0, 0], [2, 4])  # the value passed in, not the changed one
    np.testing.assert_array_equal(evaluator.variables[w][0], [2, 4])


def test_nested_calls_by_reference(program):
    p = program()
    inner = adding_graph(p, True)
    outer = p.ir.create_graph("outer")
    state = outer.add_input(spec(2), "state", by_ref=True)
    step = outer.add_input(spec(2), "step")
    p.op(Call, [state, step], outer, callee=inner)
    p.op(Call, [state, step], outer, callee=inner)
    w = p.variable("w", np.zeros(2, np.float32))
    v = p.variable("v", np.array([1, 2], np.float32))
    p.op(Call, [w, v], callee=outer)
    p.op(Call, [w, v], callee=outer)
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.variables[w][0], [4, 8])


# -- loops ---------------------------------------------------------------------------------------------------------


def test_loop_carries_values_and_swaps(program):
    """Fibonacci: the outputs are the inputs of the next trip, crosswise."""
    p = program()
    body = p.ir.create_graph("fib")
    a, b = body.add_input(spec(), "a"), body.add_input(spec(), "b")
    body.add_output(b)
    body.add_output(p.op(Add, [a, b], body))
    x, y = p.variable("x", np.float32(0)), p.variable("y", np.float32(1))
    outs = p.op(Loop, [x, y], callee=body, trip_count=10)
    streams = [p.store(t, f"o{i}") for i, t in enumerate(outs)]
    evaluator = p.evaluator()
    for _ in range(2):
        result = evaluator.run()
        assert [float(result[s][0, 0]) for s in streams] == [55.0, 89.0]
    assert float(evaluator.variables[x][0]) == 0


def test_loop_without_trips_returns_its_inputs(program):
    p = program()
    body = p.ir.create_graph("body")
    a = body.add_input(spec(2), "a")
    body.add_output(p.op(Add, [a, a], body))
    x = p.variable("x", np.array([3, 4], np.float32))
    (out,) = p.op(Loop, [x], callee=body, trip_count=0)
    s = p.store(out)
    np.testing.assert_array_equal(p.evaluator().run()[s][0, 0], [3, 4])


def test_loop_with_carried_value_changed_in_place_and_implicit_inputs(program):
    p = program()
    body = p.ir.create_graph("body")
    total = body.add_input(spec(2), "total")
    step = body.add_input(spec(2), "step")
    seen = body.add_input(spec(2), "seen", by_ref=True)
    p.op(AddLhsInplace, [seen, step], body)
    p.op(AddLhsInplace, [step, step], body)  # by value: every trip starts from the caller's step
    body.add_output(p.op(AddLhsInplace, [total, step], body))
    start = p.variable("start", np.array([1, 1], np.float32))
    step_v = p.variable("step", np.array([1, 2], np.float32))
    seen_v = p.variable("seen", np.zeros(2, np.float32))
    (out,) = p.op(Loop, [start, step_v, seen_v], callee=body, trip_count=3)
    s = p.store(out)
    evaluator = p.evaluator()
    np.testing.assert_array_equal(evaluator.run()[s][0, 0], [7, 13])
    np.testing.assert_array_equal(evaluator.variables[start][0], [1, 1])
    np.testing.assert_array_equal(evaluator.variables[step_v][0], [1, 2])
    np.testing.assert_array_equal(evaluator.variables[seen_v][0], [3, 6])


def test_nested_loops_and_stream_order(program):
    """Every execution of a load takes the next slice, every store writes the next one."""
    p = program(transfers=6)
    x, out = p.stream("x", (2,)), p.stream("out", (2,), direction="d2h")
    inner = p.ir.create_graph("inner")
    total = inner.add_input(spec(2), "total")
    value = p.op(Add, [total, p.load(x, inner)], inner)
    p.store(value, stream=out)
    inner.add_output(value)
    outer = p.ir.create_graph("outer")
    start = outer.add_input(spec(2), "start")
    outer.add_output(p.op(Loop, [start], outer, callee=inner, trip_count=3)[0])
    w = p.variable("w", np.zeros(2, np.float32))
    p.op(Loop, [w], callee=outer, trip_count=2)
    data = np.arange(12, dtype=np.float32).reshape(6, 1, 2)
    np.testing.assert_array_equal(p.evaluator().run({x: data})[out], data.cumsum(axis=0))


def test_a_streamed_input_is_made_slice_by_slice(program):
    p = program(transfers=50)
    x, out = p.stream("x", (2,)), p.stream("out", (2,), direction="d2h")
    body = p.ir.create_graph("body")
    total = body.add_input(spec(2), "total")
    body.add_output(p.op(Add, [total, p.load(x, body)], body))
    p.store(body.outputs[0], stream=out)
    p.op(Loop, [p.variable("w", np.zeros(2, np.float32))], callee=body, trip_count=50)
    made, alive = [], []

    def slices():
        for number in range(50):
            alive.append(sum(reference() is not None for reference in made))
            array = np.full((1, 2), number, np.float32)
            made.append(weakref.ref(array))
            yield array

    found = p.evaluator().run({x: StreamedInput(slices(), (50, 1, 2), np.dtype(np.float32))})[out]
    np.testing.assert_array_equal(found[:, 0, 0], np.arange(50).cumsum())
    assert len(made) == 50
    assert max(alive) <= 2


def test_two_loads_per_run_take_successive_slices(program):
    p = program()
    x = p.stream("x", (1,))
    first, second = p.load(x), p.load(x)
    out = p.store(p.op(Sub, [first, second]))
    evaluator = p.evaluator()
    assert evaluator.run({x: np.array([[[5.0]], [[3.0]]], np.float32)})[out].item() == 2
    with pytest.raises(EvaluationError, match=r"'x'.*beyond the 1 slices"):
        evaluator.run({x: np.zeros((1, 1, 1), np.float32)})


def test_errors_name_the_stream(program):
    p = program(replicas=2)
    x = p.stream("x", (3,))
    p.store(p.load(x))
    other = p.stream("other", (3,))
    evaluator = p.evaluator()
    good = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(EvaluationError, match="missing 'x'"):
        evaluator.run({})
    with pytest.raises(EvaluationError, match="unexpected 'other'"):
        evaluator.run({x: good, other: good})
    with pytest.raises(EvaluationError, match=r"'x' needs \(transfers, 2, 3\) float32, got \(1, 1, 3\)"):
        evaluator.run({x: good[:, :1]})
    with pytest.raises(EvaluationError, match="float64"):
        evaluator.run({x: good.astype(np.float64)})
    with pytest.raises(EvaluationError, match="at least 1 transfers"):
        evaluator.run({x: good[:0]})


def test_too_many_stores_are_an_error(program):
    p = program()
    w = p.variable("w", np.zeros(2, np.float32))
    out = p.store(w)
    p.store(w, stream=out)
    with pytest.raises(EvaluationError, match=r"'out'.*num_host_transfers"):
        p.evaluator().run()


# -- remote buffers ------------------------------------------------------------------------------------------------


def test_remote_entries_and_variables(program):
    p = program()
    buffer = p.ir.remote_buffer((2,), F32, 3)
    remote = p.variable("r", np.array([1, 2], np.float32), remote=(buffer, 1))
    offset = p.main.constant(1, ir.INT32)
    init = p.op(Init, [], shape=(2,), dtype=F32, init="zero")
    loaded = p.op(RemoteLoad, [init, offset], buffer=buffer)
    p.op(RemoteStore, [p.op(Add, [loaded, loaded]), p.main.constant(2, ir.INT32)], buffer=buffer, names=[])
    p.op(RemoteStore, [p.op(Mul, [loaded, p.main.constant(np.float32(10))]), offset], buffer=buffer, names=[])
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.remote[buffer][0], [[0, 0], [10, 20], [2, 4]])
    evaluator.store_variables()
    np.testing.assert_array_equal(remote.data, [10, 20])
    evaluator.run()
    np.testing.assert_array_equal(evaluator.remote[buffer][0], [[0, 0], [100, 200], [20, 40]])


def test_remote_entry_is_read_at_run_time_and_checked(program):
    p = program(replicas=2)
    buffer = p.ir.remote_buffer((1,), F32, 2)
    entry = p.stream("entry", (), ir.INT32)
    at = p.load(entry)
    init = p.op(Init, [], shape=(1,), dtype=F32, init="zero")
    out = p.store(p.op(RemoteLoad, [init, at], buffer=buffer))
    evaluator = p.evaluator()
    evaluator.remote[buffer][:, :, 0] = [[1, 2], [3, 4]]
    for entries, expected in (([0, 0], [1, 3]), ([1, 1], [2, 4]), ([1, 0], [2, 3])):
        result = evaluator.run({entry: np.array([entries], np.int32)})[out]
        np.testing.assert_array_equal(result[0, :, 0], expected)
    with pytest.raises(RemoteEntryError, match=r"entry 2 of RemoteBuffer\(1.*2 entries"):
        evaluator.run({entry: np.array([[0, 2]], np.int32)})


def test_remote_variable_cannot_be_used_as_a_tensor(program):
    p = program()
    buffer = p.ir.remote_buffer((2,), F32, 1)
    remote = p.variable("r", np.array([1, 2], np.float32), remote=(buffer, 0))
    p.store(p.op(Add, [remote, remote]))
    with pytest.raises(EvaluationError, match="'r' lives in Streaming Memory"):
        Evaluator(p.ir)


# -- rounding and constants ----------------------------------------------------------------------------------------


def test_fp16_is_rounded_at_op_boundaries(program):
    p = program()
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(7, 300)).astype(np.float16) for _ in range(2))
    va, vb = p.variable("a", a), p.variable("b", b.T.copy())
    product = p.op(MatMul, [va, vb])
    out = p.store(p.op(Add, [product, product]))
    exact = (a.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16)
    result = p.evaluator().run()[out][0, 0]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, (exact.astype(np.float32) * 2).astype(np.float16), rtol=2e-3)


def test_constants_cannot_be_changed(program):
    p = program()
    c = p.main.constant(np.zeros(2, np.float32))
    p.op(AddLhsInplace, [c, c])
    with pytest.raises(EvaluationError, match="constant 't'"):
        Evaluator(p.ir)


def test_copies_into_variables(program):
    p = program()
    w, v = p.variable("w", np.zeros(2, np.float32)), p.variable("v", np.array([1, 2], np.float32))
    p.op(CopyVarUpdate, [w, v])
    p.op(Accumulate, [v, w], kind="add", factor=None)
    evaluator = p.evaluator()
    evaluator.run()
    np.testing.assert_array_equal(evaluator.variables[w][0], [1, 2])
    np.testing.assert_array_equal(evaluator.variables[v][0], [2, 4])
    assert evaluator.memory_bytes > 0


def test_memory_is_reused_along_a_chain(program):
    p = program()
    w = p.variable("w", np.ones((64, 64), np.float32))
    tensor = w
    for _ in range(40):
        tensor = p.op(Add, [tensor, w])
    out = p.store(tensor)
    evaluator = p.evaluator()
    assert evaluator._compiler.pool.bytes <= 2 * w.spec.bytes
    np.testing.assert_array_equal(evaluator.run()[out], 41)


def test_ambiguous_programs_are_refused():
    p = ir.Ir()
    w = ir.Variable("w", spec(2), p.main_graph, np.zeros(2, np.float32), p.grouping())
    p.main_graph.add(w)
    p.main_graph.create(ScaledAddLhsInplace, [w, w], ["u"], a=1.0, b=1.0)
    p.main_graph.create(Add, [w, w], ["t"])
    with pytest.raises(ir.AmbiguityError, match="'w'"):
        Evaluator(p)


def test_overwritten_inits_cost_nothing(program):
    p = program()
    x = p.stream("x", (4,))
    out = p.store(p.load(x))
    evaluator = p.evaluator()
    assert len(evaluator._code) == 2  # load and store; the Init's zeros are never seen
    data = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    np.testing.assert_array_equal(evaluator.run({x: data})[out], data)

"""Names, graphs, order and calls of the PopXL front end."""

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import AmbiguityError, IrError, schedule
from ipuperf.popxl import ops
from ipuperf.popxl.ops.call import CallSiteInfo


@pytest.fixture
def ir() -> popxl.Ir:
    return popxl.Ir()


def run(ir: popxl.Ir, **stored: popxl.Tensor) -> dict[str, np.ndarray]:
    """Store the tensors, run once, return their values by keyword."""
    with ir.main_graph:
        streams = {name: popxl.d2h_stream(t.shape, t.dtype, f"out_{name}") for name, t in stored.items()}
        for name, t in stored.items():
            ops.host_store(streams[name], t)
    with popxl.Session(ir, "cpu") as session:
        outputs = session.run()
    return {name: outputs[s] for name, s in streams.items()}


def square(x: popxl.Tensor) -> popxl.Tensor:
    return x * x


# -- names ---------------------------------------------------------------------------------------------------------


def test_names_of_variables_take_a_suffix_from_one_counter(ir: popxl.Ir) -> None:
    with ir.main_graph:
        names = [popxl.variable(1.0, name=n).id for n in ("a", "a", "b", "a", "b")]
    assert names == ["a", "a__t0", "b", "a__t1", "b__t2"]


def test_default_names(ir: popxl.Ir) -> None:
    with ir.main_graph:
        assert popxl.variable(1).id == "t"
        assert popxl.h2d_stream((2,), popxl.float32).tensor_id == "h2d_stream"
        assert popxl.d2h_stream((2,), popxl.float32).tensor_id == "d2h_stream"
        assert (popxl.constant(1.0, name="c") + 1).id == "add_out"


def test_name_scopes_and_graph_scope(ir: popxl.Ir) -> None:
    def inner(a: popxl.Tensor) -> popxl.Tensor:
        with popxl.name_scope("layer"):
            return ops.add(a, a)

    with ir.main_graph:
        graph = ir.create_graph(inner, popxl.TensorSpec((2,), popxl.float32))
    name = "test_name_scopes_and_graph_scope.inner_subgraph(0)"
    assert graph.name == name
    assert graph.inputs[0].id == f"{name}/a"
    assert graph.outputs[0].id == f"{name}/layer/add_out"
    assert graph.outputs[0].name == "layer/add_out"
    assert repr(graph.inputs[0]) == f"Tensor[{name}/a popxl.dtypes.float32 (2,)]"


def test_graph_names_count_over_the_program_and_modules_give_their_class_name(ir: popxl.Ir) -> None:
    class Layer(popxl.Module):
        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            return x + 1

    spec = popxl.TensorSpec((2,), popxl.float32)
    with ir.main_graph:
        names = [ir.create_graph(fn, spec).name for fn in (square, Layer(), square)]
    assert names == ["square_subgraph(0)", "Layer_subgraph(1)", "square_subgraph(2)"]
    assert ir.main_graph.name == ""


def test_op_ids_start_at_100_over_all_graphs(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 3), np.float32), name="x")
        graph = ir.create_graph(square, x)
        ops.call(graph, x.reshape((2, 3)))
    assert ir.main_graph.print_schedule() == (
        "Graph : \n"
        "  () -> () {\n"
        "    Reshape.101 (%1 [(2, 3) float32]) -> (%2 [(2, 3) float32])\n"
        "    Call.102(square_subgraph(0)) (%2 [(2, 3) float32]) -> (%3 [(2, 3) float32])\n"
        "  }"
    )


def test_host_load_and_remote_load_cost_two_ops_and_three_tensors(ir: popxl.Ir) -> None:
    with ir.main_graph as main:
        ops.host_load(popxl.h2d_stream((2,), popxl.float32, "x"))
        assert [t.id for t in main.tensors] == ["x", "x_init", "x_hostload"]
        buffer = popxl.remote_buffer((2,), popxl.float32, 1)
        ops.remote_load(buffer, 0, "w")
        assert [t.id for t in main.tensors[3:]] == ["offset", "w_init", "w_remote_loaded"]
        assert main.constants[0].dtype is popxl.int32
    assert [op.type for op in main._base.ops] == ["Init", "HostLoad", "Init", "RemoteLoad"]


def test_tensors_are_equal_by_identity_and_ir(ir: popxl.Ir) -> None:
    other = popxl.Ir()
    with ir.main_graph as main:
        a = popxl.variable(1.0, name="a")
    with other.main_graph:
        b = popxl.variable(1.0, name="a")
    assert a == main.get_tensor("a")
    assert hash(a) == hash(main.get_tensor("a"))
    assert a != b
    assert {a: 1}[main.tensors[0]] == 1
    with pytest.raises(ValueError, match="no tensor"):
        main.get_tensor("b")


@pytest.mark.heavy
def test_irs_are_freed_and_found_again() -> None:
    program = popxl.Ir()
    assert program.main_graph.ir is program
    key = program.id
    reference = weakref.ref(program)
    del program
    gc.collect()
    assert reference() is None
    assert key not in popxl.Ir._ir_cache


# -- contexts --------------------------------------------------------------------------------------------------------


def test_graphs_of_two_programs_cannot_be_nested(ir: popxl.Ir) -> None:
    with ir.main_graph, pytest.raises(RuntimeError, match="another Ir"), popxl.Ir().main_graph:
        pass


def test_in_sequence_as_context_and_decorator(ir: popxl.Ir) -> None:
    @popxl.in_sequence
    def plain(a: popxl.Tensor) -> None:
        ops.negate(a)
        ops.abs(a)

    @popxl.in_sequence(True)
    def called(a: popxl.Tensor) -> None:
        ops.negate(a)
        ops.abs(a)

    with ir.main_graph:
        spec = popxl.TensorSpec((1,), popxl.float32)
        for graph in (ir.create_graph(plain, spec), ir.create_graph(called, spec)):
            first, second = graph._base.ops
            assert graph._base.constraints[second] == {first}


def test_small_results_come_first_without_in_sequence(ir: popxl.Ir) -> None:
    with ir.main_graph as main:
        big, small = popxl.variable(np.ones(100, np.float32)), popxl.variable(1.0)
        _ = big + 1
        _ = small * 1
        assert [op.type for op in schedule(main._base)] == ["Mul", "Add"]


def test_ipu_context_and_mixed_operands(ir: popxl.Ir) -> None:
    with ir.main_graph:
        with popxl.ipu(0):
            a = popxl.variable(1.0)
        with popxl.ipu(1) as number:
            b = popxl.variable(1.0)
        assert (number, a.ipu, b.ipu) == (1, 0, 1)
        with pytest.raises(ValueError, match="same IPU"):
            ops.add(a, b)
        with pytest.raises(popxl.errors.UndefinedValue):
            _ = popxl.variable(1.0).ipu


# -- create_graph ----------------------------------------------------------------------------------------------------


def test_arguments_become_inputs_in_the_order_of_the_signature(ir: popxl.Ir) -> None:
    def fn(a, scale, *rest, b, others=(), **more):
        assert scale == 2
        return [a * scale, rest[0], others[1], more["z"], b]

    spec = popxl.TensorSpec((1,), popxl.float32)
    with ir.main_graph:
        graph = ir.create_graph(fn, spec, 2, spec, b=spec, others=[spec, spec], z=spec)
    assert [t.name for t in graph.inputs] == ["a", "rest_0", "b", "others_0", "others_1", "z"]
    assert len(graph.outputs) == 5


def test_lists_must_hold_tensors_only_or_none(ir: popxl.Ir) -> None:
    with ir.main_graph, pytest.raises(TypeError, match="tensors only"):
        ir.create_graph(lambda xs: None, [popxl.TensorSpec((1,), popxl.float32), 3])


def test_main_graph_tensors_cannot_be_used_in_a_subgraph(ir: popxl.Ir) -> None:
    with ir.main_graph:
        w = popxl.variable(np.ones(2, np.float32), name="w")
        with pytest.raises(IrError, match="pass it in as a graph input"):
            ir.create_graph(lambda x: x + w, w)


def test_graph_cannot_be_constructed() -> None:
    with pytest.raises(TypeError, match="create_graph"):
        popxl.Graph()


# -- calls -----------------------------------------------------------------------------------------------------------


def test_call_always_gives_a_tuple(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x = popxl.variable(np.arange(12, dtype=np.float32).reshape(3, 4))
        assert ops.call(ir.create_graph(lambda a: None, x), x) == ()
        one = ops.call(ir.create_graph(square, x), x)
        assert isinstance(one, tuple)
        assert len(one) == 1
        two = ops.call(ir.create_graph(lambda a: (a + 1, a), x), x)
        assert isinstance(two, tuple)
        assert len(two) == 2
        total = ops.sum(one[0])  # with a bare tensor this was the sum of its first row
    np.testing.assert_array_equal(run(ir, a=total)["a"], (np.arange(12) ** 2).sum())


@pytest.mark.parametrize("mark", ["annotation", "input", "modified", "none"])
def test_changes_are_seen_by_the_caller_only_by_reference(ir: popxl.Ir, mark: str) -> None:
    def annotated(a: popxl.TensorByRef) -> None:
        ops.add_(a, 1)

    def plain(a: popxl.Tensor) -> None:
        ops.add_(a, 1)

    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.zeros(2, np.float32))
        if mark == "input":
            graph = ir.create_empty_graph("update")
            with graph:
                ops.add_(popxl.graph_input((2,), popxl.float32, "a", by_ref=True), 1)
        else:
            graph = ir.create_graph(annotated if mark == "annotation" else plain, x)
        info = ops.call_with_info(graph, x)
        if mark == "modified":
            info.set_parent_input_modified(x)
        out = x + 0
    np.testing.assert_array_equal(run(ir, out=out)["out"], [0, 0] if mark == "none" else [1, 1])


def test_by_ref_holds_for_sequences_and_string_annotations(ir: popxl.Ir) -> None:
    def fn(xs: list[popxl.TensorByRef], y: popxl.TensorByRef, z: popxl.Tensor) -> None: ...

    spec = popxl.TensorSpec((1,), popxl.float32)
    with ir.main_graph:
        graph = ir.create_graph(fn, [spec, spec], spec, spec)
    assert sorted(t.name for t in graph._by_ref_inputs) == ["xs_0", "xs_1", "y"]


def test_call_site_info(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x, w = (popxl.variable(np.ones(2, np.float32), name=n) for n in "xw")
        graph = ir.create_graph(lambda a, b: (a + b, a), x, w)
        info = ops.call_with_info(graph, x, inputs_dict={graph.inputs[1]: w})
        assert isinstance(info, CallSiteInfo)
        assert info.called_graph == graph
        assert info.inputs == (x, w)
        assert info.graph_to_parent(graph.inputs[1]) == w
        assert info.graph_to_parent(graph.outputs[0]) == info.outputs[0]
        assert info.parent_to_graph(x) == graph.inputs[0]
        assert info.parent_input(1) == w
        assert info.graph_to_parent_output_index(1) == 1
        with pytest.raises(IndexError):
            info.parent_to_graph_input_index(2)
        with pytest.raises(ValueError, match="neither"):
            info.graph_to_parent(x)


def test_wrong_operands_of_a_call(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        graph = ir.create_graph(lambda a, b: a + b, x, x)
        with pytest.raises(ValueError, match=r"missing: .*/b: .* 2 inputs: 1 operands by position, 0 in"):
            ops.call(graph, x)
        with pytest.raises(ValueError, match="twice.*/a"):  # as upstream: what is given by position comes first
            ops.call(graph, x, inputs_dict={graph.inputs[0]: x})
        with pytest.raises(ValueError, match="belongs to graph"):
            ops.call(graph, x, graph.inputs[0])
        with pytest.raises(ValueError, match="no inputs of it"):
            ops.call(graph, x, inputs_dict={x: x})
        with pytest.raises(IrError, match=r"is \(3,\) float32"):
            ops.call(graph, x, popxl.variable(np.ones(3, np.float32)))
        with pytest.raises(TypeError, match="got a str"):
            ops.call(graph, x, "x")


@pytest.mark.parametrize(
    "given",
    [
        lambda p, q: [(p, q)],
        lambda p, q: [{"p": p, "q": q}.values()],
        lambda p, q: [iter([p, q])],
        lambda p, q: [[5.0, 3.0]],
        lambda p, q: [p, np.float32(3)],
        lambda p, q: [np.array(5.0), [q]],
    ],
    ids=["tuple", "view", "iterator", "numbers", "mixed", "array"],
)
def test_operands_of_a_call_may_be_nested_once(ir: popxl.Ir, given: Callable[..., Any]) -> None:
    with ir.main_graph:
        p, q = popxl.constant(5.0), popxl.constant(3.0)
        (difference,) = ops.call(ir.create_graph(lambda a, b: a - b, p, q), *given(p, q))
    assert run(ir, difference=difference) == {"difference": 2.0}


def test_repeat_carries_outputs(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x, w = popxl.variable(np.float32(1.0)), popxl.variable(np.float32(3.0))
        graph = ir.create_graph(lambda a, b: a * b, x, w)
        (many,) = ops.repeat(graph, 4, x, w)
        (none,) = ops.repeat(graph, 0, x, w)
        assert ops.repeat_with_info(graph, 2, x, w).called_graph == graph
        with pytest.raises(ValueError, match="repeat_count"):
            ops.repeat(graph, -1, x, w)
    assert run(ir, many=many, none=none) == {"many": 81, "none": 1}


def test_repeat_consumes_the_name_counter(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x = popxl.variable(np.float32(1.0), name="x")
        (y,) = ops.repeat(ir.create_graph(square, x), 2, x)
        assert popxl.variable(1.0, name="x").id == "x__t2"
        # upstream makes a wrapper graph and a call in it: one more subgraph number, one more op id
        assert ir.create_graph(square, x).name.endswith("_subgraph(2)")
        assert y._ir_tensor.producer.id == 102


def test_repeat_changes_by_reference_inputs(ir: popxl.Ir) -> None:
    def body(a: popxl.Tensor, total: popxl.TensorByRef) -> popxl.Tensor:
        ops.add_(total, a)
        return a + 1

    with ir.main_graph, popxl.in_sequence():
        a, total = popxl.variable(np.float32(1.0)), popxl.variable(np.float32(0.0))
        ops.repeat(ir.create_graph(body, a, total), 4, a, total)
        out = total + 0
    assert run(ir, out=out)["out"] == 10


def test_ambiguous_in_place_changes_are_refused_by_the_session(ir: popxl.Ir) -> None:
    with ir.main_graph:
        x = popxl.variable(np.float32(1.0))
        ops.add_(x, 1)
        stream = popxl.d2h_stream((), popxl.float32)
        ops.host_store(stream, x * 2)
    with pytest.raises(AmbiguityError, match="ambiguity detected"):
        popxl.Session(ir, "ipu_model")


def test_op_created_hooks(ir: popxl.Ir) -> None:
    seen: list[str] = []
    with ir.main_graph as main:
        handle = main.register_op_created_hook(lambda op: seen.append(op.type))
        ops.host_load(popxl.h2d_stream((1,), popxl.float32))
        main.remove_op_created_hook(handle)
        ops.init((1,), popxl.float32)
    assert seen == ["Init", "HostLoad"]


def test_variable_arguments_hold_tensors_only_or_none() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1)
        for given, place in (((x, 5), 1), ((5, x), 0)):
            with pytest.raises(
                TypeError, match=f"'rest': a sequence must hold tensors only .*element {place} is a int"
            ):
                ir.create_graph(lambda *rest: None, *given)
        with pytest.raises(TypeError, match="'named': a sequence must hold tensors only"):
            ir.create_graph(lambda **named: None, a=x, b=5)


def test_shapes_without_elements_are_shapes() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        made = [
            popxl.TensorSpec((0, 3), popxl.float32),
            popxl.h2d_stream((0, 3), popxl.float32),
            popxl.d2h_stream((0, 3), popxl.float32),
        ]
        graph = ir.create_graph(lambda: popxl.graph_input((0, 3), popxl.float32, "x", meta_shape=(0, 4)))
        buffer = popxl.remote_buffer((0, 3), popxl.float32, 1)
    assert {*(tuple(each.shape) for each in (*made, *graph.inputs)), buffer.tensor_shape} == {(0, 3)}
    buffer.meta_shape = (0, 4)
    metas = popxl.TensorSpec((2,), popxl.float32, (0, 4)), graph.inputs[0], buffer
    assert {tuple(each.meta_shape) for each in metas} == {(0, 4)}


def test_the_text_of_a_gradient_graph() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_graph(lambda x: x * x, popxl.TensorSpec((2,), popxl.float32))
        text = repr(popxl.transforms.autodiff(graph))
    assert re.fullmatch(r"GradGraphInfo\[\n  graph=Graph.*expected_inputs=\(.*expected_outputs=\(.*\]", text, re.DOTALL)


def test_a_called_graph_prints_though_nobody_reads_what_it_makes(capfd: pytest.CaptureFixture[str]) -> None:
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        x = popxl.variable(np.arange(4, dtype=np.float32).reshape(2, 2))

        def shown(x: popxl.Tensor) -> popxl.Tensor:
            ops.print_tensor(x, title="inner", digits=1)
            return x + 1

        ops.call(ir.create_graph(shown, x), x)
    with popxl.Session(ir, "ipu_hw") as session:
        session.run()
    assert capfd.readouterr().err.count("inner (replica 1): [[0. 1.]\n [2. 3.]]") == 1


def test_operands_of_a_repeat_that_do_not_fit() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1)
        graph = ir.create_graph(lambda a, b: (a + 1, b + 2), x, x)
        wide = ir.create_graph(lambda a: (a + 1, a + 2), x)
        for build, words in [
            (lambda: ops.repeat(graph, 2, x, x, x), "^Too many inputs have been provided"),
            (lambda: ops.repeat(graph, 2, x), "^Not enough inputs have been provided.*missing"),
            (
                lambda: ops.repeat(graph, 2, x, x, inputs_dict={graph.inputs[0]: x}),
                "^Graph input tensor is specified twice",
            ),
            (lambda: ops.repeat(graph, 2, x, inputs_dict={x: x}), "not in the called graph"),
            (lambda: ops.repeat(graph, -1, x, x), "^Repeat count must be >= 0.*-1"),
            (lambda: ops.repeat(wide, 2, x), "^To repeat the subgraph.*2 outputs and 1 inputs"),
        ]:
            with pytest.raises(ValueError, match=words):
                build()


SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def _joined_in_place(first: str, then: Callable[[popxl.Tensor], Any], read: str) -> np.ndarray:
    """A session of ``z = concat_([a, b])``, an in-place change of ``first``, and a store of ``read``."""
    program = popxl.Ir()
    with program.main_graph, popxl.in_sequence(True):
        a, b = popxl.variable(SIX), popxl.variable(SIX) + 1
        held = {"a": a, "b": b, "z": ops.concat_([a, b])}
        then(held[first])
        stream = popxl.d2h_stream(held[read].shape, held[read].dtype)
        ops.host_store(stream, held[read])
    with popxl.Session(program, "ipu_model") as session:
        return session.run()[stream]


@pytest.mark.parametrize(("first", "read"), [("z", "b"), ("z", "z"), ("a", "z"), ("b", "z")])
def test_concat_in_place_is_refused_where_its_sharing_would_be_seen(first: str, read: str) -> None:
    with pytest.raises(IrError, match="changes what it shares, and (its result|an operand of it) is read later; use"):
        _joined_in_place(first, ops.exp_, read)


def test_concat_in_place_of_what_changes_after_its_last_use() -> None:
    np.testing.assert_array_equal(_joined_in_place("z", ops.identity, "z"), np.concatenate([SIX, SIX + 1]))
    np.testing.assert_allclose(_joined_in_place("a", ops.exp_, "b"), SIX + 1)

"""Order of remote loads and stores and of calls by reference, places of operands, deeply nested calls."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import AmbiguityError, IrError
from ipuperf.popxl import ops
from ipuperf.popxl.errors import UndefinedValue

# -- remote buffers ------------------------------------------------------------------------------------------------


def store_then_load(
    order: AbstractContextManager[Any], entries: tuple[int, int], by_call: bool = False, dynamic: bool = False
) -> np.ndarray:
    """Ones go to the first entry (it held 5, the other 7), then the second is loaded: what is loaded."""
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), popxl.float32, 2)
        for entry, value in enumerate((5, 7)):
            popxl.remote_variable(np.full(2, value, np.float32), buffer, entry)
        x = popxl.variable(np.ones(2, np.float32))
        at: list[Any] = [popxl.variable(e, popxl.int32) if dynamic else e for e in entries]
        store = ir.create_graph(lambda x, i: ops.remote_store(buffer, i, x), x, popxl.TensorSpec((), popxl.int32))
        with order:
            if by_call:
                ops.call(store, x, at[0])
            else:
                ops.remote_store(buffer, at[0], x)
            y = ops.remote_load(buffer, at[1])
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, y)
    with popxl.Session(ir, "ipu_model") as session:
        return session.run()[out]


@pytest.mark.parametrize("by_call", [False, True])
def test_a_load_beside_a_store_of_its_entry_needs_an_order(by_call: bool) -> None:
    np.testing.assert_array_equal(store_then_load(popxl.in_sequence(True), (0, 0), by_call), 1)
    np.testing.assert_array_equal(store_then_load(nullcontext(), (0, 1), by_call), 7)
    np.testing.assert_array_equal(store_then_load(popxl.in_sequence(True), (0, 1), by_call, True), 7)
    for dynamic in (False, True):
        with pytest.raises(AmbiguityError, match="RemoteLoad.*same entry of RemoteBuffer.*in_sequence"):
            store_then_load(nullcontext(), (0, 0), by_call, dynamic)


def test_two_stores_of_an_entry_need_an_order_and_two_loads_do_not() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2,), popxl.float32), popxl.variable(np.ones(2, np.float32))
        for _ in range(2):
            ops.remote_load(buffer, 0)
        popxl.Session(ir, "ipu_model")
    ir = popxl.Ir()
    with ir.main_graph:
        buffer, x = popxl.remote_buffer((2,), popxl.float32), popxl.variable(np.ones(2, np.float32))
        for _ in range(2):
            ops.remote_store(buffer, 0, x)
        with pytest.raises(AmbiguityError, match="RemoteStore"):
            popxl.Session(ir, "ipu_model")


# -- calls by reference ------------------------------------------------------------------------------------------------


def test_calls_by_reference_run_in_the_programs_order() -> None:
    ir = popxl.Ir()

    def add(x: popxl.TensorByRef, a: popxl.Tensor) -> None:
        ops.add_(x, a)

    def double(x: popxl.TensorByRef) -> None:
        ops.add_(x, x)

    with ir.main_graph:
        x = popxl.variable(2.0, popxl.float32)
        add_graph, double_graph = ir.create_graph(add, x, x.spec), ir.create_graph(double, x)
        value, before = 2.0, []
        for step in (1.0, 0.0, 5.0, 0.0, 0.0, 3.0):
            before.append((value, x * 1.0))
            if step:
                ops.call(add_graph, x, step)
            else:
                ops.call(double_graph, x)
            value = value + step if step else value * 2
        streams = [popxl.d2h_stream((), popxl.float32) for _ in before]
        for stream, (_, tensor) in zip(streams, before):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run()
    assert [outputs[s] for s in streams] == [wanted for wanted, _ in before]
    assert session.get_tensor_data(x) == value


def test_an_in_place_op_beside_a_call_by_reference_stays_ambiguous() -> None:
    ir = popxl.Ir()

    def double(x: popxl.TensorByRef) -> None:
        ops.add_(x, x)

    with ir.main_graph:
        x = popxl.variable(2.0, popxl.float32)
        ops.call(ir.create_graph(double, x), x)
        ops.add_(x, 1.0)
    with pytest.raises(AmbiguityError, match="Call.*AddLhsInplace"):
        popxl.Session(ir, "ipu_model")


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "what"), [(lambda: popxl.ipu(1), "IPU"), (popxl.io_tiles, "tile set")])
@pytest.mark.parametrize(
    "use",
    [
        lambda a, b: a + b,
        lambda a, b: ops.maximum(a, b),
        lambda a, b: ops.concat([a, b]),
        lambda a, b: ops.scaled_add(a, b),
        lambda a, b: ops.where(ops.greater(a, 0.0), a, b),
        lambda a, b: ops.var_updates.accumulate_(a, b),
    ],
)
def test_operands_lie_together_also_by_default(
    context: Callable[[], AbstractContextManager[Any]], what: str, use: Callable[[Any, Any], Any]
) -> None:
    with popxl.Ir().main_graph:
        here = popxl.variable(np.ones(2, np.float32)) + 0.0
        with context():
            there = popxl.variable(np.ones(2, np.float32)) + 0.0
        with pytest.raises(ValueError, match=f"on {what} .* on {what} "):
            use(here, there)
        with pytest.raises(ValueError, match=f"on {what} .* on {what} "):
            use(there, here)
        use(here, popxl.variable(np.ones(2, np.float32)))
        with context():
            use(there, popxl.constant(np.ones(2, np.float32)))


def test_the_tile_set_follows_from_makers_and_readers() -> None:
    with popxl.Ir().main_graph as graph:
        graph.ir.num_io_tiles = 32
        x, unused = popxl.variable(1.0), popxl.variable(1.0)
        with popxl.io_tiles():
            y = x + 1.0
        assert [t.tile_set for t in (x, y, ops.io_tile_copy(y), y + 0.0)] == ["io", "io", "compute", "compute"]
        with pytest.raises(UndefinedValue, match="tile set of tensor"):
            _ = unused.tile_set


# -- deep nesting ------------------------------------------------------------------------------------------------------


def nested(depth: int, by_reference: bool = False) -> tuple[popxl.Ir, Any]:
    """``x + 1`` inside ``depth`` calls, all but the innermost ``x * 1``."""
    ir = popxl.Ir()

    def innermost(x: popxl.TensorByRef) -> None:
        ops.add_(x, 1.0)

    with ir.main_graph:
        x = popxl.variable(1.0, popxl.float32)
        if by_reference:
            graph = ir.create_graph(innermost, x)
            for _ in range(depth - 1):

                def outer(x: popxl.TensorByRef, graph: popxl.Graph = graph) -> None:
                    ops.call(graph, x)

                graph = ir.create_graph(outer, x)
            ops.call(graph, x)
            return ir, x
        graph = ir.create_graph(lambda x: x + 1.0, x)
        for _ in range(depth - 1):
            graph = ir.create_graph(lambda x, graph=graph: ops.call(graph, x)[0], x)
        out = popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, ops.call(graph, x)[0])
        return ir, out


@pytest.mark.parametrize("by_reference", [False, True])
def test_calls_nested_deep(by_reference: bool) -> None:
    ir, result = nested(600, by_reference)
    session = popxl.Session(ir, "ipu_model")
    with session:
        outputs = session.run()
    assert (session.get_tensor_data(result) if by_reference else outputs[result]) == 2
    assert session.executable.trace.summary()["total_cycles"] > 0


def test_calls_nested_too_deep_are_named() -> None:
    ir, _ = nested(2600)
    with pytest.raises(IrError, match="nested 2600 deep; at most 2500 are allowed"):
        popxl.Session(ir, "ipu_model")


def test_a_graph_that_calls_itself() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)
        graph = ir.create_graph(lambda x: x + 1.0, x)
        with graph:
            ops.call(graph, graph.inputs[0])
        ops.call(graph, x)
    with pytest.raises(IrError, match="is called by itself"):
        popxl.Session(ir, "ipu_model")

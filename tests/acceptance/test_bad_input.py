"""Bad input: each kind the acceptance names is refused early, with a message that says what is wrong, where, the value
seen and what is allowed.

Files (IDX, traces, machines) stand in ``test_bad_files.py``, programs that do not fit in ``test_bad_memory.py``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.ir import AmbiguityError, DTypeError, IrError, ShapeError
from ipuperf.lowering import lower
from ipuperf.machine import MachineError, load_machine
from ipuperf.popxl import ops
from ipuperf.runtime.settings import RunSettings, use_settings

HERE = Path(__file__).name


def var(name: str, *shape: int, dtype: Any = np.float32) -> popxl.Tensor:
    """A variable of ones."""
    return popxl.variable(np.ones(shape, dtype), name=name)


@pytest.fixture
def main_graph() -> Any:
    """The main graph of a new program, to be entered."""
    return popxl.Ir().main_graph


def refused(action: Callable[[], Any], kind: type[Exception], *parts: str, located: bool = False) -> str:
    """The message of the error that ``action`` must raise; it holds all ``parts`` and, if ``located``, this file."""
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    for part in (*parts, *([f"{HERE}:"] if located else [])):
        assert part in message, f"{part!r} is missing in: {message}"
    return message


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_shapes_that_cannot_be_broadcast(main_graph: Any) -> None:
    with main_graph:
        a, b = var("a", 2, 3), var("b", 4)
        refused(lambda: a + b, ShapeError, "Add.100", "a [(2, 3)", "b [(4,)", "cannot be broadcast", located=True)


def test_inner_dimensions_of_a_product(main_graph: Any) -> None:
    with main_graph:
        a, b = var("a", 2, 3), var("b", 4, 5)
        refused(lambda: a @ b, ShapeError, "MatMul.100", "inner dimensions differ", "(3 and 4)", located=True)


def test_reshape_to_another_number_of_elements(main_graph: Any) -> None:
    with main_graph:
        a = var("a", 2, 3)
        refused(lambda: a.reshape((4,)), ValueError, "'a' (2, 3) to (4,)", "6 elements do not fill 4")


def test_operands_of_a_call(main_graph: Any) -> None:
    with main_graph:
        graph = main_graph.ir.create_graph(lambda x: x + 1, popxl.TensorSpec((2,), popxl.float32))
        wrong = var("wrong", 3)
        refused(lambda: ops.call(graph, wrong), ShapeError, "'wrong' is (3,)", "is (2,) float32", located=True)


def test_an_in_place_update_of_another_shape(main_graph: Any) -> None:
    with main_graph:
        a, b = var("a", 2), var("b", 3)
        for action in (
            lambda: ops.scaled_add_(a, b, b=1.0),
            lambda: ops.var_updates.copy_var_update_(a, b),
            lambda: ops.var_updates.accumulate_(a, b),
        ):
            refused(action, ShapeError, "'a' (2,)", "'b' (3,)", located=True)


def test_labels_that_do_not_fit_the_logits(main_graph: Any) -> None:
    with main_graph:
        logits, labels = var("logits", 4, 10), var("labels", 3, dtype=np.int32)
        refused(
            lambda: addons.ops.cross_entropy_with_grad(logits, labels), ShapeError, "labels have shape (3,)", "4 labels"
        )


def test_a_stream_that_does_not_take_the_tensor(main_graph: Any) -> None:
    with main_graph:
        stream, a = popxl.d2h_stream((3,), popxl.float32, "out"), var("a", 2)
        refused(lambda: ops.host_store(stream, a), ValueError, "'out' takes (3,) float32", "'a' is (2,) float32")


# -- data types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: ops.concat([a, b])])
def test_operands_of_different_types(main_graph: Any, op: Callable) -> None:
    with main_graph:
        a, b = var("a", 2, 2), var("b", 2, 2, dtype=np.float16)
        refused(lambda: op(a, b), DTypeError, "float16", "float32", located=True)


def test_labels_have_to_be_integers(main_graph: Any) -> None:
    with main_graph:
        logits, labels = var("logits", 4, 10), var("labels", 4)
        refused(
            lambda: addons.ops.cross_entropy_with_grad(logits, labels),
            DTypeError,
            "'labels' are float32",
            "an integer type",
        )


def test_the_type_of_an_operand_of_a_call(main_graph: Any) -> None:
    with main_graph:
        graph = main_graph.ir.create_graph(lambda x: x + 1, popxl.TensorSpec((2,), popxl.float32))
        wrong = var("wrong", 2, dtype=np.int32)
        refused(lambda: ops.call(graph, wrong), ValueError, "'wrong' is (2,) int32", "is (2,) float32", located=True)


# -- streams of a run --------------------------------------------------------------------------------------------------


class Doubling:
    """``out = 2 x`` on ``replicas`` replicas with ``transfers`` host transfers; ``unused`` is never loaded."""

    def __init__(self, replicas: int = 1, transfers: int = 1) -> None:
        ir = popxl.Ir(replicas)
        ir.num_host_transfers = transfers
        with ir.main_graph, popxl.in_sequence():
            self.x = popxl.h2d_stream((2, 3), popxl.float32, "x")
            self.unused = popxl.h2d_stream((2,), popxl.float32, "unused")
            self.out = popxl.d2h_stream((2, 3), popxl.float32, "out")
            for _ in range(transfers):
                ops.host_store(self.out, ops.host_load(self.x) * 2)
        self.session = popxl.Session(ir, "ipu_hw")

    def run(self, inputs: Any) -> Any:
        """One run inside the session's context."""
        with self.session:
            return self.session.run(inputs)


ONES = np.ones((2, 3), np.float32)


def test_a_missing_stream() -> None:
    program = Doubling()
    refused(lambda: program.run({}), ValueError, "missing: 'x'", "expected ['x']")
    refused(lambda: program.run(None), ValueError, "missing: 'x'")


def test_an_unexpected_stream() -> None:
    program = Doubling()
    inputs = {program.x: ONES, program.unused: np.ones(2, np.float32)}
    refused(lambda: program.run(inputs), ValueError, "unexpected", "unused", "expected ['x']")


@pytest.mark.parametrize(
    ("replicas", "transfers", "given", "expected"),
    [
        (1, 1, (3, 2), "(2, 3)"),
        (1, 1, (6,), "(2, 3)"),
        (1, 1, (1, 2, 3), "(2, 3)"),
        (4, 1, (2, 3), "(4, 2, 3)"),
        (1, 8, (7, 2, 3), "(8, 2, 3)"),
        (4, 8, (4, 8, 2, 3), "(8, 4, 2, 3)"),
        (4, 8, (32, 2, 3), "(8, 4, 2, 3)"),
    ],
)
def test_a_stream_of_the_wrong_shape(replicas: int, transfers: int, given: tuple[int, ...], expected: str) -> None:
    program = Doubling(replicas, transfers)
    refused(
        lambda: program.run({program.x: np.ones(given, np.float32)}),
        ValueError,
        "'x'",
        f"got shape {given}",
        f"expected {expected}",
        f"{transfers} host transfer(s), {replicas} replica(s), slices of (2, 3)",
    )


def test_a_stream_of_the_wrong_type() -> None:
    program = Doubling()
    refused(
        lambda: program.run({program.x: np.ones((2, 3), np.int32)}), ValueError, "'x'", "got dtype int32", "float32"
    )


def test_a_wrong_stream_leaves_the_program_usable() -> None:
    program = Doubling()
    refused(lambda: program.run({program.x: np.ones(3, np.float32)}), ValueError, "'x'")
    np.testing.assert_array_equal(program.run({program.x: ONES})[program.out], 2 * ONES)


def test_a_ragged_list_for_a_stream() -> None:
    program = Doubling()
    refused(lambda: program.run({program.x: [[1.0, 2.0, 3.0], [4.0]]}), ValueError, "'x'", "(2, 3)")


def test_the_stream_of_another_program() -> None:
    program, other = Doubling(), Doubling()
    refused(lambda: program.run({other.x: ONES}), ValueError, "'x'", "another Ir")


def test_a_name_instead_of_a_stream() -> None:
    program = Doubling()
    refused(lambda: program.run({"images": ONES}), ValueError, "missing: 'x'", "images")


def test_a_run_outside_of_the_sessions_context() -> None:
    program = Doubling()
    refused(lambda: program.session.run({program.x: ONES}), ValueError, "not attached", "with session")


# -- remote buffers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [2, 7, -1])
def test_a_remote_entry_that_is_not_there_while_building(main_graph: Any, entry: int) -> None:
    with main_graph:
        buffer, a = popxl.remote_buffer((2,), popxl.float32, 2), var("a", 2)
        parts = (f"entry {entry}", "allowed are 0 to 1 (2 entries)")
        refused(lambda: ops.remote_load(buffer, entry), IndexError, "RemoteLoad", *parts, located=True)
        refused(lambda: ops.remote_store(buffer, entry, a), IndexError, "RemoteStore", *parts, located=True)
        refused(
            lambda: popxl.remote_variable(np.ones(2, np.float32), buffer, entry, name="w"),
            ValueError,
            "'w'",
            f"entry {entry}",
            "allowed: 0 to 1",
        )


@pytest.mark.parametrize("entry", [2, -1])
@pytest.mark.parametrize("direction", ["load", "store"])
def test_a_remote_entry_that_is_not_there_while_running(entry: int, direction: str) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), popxl.float32, 2)
        index = popxl.h2d_stream((), popxl.int32, "index")
        if direction == "load":
            addons.host_store(ops.remote_load(buffer, ops.host_load(index)))
        else:
            ops.remote_store(buffer, ops.host_load(index), var("a", 2))
    session = popxl.Session(ir, "ipu_hw")
    with session:
        session.run({index: np.int32(1)})
        refused(
            lambda: session.run({index: np.int32(entry)}),
            IndexError,
            f"Remote{direction.capitalize()}",
            f"entry {entry}",
            "allowed are 0 to 1",
            located=True,
        )


def test_a_constant_entry_of_a_called_graph() -> None:
    from ipuperf.popxl_addons.variable_factory import NamedVariableFactories

    class Add(addons.Module):
        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            return x + self.add_variable_input("weight", lambda: np.ones(x.shape), x.dtype)

    def build() -> popxl.Session:
        ir = popxl.Ir()
        with ir.main_graph, popxl.in_sequence():
            factories, _ = Add().create_graph(popxl.TensorSpec((5,), popxl.float32))
            assert isinstance(factories, NamedVariableFactories)
            buffers = addons.named_variable_buffers(factories, entries=2, sharded_threshold=10)
            load, _ = addons.load_remote_graph(buffers, entries=2)
            addons.host_store(load.call(2)[0])
        return popxl.Session(ir, "ipu_hw")

    refused(build, IndexError, "entry 2", "0 to 1")


def test_a_tensor_that_is_not_an_entry(main_graph: Any) -> None:
    with main_graph:
        buffer, a = popxl.remote_buffer((2,), popxl.float32, 2), var("a", 3)
        refused(lambda: ops.remote_store(buffer, 0, a), ValueError, "'a' is (3,)", "buffer 1 holds (2,) float32")


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_more_replicas_than_any_machine_has() -> None:
    ir = popxl.Ir(512)
    with ir.main_graph:
        var("a", 2)
    refused(lambda: popxl.Session(ir, "ipu_model"), MachineError, "512 replicas", "need 512 IPUs", "there are 256")


@pytest.mark.parametrize(
    ("machine", "replicas", "ipu", "parts"),
    [
        ("gc200-1", 4, 0, ("gc200-1: 4 replicas", "need 4 IPUs, there are 1", "presets that fit: bow-pod4, pod4")),
        ("pod4", 4, 1, ("pod4: 4 replicas x 2 IPUs per replica need 8 IPUs, there are 4", "pod16")),
        ("pod4", 3, 1, ("pod4: 3 replicas x 2 IPUs per replica", "power of two", "there are 4")),
    ],
)
def test_replicas_that_the_machine_cannot_place(machine: str, replicas: int, ipu: int, parts: tuple[str, ...]) -> None:
    ir = popxl.Ir(replicas)
    with ir.main_graph, popxl.ipu(ipu):
        var("a", 2) + 1
    with use_settings(RunSettings(machine=machine)):
        refused(lambda: popxl.Session(ir, "ipu_hw"), MachineError, *parts)


@pytest.mark.parametrize("replicas", [0, -2, 2.5])
def test_a_number_of_replicas_that_is_none(replicas: Any) -> None:
    refused(lambda: popxl.Ir(replicas), ValueError, f"replication factor is {replicas}", "at least 1")


@pytest.mark.parametrize("shards", [3, 8, 0])
def test_a_shard_group_that_does_not_divide_the_replica_group(shards: int) -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        for action in (
            lambda: popxl.replica_sharded_buffer((8,), popxl.float32, shard_over=shards),
            lambda: popxl.replica_sharded_variable(np.ones(8, np.float32), shard_over=shards),
        ):
            refused(action, ValueError, f"shard_over={shards}", "does not divide the group size 4")


def test_a_shard_group_within_a_replica_group() -> None:
    ir = popxl.Ir(8)
    with ir.main_graph:
        pairs = ir.replica_grouping(group_size=2)
        refused(
            lambda: popxl.replica_sharded_buffer((8,), popxl.float32, replica_grouping=pairs, shard_over=4),
            ValueError,
            "shard_over=4 does not divide the group size 2",
        )


@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 4), (3, 1)])
def test_replica_groups_that_do_not_divide_the_replicas(stride: int, size: int) -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        refused(
            lambda: ir.replica_grouping(stride=stride, group_size=size),
            ValueError,
            f"stride {stride} and group_size {size}",
            "4 replicas",
        )


# -- in-place changes --------------------------------------------------------------------------------------------------


def _ambiguous(in_sequence: bool, use: str) -> popxl.Ir:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(in_sequence):
        a = var("a", 2)
        if use == "read":
            ops.add_(a, 1.0)
            addons.host_store(a * 3)
        else:
            ops.add_(a, 1.0)
            ops.scaled_add_(a, a, b=2.0)
    return ir


@pytest.mark.parametrize(
    ("use", "first", "second"),
    [
        ("read", "AddLhsInplace.100", "Mul.101"),
        ("change", "AddLhsInplace.100", "ScaledAddLhsInplace.101"),
    ],
)
def test_an_in_place_change_without_an_order(use: str, first: str, second: str) -> None:
    message = refused(
        lambda: popxl.Session(_ambiguous(False, use), "ipu_hw"),
        AmbiguityError,
        first,
        second,
        "changes tensor 'a' in place",
        "popxl.in_sequence(True)",
    )
    assert len(re.findall(rf"{HERE}:\d+", message)) == 2, "both lines of the program are named"
    popxl.Session(_ambiguous(True, use), "ipu_hw")


def test_the_ambiguity_is_upstreams_exception() -> None:
    from ipuperf.popxl.errors import popart_exception

    with pytest.raises(popart_exception, match="Inplacing ambiguity detected"):
        popxl.Session(_ambiguous(False, "read"), "ipu_hw")


# -- graphs and machines ----------------------------------------------------------------------------------------------


def test_remote_memory_on_a_machine_without_it() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        addons.host_store(ops.remote_load(popxl.remote_buffer((2,), popxl.float32, 1), 0))
    with pytest.raises(MachineError, match="no Streaming Memory"):
        lower(ir._ir, load_machine("gc2-1"))


def test_a_tensor_of_another_graph(main_graph: Any) -> None:
    with main_graph:
        a = var("a", 2)
        refused(
            lambda: main_graph.ir.create_graph(lambda x: x + a, a), IrError, "'a' belongs to graph 'main'", "pass it in"
        )


def test_nothing_is_created_outside_of_a_graph() -> None:
    refused(lambda: popxl.variable(1.0), RuntimeError, "no graph is active", "with ir.main_graph")

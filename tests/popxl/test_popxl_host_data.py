"""Host data that the IPU cannot hold, and arguments that are no whole numbers, are refused."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.simulation import SimulationError, simulate


def stream_program(dtype: popxl.dtype, shape: tuple[int, ...] = (3,)) -> tuple[popxl.Session, Any, Any]:
    """What comes in goes out."""
    ir = popxl.Ir()
    with ir.main_graph:
        x, out = popxl.h2d_stream(shape, dtype, "x"), popxl.d2h_stream(shape, dtype, "out")
        ops.host_store(out, ops.host_load(x))
    return popxl.Session(ir, "cpu"), x, out


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_integers_that_do_not_fit_32_bits(value: int) -> None:
    data = np.array([0, 1, value])
    session, x, _ = stream_program(popxl.int32)
    with session, pytest.raises(ValueError, match=f"'x'.*{value}.*do not fit int32"):
        session.run({x: data})
    with popxl.Ir().main_graph:
        for make in (popxl.variable, popxl.constant):
            with pytest.raises(ValueError, match="do not fit int32"):
                make(data)
            with pytest.raises(ValueError, match="do not fit uint16"):
                make([2**16], popxl.uint16)
            with pytest.raises(ValueError, match="do not fit int8"):
                make(float("nan"), popxl.int8)


@pytest.mark.parametrize("kind", ["<i4", ">i4", "<i8", ">i8", "<i2"])
def test_the_largest_integers_of_any_byte_order_arrive(kind: str) -> None:
    bounds = np.iinfo(np.int32 if kind[2] != "2" else np.int16)
    data = np.array([bounds.min, 0, bounds.max], dtype=kind)
    session, x, out = stream_program(popxl.int32 if kind[2] != "2" else popxl.int16)
    with session:
        np.testing.assert_array_equal(session.run({x: data})[out], data)
    with popxl.Ir().main_graph as graph:
        made = popxl.variable(data)
    np.testing.assert_array_equal(popxl.Session(graph.ir).get_tensor_data(made), data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]), "masked"),
        (np.array([1.0, 2.0, 3.0], dtype=object), "dtype object"),
        ([1.0, None, 3.0], "dtype object"),
        (np.array(["1", "2", "3"]), "dtype <U1"),
        (np.array([1j, 2, 3]), "dtype complex128"),
    ],
    ids=["masked", "object", "None", "text", "complex"],
)
def test_data_that_is_no_array_of_numbers(data: Any, message: str) -> None:
    session, x, _ = stream_program(popxl.float32)
    with session, pytest.raises(ValueError, match=message):
        session.run({x: data})
    with popxl.Ir().main_graph:
        for dtype in (None, popxl.float32):
            with pytest.raises(ValueError, match=message):
                popxl.variable(data, dtype)


def test_the_given_type_is_named() -> None:
    session, x, _ = stream_program(popxl.float32)
    for kind in ("int64", "int32", "float16", "uint64"):
        with session, pytest.raises(ValueError, match=f"got dtype {kind}, expected float32"):
            session.run({x: np.zeros(3, kind)})


def test_what_runs_and_reads_is_checked() -> None:
    session, x, out = stream_program(popxl.float32)
    with session:
        with pytest.raises(TypeError, match="inputs are a list"):
            session.run([np.zeros(3, np.float32)])
        with pytest.raises(TypeError, match="outputs are a list"):
            session.run_with_outputs({x: np.zeros(3, np.float32)}, [out])
        with pytest.raises(TypeError, match="HostToDeviceStream.*is not of type Constant or Variable"):
            session.get_tensor_data(x)


# -- whole numbers -----------------------------------------------------------------------------------------------------


def test_numbers_of_a_program_are_whole() -> None:
    ir = popxl.Ir(2)
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), popxl.float32, 2)
        refused: list[Callable[[], Any]] = [
            lambda: setattr(ir, "num_host_transfers", 2.5),
            lambda: setattr(ir, "num_io_tiles", 2.0),
            lambda: setattr(ir, "replication_factor", True),
            lambda: setattr(buffer, "entries", 2.5),
            lambda: ir.replica_grouping(1.0),
            lambda: ir.replica_grouping(1, 2.0),
            lambda: ir.replica_grouping_from_assignments([0.0, 1.0]),
            lambda: popxl.remote_buffer((2.5,), popxl.float32),
            lambda: popxl.replica_sharded_buffer((4,), popxl.float32, shard_over=2.0),
            lambda: popxl.h2d_stream((2.5,), popxl.float32),
            lambda: popxl.TensorSpec((2.5,), popxl.float32),
            lambda: popxl.remote_variable(np.ones(2, np.float32), buffer, 0.5),
            lambda: popxl.ipu(0.5),
        ]
        for call in refused:
            with pytest.raises(ValueError, match="a whole number"):
                call()
        x = popxl.variable(np.ones((np.int64(4), 6), np.float32))
        assert ops.reshape(x, (np.int32(3), np.array(8))).shape == (3, 8)


def test_what_is_of_another_kind_is_named() -> None:
    """One number for several, a name for a type, and what is no grouping, buffer, graph, mapping or seed."""
    data = np.ones((2, 3), np.float32)
    with (ir := popxl.Ir()).main_graph:
        x = popxl.variable(np.ones((1, 3, 4, 4)), dtype="float16")
        assert x.dtype == popxl.float16
        graph = ir.create_graph(lambda t: t + 1, x)
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: ops.max_pool(x, 2), "max_pool: kernel_size is 2; a sequence"),
            (lambda: ops.conv(x, x, stride=2), "conv: stride is 2; a sequence"),
            (lambda: ops.transpose(x, 1), "transpose: permutation is 1; a sequence"),
            (lambda: popxl.h2d_stream(4, popxl.float32, "s"), "stream 's' is 4; a seq"),
            (lambda: popxl.variable(data, replica_grouping=5), "replica_grouping is 5"),
            (lambda: popxl.remote_variable(data, 5, 0, name="r"), "'r': the buffer is 5"),
            (lambda: ops.call(x), "which is no graph"),
            (lambda: ops.call(graph, inputs_dict=[x]), "inputs_dict is a list"),
        ]
        for call, message in refused:
            with pytest.raises(TypeError, match=message):
                call()
        with pytest.raises(IndexError, match="split of .* axis 7 is out of range for rank 4"):
            ops.split(x, 2, axis=7)
    with pytest.raises(ValueError, match="create_seeds: seed is 'a'"):
        popxl.create_seeds("a")


def _integral() -> list[tuple[Any, str]]:
    """Parameters of the functions of ``popxl.ops`` that are annotated as integers and nothing else."""
    found = []
    modules = (ops, ops.collectives, ops.var_updates)
    for function in {getattr(m, n) for m in modules for n in m.__all__}:
        if inspect.isfunction(function):
            for name, parameter in inspect.signature(function).parameters.items():
                words = set(re.findall(r"\w+", str(parameter.annotation)))
                if "int" in words and not words & {"float", "bool", "str", "CollectiveOps", "ReplicaGrouping"}:
                    found.append((function, name))
    return sorted(found, key=lambda pair: (pair[0].__name__, pair[1]))


@pytest.mark.parametrize(("function", "name"), _integral(), ids=lambda value: getattr(value, "__name__", value))
def test_numbers_of_every_op_are_whole(function: Any, name: str) -> None:
    with popxl.Ir().main_graph, pytest.raises(ValueError, match=f"{name} is 1.5; a whole number"):
        function(**{name: 1.5})


def test_prefetch_depth_is_whole() -> None:
    session, _, _ = stream_program(popxl.float32)
    executable = session.executable
    with pytest.raises(SimulationError, match=r"prefetch_depth is 1\.5"):
        simulate(executable.device_program, executable.machine, prefetch_depth=1.5)


# -- a session owns its program ----------------------------------------------------------------------------------------


def test_nothing_is_added_after_the_session() -> None:
    session, _, _ = stream_program(popxl.float32)
    ir = session.ir
    with ir.main_graph:
        for add in (
            lambda: popxl.variable(1.0),
            lambda: popxl.constant(1.0),
            lambda: popxl.h2d_stream((), popxl.float32),
            lambda: ops.init((), popxl.float32),
            lambda: popxl.remote_buffer((2,), popxl.float32),
            lambda: ir.create_empty_graph("late"),
        ):
            with pytest.raises(popxl.errors.popart_exception, match="after a Session was built"):
                add()
    with pytest.raises(RuntimeError, match="num_host_transfers cannot be changed"):
        ir.num_host_transfers = 2

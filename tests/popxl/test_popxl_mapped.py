"""Variables of memory-mapped files: kept as they are, written by copies from the device; what can be mapped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.numerics import EvaluationError
from ipuperf.popxl import ops
from ipuperf.runtime.effects import WithoutEffectWarning


def _mapped(folder: Path, shape: tuple[int, ...], dtype: type = np.float32, order: Any = "C") -> np.memmap:
    return np.memmap(str(folder / "w.npy"), dtype=dtype, shape=shape, mode="w+", order=order)


def _on_chip(data: np.ndarray, **options: Any) -> tuple[popxl.Variable, Callable[[], None]]:
    w = popxl.variable(data, name="w", **options)
    return w, lambda: ops.add_(w, popxl.constant(1, w.dtype)) and None


def _remote(data: np.ndarray, **options: Any) -> tuple[popxl.Variable, Callable[[], None]]:
    groups = options.get("replica_grouping")
    shape = data.shape[1:] if groups is not None and groups.num_groups > 1 else data.shape
    buffer = popxl.remote_buffer(shape, popxl.dtype.as_dtype(data))
    w = popxl.remote_variable(data, buffer, name="w", **options)
    return w, lambda: ops.remote_store(buffer, 0, ops.remote_load(buffer, 0) + 1)


def _remote_sharded(data: np.ndarray, **options: Any) -> tuple[popxl.Variable, Callable[[], None]]:
    groups = options.get("replica_grouping")
    over = groups.const_rg.group_size if groups is not None else None
    buffer = popxl.replica_sharded_buffer(data.shape, popxl.dtype.as_dtype(data), groups, over)
    w = popxl.remote_replica_sharded_variable(data, buffer, name="w", **options)
    return w, lambda: ops.remote_store(buffer, 0, ops.remote_load(buffer, 0) + 1)


def _sharded(data: np.ndarray, **options: Any) -> tuple[popxl.Variable, Callable[[], None]]:
    w, shard = popxl.replica_sharded_variable(data, name="w", **options)
    return w, lambda: ops.var_updates.copy_var_update_(shard, shard + 1) and None


KINDS = [_on_chip, _remote, _remote_sharded, _sharded]


@pytest.mark.parametrize("make", KINDS)
def test_the_array_stays_itself_and_its_file_is_written(make: Callable[..., Any], tmp_path: Path) -> None:
    data = _mapped(tmp_path, (6, 5))
    data[:] = np.arange(30).reshape(6, 5)
    wanted = np.array(data) + 1
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        w, step = make(data)
        step()
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    assert session.get_tensor_data(w) is data
    np.testing.assert_array_equal(data, wanted)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "w.npy", np.float32).reshape(6, 5), wanted)


@pytest.mark.parametrize("make", KINDS)
def test_what_cannot_be_mapped(make: Callable[..., Any], tmp_path: Path) -> None:
    with popxl.Ir(replication=2).main_graph:
        with pytest.raises(ValueError, match="^When passing a memory-mapped NumPy array, the `dtype` parameter"):
            make(_mapped(tmp_path, (4,)), dtype=popxl.half)
        with pytest.raises(ValueError, match="memory-mapped NumPy array, it must already be in C-ordered"):
            make(_mapped(tmp_path, (4, 4), order="F"))
        for dtype in (None, popxl.double):
            with pytest.raises(ValueError, match=f"the dtype {dtype} is not supported, as it requires downcasting"):
                make(_mapped(tmp_path, (4,), np.float64), dtype=dtype)


@pytest.mark.parametrize("make", KINDS)
def test_groups_without_a_constant_stride_copy_and_say_so(make: Callable[..., Any], tmp_path: Path) -> None:
    data = _mapped(tmp_path, (2, 8))
    data[:] = [[1.0] * 8, [5.0] * 8]
    ir = popxl.Ir(replication=8)
    groups = ir.replica_grouping_from_assignments([0, 0, 1, 1, 0, 0, 1, 1])
    with ir.main_graph, popxl.in_sequence():
        with pytest.warns(WithoutEffectWarning, match="np.memmap data and a non-const replica grouping"):
            w, step = make(data, replica_grouping=groups)
        step()
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    np.testing.assert_array_equal(session.get_tensor_data(w), [[2.0] * 8, [6.0] * 8])
    np.testing.assert_array_equal(data[:, 0], [1.0, 5.0])


def test_a_file_that_is_mapped_for_reading(tmp_path: Path) -> None:
    """A program that only reads it runs; one that changes it says so instead of changing a copy."""
    _mapped(tmp_path, (6,))[:] = range(6)
    data = np.memmap(str(tmp_path / "w.npy"), np.float32, "r", shape=(6,))
    for change in (False, True):
        ir = popxl.Ir()
        with ir.main_graph, popxl.in_sequence():
            w, step = _on_chip(data)
            step() if change else ops.add(w, 1)
        session = popxl.Session(ir, "ipu_model")
        session.__enter__()
        session.run()
        if change:
            with pytest.raises(EvaluationError, match=r"'w': the program changed it.*w\.npy is mapped for reading"):
                session.weights_to_host()
        else:
            session.weights_to_host()
            assert session.get_tensor_data(w) is data
    np.testing.assert_array_equal(np.fromfile(tmp_path / "w.npy", np.float32), range(6))

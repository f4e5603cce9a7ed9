"""What recorded C++ asks of PopLibs, call by call, against NumPy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.frontends.cppimport.recorder import LibraryOp, library_of
from ipuperf.ir import IrError
from ipuperf.ops.recorded import recorded_class
from ipuperf.popxl.custom_ops import custom_op

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

SOURCE = Path(__file__).with_name("recorded") / "steps.cpp"


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)


def views(x: np.ndarray) -> list[np.ndarray]:
    v = np.zeros((4, 6), np.float32)
    v[1:3, 2:5] = x[:2, :3]
    v[:3, 1] = x[3, ::2]
    v[::-1, :2] = x[:, :2]
    v.reshape(-1)[20:24] *= 2
    return [v, np.broadcast_to(x.T[:, None], (6, 3, 4))]


def rows(x: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
    table = x.copy()
    np.add.at(table, places, x[places])
    return [x[:, places], table]


def types(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    whole = x.astype(np.int32)
    return [
        whole,
        np.trunc(whole / 2).astype(np.int32),
        np.fmod(whole, 2),
        x.view(np.int32),
        (x > y).astype(np.float32),
    ]


def activations(x: np.ndarray, _y: np.ndarray) -> list[np.ndarray]:
    gelu = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return [gelu, np.exp(x) / np.exp(x).sum(1, keepdims=True), np.tanh(x)]


ORACLES: dict[str, Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]]] = {
    "select": lambda x, y: [np.where(x < 0, 0.1 * x, x), x < y, np.clip(x, -0.5, 0.5)],
    "in place": lambda x, y: [np.abs(x) + 1],
    "views": lambda x, y: views(x),
    "reduce": lambda x, y: [1.5 * x.sum(0), (x**2).sum(1), x.max()],
    "types": types,
    "sums": lambda x, y: [x + 0.25 * y - 2 * y + 1],
    "activations": activations,
    "products": lambda x, y: [x @ y.T, y[:1] - x, x @ y.T],
}


def result_of(name: str, *arrays: np.ndarray) -> tuple[list[np.ndarray], Any]:
    """The results of a name of the source in PopXL's program, and its op."""
    source = LibraryOp(library_of(SOURCE), "build", ("Build",), name)
    ir = popxl.Ir()
    count = {"rows": 2, **{key: len(oracle(*operands())) for key, oracle in ORACLES.items()}}.get(name, 1)
    with ir.main_graph, popxl.in_sequence():
        tensors = [popxl.variable(array) for array in arrays]
        names = [f"out{number}" for number in range(count)]
        made = custom_op(recorded_class("Build"), *tensors, names=names, source=source)
        results = made if isinstance(made, tuple) else (made,)
        streams = [addons.host_store(tensor) for tensor in results]
        kept = [addons.host_store(tensor) for tensor in tensors]
    with popxl.Session(ir, "ipu_hw") as session:
        values = session.run()
    for stream, array in zip(kept, arrays, strict=True):
        np.testing.assert_array_equal(values[stream], array)  # operands stay as they are
    return [values[stream] for stream in streams], results[0]._ir_tensor.producer


@pytest.mark.parametrize("name", ORACLES)
def test_values_are_numpys(name: str) -> None:
    x, y = (2 * array for array in operands())
    values, op = result_of(name, x, y)
    for value, expected in zip(values, ORACLES[name](x, y), strict=True):
        assert value.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)
    assert sum(work.flops for work in op.work()) > 0


def test_rows_of_tables() -> None:
    x, places = operands()[0], np.array([2, 0, 2], np.int32)
    values, _ = result_of("rows", x, places)
    for value, expected in zip(values, rows(x, places), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_float16_is_rounded_after_each_step() -> None:
    x, y = (array.astype(np.float16) for array in operands())
    (value,), _ = result_of("in place", x, y)
    np.testing.assert_array_equal(value, (np.abs(x.astype(np.float32)) + 1).astype(np.float16))


@pytest.mark.parametrize(
    ("name", "message"), [("program", "poplar::program::If depends on data"), ("other", "no such name: other")]
)
def test_what_is_refused(name: str, message: str) -> None:
    with pytest.raises(IrError, match=message):
        result_of(name, *operands())

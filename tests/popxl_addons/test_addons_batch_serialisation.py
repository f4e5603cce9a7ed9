"""Phased execution: values against NumPy, what is loaded and stored when, extents of the buffers, errors."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons.transforms.batch_serialisation import (
    RemoteHandle,
    batch_serial_buffer,
    batch_serialise,
    batch_serialise_fwd_and_grad,
)

MODES = ["compute", "io", "io_overlapped"]
IO_TILES = 32


class Scale(addons.Module):
    """``x * scale``, scale 2."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return x * self.add_variable_input("scale", partial(np.full, x.shape, 2), x.dtype)


class Dense(addons.Module):
    """``tanh(x @ w)``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        w = self.add_variable_input("w", partial(np.zeros, (x.shape[-1], self.size)), x.dtype)
        return ops.tanh(x @ w)


def program(replicas: int = 1, steps: int = 1) -> popxl.Ir:
    ir = popxl.Ir(replicas)
    ir.num_io_tiles = IO_TILES
    ir.num_host_transfers = steps
    return ir


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("replicas", [1, 2])
def test_host_to_buffer_to_buffer_to_host(mode: Any, steps: int, replicas: int) -> None:
    ir = program(replicas, steps)
    with ir.main_graph, popxl.in_sequence(True):
        h2d, d2h = popxl.h2d_stream((2, 3), popxl.float32, "x"), popxl.d2h_stream((2, 3), popxl.float32, "y")
        factories, graph = Scale().create_graph(h2d.spec)
        x, y = graph.graph.inputs[0], graph.graph.outputs[0]
        buffer = batch_serial_buffer(y, steps)
        assert buffer.entries == steps
        first = batch_serialise(graph, steps, {x: h2d}, {}, {y: (buffer, 0)}, io_mode=mode)
        middle = batch_serialise(graph, steps, {x: (buffer, 0)}, {}, {y: RemoteHandle(buffer, 1)}, rows=3, io_mode=mode)
        last = batch_serialise(graph, steps, {x: RemoteHandle(buffer, 3)}, {y: d2h}, {}, io_mode=mode)
        assert buffer.entries == steps * (1 + 3)
        variables = factories.init()
        first.graph.bind(variables).call(0)
        for row in range(3):
            middle.graph.bind(variables).call(row)
        last.graph.bind(variables).call(0)
    lead = (steps,) if replicas == 1 else (steps, replicas)
    data = np.random.default_rng(0).normal(size=(*lead, 2, 3)).astype(np.float32)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run({h2d: data})[d2h], data * 2**5)


def dense(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.tanh(x @ w)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [2, 4])
def test_gradients_of_layers_that_share_graphs_and_buffers(mode: Any, steps: int) -> None:
    """Three layers, two of them one graph with two rows: gradients of inputs and means of those of the weights."""
    ir = program(steps=steps)
    size, batch, layers = 4, 3, 3
    with ir.main_graph, popxl.in_sequence(True):
        xs = popxl.h2d_stream((batch, size), popxl.float32, "x")
        dys = popxl.h2d_stream((batch, size), popxl.float32, "dy")
        dxs = popxl.d2h_stream((batch, size), popxl.float32, "dx")
        factories, fwd = Dense(size).create_graph(xs.spec)
        accumulators, grad = addons.autodiff_with_accumulation(fwd, fwd.args.tensors, [fwd.graph.inputs[0]])
        x_buffer = batch_serial_buffer(fwd.graph.outputs[0], steps, layers + 1)
        dx_buffer = batch_serial_buffer(grad.graph.inputs[0], steps, layers + 1)
        bs_fwd, bs_grad = batch_serialise_fwd_and_grad(
            fwd,
            grad,
            fwd.args,
            steps,
            {fwd.graph.inputs[0]: (x_buffer, 0), grad.graph.inputs[0]: (dx_buffer, 1)},
            {},
            {fwd.graph.outputs[0]: (x_buffer, 1), grad.graph.outputs[0]: (dx_buffer, 0)},
            rows=layers,
            io_mode=mode,
        )
        weights = [factories.init() for _ in range(layers)]
        sums = [accumulators.init_zero() for _ in range(layers)]
        for s in range(steps):
            ops.remote_store(x_buffer, s, ops.host_load(xs))
            ops.remote_store(dx_buffer, layers * steps + s, ops.host_load(dys))
        for row in range(layers):
            bs_fwd.graph.bind(weights[row]).call(row)
        means = []
        for row in reversed(range(layers)):
            named = addons.NamedTensors(**{"w": weights[row].w})
            named.update(sums[row])
            bs_grad.graph.bind(named).call(row)
        for row in range(layers):
            means.append(popxl.d2h_stream((size, size), popxl.float32, f"dw{row}"))
            ops.host_store(means[row], sums[row].accum.w)
        for s in range(steps):
            ops.host_store(dxs, ops.remote_load(dx_buffer, s))
    rng = np.random.default_rng(1)
    data = {s: rng.normal(size=(steps, batch, size)).astype(np.float32) for s in (xs, dys)}
    values = [rng.normal(size=(size, size)).astype(np.float32) for _ in range(layers)]
    ir.num_host_transfers = steps
    session = popxl.Session(ir, "ipu_hw")
    session.write_variables_data({w.w: v for w, v in zip(weights, values, strict=True)})
    with session:
        out = session.run(data)
    wanted = [np.zeros((size, size)) for _ in range(layers)]
    for s in range(steps):
        h = [data[xs][s]]
        for w in values:
            h.append(dense(h[-1], w))
        d = data[dys][s]
        for row in reversed(range(layers)):
            d = d * (1 - h[row + 1] ** 2)
            wanted[row] += h[row].T @ d / steps
            d = d @ values[row].T
        np.testing.assert_allclose(out[dxs][s], d, rtol=1e-4, atol=1e-5)
    for row in range(layers):
        np.testing.assert_allclose(out[means[row]][0], wanted[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_activations_are_sharded_over_a_group(mode: Any) -> None:
    """Four replicas, two and two with the same data: every entry is half a tensor on each."""
    steps = 4
    ir = program(4, steps)
    with ir.main_graph, popxl.in_sequence(True):
        group = ir.replica_grouping(stride=1, group_size=2)
        h2d, d2h = popxl.h2d_stream((2, 3), popxl.float32, "x"), popxl.d2h_stream((2, 3), popxl.float32, "y")
        middle_d2h = popxl.d2h_stream((2, 3), popxl.float32, "middle")
        factories, graph = Scale().create_graph(h2d.spec)
        x, y = graph.graph.inputs[0], graph.graph.outputs[0]
        buffer = batch_serial_buffer(y, steps, shard_group=group)
        assert (buffer.tensor_shape, buffer.meta_shape) == ((3,), (2, 3))
        first = batch_serialise(
            graph, steps, {x: h2d}, {y: middle_d2h}, {y: RemoteHandle(buffer, 0, group)}, io_mode=mode
        )
        last = batch_serialise(graph, steps, {x: (buffer, 0, group)}, {y: d2h}, {}, io_mode=mode)
        variables = factories.init()
        for made in (first, last):
            made.graph.bind(variables).call(0)
    half = np.random.default_rng(2).normal(size=(steps, 2, 2, 3)).astype(np.float32)
    data = np.repeat(half, 2, axis=1)
    with popxl.Session(ir, "ipu_hw") as session:
        out = session.run({h2d: data})
    np.testing.assert_array_equal(out[d2h], data * 4)
    np.testing.assert_array_equal(out[middle_d2h], data * 2)


@pytest.mark.parametrize("mode", MODES)
def test_rows_by_function_and_the_first_row(mode: Any) -> None:
    """Four rows in; even and odd ones each add up in a row of their own, which the function of the row names."""
    steps = 3
    ir = program(steps=steps)

    class Add(addons.Module):
        def build(self, x: popxl.Tensor, total: popxl.Tensor, mask: popxl.Tensor) -> popxl.Tensor:
            return x * mask + total

    def parity(row: popxl.Tensor) -> popxl.Tensor:
        return row - (row / 2) * 2

    with ir.main_graph, popxl.in_sequence(True):
        spec = popxl.TensorSpec((5,), popxl.float32)
        xs, out = popxl.h2d_stream((5,), popxl.float32, "x"), popxl.d2h_stream((5,), popxl.float32, "out")
        _, graph = Add().create_graph(spec, spec, spec)
        x, total, mask = graph.graph.inputs
        x_buffer, totals, mask_buffer = (batch_serial_buffer(x, steps, rows) for rows in (4, 2, 1))
        made = batch_serialise(
            graph,
            steps,
            {x: (x_buffer, 0), total: RemoteHandle(totals, parity), mask: RemoteHandle(mask_buffer, None)},
            {},
            {graph.graph.outputs[0]: RemoteHandle(totals, parity)},
            rows=4,
            io_mode=mode,
        )
        assert [b.entries for b in (x_buffer, totals, mask_buffer)] == [12, 6, 3]
        for buffer, count in ((x_buffer, 12), (mask_buffer, 3)):
            for entry in range(count):
                ops.remote_store(buffer, entry, ops.host_load(xs))
        for entry in range(6):
            ops.remote_store(totals, entry, popxl.constant(np.zeros(5, np.float32)))
        for row in range(4):
            made.graph.call(row)
        for entry in range(6):
            ops.host_store(out, ops.remote_load(totals, entry))
    ir.num_host_transfers = 15
    data = np.random.default_rng(3).normal(size=(15, 5)).astype(np.float32)
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run({xs: data})[out][:6]
    rows, masks = data[:12].reshape(4, steps, 5), data[12:]
    wanted = [rows[p::2].__mul__(masks).sum(axis=0) for p in (0, 1)]
    np.testing.assert_allclose(found.reshape(2, steps, 5), wanted, rtol=1e-6)


def test_each_step_gets_another_seed() -> None:
    steps = 4
    ir = program(steps=steps)

    class Noise(addons.Module):
        def build(self, x: popxl.Tensor, seed: popxl.Tensor) -> popxl.Tensor:
            return ops.dropout(x, seed, 0.5)

    found = []
    for mode in MODES:
        ir = program(steps=steps)
        with ir.main_graph, popxl.in_sequence(True):
            out = popxl.d2h_stream((64,), popxl.float32, "out")
            seeds = popxl.h2d_stream((2,), popxl.uint32, "seed")
            _, graph = Noise().create_graph(popxl.TensorSpec((64,), popxl.float32), seeds.spec)
            seed = graph.graph.inputs[1]
            made = batch_serialise(graph, steps, {}, {graph.graph.outputs[0]: out}, {}, seed, io_mode=mode)
            assert [t.name for t in made.graph.graph.inputs] == [
                "batch_serial_loop_index", "batch_serial_random_seed", "x"
            ]  # fmt: skip
            made.graph.call(0, ops.host_load(seeds), popxl.constant(np.ones(64, np.float32)))
        with popxl.Session(ir, "ipu_hw") as session:
            found.append(session.run({seeds: np.tile(np.array([7, 8], np.uint32), (steps, 1))})[out])
        assert len({tuple(row) for row in found[-1]}) == steps
        assert set(np.unique(found[-1])) == {0.0, 2.0}
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])

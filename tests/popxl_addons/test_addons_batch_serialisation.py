"""Phased execution: values against NumPy, what is loaded and stored when, extents of the buffers, errors."""

from __future__ import annotations

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

"""Layers, array helpers and streams of popxl.addons, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import array_munging, layers


def run(module: addons.Module, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The module's value for ``x`` and its variables' data by name."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        value = popxl.variable(x)
        factories, graph = module.create_graph(value)
        variables = factories.init()
        (y,) = graph.bind(variables).call(value)
        out = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(out, y)
    with popxl.Session(ir, "ipu_model") as session:
        result = session.run()[out]
        data = {name: session.get_tensor_data(t) for name, t in variables.named_tensors.items()}
    return result, data


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(rng: np.random.Generator, bias: bool) -> None:
    x = rng.normal(size=(4, 5)).astype(np.float32)
    y, data = run(layers.Linear(3, bias=bias), x)
    assert set(data) == ({"weight", "bias"} if bias else {"weight"})
    np.testing.assert_allclose(y, x @ data["weight"] + data.get("bias", 0), rtol=1e-5, atol=1e-6)


def test_layer_norm(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 16)).astype(np.float32)
    y, _ = run(layers.LayerNorm(), x)
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_group_norm(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 6, 5)).astype(np.float32)
    y, _ = run(layers.GroupNorm(3), x)
    groups = x.reshape(2, 3, -1)
    wanted = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted.reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(rng: np.random.Generator, groups: int) -> None:
    x = rng.normal(size=(2, 4, 6, 5)).astype(np.float32)
    y, data = run(layers.Conv2D(6, (3, 2), groups=groups), x)
    weight, wanted = data["weight"], np.zeros((2, 6, 4, 4), np.float32)
    for channel in range(6):
        first = channel // (6 // groups) * (4 // groups)
        for i, j in np.ndindex(4, 4):
            window = x[:, first : first + 4 // groups, i : i + 3, j : j + 2]
            wanted[:, channel, i, j] = (window * weight[channel]).sum((1, 2, 3)) + data["bias"][0, channel, 0, 0]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_embedding() -> None:
    indices = np.array([[3, 0], [1, 3]], np.int32)
    y, data = run(layers.Embedding(popxl.float32, 32, 5), indices)
    np.testing.assert_array_equal(y, data["weight"][indices])


@pytest.mark.parametrize(("shape", "axis", "n"), [((6, 4), 0, 3), ((6, 4), 1, 2), ((6, 4), -1, 4)])
def test_shards_put_together_are_the_whole(shape: tuple[int, ...], axis: int, n: int) -> None:
    whole = np.arange(24).reshape(shape)
    parts = array_munging.shard(whole, n, axis)
    assert len(parts) == n
    np.testing.assert_array_equal(array_munging.unshard(parts, axis), whole)


def test_streams_keep_names_and_order() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        streams = addons.InputStreams(words=((2, 3), popxl.int32), mask=((2,), popxl.float32))
        results = addons.OutputStreams(loss=((), popxl.float32))
        assert [s.shape for s in streams.streams] == [(2, 3), (2,)]
        assert streams.words.dtype == popxl.int32
        assert results.loss.shape == ()


def test_factories_of_zeros() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        factories, _ = layers.Linear(3).create_graph(popxl.TensorSpec((2, 4), popxl.float32))
        zeros = factories.init_zero()
        (weight,) = (t for name, t in zeros.named_tensors.items() if name == "weight")
        out = popxl.d2h_stream(weight.shape, weight.dtype)
        ops.host_store(out, weight)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], np.zeros((4, 3), np.float32))

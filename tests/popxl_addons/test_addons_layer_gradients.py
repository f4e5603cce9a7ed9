"""Layers of popxl.addons with their gradients, against PyTorch's modules with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import fp8_utils
from ipuperf.popxl_addons import layers
from ipuperf.popxl_addons.layers.linear_fp8 import LinearFP8
from ipuperf.popxl_addons.utils import WeightsDict

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

CASES: dict[str, tuple[Callable[[], addons.Module], Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: layers.Linear(3), lambda: torch.nn.Linear(5, 3), (4, 5)),
    "linear, batches": (lambda: layers.Linear(3), lambda: torch.nn.Linear(5, 3), (2, 4, 5)),
    "linear, no bias": (lambda: layers.Linear(3, bias=False), lambda: torch.nn.Linear(5, 3, bias=False), (4, 5)),
    "layer norm": (layers.LayerNorm, lambda: torch.nn.LayerNorm(6), (4, 6)),
    "group norm": (lambda: layers.GroupNorm(3), lambda: torch.nn.GroupNorm(3, 6), (2, 6, 5)),
    "convolution": (lambda: layers.Conv2D(4, (3, 2)), lambda: torch.nn.Conv2d(6, 4, (3, 2)), (2, 6, 5, 4)),
    "convolution, groups": (
        lambda: layers.Conv2D(4, 3, strides=(2, 1), paddings=(1, 1, 1, 1), groups=2),
        lambda: torch.nn.Conv2d(6, 4, 3, stride=(2, 1), padding=1, groups=2),
        (2, 6, 5, 4),
    ),
}
LIMITS = {popxl.float32: {"rtol": 2e-4, "atol": 2e-5}, popxl.float16: {"rtol": 2e-2, "atol": 2e-2}}


def mapped(module: Any, variables: addons.NamedTensors, layer: torch.nn.Module, dtype: popxl.dtype) -> WeightsDict:
    weights: WeightsDict = module.torch_mapping(variables, layer, dtype)
    return weights


@pytest.mark.parametrize("dtype", list(LIMITS), ids=["fp32", "fp16"])
@pytest.mark.parametrize("case", list(CASES))
def test_value_and_gradients(case: str, dtype: popxl.dtype) -> None:
    make, twin, shape = CASES[case]
    torch.manual_seed(len(case))
    layer, module = twin(), make()
    data = torch.randn(shape, requires_grad=True)
    wanted = layer(data)
    upstream = torch.randn(wanted.shape)
    wanted.backward(upstream)
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(data.detach().numpy(), dtype)
        dy = popxl.variable(upstream.numpy(), dtype)
        factories, graph = module.create_graph(x)
        names = sorted(factories.to_dict())
        required = [graph.graph.inputs[0], *(graph.args[name] for name in names)]
        backward = addons.autodiff(graph, grads_required=required)
        variables = factories.init()
        call = graph.bind(variables).call_with_info(x)
        grads = backward.call(dy, args=backward.grad_graph_info.inputs_dict(call))
        streams = [addons.host_store(t) for t in (call.outputs[0], *grads)]
    with popxl.Session(ir, "ipu_hw") as session:
        session.write_variables_data(mapped(module, variables, layer, dtype))
        found = session.run()
    value, dx, *others = (found[stream] for stream in streams)
    np.testing.assert_allclose(value, wanted.detach().numpy(), **LIMITS[dtype])
    np.testing.assert_allclose(dx, data.grad, **LIMITS[dtype])
    for name, grad in zip(names, others, strict=True):
        expected = getattr(layer, name).grad.numpy()
        expected = expected.T if name == "weight" and case.startswith("linear") else expected.reshape(grad.shape)
        np.testing.assert_allclose(grad, expected, **LIMITS[dtype])


@pytest.mark.parametrize("indices", [np.array([[3, 0, 3], [1, 1, 15]]), np.array(7), np.array([2])])
def test_a_table_gathers_and_adds_up_its_gradients(indices: np.ndarray) -> None:
    table, upstream = torch.randn(16, 4, requires_grad=True), torch.randn(*indices.shape, 4)
    torch.nn.functional.embedding(torch.tensor(indices), table).backward(upstream)
    ir = popxl.Ir()
    with ir.main_graph:
        ids, dy = popxl.variable(indices, popxl.int32), popxl.variable(upstream.numpy())
        factories, graph = layers.Embedding(popxl.float32, 16, 4).create_graph(ids)
        backward = addons.autodiff(graph, grads_required=[graph.args.weight])
        variables = factories.init()
        call = graph.bind(variables).call_with_info(ids)
        (grad,) = backward.call(dy, args=backward.grad_graph_info.inputs_dict(call))
        streams = [addons.host_store(t) for t in (call.outputs[0], grad)]
    with popxl.Session(ir, "ipu_model") as session:
        session.write_variables_data(WeightsDict({variables.weight: table.detach().numpy()}))
        found = session.run()
    np.testing.assert_array_equal(found[streams[0]], table.detach().numpy()[indices])
    np.testing.assert_allclose(found[streams[1]], table.grad, rtol=1e-5, atol=1e-6)


def eight_bits(values: np.ndarray, largest: float, margin: int = 0) -> np.ndarray:
    """``values`` as 8-bit floats with the largest scale that fits less ``margin``, scaled back."""
    dtype = popxl.float8_143 if largest == 240 else popxl.float8_152
    scale = int(np.clip(np.floor(np.log2(largest / np.abs(values).max())), -31, 31)) - margin
    coded = fp8_utils.host_pow2scale_cast_to_fp8(values, dtype, scale)
    return fp8_utils.host_pow2scale_cast_from_fp8(coded, popxl.float32, -scale)


@pytest.mark.parametrize("dtype", list(LIMITS), ids=["fp32", "fp16"])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_8_bit_floats(dtype: popxl.dtype, bias: bool) -> None:
    rng = np.random.default_rng(5)
    data, weight, upstream = (rng.normal(size=shape) for shape in ((4, 5), (5, 3), (4, 3)))
    data, weight, upstream = (t.astype(dtype.as_numpy()).astype(np.float32) for t in (data, weight, upstream))
    ir = popxl.Ir()
    with ir.main_graph:
        x, dy = popxl.variable(data, dtype), popxl.variable(upstream, dtype)
        factories, graph = LinearFP8(3, bias).create_graph(x)
        backward = addons.autodiff(graph)
        variables = factories.init()
        call = graph.bind(variables).call_with_info(x)
        grads = backward.call(dy, args=backward.grad_graph_info.inputs_dict(call))
        streams = [addons.host_store(t) for t in (call.outputs[0], *grads)]
    with popxl.Session(ir, "ipu_model") as session:
        session.write_variables_data({variables.weight: weight.astype(dtype.as_numpy())})
        value, dx, dw, *db = (session.run()[stream] for stream in streams)
    x8, w8, dy8 = eight_bits(data, 240), eight_bits(weight, 240), eight_bits(upstream, 57344, 3)
    for found, wanted in ((value, x8 @ w8), (dx, dy8 @ w8.T), (dw, x8.T @ dy8)):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=4e-3)  # products are float16
    assert len(db) == bias
    for found in db:
        np.testing.assert_allclose(found, upstream.sum(0), **LIMITS[dtype])


def test_scales_and_inputs_of_8_bit_floats() -> None:
    with pytest.raises(ValueError, match="scale_metric 'median' is not available; allowed: amax, mse, manual_scale"):
        LinearFP8(2, scale_metric="median")
    with popxl.Ir().main_graph, pytest.raises(ValueError, match="is needed"):
        LinearFP8(2).create_graph(popxl.TensorSpec((2, 3, 4), popxl.float16))


def test_a_seed_is_one_for_each_group() -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        variable, seed = addons.seed_variable(1984, ir.replica_grouping(group_size=2))
        own, _ = addons.seed_variable(1984)
        stream = addons.host_store(seed)
    assert (variable.shape_on_host, own.shape_on_host) == ((2, 2), (4, 2))
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()[stream].reshape(2, 2, 2)
        np.testing.assert_array_equal(found[:, 0], found[:, 1])
        np.testing.assert_array_equal(session.get_tensor_data(variable), found[:, 0])
        np.testing.assert_array_equal(session.get_tensor_data(variable), popxl.create_seeds(1984, replicas=2))
    assert len({tuple(words) for words in session.get_tensor_data(own)}) == 4

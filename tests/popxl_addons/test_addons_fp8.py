"""Scales and layers of 8-bit floats of popxl.addons, and the linear layout."""

from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.popxl.fp8_utils import host_fp8_mse_scale
from ipuperf.popxl_addons import layers
from ipuperf.popxl_addons.ops.fp8_amax_scale import fp8_amax_scale
from ipuperf.popxl_addons.ops.fp8_mse_scale import fp8_mse_scale
from ipuperf.popxl_addons.ops.linear_layout import linear_layout

FORMATS = [(popxl.float8_143, 240.0), (popxl.float8_152, 57344.0)]


@pytest.mark.parametrize(("kind", "largest"), FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [2.0**-9, 1.0, 50.0])
def test_scales(kind: Any, largest: float, dtype: Any, size: float) -> None:
    x = (np.random.default_rng(0).normal(size=(2, 3, 5)) * size).astype(dtype)
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        t = popxl.variable(x, replica_grouping=ir.replica_grouping(group_size=1))
        outputs = [addons.host_store(scale(t, kind)) for scale in (fp8_amax_scale, fp8_mse_scale)]
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run()
    for replica in range(2):
        wanted = np.floor(np.log2(largest / np.abs(x[replica].astype(np.float64)).max()))
        assert found[outputs[0]][replica] == np.clip(wanted, -31, 31)
        assert found[outputs[1]][replica] == host_fp8_mse_scale(x[replica], kind)[1]


def test_scales_refuse_other_types() -> None:
    with popxl.Ir().main_graph:
        number, whole = popxl.variable(np.ones(3, np.float32)), popxl.variable(np.ones(3, np.int32))
        for scale in (fp8_amax_scale, fp8_mse_scale):
            with pytest.raises(ValueError, match=r"float8_143, popxl\.float8_152"):
                scale(number, popxl.float16)
            with pytest.raises(RuntimeError, match="int32 is not supported"):
                scale(whole)


def test_the_loops_of_the_scale_are_charged() -> None:
    with popxl.Ir().main_graph:
        op = fp8_mse_scale(popxl.variable(np.ones(3, np.float32)))._ir_tensor.producer
    assert op is not None
    loops = op.work()[-1]
    one = int(loops.cycles(np.array([1]), load_machine("pod4").chip)[0])
    assert one > 63 * 254 * 6 * 100
    assert loops.low_confidence


@pytest.mark.parametrize(("metric", "scale"), [("amax", 0), ("mse", 0), ("manual_scale", 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_layer_of_8_bit_floats_and_its_gradients(metric: str, scale: int, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, grad = rng.uniform(0, 1, (4, 16)).astype(dtype), rng.normal(size=(4, 8)).astype(dtype)
    linear = torch.nn.Linear(16, 8)
    kind = popxl.float16 if dtype is np.float16 else popxl.float32
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        tensor = popxl.variable(x)
        factories, graph = layers.LinearFP8(8, scale_metric=metric, scale=scale).create_graph(tensor)
        variables = factories.init()
        back = graph.autodiff()
        info = graph.bind(variables).call_with_info(tensor)
        gradients = back.call(popxl.constant(grad), args=back.grad_graph_info.inputs_dict(info))
        outputs = [addons.host_store(t) for t in (info.outputs[0], *gradients)]
    with popxl.Session(ir, "ipu_hw") as session:
        session.write_variables_data(layers.LinearFP8.torch_mapping(variables, linear, kind))
        found = [session.run()[o] for o in outputs]
    leaf = torch.tensor(x.astype(np.float32), requires_grad=True)
    expected = linear(leaf)
    expected.backward(torch.tensor(grad.astype(np.float32)))
    wanted = [expected.detach(), leaf.grad, linear.weight.grad.T, linear.bias.grad]
    assert {f.dtype for f in found} == {np.dtype(dtype)}
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), atol=0.35 if mine is not found[0] else 0.1)


def test_another_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="'median' is not available; allowed: amax, mse, manual_scale"):
        layers.LinearFP8(4, scale_metric="median")


def test_the_linear_layout_is_a_copy() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph:
        t = popxl.variable(x)
        out = addons.host_store(linear_layout(ops.transpose(t), 4))
        with pytest.raises(ValueError, match="linear_layout: bs is 0"):
            linear_layout(t, 0)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[out], x.T)

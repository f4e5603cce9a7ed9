"""``AdamOptimizerStep`` against PyTorch's AdamW and a formula in plain NumPy."""

from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.popxl_addons.optimizers import AdamOptimizerStep

STEPS = 3
RNG = np.random.default_rng(11)
WEIGHT = RNG.normal(size=(4, 6)).astype(np.float32)
GRADIENTS = RNG.normal(size=(STEPS, 4, 6)).astype(np.float32)
NUMBERS = {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.05}


def trained(weight: np.ndarray = WEIGHT, gradients: np.ndarray = GRADIENTS, **numbers: Any) -> np.ndarray:
    """The weight after the steps, in a program of its own."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        var = popxl.variable(weight)
        stream = popxl.h2d_stream(weight.shape, popxl.dtype.as_dtype(gradients.dtype))
        grad = ops.host_load(stream)
        given = {n: ops.init((), popxl.float32, n, "zero") + v if n == "lr" else v for n, v in numbers.items()}
        facts, graph = AdamOptimizerStep().create_graph(var, grad, first_order_dtype=popxl.float32, **given)
        tensors = [t for t in given.values() if isinstance(t, popxl.Tensor)]
        graph.bind(facts.init()).call(var, grad, *tensors)
    with popxl.Session(ir, "ipu_model") as session:
        for gradient in gradients:
            session.run({stream: gradient})
        return session.get_tensor_data(var).copy()


def adamw(numbers: dict[str, float], corrected: bool = True, scale: float = 1.0) -> np.ndarray:
    """The same in float64."""
    w, m, v = WEIGHT.astype(np.float64), np.zeros((4, 6)), np.zeros((4, 6))
    for t, gradient in enumerate(GRADIENTS.astype(np.float64) * scale, start=1):
        m = numbers["beta1"] * m + (1 - numbers["beta1"]) * gradient
        v = numbers["beta2"] * v + (1 - numbers["beta2"]) * gradient**2
        c1, c2 = (1 - numbers["beta1"] ** t, 1 - numbers["beta2"] ** t) if corrected else (1.0, 1.0)
        w = w - numbers["lr"] * (m / c1 / (np.sqrt(v / c2) + numbers["eps"]) + numbers["weight_decay"] * w)
    return w


def test_step_is_pytorchs_adamw() -> None:
    torch = pytest.importorskip("torch")
    wanted = torch.tensor(WEIGHT)
    n = NUMBERS
    optimiser = torch.optim.AdamW([wanted], n["lr"], (n["beta1"], n["beta2"]), n["eps"], n["weight_decay"])
    for gradient in GRADIENTS:
        wanted.grad = torch.tensor(gradient)
        optimiser.step()
    np.testing.assert_allclose(trained(**NUMBERS), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("corrected", [True, False])
def test_bias_correction(corrected: bool) -> None:
    found = trained(**NUMBERS, bias_correction=corrected)
    np.testing.assert_allclose(found, adamw(NUMBERS, corrected), rtol=1e-5, atol=1e-6)


def norm_scale(norm: float, limit: float) -> float:
    return limit / max(norm, limit)


@pytest.mark.parametrize(("norm", "limit"), [(8.0, 2.0), (1.0, 2.0)])
def test_loss_scaling_and_clipping(norm: float, limit: float) -> None:
    ir = popxl.Ir()
    scaling = 16.0
    with ir.main_graph, popxl.in_sequence():
        var = popxl.variable(WEIGHT)
        stream = popxl.h2d_stream((4, 6), popxl.float16)
        grad = ops.host_load(stream)
        total = popxl.constant(norm, popxl.float32)
        step = AdamOptimizerStep()
        facts, graph = step.create_graph(
            var, grad, **NUMBERS, loss_scaling=scaling, global_norm=total.spec, global_norm_max=limit
        )
        assert facts.first_order.dtype is popxl.float16
        graph.bind(facts.init()).call(var, grad, total)
    with popxl.Session(ir, "ipu_model") as session:
        for gradient in GRADIENTS:
            session.run({stream: (gradient * scaling).astype(np.float16)})
        found = session.get_tensor_data(var)
    wanted = adamw(NUMBERS, scale=norm_scale(norm, limit))
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)  # moments and gradients in half precision


def test_a_norm_without_limit_is_refused() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        spec = popxl.TensorSpec((2,), popxl.float32)
        with pytest.raises(ValueError, match="global_norm_max"):
            AdamOptimizerStep().create_graph(spec, spec, lr=0.1, global_norm=popxl.TensorSpec((), popxl.float32))


@pytest.mark.parametrize("group_size", [2, 4])
def test_state_of_shards_is_sharded_as_they_are(group_size: int) -> None:
    """Four replicas; the variable is divided among all of them, or among pairs that hold the same."""
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        group = ir.replica_grouping(group_size=group_size)
        var, grad = popxl.variable(WEIGHT), popxl.variable(GRADIENTS[0])
        shard, part = (ops.collectives.replica_sharded_slice(t, group) for t in (var, grad))
        facts, graph = AdamOptimizerStep().create_graph(shard, part, **NUMBERS)
        assert (facts.first_order.shape, facts.first_order.meta_shape) == ((24 // group_size,), (4, 6))
        whole_state = facts.init()
        assert whole_state.second_order.shape == (4, 6)
        state = whole_state.map(lambda t: ops.collectives.replica_sharded_slice(t, group) if t.shape else t)
        graph.bind(state).call(shard, part)
        whole = ops.collectives.replicated_all_gather(shard, group=group)
        out = popxl.d2h_stream(whole.shape, whole.dtype)
        ops.host_store(out, whole)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()[out]
    direct = trained(gradients=GRADIENTS[:1], **NUMBERS)
    np.testing.assert_allclose(found, np.broadcast_to(direct, (4, 4, 6)), rtol=1e-3, atol=1e-4)

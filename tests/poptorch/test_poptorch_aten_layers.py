"""Aten ops of layers and losses: value and gradients against PyTorch autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from atencases import noise, positive  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.ir import Ir, ReplicaGrouping  # noqa: E402
from ipuperf.poptorch.aten.lowering import Norms  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

F = torch.nn.functional


POSITION = noise(6, 5)


PRODUCTS = {
    "linear": F.linear,
    "no_bias": lambda x, w, b: F.linear(x[0], w) + b,
    "matmul": lambda x, w, b: x @ w.t(),
    "mm": lambda x, w, b: torch.mm(x[0], w.t()),
    "bmm": lambda x, w, b: torch.bmm(x, x.transpose(1, 2)),
    "mv": lambda x, w, b: torch.mv(w, x[0, 0]),
    "dot": lambda x, w, b: torch.dot(x[0, 0], x[1, 1]),
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w.t(), beta=0.5, alpha=2),
    "baddbmm": lambda x, w, b: torch.baddbmm(x[:, :, :3], x, x.transpose(1, 2)),
    "addbmm": lambda x, w, b: torch.addbmm(x[0, :, :3], x, x.transpose(1, 2)),
    "broadcast": lambda x, w, b: torch.matmul(x[:, None], x.transpose(1, 2)),
}


def test_products(check_all: Any) -> None:
    check_all(PRODUCTS, noise(2, 3, 4), noise(5, 4), noise(5))


CONVOLUTIONS = {
    "conv2d": lambda x, w, b: F.conv2d(x, w, b),
    "strided": lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
    "dilated": lambda x, w, b: F.conv2d(x, w, None, dilation=2) + b.sum(),
    "same": lambda x, w, b: F.conv2d(x, w, b, padding="same"),
    "unbatched": lambda x, w, b: F.conv2d(x[0], w, b),
    "conv1d": lambda x, w, b: F.conv1d(x[:, :, 0], w[:, :, 0], b, padding=1),
    "groups": lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, padding=1, output_padding=1),
}


def test_convolutions(check_all: Any) -> None:
    check_all(CONVOLUTIONS, noise(2, 4, 7, 6), noise(6, 4, 3, 3), noise(6), rtol=1e-3, atol=1e-4)


POOLING = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max_padded": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max1d": lambda x: F.max_pool1d(x[:, :, 0], 2),
    "max_ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg_padded": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "avg_excluded": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg1d": lambda x: F.avg_pool1d(x[:, :, 0], 2),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive1d": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 2),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x[..., :6], (2, 1)),
    "unbatched": lambda x: F.max_pool2d(x[0], 2),
}


def test_pooling(check_all: Any) -> None:
    check_all(POOLING, noise(2, 3, 8, 7))


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (6, 5), POSITION, POSITION) + w.sum() + b.sum(),
    "layer_norm_last": lambda x, w, b: F.layer_norm(x.movedim(1, 3), (4,), w, b),
    "layer_norm_plain": lambda x, w, b: F.layer_norm(x, (5,)) + w[:1] * b[:1],
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "batch_norm_eval": lambda x, w, b: F.batch_norm(x, torch.linspace(0, 1, 4), torch.linspace(1, 2, 4), w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "rms_norm": lambda x, w, b: F.rms_norm(x.movedim(1, 3), (4,), w) * b,
}


def test_statistics_of_half_precision_are_not_half(stages: Any) -> None:
    """The mean of 4,096 times 16 is 16 and its variance 0: a sum in float16 would end at 32,768 and a square overflow
    (300 squared is beyond float16), and what the buffers hold is rounded once."""
    module = torch.nn.BatchNorm1d(2, momentum=0.5).half()
    x = torch.tensor([[16.0, 300.0], [16.0, -300.0]], dtype=torch.float16).repeat(2048, 1)
    outcome = stages(export_model(module, (x,)), [x])
    np.testing.assert_allclose(outcome.outputs[0][:, 1], np.tile([1.0, -1.0], 2048), rtol=1e-3)
    np.testing.assert_array_equal(outcome.outputs[0][:, 0], 0)
    np.testing.assert_array_equal(outcome.updates["running_mean"], [8.0, 0.0])
    expected = 0.5 + 0.5 * np.array([0, 90000 * 4096 / 4095])
    np.testing.assert_array_equal(outcome.updates["running_var"], expected.astype(np.float16))


def test_norms(check_all: Any) -> None:
    check_all(NORMS, noise(3, 4, 6, 5), positive(4), noise(4), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_state(stages: Any, training: bool, dtype: Any) -> None:
    module = torch.nn.BatchNorm2d(3).train(training).to(dtype)
    half = dtype == torch.float16
    with torch.no_grad():
        module.running_var.copy_(positive(3))
    x = (noise(4, 3, 5, 5) * 3 + 1).to(dtype)
    exported = export_model(module, (x,))
    outcome = stages(exported, [x])
    tolerance = 1e-3 if half else 1e-5
    np.testing.assert_allclose(outcome.outputs[0], module(x).detach().numpy(), rtol=10 * tolerance, atol=tolerance)
    assert set(outcome.updates) == ({"running_mean", "running_var", "num_batches_tracked"} if training else set())
    for name, value in outcome.updates.items():
        assert value.dtype == np.int32 if name == "num_batches_tracked" else value.dtype == str(dtype)[6:]
        np.testing.assert_allclose(value, getattr(module, name).numpy(), rtol=tolerance)
    assert exported.unused == ([] if training else ["num_batches_tracked"])


ATTENTION = {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scale": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "bool_mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6).tril(1).bool()),
    "float_mask": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.linspace(-1, 1, 36).view(6, 6)
    ),
    "grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
}


def test_attention(check_all: Any) -> None:
    check_all(ATTENTION, noise(2, 2, 6, 4), noise(2, 2, 6, 4) * 0.5, noise(2, 2, 6, 4) + 1)


def test_groups_of_strided_channels(stages: Any) -> None:
    """``groupNormStridedChannelGrouping``: groups of channels 0, 2 and 1, 3 instead of 0, 1 and 2, 3."""
    module, x, order = torch.nn.GroupNorm(2, 4), noise(3, 4, 5), [0, 2, 1, 3]
    outcome = stages(export_model(module, (x,), norms=Norms(strided_groups=True)), [x])
    expected = module(x[:, order])[:, order].detach().numpy()
    np.testing.assert_allclose(outcome.outputs[0], expected, rtol=1e-4, atol=1e-5)
    options = poptorch.Options()
    assert not options._Popart.strided_groups
    options._Popart.set("groupNormStridedChannelGrouping", True)
    assert options._Popart.strided_groups
    with pytest.raises(AssertionError, match="'groupNormStridedChannelGrouping', 1.: expected True or False"):
        options._Popart.set("groupNormStridedChannelGrouping", 1)


def test_stable_statistics_of_all_norms_take_longer() -> None:
    """``enableStableNorm``: a pass more, in the forward pass alone; values are the same."""
    kinds = [torch.nn.GroupNorm(2, 4), torch.nn.InstanceNorm1d(4), torch.nn.LayerNorm(64), torch.nn.BatchNorm1d(4)]
    model = torch.nn.Sequential(*kinds, torch.nn.Flatten(), torch.nn.Linear(256, 2))
    found = []

    def flags(program: Ir) -> list[bool]:
        return [op.stable for graph in program.all_graphs() for op in graph.ops if "stable" in op.declared]

    for stable in (False, True):
        options = poptorch.Options().enableStableNorm(stable)
        inference = poptorch.inferenceModel(model, options)
        y = inference(noise(3, 4, 64))
        executable = inference._executable.executable
        assert flags(executable.ir) == [stable] * 3  # the statistics of the fourth are given
        found.append((executable.simulated_run_cycles, y))
        training = export_model(model.train(), (noise(3, 4, 64),), norms=Norms(stable=stable))
        assert flags(training.ir) == [stable] * 4
    assert found[0][0] < found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_batch_norms_over_replicas_name_their_group() -> None:
    module = torch.nn.BatchNorm1d(4)
    exported = export_model(module, (noise(3, 4),), training=False, replication_factor=4, norms=Norms(replicas=2))
    (op,) = (op for part in exported.parts for op in part.graph.ops if op.type == "BatchNormalization")
    assert op.group == ReplicaGrouping(4, 1, 2)

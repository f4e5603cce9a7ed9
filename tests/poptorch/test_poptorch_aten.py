"""Every aten op that is mapped: value and gradients against PyTorch autograd."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.export import export_model  # noqa: E402

F = torch.nn.functional


class Case(torch.nn.Module):
    """Functions, each of its own parameters (floating point) and buffers (others); the loss is a weighted sum."""

    def __init__(self, functions: dict[str, Any], tensors: list[Any]) -> None:
        super().__init__()
        self.functions = functions
        self.count = len(tensors)
        for name in functions:
            for index, tensor in enumerate(tensors):
                if tensor.is_floating_point():
                    self.register_parameter(f"{name}_{index}", torch.nn.Parameter(tensor.clone()))
                else:
                    self.register_buffer(f"{name}_{index}", tensor.clone())

    def forward(self, start: Any) -> Any:
        loss, results = start, {}
        for name, function in self.functions.items():
            result = function(*(getattr(self, f"{name}_{i}") for i in range(self.count)))
            results[name] = list(result) if isinstance(result, (tuple, list)) else [result]
            for item in results[name]:
                if item.is_floating_point():
                    weights = torch.linspace(0.5, 1.5, item.numel()).reshape(item.shape).to(item.dtype)
                    loss = loss + (item * weights).sum()
        return results, poptorch.identity_loss(loss, "sum")


def check_all(stages: Any, functions: dict[str, Any], *tensors: Any, rtol: float = 2e-4, atol: float = 2e-5) -> Any:
    """Compare values and gradients of all functions (in one export) with PyTorch's; the exported model."""
    case = Case(functions, list(tensors))
    start = torch.zeros(())
    exported = export_model(case, (start,), training=True)
    outcome = stages(exported, [start])
    found, _ = exported.result_of(list(zip(outcome.outputs, exported.outputs, strict=True)))
    results, loss = case(start)
    for name, wanted in results.items():
        for (mine, spec), tensor in zip(found[name], wanted, strict=True):
            assert mine.shape == tuple(tensor.shape), name
            assert spec.dtype == tensor.dtype, name
            np.testing.assert_allclose(mine, tensor.detach().numpy(), rtol=rtol, atol=atol, err_msg=name)
    if loss.requires_grad:
        loss.backward()
    for name, parameter in case.named_parameters():
        if name in outcome.gradients:
            wanted = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
            np.testing.assert_allclose(outcome.gradients[name], wanted, rtol=rtol, atol=atol, err_msg=name)
        else:
            assert parameter.grad is None or not parameter.grad.any(), name
    for part in exported.parts:
        for op in part.graph.ops:
            op.work()
            assert __file__ in op.location, op
    return exported


def check(stages: Any, function: Any, *tensors: Any, **tolerance: float) -> Any:
    """:func:`check_all` of one function."""
    return check_all(stages, {"only": function}, *tensors, **tolerance)


def noise(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 1))


def positive(*shape: int) -> Any:
    return noise(*shape).abs() + 0.5


def labels(high: int, *shape: int) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


A, B = noise(3, 4), noise(3, 4).flip(0) * 1.5
POSITION = noise(6, 5)

UNARY = {
    "abs": torch.abs, "neg": torch.neg, "exp": torch.exp, "expm1": torch.expm1, "exp2": torch.exp2, "erf": torch.erf,
    "floor": torch.floor, "ceil": torch.ceil, "round": lambda x: x.detach().round(), "trunc": torch.trunc, "sign": torch.sign,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu, "relu6": F.relu6, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "elu": F.elu, "elu_alpha": lambda x: F.elu(x, 0.5), "selu": F.selu, "celu": lambda x: F.celu(x, 2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "hardtanh": F.hardtanh, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, beta=2),
    "logsigmoid": F.logsigmoid, "mish": F.mish, "softsign": F.softsign, "glu": F.glu, "square": torch.square,
    "threshold": lambda x: F.threshold(x, 0.1, 0.5), "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.1), "clamp_max": lambda x: x.clamp_max(0.1),
    "pow2": lambda x: x**2, "pow3": lambda x: x**3, "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "nan_to_num": torch.nan_to_num, "isfinite": torch.isfinite, "isnan": torch.isnan,
    "isinf": torch.isinf, "logical_not": torch.logical_not, "to_int": lambda x: (x * 10).int(), "half": lambda x: x.half(),
    "to_bool": lambda x: x.bool(), "clone": torch.clone, "identity": torch.nn.Identity(),
    "softmax": lambda x: x.softmax(-1), "softmax0": lambda x: x.softmax(0), "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1), "normalize": F.normalize,
}  # fmt: skip

POSITIVE = {
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "pow_half": lambda x: x**0.5, "pow_minus": lambda x: x**-1,
    "pow_minus_half": lambda x: x**-0.5, "pow_other": lambda x: x**1.7, "prod": torch.prod, "two_to": lambda x: 2.0**x,
    "prod_dim": lambda x: x.prod(1),
}  # fmt: skip

BINARY = {
    "add": torch.add, "add_alpha": lambda a, b: torch.add(a, b, alpha=2), "sub": torch.sub, "mul": torch.mul,
    "rsub": lambda a, b: torch.rsub(a, b, alpha=0.5), "div": lambda a, b: a / (b.abs() + 1),
    "div_floor": lambda a, b: torch.div(a, b.abs() + 0.1, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b.abs() + 0.1, rounding_mode="trunc"),
    "fmod": lambda a, b: torch.fmod(a, b.detach().abs() + 0.3), "remainder": lambda a, b: torch.remainder(a, b.detach()),
    "maximum": torch.maximum, "minimum": torch.minimum, "max_other": torch.max, "min_other": torch.min,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "where": lambda a, b: torch.where(a > b, a, b), "where_scalar": lambda a, b: torch.where(a > 0, b, 1.5),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, -3.0), "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5), "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "logical_and": torch.logical_and, "logical_xor": lambda a, b: torch.logical_xor(a > 0, b > 0),
    "bitwise": lambda a, b: ((a > 0) & (b > 0)) | ~(a > b) ^ (b > 0.5), "add_scalar": lambda a, b: a + 2 + b * 3 - 1,
    "clamp_tensor": lambda a, b: torch.clamp(a, b.detach() - 0.1, b.detach() + 0.1), "in_place": lambda a, b: (a * 1).add_(b).mul_(2).relu_(),
    "broadcast": lambda a, b: a[:, :1] * b[:1], "cosine": F.cosine_similarity,
    "set_item": lambda a, b: _set(a, b), "set_mask": lambda a, b: _set_mask(a, b),
}  # fmt: skip


def _set(a: Any, b: Any) -> Any:
    c = a * 1
    c[:, 1] = b[:, 0]
    c[0:2, 2:] = 5.0
    return c


def _set_mask(a: Any, b: Any) -> Any:
    c = a * 1
    c[b > 0] = 0.0
    return c


def test_functions(stages: Any) -> None:
    check_all(stages, UNARY, A)


def test_conversion_to_half(stages: Any) -> None:
    check(stages, lambda x: (x.half(), x.half().float() * 2), A, rtol=2e-3, atol=2e-3)


def test_functions_of_positive_numbers(stages: Any) -> None:
    check_all(stages, POSITIVE, positive(3, 4))


def test_two_operands(stages: Any) -> None:
    check_all(stages, BINARY, A, B)


def test_whole_numbers(stages: Any) -> None:
    a, b = torch.tensor([7, -7, 7, -7, 6]), torch.tensor([2, 2, -2, -2, 3])
    check(stages, lambda a, b: (a + b, a - b, a * b, a // b, a % b, torch.fmod(a, b), a.abs(), -a, a.clamp(0, 5)), a, b)
    check(stages, lambda a, b: (a / b, a + 0.5, a.float() * 2, a > 3, a == b, a.bool() & b.bool(), a**2), a, b)
    check(stages, lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.sum(), a.max(), a.cumsum(0)), a, b)


SHAPES = {
    "view": lambda x: x.view(6, 4), "view_minus": lambda x: x.view(2, -1), "reshape": lambda x: x.transpose(0, 1).reshape(-1),
    "flatten": lambda x: x.flatten(1), "permute": lambda x: x.permute(2, 0, 1), "transpose": lambda x: x.transpose(1, 2),
    "mT": lambda x: x.mT, "movedim": lambda x: x.movedim(0, 2), "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1), "expand": lambda x: x[:, :1].expand(-1, 3, -1), "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "slice": lambda x: x[:, 1:, ::2], "negative_slice": lambda x: x[:, -2:], "select": lambda x: x[1, :, -1],
    "narrow": lambda x: x.narrow(2, 1, 2), "split": lambda x: x.split(2, 1), "split_sizes": lambda x: x.split([1, 3], 2),
    "chunk": lambda x: x.chunk(2, 2), "unbind": lambda x: x.unbind(1), "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x + 1], -1), "repeat": lambda x: x.repeat(2, 1, 3), "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "flip": lambda x: x.flip(0, 2), "roll": lambda x: x.roll(1, 1),
    "roll_all": lambda x: x.roll(5), "pad": lambda x: F.pad(x, (1, 2, 0, 1)), "pad_value": lambda x: F.pad(x, (1, 0), value=2.0),
    "pad_cut": lambda x: F.pad(x, (-1, 1)), "reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2), mode="replicate"), "circular": lambda x: F.pad(x, (1, 2), mode="circular"),
    "tril": torch.tril, "triu": lambda x: x.triu(1), "masked_causal": lambda x: x.masked_fill(torch.tril(torch.ones(3, 4)) == 0, -1e4),
    "index_list": lambda x: x[[1, 0]], "index_two": lambda x: x[:, [0, 2], [1, 3]],
    "index_front": lambda x: x[[0, 1], :, [1, 3]], "index_negative": lambda x: x[torch.tensor([-1])], "cumsum": lambda x: x.cumsum(1),
    "zeros_like": lambda x: x + torch.zeros_like(x) + torch.ones_like(x) + torch.full((4,), 2.0) + torch.arange(4),
    "contiguous": lambda x: x.transpose(0, 1).contiguous().view(-1), "pixel": lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "diff": lambda x: x.diff(dim=1), "outer": lambda x: torch.outer(x[0, 0], x[1, 0]),
    "sum": lambda x: x.sum(), "sum_dim": lambda x: x.sum((0, 2)), "mean": lambda x: x.mean(1, keepdim=True), "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1)), "max": lambda x: x.max(), "max_dim": lambda x: tuple(x.max(2)), "min_dim": lambda x: tuple(x.min(0, keepdim=True)),
    "argmax": lambda x: x.argmax(1), "argmax_all": lambda x: x.argmax(), "argmin": lambda x: x.argmin(-1, keepdim=True),
    "var": lambda x: x.var(1), "var_biased": lambda x: x.var((0, 1), unbiased=False), "std": lambda x: x.std(), "var_mean": lambda x: torch.var_mean(x, 1),
    "logsumexp": lambda x: x.logsumexp(1), "norm": lambda x: x.norm(), "norm1": lambda x: x.norm(p=1, dim=1), "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm3": lambda x: x.norm(p=3), "any": lambda x: (x > 1).any(1), "all": lambda x: (x > -1).all(), "sum_bool": lambda x: (x > 0).sum(),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x), "einsum_sum": lambda x: torch.einsum("bij->j", x), "bilinear": lambda x: F.interpolate(x[None], scale_factor=2),
}  # fmt: skip


def test_shapes_and_reductions(stages: Any) -> None:
    check_all(stages, SHAPES, noise(2, 3, 4))


def test_picking_by_index(stages: Any) -> None:
    table, index = noise(7, 5), labels(7, 3, 2)
    padding = int(index[0, 0])
    check(stages, lambda t, i: F.embedding(i, t), table, index)
    check(stages, lambda t, i: F.embedding(i, t, padding_idx=padding), table, index)
    check(stages, lambda t, i: t.index_select(0, i.flatten()), table, index)
    check(stages, lambda t, i: t[i], table, index)
    check(stages, lambda t, i: t.index_select(1, i), table, labels(5, 4))
    check(stages, lambda t, i: t.gather(1, i), table, labels(5, 7, 2))
    check(stages, lambda t, i: t.gather(0, i), table, labels(7, 4, 5))
    check(stages, lambda t, i: F.one_hot(i, 7) + t.sum(), table, index)


def test_products(stages: Any) -> None:
    x, w, b = noise(2, 3, 4), noise(5, 4), noise(5)
    check(stages, F.linear, x, w, b)
    check(stages, lambda x, w: F.linear(x, w), x[0], w)
    check(stages, lambda x, w: x @ w.t(), x, w)
    check(stages, lambda x, w: torch.mm(x[0], w.t()), x, w)
    check(stages, lambda x: torch.bmm(x, x.transpose(1, 2)), x)
    check(stages, lambda x, w: torch.mv(w, x[0, 0]), x, w)
    check(stages, lambda x: torch.dot(x[0, 0], x[1, 1]), x)
    check(stages, lambda x, w, b: torch.addmm(b, x[0], w.t(), beta=0.5, alpha=2), x, w, b)
    check(stages, lambda x: torch.baddbmm(x[:, :, :3], x, x.transpose(1, 2)), x)
    check(stages, lambda x: torch.matmul(x[:, None], x.transpose(1, 2)), x)


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


def test_convolutions(stages: Any) -> None:
    check_all(stages, CONVOLUTIONS, noise(2, 4, 7, 6), noise(6, 4, 3, 3), noise(6), rtol=1e-3, atol=1e-4)


POOLING = {
    "max": lambda x: F.max_pool2d(x, 2), "max_padded": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max1d": lambda x: F.max_pool1d(x[:, :, 0], 2), "max_ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 2), "avg_padded": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "avg_excluded": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), "avg1d": lambda x: F.avg_pool1d(x[:, :, 0], 2),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3), "adaptive": lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, 3), "adaptive1d": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 2),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x[..., :6], (2, 1)), "unbatched": lambda x: F.max_pool2d(x[0], 2),
}  # fmt: skip


def test_pooling(stages: Any) -> None:
    check_all(stages, POOLING, noise(2, 3, 8, 7))


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


def test_norms(stages: Any) -> None:
    check_all(stages, NORMS, noise(3, 4, 6, 5), positive(4), noise(4), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_state(stages: Any, training: bool) -> None:
    module = torch.nn.BatchNorm2d(3).train(training)
    x = noise(4, 3, 5, 5)
    exported = export_model(module, (x,))
    outcome = stages(exported, [x])
    np.testing.assert_allclose(outcome.outputs[0], module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert set(outcome.updates) == ({"running_mean", "running_var", "num_batches_tracked"} if training else set())
    for name, value in outcome.updates.items():
        np.testing.assert_allclose(value, getattr(module, name).numpy(), rtol=1e-5)
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


def test_attention(stages: Any) -> None:
    check_all(stages, ATTENTION, noise(2, 2, 6, 4), noise(2, 2, 6, 4) * 0.5, noise(2, 2, 6, 4) + 1)


def one_loss(function: Any) -> Any:
    """A module whose loss is found by its function."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Any, y: Any) -> Any:
            return function(x * self.scale, y)

    return Model()


CLASSES = labels(5, 6)
FIRST = int(CLASSES[0])
PROBABILITIES = noise(6, 5).softmax(1)
LOSSES = {
    "cross_entropy": (F.cross_entropy, CLASSES),
    "cross_entropy_sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), CLASSES),
    "cross_entropy_ignored": (lambda x, y: F.cross_entropy(x, y, ignore_index=FIRST), CLASSES),
    "cross_entropy_smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), CLASSES),
    "cross_entropy_smoothed_ignored": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=FIRST), CLASSES),
    "cross_entropy_soft": (F.cross_entropy, PROBABILITIES),
    "cross_entropy_images": (lambda x, y: F.cross_entropy(x.view(2, 5, 3), y.view(2, 3)), CLASSES),
    "nll": (lambda x, y: F.nll_loss(x.log_softmax(1), y), CLASSES),
    "mse": (F.mse_loss, noise(6, 5) + 1), "mse_sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), noise(6, 5)),
    "l1": (F.l1_loss, noise(6, 5) + 1), "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), noise(6, 5) + 1),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), noise(6, 5) + 1),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), PROBABILITIES),
    "bce_logits": (F.binary_cross_entropy_with_logits, PROBABILITIES),
    "bce_weighted": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.linspace(1, 2, 5)), PROBABILITIES),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="sum"), PROBABILITIES),
    "kl_log": (lambda x, y: F.kl_div(x.log_softmax(1), y.log(), reduction="sum", log_target=True), PROBABILITIES),
    "poisson": (F.poisson_nll_loss, positive(6, 5)),
    "poisson_full": (lambda x, y: F.poisson_nll_loss(x, y, full=True), positive(6, 5) * 3),
    "soft_margin": (F.soft_margin_loss, noise(6, 5).sign()),
    "hinge": (F.hinge_embedding_loss, noise(6, 5).sign()),
    "cosine": (lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(6)), noise(6, 5) + 1),
    "triplet": (lambda x, y: F.triplet_margin_loss(x, y, x.flip(0)), noise(6, 5) + 1),
    "margin_ranking": (lambda x, y: F.margin_ranking_loss(x[:, 0], x[:, 1], y), noise(6).sign()),
    "multilabel": (F.multilabel_soft_margin_loss, (PROBABILITIES > 0.2).float()),
}  # fmt: skip


class Losses(torch.nn.Module):
    """All losses at once: none is found, so the sum is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.tensor(1.3)) for n in LOSSES})

    def forward(self, x: Any) -> Any:
        found = {name: function(x * self.scales[name], target) for name, (function, target) in LOSSES.items()}
        return found, poptorch.identity_loss(sum(found.values()), "none")


def test_losses(stages: Any) -> None:
    model, x = Losses(), noise(6, 5)
    exported = export_model(model, (x,), training=True)
    outcome = stages(exported, [x])
    found, _ = exported.result_of(outcome.outputs)
    wanted, loss = model(x)
    loss.backward()
    for name in LOSSES:
        np.testing.assert_allclose(found[name], wanted[name].item(), rtol=1e-4, err_msg=name)
        grad = model.scales[name].grad.item()
        np.testing.assert_allclose(outcome.gradients[f"scales.{name}"], grad, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["cross_entropy", "nll", "mse_sum", "hinge", "cosine", "multilabel"])
def test_losses_are_found_by_their_function(name: str) -> None:
    function, target = LOSSES[name]
    exported = export_model(one_loss(function), (noise(6, 5), target), training=True)
    assert exported.loss == (exported.outputs[0].part, exported.outputs[0].output)


def test_unreduced_loss(stages: Any) -> None:
    model, x, y = one_loss(lambda x, y: F.cross_entropy(x, y, reduction="none")), noise(6, 5), CLASSES
    exported = export_model(model, (x, y), training=True)
    loss = model(x, y)
    np.testing.assert_allclose(stages(exported, [x, y]).outputs[0], loss.detach().numpy(), rtol=1e-4)


def test_dropout_uses_the_seed_and_its_own_key(stages: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5), torch.nn.Dropout2d(0.3))
    x = torch.ones(8, 64, 4, 4)
    exported = export_model(module, (x,))
    keys = [op.attributes["key"] for op in exported.parts[0].graph.ops if op.type == "Dropout"]
    assert keys == [0, 1, 2]
    (result,) = stages(exported, [x]).outputs
    per_channel = (result != 0).any((2, 3)).mean()
    assert 0.6 < per_channel < 0.8
    assert 0.15 < (result != 0).mean() / per_channel < 0.35
    np.testing.assert_allclose(result[result != 0], 4 / 0.7, rtol=1e-5)
    assert not np.array_equal(result, stages(exported, [x], seed=9).outputs[0])
    module.eval()
    plain = export_model(module, (x,))
    np.testing.assert_array_equal(stages(plain, [x]).outputs[0], x.numpy())


def test_half_models(stages: Any) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    wide, x = [p.clone() for p in module.parameters()], noise(5, 8)
    expected = module(x).detach()
    module.half()
    exported = export_model(module, (x.half(),))
    assert {v.dtype.name for v in exported.variables.values()} == {"float16"}
    (result,) = stages(exported, [x.half()]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected.numpy(), rtol=2e-2, atol=2e-2)
    assert len(wide) == len(exported.variables)


def test_autocast_regions_cast(stages: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.float16):
                y = self.layer(x)
            return y, x

    module, x = Model(), noise(3, 8)
    exported = export_model(module, (x,))
    result, _ = stages(exported, [x]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, module.layer(x).detach().numpy(), rtol=1e-2, atol=1e-2)


def test_types_are_narrowed_and_converted_back(stages: Any) -> None:
    x, i = noise(3).double(), torch.tensor([1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported = export_model(one_loss(lambda x, y: (x.double() * y, y + 1)), (x, i))
    assert any("float64 is float32 on the IPU: x" in str(w.message) for w in caught)
    assert [s.stream.dtype.name for s in exported.inputs] == ["float32", "int32"]
    outputs = stages(exported, [x, i]).outputs
    assert [o.dtype.name for o in outputs] == ["float32", "int32"]
    back = [spec.to_torch(o) for spec, o in zip(exported.outputs, outputs, strict=True)]
    assert [t.dtype for t in back] == [torch.float64, torch.int64]
    with pytest.raises(poptorch.Error, match="input 'y': 4294967296 does not fit into int32"):
        exported.inputs[1].to_numpy(torch.tensor([2**32]))


UNSUPPORTED = {
    "aten::sort is unsupported": lambda x, y: x.sort()[0],
    "aten::svd|aten::_linalg_svd is unsupported": lambda x, y: torch.linalg.svdvals(x),
    "depends on data": lambda x, y: x[x > 0],
    '"weight" is unsupported': lambda x, y: F.cross_entropy(x, y, weight=torch.ones(5)),
    "torch.bfloat16, which the IPU does not have": lambda x, y: x.bfloat16() * 2,
    "whole factors": lambda x, y: F.interpolate(x[None], size=7),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_ops_name_op_and_line(message: str) -> None:
    with pytest.raises(poptorch.Error, match=message) as caught:
        export_model(one_loss(UNSUPPORTED[message]), (noise(6, 5), CLASSES))
    assert __file__ in str(caught.value)

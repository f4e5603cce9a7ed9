"""One small program for each operation that PopTorch's documentation says the IPU supports.

``CASES`` has upstream's names (poptorch: ``docs/user_guide/supported_ops.rst``); ``supported.csv`` says what is checked
without PyTorch, for the table in the documentation. A case is a function and its operands: floating-point ones get
gradients, which are compared too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from atencases import labels, noise, positive

F = torch.nn.functional
nn = torch.nn


@dataclass(frozen=True)
class Supported:
    """A case.

    Attributes:
        function: of the operands; gives a tensor or several.
        operands: floating-point ones are parameters, others buffers.
        random: the values cannot be compared; that they are of the distribution is tested elsewhere.
        float16: whether it is also run in float16.
        remark: what differs from PyTorch, or from upstream.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    random: bool = False
    float16: bool = True
    remark: str = ""


def case(function: Callable[..., Any], *operands: Any, **named: Any) -> Supported:
    """A case of a function."""
    return Supported(function, operands, **named)


def layer(module: Any, *operands: Any, **named: Any) -> Supported:
    """A case of a module: its parameters are operands too."""
    names = [name for name, _ in module.named_parameters()]
    weights = [0.5 * noise(*p.shape) if p.dim() else p.detach().clone() for p in module.parameters()]
    for parameter in module.parameters():
        parameter.requires_grad_(False)

    def call(*tensors: Any) -> Any:
        own = dict(zip(names, tensors[len(operands) :], strict=True))
        return torch.func.functional_call(module, own, tensors[: len(operands)])

    return Supported(call, (*operands, *weights), **named)


def recurrent(module: Any) -> Supported:
    """A case of a recurrent layer, of which the sequence of results counts."""
    plain = layer(module, noise(5, 2, 3))
    return Supported(lambda *tensors: plain.function(*tensors)[0], plain.operands)


def between(*shape: int) -> Any:
    """Numbers inside of (-1, 1)."""
    return noise(*shape).tanh() * 0.9


def chances(*shape: int) -> Any:
    """Numbers inside of (0, 1)."""
    return noise(*shape).sigmoid()


X, Y = noise(3, 4), noise(3, 4).flip(0) * 1.5
ONES, SOME = torch.tensor([[1, 1], [0, 1]], dtype=torch.int32), torch.tensor([[12, -7], [5, 0]], dtype=torch.int32)
INDEX = labels(3, 3, 4)
IMAGE, LINE, VOLUME = noise(2, 4, 6, 6), noise(2, 4, 8), noise(2, 4, 4, 4, 4)
CLASSES = positive(4)
SIGNS = torch.tensor([1.0, -1.0, 1.0])


CREATION = {
    "torch.arange": case(lambda x: x + torch.arange(4), X),
    "tensor.fill": case(lambda x: torch.fill(x, 2.5) + x, X),
    "torch.full": case(lambda x: x * torch.full((3, 4), 1.5), X),
    "torch.full_like": case(lambda x: x * torch.full_like(x, 1.5), X),
    "torch.Tensor.new_ones": case(lambda x: x + x.new_ones(3, 4), X),
    "torch.Tensor.new_zeros": case(lambda x: x + x.new_zeros(3, 4), X),
    "torch.ones": case(lambda x: x + torch.ones(4), X),
    "torch.ones_like": case(lambda x: x + torch.ones_like(x), X),
    "torch.zeros": case(lambda x: x + torch.zeros(4), X),
    "torch.zeros_like": case(lambda x: x + torch.zeros_like(x), X),
}

INDEXING = {
    "torch.bincount": case(
        lambda i: torch.bincount(i, minlength=5), labels(5, 9), remark="minlength says the length of the result"
    ),
    "torch.bucketize": case(
        lambda x, b: (torch.bucketize(x, b), torch.bucketize(x, b, right=True)), X, torch.tensor([-1.0, 0.0, 0.5])
    ),
    "torch.cat": case(lambda x, y: torch.cat([x, y, x], 1), X, Y),
    "torch.chunk": case(lambda x: torch.chunk(x, 2, 1), X),
    "torch.gather": case(lambda x, i: torch.gather(x, 0, i), X, INDEX),
    "torch.index_select": case(lambda x, i: torch.index_select(x, 1, i), X, labels(4, 5)),
    "torch.index_reduce": case(
        lambda x, i, y: torch.index_reduce(x, 0, i, y, "amax"), X, labels(3, 3), Y, remark="prod, mean, amax, amin"
    ),
    "torch.reshape": case(lambda x: torch.reshape(x, (2, 6)), X),
    "torch.roll": case(lambda x: torch.roll(x, 1, 1), X),
    "torch.scatter": case(
        lambda x, i, y: torch.scatter(x, 1, i, y), X, torch.tensor([[0, 2], [1, 3], [3, 0]]), noise(3, 2)
    ),
    "torch.scatter_add": case(lambda x, i, y: torch.scatter_add(x, 0, i, y), X, INDEX, Y),
    "torch.scatter_reduce": case(lambda x, i, y: torch.scatter_reduce(x, 0, i, y, "amax"), X, INDEX, Y),
    "torch.stack": case(lambda x, y: torch.stack([x, y], 1), X, Y),
    "torch.split": case(lambda x: torch.split(x, 3, 1), X),
    "torch.squeeze": case(lambda x: torch.squeeze(x), noise(3, 1, 4)),
    "torch.t": case(torch.t, X),
    "torch.take_along_dim": case(lambda x, i: torch.take_along_dim(x, i, 0), X, INDEX),
    "torch.transpose": case(lambda x: torch.transpose(x, 0, 1), X),
    "torch.unbind": case(torch.unbind, X),
    "torch.unsqueeze": case(lambda x: torch.unsqueeze(x, 1), X),
    "torch.where": case(lambda x, y: torch.where(x > y, x, y), X, Y),
    "tensor.expand": case(lambda x: x.expand(2, 3, 4), X),
    "tensor.expand_as": case(lambda x, y: x[:, :1].expand_as(y), X, Y),
    "tensor.masked_fill": case(lambda x, y: x.masked_fill(y > 0, 2.0), X, Y),
    "tensor.index_fill_": case(lambda x, i: (x * 1).index_fill_(1, i, 2.0), X, torch.tensor([0, 2])),
}

RANDOM = {
    "torch.bernoulli": case(torch.bernoulli, chances(3, 4), random=True),
    "torch.distributions.Bernoulli": case(
        lambda p: torch.distributions.Bernoulli(p).sample(), chances(3, 4), random=True
    ),
    "torch.randn": case(lambda x: x + torch.randn(3, 4), X, random=True),
    "torch.normal": case(lambda m, s: torch.normal(m, s), X, positive(3, 4), random=True),
    "torch.distributions.Normal": case(
        lambda m, s: torch.distributions.Normal(m, s).sample((2,)), X, positive(3, 4), random=True
    ),
    "torch.rand": case(lambda x: x + torch.rand(3, 4), X, random=True),
    "torch.uniform": case(lambda x: (x * 1).uniform_(-1, 2), X, random=True),
    "torch.distributions.Uniform": case(
        lambda x: x + torch.distributions.Uniform(0.0, 2.0).sample((3, 4)), X, random=True
    ),
    "torch.exponential": case(lambda x: (x * 1).exponential_(2.0), X, random=True),
    "torch.distributions.Exponential": case(
        lambda x: torch.distributions.Exponential(x).sample(), positive(3, 4), random=True
    ),
}

POINTWISE = {
    "torch.abs": case(torch.abs, X),
    "torch.acos": case(torch.acos, between(3, 4)),
    "torch.acosh": case(torch.acosh, positive(3, 4) + 1),
    "torch.add": case(lambda x, y: torch.add(x, y, alpha=2), X, Y),
    "torch.addcdiv": case(lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=0.5), X, Y),
    "torch.amax": case(lambda x: torch.amax(x, 1), X),
    "torch.amin": case(lambda x: torch.amin(x, 1), X),
    "torch.asin": case(torch.asin, between(3, 4)),
    "torch.asinh": case(torch.asinh, X),
    "torch.atan": case(torch.atan, X),
    "torch.atanh": case(torch.atanh, between(3, 4)),
    "torch.bitwise_and": case(torch.bitwise_and, ONES * 13, SOME),
    "torch.bitwise_not": case(torch.bitwise_not, SOME),
    "torch.bitwise_or": case(torch.bitwise_or, ONES * 13, SOME),
    "torch.bitwise_xor": case(torch.bitwise_xor, ONES * 13, SOME),
    "torch.cdist": case(torch.cdist, noise(4, 3), noise(5, 3), float16=False),
    "torch.ceil": case(torch.ceil, X),
    "torch.clamp": case(lambda x: torch.clamp(x, -0.5, 0.5), X),
    "torch.clamp_max": case(lambda x: torch.clamp_max(x, 0.1), X),
    "torch.clamp_min": case(lambda x: torch.clamp_min(x, 0.1), X),
    "torch.cos": case(torch.cos, X),
    "torch.cosh": case(torch.cosh, X),
    "torch.div": case(lambda x, y: torch.div(x, y.abs() + 1), X, Y),
    "torch.exp": case(torch.exp, X),
    "torch.expm1": case(torch.expm1, X),
    "torch.floor": case(torch.floor, X),
    "torch.floor_divide": case(
        lambda x, y: torch.floor_divide(x.detach(), y.detach().abs() + 0.3), X, Y, float16=False
    ),
    "torch.fmod": case(lambda x, y: torch.fmod(x, y.detach().abs() + 0.3), X, Y, float16=False),
    "torch.frac": case(torch.frac, X),
    "torch.log": case(torch.log, positive(3, 4)),
    "torch.log10": case(torch.log10, positive(3, 4)),
    "torch.log1p": case(torch.log1p, positive(3, 4)),
    "torch.log2": case(torch.log2, positive(3, 4)),
    "torch.logical_and": case(lambda x, y: torch.logical_and(x > 0, y > 0), X, Y),
    "torch.logical_or": case(lambda x, y: torch.logical_or(x > 0, y > 0), X, Y),
    "torch.mul": case(torch.mul, X, Y),
    "torch.norm": case(lambda x: torch.norm(x, dim=1), X),
    "torch.neg": case(torch.neg, X),
    "torch.pow": case(lambda x: torch.pow(x, 3), X),
    "torch.reciprocal": case(torch.reciprocal, positive(3, 4)),
    "torch.remainder": case(lambda x, y: torch.remainder(x, y.detach().abs() + 0.3), X, Y, float16=False),
    "torch.round": case(torch.round, X),
    "torch.rsqrt": case(torch.rsqrt, positive(3, 4)),
    "torch.sigmoid": case(torch.sigmoid, X),
    "torch.sign": case(torch.sign, X),
    "torch.sin": case(torch.sin, X),
    "torch.sinh": case(torch.sinh, X),
    "torch.sqrt": case(torch.sqrt, positive(3, 4)),
    "torch.square": case(torch.square, X),
    "torch.sub": case(lambda x, y: torch.sub(x, y, alpha=2), X, Y),
    "torch.tan": case(torch.tan, between(3, 4)),
    "torch.tanh": case(torch.tanh, X),
    "torch.true_divide": case(lambda x, y: torch.true_divide(x, y.abs() + 1), X, Y),
    "torch.trunc": case(torch.trunc, X),
}

REDUCTIONS = {
    "torch.all": case(lambda x: torch.all(x > -1, 1), X),
    "torch.any": case(lambda x: torch.any(x > 1, 1), X),
    "torch.argmax": case(lambda x: torch.argmax(x, 1), X),
    "torch.argmin": case(lambda x: torch.argmin(x, 1), X),
    "torch.count_nonzero": case(lambda x: torch.count_nonzero(x > 0, 1), X),
    "torch.mean": case(lambda x: torch.mean(x, 1), X),
    "torch.median": case(lambda x: (torch.median(x), *torch.median(x, 1)), X),
    "torch.prod": case(lambda x: (torch.prod(x), torch.prod(x, 1)), X),
    "torch.logsumexp": case(lambda x: torch.logsumexp(x, 1), X),
    "torch.std": case(lambda x: torch.std(x, 1), X),
    "torch.std_mean": case(lambda x: torch.std_mean(x, 1), X),
    "torch.sum": case(lambda x: torch.sum(x, 1), X),
    "torch.var": case(lambda x: torch.var(x, 1), X),
    "torch.var_mean": case(lambda x: torch.var_mean(x, 1), X),
}

COMPARISONS = {
    "torch.eq": case(torch.eq, X, Y),
    "torch.ge": case(torch.ge, X, Y),
    "torch.gt": case(torch.gt, X, Y),
    "torch.le": case(torch.le, X, Y),
    "torch.lt": case(torch.lt, X, Y),
    "torch.max": case(lambda x, y: (torch.max(x), *torch.max(x, 1), torch.max(x, y)), X, Y),
    "torch.min": case(lambda x, y: (torch.min(x), *torch.min(x, 1), torch.min(x, y)), X, Y),
    "torch.ne": case(torch.ne, X, Y),
    "torch.isnan": case(torch.isnan, X),
    "torch.topk": case(lambda x: torch.topk(x, 2), X, remark="in order, also where sorted=False"),
    "torch.argsort": case(lambda x: (torch.argsort(x, 1), torch.argsort(x, 0, descending=True)), X),
    "torch.randperm": case(lambda x: x[torch.randperm(3)], X, random=True),
    "torch.sort": case(lambda x: (*torch.sort(x, 1), *torch.sort(x, 0, descending=True)), X),
}

LINALG = {
    "torch.linalg.norm": case(lambda x: (torch.linalg.norm(x), torch.linalg.norm(x, 1, 1)), X),
    "torch.linalg.matrix_norm": case(
        lambda x: [torch.linalg.matrix_norm(x, kind) for kind in ("fro", 1, -1, float("inf"))], X
    ),
    "torch.linalg.vector_norm": case(lambda x: torch.linalg.vector_norm(x, 3, 1), X),
    "torch.cumsum": case(lambda x: torch.cumsum(x, 1), X),
    "torch.cumprod": case(lambda x: torch.cumprod(x, 1), X),
    "torch.cross": case(lambda x, y: torch.cross(x, y, dim=0), X, Y),
    "torch.meshgrid": case(lambda x, y: torch.meshgrid(x, y, indexing="ij"), noise(3), noise(4)),
    "torch.cartesian_prod": case(torch.cartesian_prod, noise(3), noise(4)),
    "torch.tensordot": case(lambda x, y: torch.tensordot(x, y, ([0, 1], [0, 2])), noise(3, 4, 5), noise(3, 2, 4)),
    "torch.addmm": case(lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), noise(3, 5), X, noise(4, 5)),
    "torch.matmul": case(torch.matmul, X, noise(4, 5)),
    "torch.bmm": case(torch.bmm, noise(2, 3, 4), noise(2, 4, 5)),
}

LAYERS = {
    "torch.nn.Conv1d": layer(nn.Conv1d(4, 6, 3, padding=1), LINE),
    "torch.nn.Conv2d": layer(nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE),
    "torch.nn.Conv3d": layer(nn.Conv3d(4, 2, 2), VOLUME),
    "torch.nn.ConvTranspose1d": layer(nn.ConvTranspose1d(4, 6, 3, stride=2), LINE),
    "torch.nn.ConvTranspose2d": layer(nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), IMAGE),
    "torch.nn.ConvTranspose3d": layer(nn.ConvTranspose3d(4, 2, 2), VOLUME),
    "torch.nn.MaxPool1d": layer(nn.MaxPool1d(2), LINE),
    "torch.nn.MaxPool2d": layer(nn.MaxPool2d(3, 2), IMAGE),
    "torch.nn.MaxPool3d": layer(nn.MaxPool3d(2), VOLUME),
    "torch.nn.AvgPool1d": layer(nn.AvgPool1d(2), LINE),
    "torch.nn.AvgPool2d": layer(nn.AvgPool2d(3, 2, 1), IMAGE),
    "torch.nn.AvgPool3d": layer(nn.AvgPool3d(2), VOLUME, float16=False),
    "torch.nn.AdaptiveAvgPool1d": layer(nn.AdaptiveAvgPool1d(3), LINE),
    "torch.nn.AdaptiveAvgPool2d": layer(nn.AdaptiveAvgPool2d((4, 3)), IMAGE),
    "torch.nn.AdaptiveAvgPool3d": layer(nn.AdaptiveAvgPool3d(3), VOLUME),
    "torch.nn.ReflectionPad1d": layer(nn.ReflectionPad1d((1, 2)), LINE),
    "torch.nn.ReflectionPad2d": layer(nn.ReflectionPad2d((1, 2, 0, 3)), IMAGE),
    "torch.nn.ReplicationPad1d": layer(nn.ReplicationPad1d((1, 2)), LINE),
    "torch.nn.ReplicationPad2d": layer(nn.ReplicationPad2d((1, 2, 0, 3)), IMAGE),
    "torch.nn.ReplicationPad3d": layer(nn.ReplicationPad3d((1, 2, 0, 3, 1, 1)), VOLUME),
    "torch.nn.ZeroPad2d": layer(nn.ZeroPad2d((1, 2, 0, 3)), IMAGE),
    "torch.nn.ConstantPad1d": layer(nn.ConstantPad1d((1, 2), 1.5), LINE),
    "torch.nn.ConstantPad2d": layer(nn.ConstantPad2d((1, 2, 0, 3), 1.5), IMAGE),
    "torch.nn.ConstantPad3d": layer(nn.ConstantPad3d((1, 2, 0, 3, 1, 1), 1.5), VOLUME),
    "torch.nn.ELU": layer(nn.ELU(0.5), X),
    "torch.nn.CELU": layer(nn.CELU(2.0), X),
    "torch.nn.GELU": layer(nn.GELU("tanh"), X, remark="always the form with tanh, as upstream"),
    "torch.nn.Hardshrink": layer(nn.Hardshrink(), X),
    "torch.nn.LeakyReLU": layer(nn.LeakyReLU(0.1), X),
    "torch.nn.LogSoftmax": layer(nn.LogSoftmax(1), X),
    "torch.nn.Mish": layer(nn.Mish(), X),
    "torch.nn.ReLU": layer(nn.ReLU(), X),
    "torch.nn.SELU": layer(nn.SELU(), X),
    "torch.nn.SiLU": layer(nn.SiLU(), X),
    "torch.nn.Sigmoid": layer(nn.Sigmoid(), X),
    "torch.nn.Softmax": layer(nn.Softmax(1), X),
    "torch.nn.Softplus": layer(nn.Softplus(2), X),
    "torch.nn.Softsign": layer(nn.Softsign(), X),
    "torch.nn.Softshrink": layer(nn.Softshrink(), X),
    "torch.nn.Tanh": layer(nn.Tanh(), X),
    "torch.nn.PReLU": layer(nn.PReLU(4), X),
    "torch.nn.RReLU": layer(nn.RReLU().eval(), X, remark="random in training, of which the distribution is tested"),
    "torch.nn.Hardtanh": layer(nn.Hardtanh(), X),
    "torch.nn.functional.glu": case(F.glu, X),
    "torch.nn.Threshold": layer(nn.Threshold(0.1, 0.5), X),
    "torch.nn.BatchNorm1d": layer(nn.BatchNorm1d(4, track_running_stats=False), LINE),
    "torch.nn.BatchNorm2d": layer(nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "torch.nn.BatchNorm3d": layer(nn.BatchNorm3d(4, track_running_stats=False), VOLUME),
    "torch.nn.LayerNorm": layer(nn.LayerNorm(4), X),
    "torch.nn.GroupNorm": layer(nn.GroupNorm(2, 4), IMAGE),
    "torch.nn.InstanceNorm1d": layer(nn.InstanceNorm1d(4, affine=True), LINE),
    "torch.nn.InstanceNorm2d": layer(nn.InstanceNorm2d(4, affine=True), IMAGE),
    "torch.nn.InstanceNorm3d": layer(nn.InstanceNorm3d(4, affine=True), VOLUME),
    "torch.nn.utils.weight_norm": case(
        lambda v, g, x: F.linear(x, torch._weight_norm(v, g, 0)), noise(5, 4), positive(5, 1), X),
    "torch.nn.RNN": recurrent(nn.RNN(3, 4)),
    "torch.nn.GRU": recurrent(nn.GRU(3, 4)),
    "torch.nn.LSTM": recurrent(nn.LSTM(3, 4)),
    "torch.nn.Identity": layer(nn.Identity(), X),
    "torch.nn.Linear": layer(nn.Linear(4, 5), X),
    "torch.nn.Bilinear": layer(nn.Bilinear(4, 3, 5), X, noise(3, 3)),
    "torch.nn.dropout": layer(nn.Dropout(0.5), X, random=True),
    "torch.nn.Embedding": layer(nn.Embedding(5, 4), labels(5, 3, 2)),
    "torch.nn.EmbeddingBag": case(
        lambda w, s: [F.embedding_bag(torch.tensor([[1, 2, 4], [4, 3, 2]]), w, mode="sum", per_sample_weights=s),
                      *[F.embedding_bag(torch.tensor([1, 2, 4, 4, 3]), w, torch.tensor([0, 2]), mode=mode)
                        for mode in ("sum", "mean", "max")]],
        noise(5, 4), noise(2, 3)),
    "torch.nn.functional.one_hot": case(lambda i: F.one_hot(i, 5), labels(5, 3, 2)),
}  # fmt: skip

LOSSES = {
    "torch.nn.L1Loss": layer(nn.L1Loss(), X, Y),
    "torch.nn.MSELoss": layer(nn.MSELoss(), X, Y),
    "torch.nn.CrossEntropyLoss": case(
        lambda x, t: [F.cross_entropy(x, t), F.cross_entropy(x, t, CLASSES.to(x.dtype)),
                      F.cross_entropy(x, t, label_smoothing=0.1)],
        X, labels(4, 3)),
    "torch.nn.NLLLoss": case(
        lambda x, t: [F.nll_loss(x, t), F.nll_loss(x, t, CLASSES.to(x.dtype), ignore_index=1)],
        X, labels(4, 3)),
    "torch.nn.BCELoss": layer(nn.BCELoss(), chances(3, 4), chances(3, 4).flip(0)),
    "torch.nn.KLDivLoss": layer(nn.KLDivLoss(reduction="batchmean"), X, chances(3, 4)),
    "torch.nn.PoissonNLLLoss": layer(nn.PoissonNLLLoss(full=True), X, positive(3, 4) * 2),
    "torch.nn.HingeEmbeddingLoss": case(lambda x: F.hinge_embedding_loss(x, SIGNS[:, None]), X),
    "torch.nn.BCEWithLogitsLoss": layer(nn.BCEWithLogitsLoss(), X, chances(3, 4)),
    "torch.nn.SmoothL1Loss": layer(nn.SmoothL1Loss(), X, Y),
    "torch.nn.SoftMarginLoss": case(lambda x: F.soft_margin_loss(x, SIGNS[:, None].expand(3, 4).to(x.dtype)), X),
    "torch.nn.CosineEmbeddingLoss": case(lambda x, y: F.cosine_embedding_loss(x, y, SIGNS), X, Y),
    "torch.nn.MarginRankingLoss": case(  # without equal pairs, whose gradient PyTorch 2.14 changed to 0
        lambda x, y: F.margin_ranking_loss(x, y, SIGNS), noise(3), noise(3).roll(1)),
    "torch.nn.TripletMarginLoss": layer(nn.TripletMarginLoss(), X, Y, X.flip(1)),
    "torch.nn.CTCLoss": case(
        lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([6, 5]),
                             torch.tensor([3, 2])),
        noise(6, 2, 4),
        float16=False, remark="of padded labels"),
    "torch.nn.Upsample": case(
        lambda x: [F.interpolate(x, scale_factor=2), F.interpolate(x, scale_factor=2, mode="bicubic")], IMAGE),
}  # fmt: skip

SCATTER = (
    "torch_scatter.scatter",
    "torch_scatter.composite.scatter_log_softmax",
    "torch_scatter.composite.scatter_softmax",
    "torch_scatter.composite.scatter_std",
    "torch_scatter.composite.scatter_logsumexp",
    "torch_spline_conv.spline_basis",
    "torch_spline_conv.spline_weighting",
)
"""Names of two packages of extensions whose ops are native, which are refused."""

CASES: dict[str, Supported] = {
    **CREATION,
    **INDEXING,
    **RANDOM,
    **POINTWISE,
    **REDUCTIONS,
    **COMPARISONS,
    **LINALG,
    **LAYERS,
    **LOSSES,
}


def checked(case: Supported) -> str:
    """What the tests compare with PyTorch."""
    if case.random:
        return "the distribution"
    floating = any(o.is_floating_point() for o in case.operands)
    types = "float32 and float16" if case.float16 else "float32"
    return f"values and gradients, {types}" if floating else "values of whole numbers"

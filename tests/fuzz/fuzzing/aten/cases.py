"""How calls of PyTorch's operations and PopTorch's are drawn, named as in ``docs/reference/poptorch-operations.md``.

A call is a line of Python with operands ``a``, ``b``, ``c``: ``[text, [[role, shape], ...]]``. A text that begins with
``nn.`` is a module, which is called with the operands. What is PopTorch's own has a text without it, for the oracle.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = tuple[str, list[list[Any]]]


@dataclass(frozen=True)
class Case:
    """``draw`` gives a call; of a ``random`` one only shapes are compared. ``half``: whether float16 is drawn;
    ``training``: whether the call may be trained; ``plain``: the same in PyTorch alone."""

    draw: Callable[[random.Random], Call]
    random: bool = False
    half: bool = True
    training: bool = True
    plain: str = ""


ROLES: dict[str, Callable[..., torch.Tensor]] = {
    "noise": lambda g, *s: torch.randn(s, generator=g),
    "positive": lambda g, *s: torch.randn(s, generator=g).abs() + 0.5,
    "unit": lambda g, *s: torch.randn(s, generator=g).tanh() * 0.9,
    "chance": lambda g, *s: torch.randn(s, generator=g).sigmoid() * 0.9 + 0.05,
    "steps": lambda g, *s: torch.randint(-4, 5, s, generator=g) + 0.3,
    "distinct": lambda g, *s: (torch.randperm(max(1, torch.Size(s).numel()), generator=g) / 8 - 1).reshape(s),
    "whole": lambda g, *s: torch.randint(-9, 10, s, generator=g, dtype=torch.int32),
    "label": lambda g, high, *s: torch.randint(0, high, s, generator=g),
    "sign": lambda g, *s: torch.randint(0, 2, s, generator=g) * 2.0 - 1,
}
"""Operands by role; a ``label`` is below the first number of its shape."""
WHOLE = ("whole", "label")


def _shape(r: random.Random, low: int = 0, high: int = 3, longest: int = 5) -> list[int]:
    return [r.randint(1, longest) for _ in range(r.randint(low, high))]


def _dim(r: random.Random, shape: list[int]) -> int:
    return r.randrange(-len(shape), len(shape))


def _unary(text: str, role: str = "noise", low: int = 0, **more: bool) -> Case:
    """A function of a tensor of any shape."""
    return Case(lambda r: (text, [[role, _shape(r, low)]]), **more)


def _pair(r: random.Random) -> tuple[list[int], list[int]]:
    shape = _shape(r)
    other = [1 if r.random() < 0.2 else n for n in shape][r.randint(0, len(shape)) if r.random() < 0.3 else 0 :]
    return (shape, other) if r.random() < 0.6 else (other, shape)


def _binary(text: str, *roles: str, **more: bool) -> Case:
    """A function of two tensors that broadcast."""
    first, second = roles or ("noise", "noise")

    def draw(r: random.Random) -> Call:
        a, b = _pair(r)
        return text, [[first, a], [second, b]]

    return Case(draw, **more)


def _equal(text: str, *roles: str, low: int = 0, **more: bool) -> Case:
    """A function of tensors of one shape."""

    def draw(r: random.Random) -> Call:
        shape = _shape(r, low)
        return text, [[role, shape] for role in roles]

    return Case(draw, **more)


def _along(*texts: str, role: str = "noise", low: int = 1, **more: bool) -> Case:
    """One of the texts; ``{d}`` is an axis, ``{k}`` a truth value, ``{n}`` a number up to the length of the axis."""

    def draw(r: random.Random) -> Call:
        shape = _shape(r, low)
        d = _dim(r, shape)
        return r.choice(texts).format(d=d, k=r.random() < 0.5, n=r.randint(1, shape[d])), [[role, shape]]

    return Case(draw, **more)


def _fixed(*texts: str, operands: list[list[Any]], **more: bool) -> Case:
    """One of the texts, of operands of given shapes."""
    return Case(lambda r: (r.choice(texts), operands), **more)


MATRIX = [["noise", [3, 4]]]
UNARY = {
    **{
        f"torch.{name}": _unary(f"torch.{name}(a)")
        for name in ("abs asinh atan cos cosh exp expm1 neg sigmoid sign sin sinh square tanh isnan").split()
    },
    **{f"torch.{name}": _unary(f"torch.{name}(a)", "unit") for name in ("acos", "asin", "atanh", "tan")},
    **{
        f"torch.{name}": _unary(f"torch.{name}(a)", "positive")
        for name in ("log log10 log1p log2 reciprocal rsqrt sqrt").split()
    },
    "torch.acosh": _unary("torch.acosh(a + 1)", "positive"),
    **{
        f"torch.{name}": _unary(f"torch.{name}(a)", "steps") for name in ("ceil", "floor", "frac", "round", "trunc")
    },
    **{
        f"torch.nn.{name}": _unary(f"nn.{name}({argument})")
        for name, argument in {
            "ELU": 0.5, "CELU": 2.0, "GELU": "'tanh'", "Hardshrink": "", "LeakyReLU": 0.1, "Mish": "", "ReLU": "",
            "SELU": "", "SiLU": "", "Sigmoid": "", "Softplus": 2, "Softsign": "", "Softshrink": "", "Tanh": "",
            "Hardtanh": "", "Threshold": "0.1, 0.5", "Identity": "",
        }.items()
    },
    "torch.nn.RReLU": _unary("F.rrelu(a, training=False)"),
    "torch.clamp": _unary("torch.clamp(a, -0.5, 0.5)"),
    "torch.clamp_max": _unary("torch.clamp_max(a, 0.1)"),
    "torch.clamp_min": _unary("torch.clamp_min(a, 0.1)"),
    "torch.pow": _unary("torch.pow(a, 3)"),
    "torch.bitwise_not": _unary("torch.bitwise_not(a)", "whole"),
    "tensor.fill": _unary("torch.fill(a, 2.5) + a"),
    "torch.full_like": _unary("a * torch.full_like(a, 1.5)"),
    "torch.ones_like": _unary("a + torch.ones_like(a)"),
    "torch.zeros_like": _unary("a + torch.zeros_like(a)"),
    "torch.arange": _unary("a[..., None] + torch.arange(2, 9, 3)"),
    "torch.full": _unary("a[..., None] * torch.full((3,), 1.5)"),
    "torch.Tensor.new_ones": _unary("a[..., None] + a.new_ones(2, 1)"),
    "torch.Tensor.new_zeros": _unary("a[..., None] + a.new_zeros(2, 1)"),
    "torch.ones": _unary("a[..., None] + torch.ones(4)"),
    "torch.zeros": _unary("a[..., None] + torch.zeros(4)"),
    "torch.unsqueeze": _along("torch.unsqueeze(a, {d})"),
    "torch.reshape": _unary("torch.reshape(a, (-1, 1))"),
    "tensor.expand": _unary("a.expand(2, *a.shape)"),
}  # fmt: skip
BINARY = {
    "torch.add": _binary("torch.add(a, b, alpha=2)"),
    "torch.sub": _binary("torch.sub(a, b, alpha=2)"),
    "torch.mul": _binary("torch.mul(a, b)"),
    "torch.div": _binary("torch.div(a, b)", "noise", "positive"),
    "torch.true_divide": _binary("torch.true_divide(a, b)", "noise", "positive"),
    "torch.floor_divide": _binary("torch.floor_divide(a.detach(), b.detach())", "steps", "positive", half=False),
    "torch.fmod": _binary("torch.fmod(a, b.detach())", "steps", "positive", half=False),
    "torch.remainder": _binary("torch.remainder(a, b.detach())", "steps", "positive", half=False),
    **{f"torch.{name}": _binary(f"torch.{name}(a, b)", "steps", "steps") for name in "eq ge gt le lt ne".split()},
    "torch.logical_and": _binary("torch.logical_and(a > 0, b > 0)"),
    "torch.logical_or": _binary("torch.logical_or(a > 0, b > 0)"),
    **{
        f"torch.bitwise_{name}": _binary(f"torch.bitwise_{name}(a, b)", "whole", "whole")
        for name in ("and", "or", "xor")
    },
    "torch.where": _binary("torch.where(a > b, a, b)"),
    "tensor.masked_fill": _equal("a.masked_fill(b > 0, 2.0)", "noise", "noise"),
    "tensor.expand_as": _equal("a[:, :1].expand_as(b) * b", "noise", "noise", low=2),
    "torch.addcdiv": _equal("torch.addcdiv(a, b, c, value=0.5)", "noise", "noise", "positive"),
    "torch.stack": _equal("torch.stack([a, b, a])", "noise", "noise"),
    "torch.cat": _equal("torch.cat([a, b, a], -1)", "noise", "noise", low=1),
    "torch.max": _equal("(torch.max(a), *torch.max(a, -1), torch.max(a, b))", "distinct", "noise", low=1),
    "torch.min": _equal("(torch.min(a), *torch.min(a, 0), torch.min(a, b))", "distinct", "noise", low=1),
}
REDUCING = {
    "torch.amax": _along("torch.amax(a, {d}, {k})", "torch.amax(a)", role="distinct"),
    "torch.amin": _along("torch.amin(a, {d}, {k})", "torch.amin(a)", role="distinct"),
    "torch.all": _along("torch.all(a > -1, {d}, {k})"),
    "torch.any": _along("torch.any(a > 1, {d}, {k})"),
    "torch.argmax": _along("torch.argmax(a, {d}, {k})", "torch.argmax(a)", role="distinct"),
    "torch.argmin": _along("torch.argmin(a, {d}, {k})", "torch.argmin(a)", role="distinct"),
    "torch.count_nonzero": _along("torch.count_nonzero(a > 0, {d})", "torch.count_nonzero(a > 0)"),
    "torch.mean": _along("torch.mean(a, {d}, {k})", "torch.mean(a)"),
    "torch.median": _along("torch.median(a, {d}, {k})", "torch.median(a)", role="distinct"),
    "torch.prod": _along("torch.prod(a, {d}, {k})", "torch.prod(a)"),
    "torch.logsumexp": _along("torch.logsumexp(a, {d}, {k})"),
    **{
        f"torch.{name}": _along(
            *(f"torch.{name}(torch.stack([a, a * 2 + 1]){more})" for more in ("", ", {d}, correction=0"))
        )
        for name in ("std", "std_mean", "var", "var_mean")
    },
    "torch.sum": _along("torch.sum(a, {d}, {k})", "torch.sum(a)"),
    "torch.norm": _along("torch.norm(a, dim={d}, keepdim={k})", "torch.norm(a, 1)"),
    "torch.cumsum": _along("torch.cumsum(a, {d})"),
    "torch.cumprod": _along("torch.cumprod(a, {d})"),
    "torch.topk": _along("torch.topk(a, {n}, {d})", role="distinct"),
    "torch.argsort": _along("torch.argsort(a, {d}, descending={k})", role="distinct"),
    "torch.sort": _along("torch.sort(a, {d}, descending={k})", role="distinct"),
    "torch.linalg.vector_norm": _along("torch.linalg.vector_norm(a, 3, {d})"),
    "torch.linalg.norm": _along("torch.linalg.norm(a)", "torch.linalg.norm(a, 1, {d})"),
    "torch.linalg.matrix_norm": _fixed(
        *(f"torch.linalg.matrix_norm(a, {kind})" for kind in ("'fro'", 1, -1, "float('inf')")), operands=MATRIX
    ),
    "torch.nn.LogSoftmax": _along("nn.LogSoftmax({d})"),
    "torch.nn.Softmax": _along("nn.Softmax({d})"),
    "torch.nn.functional.glu": Case(lambda r: ("F.glu(a)", [["noise", [*_shape(r, 0, 2), 2 * r.randint(1, 3)]]])),
    "torch.nn.LayerNorm": Case(lambda r: ("nn.LayerNorm(4)", [["noise", [*_shape(r, 0, 2), 4]]])),
}  # fmt: skip
MOVING = {
    "torch.chunk": _along("torch.chunk(a, 2, {d})"),
    "torch.split": _along("torch.split(a, 2, {d})"),
    "torch.unbind": _along("torch.unbind(a, {d})"),
    "torch.roll": _along("torch.roll(a, 2, {d})"),
    "torch.squeeze": _along("torch.squeeze(a[:1])", "torch.squeeze(a[None], 0)"),
    "torch.t": _fixed("torch.t(a)", "a.t()", operands=MATRIX),
    "torch.transpose": _along("torch.transpose(a, 0, {d})"),
    "torch.index_select": _along("torch.index_select(a, {d}, torch.tensor([0, {n} - 1, 0]))"),
    "tensor.index_fill_": _along("(a * 1).index_fill_({d}, torch.tensor([{n} - 1]), 2.0)"),
    "torch.gather": _fixed("torch.gather(a, 0, b)", operands=[*MATRIX, ["label", [3, 2, 4]]]),
    "torch.take_along_dim": _fixed("torch.take_along_dim(a, b, 1)", operands=[*MATRIX, ["label", [4, 3, 2]]]),
    "torch.scatter": _fixed(
        "torch.scatter(a, 1, torch.tensor([[0, 2], [1, 3], [3, 0]]), b)", operands=[*MATRIX, ["noise", [3, 2]]]
    ),
    "torch.scatter_add": _fixed(
        "torch.scatter_add(a, 0, b, c)", operands=[*MATRIX, ["label", [3, 2, 4]], ["noise", [2, 4]]]
    ),
    "torch.scatter_reduce": _fixed(
        *(f"torch.scatter_reduce(a, 0, b, c, '{kind}')" for kind in ("sum", "amax", "amin", "mean")),
        operands=[*MATRIX, ["label", [3, 2, 4]], ["noise", [2, 4]]],
    ),
    "torch.index_reduce": _fixed(
        *(f"torch.index_reduce(a, 0, b, c, '{kind}')" for kind in ("amax", "amin", "mean", "prod")),
        operands=[*MATRIX, ["label", [3, 5]], ["noise", [5, 4]]],
    ),
    "torch.bincount": _fixed("torch.bincount(a, minlength=5)", operands=[["label", [5, 9]]]),
    "torch.bucketize": _along(
        "torch.bucketize(a, torch.tensor([-1.0, 0.0, 0.5]))", "torch.bucketize(a, torch.tensor([0.1, 2.0]), right=True)"
    ),
    "torch.meshgrid": _fixed("torch.meshgrid(a, b, indexing='ij')", operands=[["noise", [3]], ["noise", [2]]]),
    "torch.cartesian_prod": _fixed("torch.cartesian_prod(a, b)", operands=[["noise", [3]], ["noise", [2]]]),
    "torch.nn.functional.one_hot": _unary("F.one_hot(a.abs().long(), 10)", "whole"),
}
PRODUCTS = {
    "torch.matmul": Case(lambda r: _product(r)),
    "torch.bmm": _fixed("torch.bmm(a, b)", operands=[["noise", [2, 3, 4]], ["noise", [2, 4, 5]]]),
    "torch.addmm": _fixed(
        "torch.addmm(c, a, b, beta=0.5, alpha=2)", "torch.addmm(c[0], a, b)",
        operands=[*MATRIX, ["noise", [4, 5]], ["noise", [3, 5]]],
    ),
    "torch.tensordot": _fixed(
        "torch.tensordot(a, b, ([0, 1], [0, 2]))", operands=[["noise", [3, 4, 5]], ["noise", [3, 2, 4]]]
    ),
    "torch.cross": _fixed("torch.cross(a, b, dim=0)", operands=[["noise", [3, 4]], ["noise", [3, 4]]]),
    "torch.cdist": _fixed("torch.cdist(a, b)", operands=[["noise", [4, 3]], ["noise", [5, 3]]], half=False),
    "torch.nn.Linear": Case(
        lambda r: (f"nn.Linear(4, {r.randint(1, 5)}, {r.random() < 0.7})", [["noise", [*_shape(r, 0, 2), 4]]])
    ),
    "torch.nn.Bilinear": _fixed("nn.Bilinear(4, 3, 5)", operands=[["noise", [2, 4]], ["noise", [2, 3]]]),
    "torch.nn.Embedding": Case(lambda r: ("nn.Embedding(5, 4)", [["label", [5, *_shape(r, 1, 2)]]])),
    "torch.nn.EmbeddingBag": _fixed(
        *(f"F.embedding_bag(torch.tensor([1, 2, 4, 4, 3]), a, torch.tensor([0, 2]), mode='{mode}')"
          for mode in ("sum", "mean", "max")),
        operands=[["noise", [5, 4]]],
    ),
    "torch.nn.utils.weight_norm": _fixed(
        "F.linear(c, torch._weight_norm(a, b, 0))",
        operands=[["noise", [5, 4]], ["positive", [5, 1]], ["noise", [3, 4]]],
    ),
    **{
        f"torch.nn.{name}": _fixed(f"nn.{name}(3, 4)", operands=[["noise", [5, 2, 3]]], half=False)
        for name in ("RNN", "GRU", "LSTM")
    },
}  # fmt: skip


def _product(r: random.Random) -> Call:
    n, k, m = (r.randint(1, 5) for _ in range(3))
    lead = _shape(r, 0, 2, 3)
    shapes = r.choice([([*lead, n, k], [k, m]), ([k], [*lead, k, m]), ([*lead, n, k], [*lead, k, m]), ([n, k], [k])])
    return "torch.matmul(a, b)", [["noise", shape] for shape in shapes]


# -- windows -----------------------------------------------------------------------------------------------------------


def _sizes(r: random.Random, dims: int, channels: int = 4, low: int = 4) -> list[list[Any]]:
    return [["noise", [r.choice([1, 2]), channels, *(r.randint(low, 7) for _ in range(dims))]]]


def _tuple(r: random.Random, dims: int, low: int, high: int) -> str:
    return str(tuple(r.randint(low, high) for _ in range(dims)))


def _conv(dims: int) -> Case:
    def draw(r: random.Random) -> Call:
        kernel, stride = _tuple(r, dims, 1, 3), _tuple(r, dims, 1, 2)
        more = f"stride={stride}, padding={_tuple(r, dims, 0, 2)}, dilation={_tuple(r, dims, 1, 2)}"
        groups, bias = r.choice([1, 1, 2, 4]), r.random() < 0.7
        return f"nn.Conv{dims}d(4, {4 * r.randint(1, 2)}, {kernel}, {more}, groups={groups}, bias={bias})", _sizes(
            r, dims, low=5
        )

    return Case(draw)


def _transposed(dims: int) -> Case:
    def draw(r: random.Random) -> Call:
        kernel, more = _tuple(r, dims, 2, 3), f"stride={_tuple(r, dims, 1, 2)}, padding={_tuple(r, dims, 0, 1)}"
        return f"nn.ConvTranspose{dims}d(4, {r.choice([2, 4])}, {kernel}, {more}, groups={r.choice([1, 2])})", _sizes(
            r, dims, low=2
        )

    return Case(draw)


def _pool(dims: int, kind: str) -> Case:
    def draw(r: random.Random) -> Call:
        more = f"{_tuple(r, dims, 2, 3)}, {_tuple(r, dims, 1, 2)}, {_tuple(r, dims, 0, 1)}"
        ceil = f", ceil_mode={r.random() < 0.3}"
        ((_, shape),) = _sizes(r, dims)
        return f"nn.{kind}Pool{dims}d({more}{ceil})", [["distinct" if kind == "Max" else "noise", shape]]

    return Case(draw, half=dims < 3)


def _padding(kind: str, dims: int) -> Case:
    def draw(r: random.Random) -> Call:
        value = ", 1.5" if kind == "Constant" else ""
        return f"nn.{kind}Pad{dims}d({_tuple(r, 2 * dims, 0, 3)}{value})", _sizes(r, dims)

    return Case(draw)


def _norm(text: str, dims: int) -> Case:
    return Case(lambda r: (text, [["noise", [r.randint(2, 3), 4, *(r.randint(2, 4) for _ in range(dims))]]]))


WINDOWS = {
    **{f"torch.nn.Conv{n}d": _conv(n) for n in (1, 2, 3)},
    **{f"torch.nn.ConvTranspose{n}d": _transposed(n) for n in (1, 2, 3)},
    **{f"torch.nn.{kind}Pool{n}d": _pool(n, kind) for kind in ("Max", "Avg") for n in (1, 2, 3)},
    **{
        f"torch.nn.AdaptiveAvgPool{n}d": Case(
            lambda r, n=n: (f"nn.AdaptiveAvgPool{n}d({_tuple(r, n, 1, 4)})", _sizes(r, n))
        )
        for n in (1, 2, 3)
    },
    **{f"torch.nn.ReflectionPad{n}d": _padding("Reflection", n) for n in (1, 2)},
    **{f"torch.nn.ReplicationPad{n}d": _padding("Replication", n) for n in (1, 2, 3)},
    **{f"torch.nn.ConstantPad{n}d": _padding("Constant", n) for n in (1, 2, 3)},
    "torch.nn.ZeroPad2d": _padding("Zero", 2),
    **{f"torch.nn.BatchNorm{n}d": _norm(f"nn.BatchNorm{n}d(4, track_running_stats=False)", n) for n in (1, 2, 3)},
    **{f"torch.nn.InstanceNorm{n}d": _norm(f"nn.InstanceNorm{n}d(4, affine=True)", n) for n in (1, 2, 3)},
    "torch.nn.GroupNorm": Case(lambda r: (f"nn.GroupNorm({r.choice([1, 2])}, 4)", _sizes(r, r.randint(1, 2), low=2))),
    "torch.nn.PReLU": Case(lambda r: (f"nn.PReLU({r.choice([1, 4])})", _sizes(r, r.randint(1, 2), low=1))),
    "torch.nn.Upsample": Case(
        lambda r: (r.choice(["F.interpolate(a, scale_factor=2)", "F.interpolate(a, scale_factor=2, mode='bicubic')",
                             "F.interpolate(a, size=(5, 3))", "F.interpolate(a, size=(7, 6), mode='bilinear')"]),
                   _sizes(r, 2, 2))
    ),
}  # fmt: skip


# -- losses and random numbers -----------------------------------------------------------------------------------------


def _loss(text: str, *roles: str, low: int = 1, **more: bool) -> Case:
    """``{r}`` is how the loss is reduced."""

    def draw(r: random.Random) -> Call:
        shape = _shape(r, low)
        return text.format(r=r.choice(["mean", "sum", "none"])), [[role, shape] for role in roles]

    return Case(draw, **more)


def _labelled(*texts: str) -> Case:
    def draw(r: random.Random) -> Call:
        count, rest = r.randint(1, 4), _shape(r, 0, 1)
        reduction = r.choice(["mean", "sum", "none"])
        return r.choice(texts).format(r=reduction), [["noise", [count, 4, *rest]], ["label", [4, count, *rest]]]

    return Case(draw)


LOSSES = {
    "torch.nn.L1Loss": _loss("F.l1_loss(a, b, reduction='{r}')", "noise", "noise"),
    "torch.nn.MSELoss": _loss("F.mse_loss(a, b, reduction='{r}')", "noise", "noise"),
    "torch.nn.SmoothL1Loss": _loss("F.smooth_l1_loss(a, b, reduction='{r}')", "noise", "noise"),
    "torch.nn.BCELoss": _loss("F.binary_cross_entropy(a, b, reduction='{r}')", "chance", "chance"),
    "torch.nn.BCEWithLogitsLoss": _loss(
        "F.binary_cross_entropy_with_logits(a, b, reduction='{r}')", "noise", "chance"
    ),
    "torch.nn.KLDivLoss": _loss("F.kl_div(a, b, reduction='{r}')", "noise", "chance"),
    "torch.nn.PoissonNLLLoss": _loss("F.poisson_nll_loss(a, b, full=True, reduction='{r}')", "noise", "positive"),
    "torch.nn.HingeEmbeddingLoss": _loss("F.hinge_embedding_loss(a, b.detach(), reduction='{r}')", "noise", "sign"),
    "torch.nn.SoftMarginLoss": _loss("F.soft_margin_loss(a, b.detach(), reduction='{r}')", "noise", "sign"),
    "torch.nn.MarginRankingLoss": _loss(
        "F.margin_ranking_loss(a, b, c.detach(), reduction='{r}')", "noise", "noise", "sign"
    ),
    "torch.nn.TripletMarginLoss": _fixed(
        "F.triplet_margin_loss(a, b, c)", "F.triplet_margin_loss(a, b, c, margin=2.0)", operands=MATRIX * 3
    ),
    "torch.nn.CosineEmbeddingLoss": _fixed(
        "F.cosine_embedding_loss(a, b, c.detach())", operands=[*MATRIX, *MATRIX, ["sign", [3]]]
    ),
    "torch.nn.CrossEntropyLoss": _labelled(
        "F.cross_entropy(a, b, reduction='{r}')", "F.cross_entropy(a, b, label_smoothing=0.1)",
        "F.cross_entropy(a, b, torch.tensor([0.5, 1.0, 2.0, 0.25]).to(a.dtype), reduction='{r}')",
    ),
    "torch.nn.NLLLoss": _labelled(
        "F.nll_loss(a, b, reduction='{r}')",
        "F.nll_loss(a, b, torch.tensor([0.5, 1.0, 2.0, 0.25]).to(a.dtype), reduction='{r}')",
    ),
    "torch.nn.CTCLoss": _fixed(
        "F.ctc_loss(a.log_softmax(-1), torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([6, 5]), "
        "torch.tensor([3, 2]))",
        operands=[["noise", [6, 2, 4]]], half=False,
    ),
}  # fmt: skip
RANDOM = {
    name: _unary(text, role, random=True)
    for name, (text, role) in {
        "torch.bernoulli": ("torch.bernoulli(a)", "chance"),
        "torch.distributions.Bernoulli": ("torch.distributions.Bernoulli(a).sample()", "chance"),
        "torch.randn": ("a[..., None] + torch.randn(3)", "noise"),
        "torch.normal": ("torch.normal(a, a.abs() + 1)", "noise"),
        "torch.distributions.Normal": ("torch.distributions.Normal(a, a.abs() + 1).sample((2,))", "noise"),
        "torch.rand": ("a[..., None] + torch.rand(3)", "noise"),
        "torch.uniform": ("(a * 1).uniform_(-1, 2)", "noise"),
        "torch.distributions.Uniform": ("a + torch.distributions.Uniform(0.0, 2.0).sample(a.shape)", "noise"),
        "torch.exponential": ("(a * 1).exponential_(2.0)", "noise"),
        "torch.distributions.Exponential": ("torch.distributions.Exponential(a).sample()", "positive"),
        "torch.randperm": ("a[None] + torch.randperm(1)[0]", "noise"),
        "torch.nn.dropout": ("F.dropout(a, 0.5)", "noise"),
    }.items()
}

_MODES = ("InputChannels", "ReducingDim", "OutputChannels", "Disabled")
_POPTORCH = {
    "nop": ("poptorch.nop(a)", "a"),
    "identity_loss": ("poptorch.identity_loss(a, 'mean')", "a.mean()"),
    "ipu_print_tensor": ("poptorch.ipu_print_tensor(a, 'seen')", "a"),
    "set_available_memory": ("poptorch.set_available_memory(a @ a.t(), 0.3)", "a @ a.t()"),
    "serializedMatMul": (
        *(f"poptorch.serializedMatMul(a, a.t(), poptorch.MatMulSerializationMode.{mode}, 1)" for mode in _MODES),
        "a @ a.t()",
    ),
    "recomputationCheckpoint": ("poptorch.recomputationCheckpoint(a * 2, a)", "(a * 2, a)"),
    "dynamic_slice": ("poptorch.dynamic_slice(a, 1, torch.tensor([2]), 2, 1)", "a[:, 2:4]"),
    "dynamic_update": ("poptorch.dynamic_update(a, a[:, :2] * 2, 1, torch.tensor([1]), 2)",
                       "torch.cat([a[:, :1], a[:, :2] * 2, a[:, 3:]], 1)"),
    "set_overlap_for_input": ("poptorch.set_overlap_for_input(a, poptorch.OverlapMode.NoOverlap)", "a"),
    "set_overlap_for_output": ("poptorch.set_overlap_for_output(a, poptorch.OverlapMode.NoOverlap)", "a"),
    "isRunningOnIpu": ("a * 2 if poptorch.isRunningOnIpu() else a", "a * 2"),
    "NameScope": ("within(poptorch.NameScope('scope'), torch.sin, a)", "torch.sin(a)"),
    "Attribute": ("within(poptorch.Attribute(__outline={'layer': '1'}), torch.sin, a)", "torch.sin(a)"),
    "MultiConv": ("within(poptorch.MultiConv(), F.conv1d, a[None], a[:2, :4, None].repeat(1, 1, 1)[:, :3])",
                  "F.conv1d(a[None], a[:2, :4, None][:, :3])"),
}  # fmt: skip
_BODIES = "lambda x: [x * 2 + 1]"
POPTORCH = {
    **{
        f"poptorch.{name}": Case(lambda r, texts=texts: (r.choice(texts[:-1]), MATRIX), plain=texts[-1])
        for name, texts in _POPTORCH.items()
    },
    "poptorch.for_loop": Case(
        lambda r: (f"poptorch.for_loop(2, {_BODIES}, [a])", MATRIX), plain="a * 4 + 3", training=False
    ),
    "poptorch.cond": Case(
        lambda r: (f"poptorch.cond(a.sum() > 0, {_BODIES}, [a], lambda x: [x - 1], [a])", MATRIX),
        plain="torch.where(a.sum() > 0, a * 2 + 1, a - 1)", training=False,
    ),
    "poptorch.CPU": Case(lambda r: ("on_host(a)", MATRIX), plain="a.sin()", training=False),
}  # fmt: skip

CASES: dict[str, Case] = {
    **POPTORCH, **UNARY, **BINARY, **REDUCING, **MOVING, **PRODUCTS, **WINDOWS, **LOSSES, **RANDOM,
}  # fmt: skip

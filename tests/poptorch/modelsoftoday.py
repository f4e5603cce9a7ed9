"""Whole models as people write them today: ``MODELS`` maps a name to a class.

``Model()`` builds one, ``samples()`` gives its inputs by name, a sample a row. ``forward`` gives the loss, last. What
stands in ``with self.block(1):`` is a second stage where the test asks for one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, func, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ipuperf import poptorch

SAMPLES = 8


def final(loss: Tensor) -> Tensor:
    """What training starts from, where it is more than one loss of PyTorch's."""
    return poptorch.identity_loss(loss, reduction="none")  # type: ignore[no-any-return]


def gelu(x: Tensor) -> Tensor:
    """In the form that the IPU has for all of them."""
    return F.gelu(x, approximate="tanh")


def drawn(**inputs: Callable[[], Any]) -> Callable[[Any], dict[str, Any]]:
    """The method that draws these inputs."""
    return lambda model: {name: draw() for name, draw in inputs.items()}


def normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(SAMPLES, *shape)


def uniform(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.rand(SAMPLES, *shape)


def whole(low: int, high: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(low, high, (SAMPLES, *shape))


def tokens(length: int, words: int = 11) -> Callable[[], Tensor]:
    return whole(0, words, length)


MODELS: dict[str, type[Model]] = {}


class Model(nn.Module):
    """The base: ``build`` makes the parts; a block that does nothing until a test sets another."""

    block: Callable[[int], AbstractContextManager[Any]] = staticmethod(lambda ipu: nullcontext())  # type: ignore[assignment]
    samples = drawn(x=normal(6), y=normal(1))

    def __init_subclass__(cls) -> None:
        MODELS[cls.__name__] = cls

    def __init__(self) -> None:
        super().__init__()
        self.build()


# -- attention ---------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, groups * self.size, bias=False)
        self.wv = nn.Linear(width, groups * self.size, bias=False)
        self.w1, self.w2, self.w3 = (nn.Linear(*s, bias=False) for s in ((width, 24), (24, width), (width, 24)))
        self.norm1, self.norm2 = RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.norm1(x)
        q = self.wq(h).view(b, t, self.heads, self.size)
        k, v = (w(h).view(b, t, self.groups, self.size) for w in (self.wk, self.wv))
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(z.float().reshape(*z.shape[:-1], -1, 2)) * turns[:t, None]
            ).flatten(3)
            for z in (q, k)
        )
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def turns(size: int, length: int) -> Tensor:
    angles = torch.outer(torch.arange(length), 1.0 / 100 ** (torch.arange(0, size, 2) / size))
    return torch.polar(torch.ones_like(angles), angles)


class Llama(Model):
    samples = drawn(ids=tokens(5), labels=tokens(5))

    def build(self) -> None:
        self.embedding = nn.Embedding(11, 16)
        self.layers = nn.ModuleList(LlamaBlock(16, 4, 2) for _ in range(2))
        self.head = nn.Linear(16, 11, bias=False)
        self.register_buffer("turns", turns(4, 5), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        x = self.layers[0](self.embedding(ids), self.turns)
        with self.block(1):
            logits = self.head(self.layers[1](x, self.turns))
            return logits, F.cross_entropy(logits[:, :-1].reshape(-1, 11), labels[:, 1:].reshape(-1))


class TiedHead(Model):
    """A head that is the embedding, in one block; padding that the loss leaves out."""

    samples = drawn(picture=normal(4), ids=tokens(3), labels=tokens(3))

    def build(self) -> None:
        self.first = nn.Linear(4, 8)
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, picture: Tensor, ids: Tensor, labels: Tensor) -> Any:
        seen = torch.tanh(self.first(picture))
        with self.block(1):
            logits = self.head(self.embedding(ids) + seen[:, None])
            return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, label_smoothing=0.1)


class Translator(Model):
    """``nn.Transformer`` with a causal mask and masks of padding."""

    samples = drawn(source=tokens(4), target=tokens(3))

    def build(self) -> None:
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(3)
        padding = (source == 0) & (torch.arange(4) > 0)
        x, t = self.words(source), self.words(target)
        with self.block(1):
            out = self.transformer(
                x, t, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
            )
            return F.cross_entropy(self.head(out).flatten(0, 1), target.flatten())


class Encoder(Model):
    samples = drawn(x=normal(4, 3), lengths=whole(1, 5), y=normal(8))

    def build(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, gelu, batch_first=True, norm_first=True)
        self.embed = nn.Linear(3, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Any:
        padding = torch.arange(4)[None] >= lengths[:, None]
        h = self.embed(x)
        with self.block(1):
            out = self.encoder(h, src_key_padding_mask=padding)
            kept = (~padding).unsqueeze(-1).to(out.dtype)
            pooled = (out * kept).sum(1) / kept.sum(1).clamp(min=1)
            return pooled, F.mse_loss(pooled, y)


class CrossAttention(Model):
    """``nn.MultiheadAttention`` with other widths of keys, a mask to add, and its weights read."""

    samples = drawn(x=normal(4, 3), y=normal(2, 8))

    def build(self) -> None:
        self.query = nn.Parameter(torch.randn(2, 8))
        self.keys = nn.Linear(3, 6)
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, add_bias_kv=True, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        k = self.keys(x)
        with self.block(1):
            mask = torch.zeros(2, 4).masked_fill(torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]]).bool(), -1e4)
            out, weights = self.attention(
                self.query.expand(x.shape[0], -1, -1), k, k, attn_mask=mask, average_attn_weights=False
            )
            entropy = -(weights * (weights + 1e-6).log()).sum(-1).mean()
            return final(F.mse_loss(out, y) - 0.1 * entropy)


class Swin(Model):
    """Windows by roll and view, and a table of relative positions."""

    samples = drawn(x=normal(3, 8, 8), y=normal(8))

    def build(self) -> None:
        self.patch = nn.Conv2d(3, 8, 2, 2)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.zeros(9, 2))
        nn.init.trunc_normal_(self.table, std=0.2)
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        relative = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + 1
        self.register_buffer("index", relative[..., 0] * 3 + relative[..., 1])

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = self.patch(x).permute(0, 2, 3, 1)
        with self.block(1):
            b = h.shape[0]
            h = torch.roll(h, (-1, -1), (1, 2))
            w = h.view(b, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
            q, k, v = self.qkv(w).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            bias = self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1).contiguous()
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=0.3)
            z = (
                self.out(a.transpose(1, 2).flatten(2))
                .view(b, 2, 2, 2, 2, 8)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(b, 4, 4, 8)
            )
            return F.smooth_l1_loss(torch.roll(z, (1, 1), (1, 2)).mean((1, 2)), y)


class LinearAttention(Model):
    """Causal sums in place of scores, and the decay of a retention."""

    samples = drawn(x=normal(5, 3), y=normal(5, 4))

    def build(self) -> None:
        self.qkv, self.decay = nn.Linear(3, 12), nn.Parameter(torch.tensor([0.5, 1.5]))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        q, k, v = self.qkv(x).tensor_split(3, -1)
        with self.block(1):
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.einsum("btd,bte->btde", k, v).cumsum(1)
            z = torch.einsum("btd,btde->bte", q, kv) / torch.einsum("btd,btd->bt", q, k.cumsum(1)).unsqueeze(-1)
            ages = torch.arange(5)[:, None] - torch.arange(5)[None]
            mask = torch.where(ages >= 0, torch.sigmoid(self.decay)[:, None, None] ** ages.clamp(min=0), 0.0)
            r = torch.einsum("btd,bsd,hts,bse->bte", q, k, mask, v)
            return F.l1_loss(z + 0.1 * r, y)


# -- recurrence --------------------------------------------------------------------------------------------------------


class Recurrent(Model):
    samples = drawn(ids=tokens(4), y=normal(1))

    def build(self) -> None:
        self.words = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 5, batch_first=True)
        self.out = nn.Linear(5, 1)

    def forward(self, ids: Tensor, y: Tensor) -> Any:
        h, (last, _) = self.lstm(self.words(ids))
        with self.block(1):
            _, state = self.gru(h)
            out = self.out(state[-1]) + last.mean((0, 2)).unsqueeze(-1)
            return F.mse_loss(out, y)


class Decoder(Model):
    """A loop of cells that look back, fed with its own best word."""

    samples = drawn(x=normal(4, 3), labels=tokens(3, 7))

    def build(self) -> None:
        self.encoder, self.words = nn.GRU(3, 6, batch_first=True), nn.Embedding(7, 6)
        self.cell, self.head = nn.LSTMCell(12, 6), nn.Linear(6, 7)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        memory, _ = self.encoder(x)
        with self.block(1):
            b = x.size(0)
            h = c = torch.zeros(b, 6)
            word, losses = torch.zeros(b, dtype=torch.long), []
            for step in range(labels.size(1)):
                weights = torch.softmax(torch.bmm(memory, h.unsqueeze(2)).squeeze(2), dim=1)
                context = torch.sum(memory * weights.unsqueeze(2), dim=1)
                h, c = self.cell(torch.cat((self.words(word), context), dim=1), (h, c))
                logits = self.head(h)
                losses.append(F.nll_loss(F.log_softmax(logits, dim=-1), labels[:, step]))
                word = logits.argmax(-1)
            return final(torch.stack(losses).mean())


class Mamba(Model):
    """A selective state space, as the plain loop over time."""

    samples = drawn(x=normal(5, 4), y=normal(5, 4))

    def build(self) -> None:
        self.inner, self.conv = nn.Linear(4, 12), nn.Conv1d(6, 6, 3, padding=2, groups=6)
        self.select, self.step, self.out = nn.Linear(6, 7), nn.Linear(1, 6), nn.Linear(6, 4)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, 4).repeat(6, 1).float()))
        self.d = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        u, gate = self.inner(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u.mT)[..., :5].mT)
        with self.block(1):
            dt, b, c = torch.split(self.select(u), [1, 3, 3], dim=-1)
            dt = F.softplus(self.step(dt))
            decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.a_log))
            drive = dt.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
            state, seen = torch.zeros_like(drive[:, 0]), []
            for t in range(5):
                state = decay[:, t] * state + drive[:, t]
                seen.append((state * c[:, t].unsqueeze(1)).sum(-1))
            z = torch.stack(seen, 1) + u * self.d
            return F.mse_loss(self.out(z * F.silu(gate)), y)


# -- pictures ----------------------------------------------------------------------------------------------------------


class DiffusionUNet(Model):
    """Time embedded in sines, a skip connection, group norms, and a noise schedule in a buffer."""

    samples = drawn(x=normal(2, 6, 6), noise=normal(2, 6, 6), t=whole(0, 10))

    def build(self) -> None:
        self.time = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 16))
        self.down, self.norm = nn.Conv2d(2, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(8, 2, 1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.2, 10), 0))

    def forward(self, x: Tensor, noise: Tensor, t: Tensor) -> Any:
        kept = self.kept.gather(0, t).view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        angles = t[:, None].float() * torch.exp(-math.log(100.0) * torch.arange(2) / 2)
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None].chunk(2, 1)
        h = self.down(noisy)
        with self.block(1):
            m = F.silu(self.norm(h) * (1 + scale) + shift)
            m = self.middle(F.interpolate(F.avg_pool2d(m, 3, 1, 1), scale_factor=1.0, mode="nearest"))
            return F.mse_loss(self.out(self.up(torch.cat([m, h], 1))), noise)


class Volumes(Model):
    """Three dimensions, pixels shuffled, patches folded."""

    samples = drawn(x=normal(1, 3, 3, 3), y=normal(4, 4, 4))

    def build(self) -> None:
        self.conv, self.up = nn.Conv3d(1, 4, 2), nn.ConvTranspose3d(4, 4, 2, stride=1)
        self.norm, self.unflatten = nn.InstanceNorm3d(4, affine=True), nn.Unflatten(1, (4, 4))
        self.flat, self.shuffle = nn.Linear(4 * 27, 16 * 4), nn.PixelShuffle(2)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = gelu(self.norm(self.up(self.conv(x))))
        with self.block(1):
            z = self.shuffle(self.flat(h.flatten(1)).unflatten(1, (16, 2, 2)))
            patches = F.unfold(z, 2, stride=2)
            z = F.fold(patches * torch.linspace(0.5, 1, patches.shape[1])[:, None], (4, 4), 2, stride=2)
            return final(F.mse_loss(z, y) + F.pixel_unshuffle(z, 2).abs().mean())


class MobileNet(Model):
    """Depthwise convolutions, batch norms, squeeze and excitation, layers fused in ``nn.Sequential``."""

    samples = drawn(x=normal(3, 8, 8), labels=whole(0, 3))

    def build(self) -> None:
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(3, 8, 3, 2, 1, bias=False), norm=nn.BatchNorm2d(8), act=nn.Hardswish(inplace=True)
            )
        )
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm = nn.BatchNorm2d(8, momentum=0.3)
        self.excite = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU6(True), nn.Conv2d(4, 8, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        h = self.stem(x.to(memory_format=torch.channels_last))
        with self.block(1):
            h = F.relu6(self.norm(self.depthwise(h)), inplace=True)
            h = h * F.hardsigmoid(self.excite(h))
            logits = self.head(F.adaptive_max_pool2d(h, 2).mean((-2, -1)))
            return logits.softmax(-1), F.cross_entropy(logits, labels, weight=torch.tensor([1.0, 2.0, 0.5]))


class SpatialTransformer(Model):
    samples = drawn(x=normal(1, 6, 6), y=normal(1, 5, 5))

    def build(self) -> None:
        self.conv, self.theta = nn.Conv2d(1, 2, 3), nn.Linear(32, 6)
        nn.init.normal_(self.theta.weight, std=0.05)
        self.theta.bias.data.copy_(torch.tensor([1.0, 0.1, 0, 0, 0.9, 0.05]))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        theta = self.theta(torch.tanh(self.conv(x)).flatten(1)).view(-1, 2, 3)
        with self.block(1):
            grid = F.affine_grid(theta, [x.shape[0], 1, 5, 5], align_corners=False)
            seen = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
            return F.mse_loss(F.interpolate(seen, size=(5, 5), mode="bilinear", antialias=False), y)


class Detector(Model):
    """Distances of pairs, boxes, and a focal loss."""

    samples = drawn(x=normal(6), boxes=uniform(2, 4), found=lambda: torch.rand(SAMPLES, 3).round())

    def build(self) -> None:
        self.queries, self.box, self.score = nn.Embedding(3, 6), nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x: Tensor, boxes: Tensor, found: Tensor) -> Any:
        h = torch.tanh(x[:, None] + self.queries.weight)
        with self.block(1):
            out = self.box(h).sigmoid()
            cost = torch.cdist(out, boxes, p=1.0) + torch.cdist(out, boxes)
            corner, size = out[..., :2], out[..., 2:]
            a, b = (
                torch.cat([corner, corner + size], -1),
                torch.cat([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], -1),
            )
            low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
            high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
            overlap = (high - low).clamp(min=0).prod(-1)
            logits = self.score(h).squeeze(-1)
            p = logits.sigmoid()
            focal = (
                F.binary_cross_entropy_with_logits(logits, found, reduction="none")
                * (1 - (p * found + (1 - p) * (1 - found))) ** 2
            )
            return final(cost.min(-1).values.mean() + cost.amin(1).mean() + focal.mean() - overlap.mean())


class Nerf(Model):
    """Positions in sines, densities summed along rays."""

    samples = drawn(origin=normal(3), direction=normal(3), y=uniform(3))

    def build(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(15, 8), nn.Linear(23, 8)])
        self.density, self.colour = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, origin: Tensor, direction: Tensor, y: Tensor) -> Any:
        depths = torch.linspace(0.5, 2.0, 4)
        points = origin[:, None] + F.normalize(direction, dim=-1)[:, None] * depths[:, None]
        angles = points[..., None] * 2.0 ** torch.arange(2)
        seen = torch.cat([points, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
        h = self.layers[0](seen).relu()
        with self.block(1):
            h = self.layers[1](torch.cat([seen, h], -1)).relu_()
            gaps = torch.cat([depths.diff(), torch.tensor([1.0])])
            alpha = 1 - torch.exp(-F.softplus(self.density(h).squeeze(-1)) * gaps)
            passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
            return F.mse_loss(((alpha * passed)[..., None] * self.colour(h).sigmoid()).sum(1), y)


# -- tables, graphs and experts ----------------------------------------------------------------------------------------


class Recommender(Model):
    """Bags with weights, and the products of pairs above the diagonal."""

    samples = drawn(
        dense=normal(3),
        items=tokens(3, 9),
        weights=uniform(3),
        places=tokens(2, 5),
        clicked=lambda: torch.rand(SAMPLES, 1).round(),
    )

    def build(self) -> None:
        self.bags = nn.ModuleList([nn.EmbeddingBag(9, 4, mode="sum"), nn.EmbeddingBag(5, 4, mode="mean")])
        self.dense = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.top = nn.Bilinear(4, 3, 1)

    def forward(self, dense: Tensor, items: Tensor, weights: Tensor, places: Tensor, clicked: Tensor) -> Any:
        parts = [self.dense(dense), self.bags[0](items, per_sample_weights=weights), self.bags[1](places)]
        with self.block(1):
            z = torch.stack(parts, 1)
            rows, columns = torch.triu_indices(3, 3, offset=1)
            pairs = (z @ z.mT)[:, rows, columns]
            logits = self.top(parts[0], pairs)
            return F.binary_cross_entropy_with_logits(logits, clicked, pos_weight=torch.tensor(2.0))


class GraphAttention(Model):
    """Softmax over the edges of a node by scatters; a graph for each sample."""

    samples = drawn(x=normal(4, 3), edges=whole(0, 4, 2, 6), y=normal(1))

    def build(self) -> None:
        self.nodes, self.score = nn.Linear(3, 4), nn.Linear(8, 1)
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> Any:
        b = x.shape[0]
        offset = torch.arange(b).view(-1, 1, 1) * 4
        source, target = (edges + offset).transpose(0, 1).flatten(1)
        h = self.nodes(x).flatten(0, 1)
        with self.block(1):
            e = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)).squeeze(-1), 0.2)
            top = torch.zeros(b * 4).scatter_reduce(0, target, e, "amax", include_self=False)
            e = torch.exp(e - top.index_select(0, target).detach())
            a = e / torch.zeros(b * 4).scatter_add(0, target, e)[target].clamp_min(1e-9)
            z = torch.zeros_like(h).index_add(0, target, h[source] * a[:, None])
            mean = torch.zeros_like(h).scatter_reduce_(0, target[:, None].expand(-1, 4), h[source], "mean")
            return F.mse_loss(self.out((z + mean).view(b, 4, 4).amax(1)), y)


class SparseGraph(Model):
    """Matrices of graphs by coordinates, with learned weights of the edges."""

    def build(self) -> None:
        self.layer, self.values = nn.Linear(6, 5), nn.Parameter(torch.rand(4))
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 4], [1, 0, 3, 2]]))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.layer(x))
        with self.block(1):
            graph = torch.sparse_coo_tensor(self.edges, self.values, (5, 5)).coalesce()
            h = torch.sparse.mm(graph, h.t()).t()
            return F.mse_loss((graph.to_dense() @ h.t()).sum(0, keepdim=True).t(), y)


class Experts(Model):
    """The best two experts, a load that is balanced, and a sort."""

    def build(self) -> None:
        self.gate, self.up = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 6, 8) / 3)
        self.down = nn.Parameter(torch.randn(4, 8, 1) / 3)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        gates = self.gate(x).softmax(-1)
        with self.block(1):
            weights, chosen = gates.topk(2, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
            places = torch.cumsum(F.one_hot(chosen, 4).sum(1), 0)
            kept = (places.gather(1, chosen) <= 6).to(x.dtype)
            combine = torch.zeros_like(gates).scatter(1, chosen, weights * kept)
            h = torch.einsum("be,ebo->bo", combine, torch.matmul(gelu(x @ self.up), self.down))
            share = F.one_hot(chosen[:, 0], 4).float().mean(0)
            ordered, order = torch.sort(gates, dim=-1, descending=True, stable=True)
            spread = (ordered[:, 0] - ordered[:, -1]).mean() + 0 * order.sum()
            return final(F.mse_loss(h, y) + 0.1 * (share * gates.mean(0)).sum() * 4 - 0.01 * spread)


class Mixtral(Model):
    """Experts one by one, each for the rows that chose it."""

    def build(self) -> None:
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 4), nn.SiLU(), nn.Linear(4, 1)) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        routed = F.softmax(self.gate(x), dim=1, dtype=torch.float)
        with self.block(1):
            weights, chosen = torch.topk(routed, 2, dim=-1)
            out = torch.zeros(x.shape[0], 1)
            mask = F.one_hot(chosen, num_classes=3).permute(2, 1, 0)
            for number, expert in enumerate(self.experts):
                place, row = torch.where(mask[number])
                out.index_add_(0, row, expert(x[row]) * weights[row, place, None])
            return F.mse_loss(out, y)


class MaskedTokens(Model):
    """As BERT: the loss of the masked places, which a boolean index selects."""

    samples = drawn(ids=tokens(5), labels=tokens(5), masked=lambda: torch.rand(SAMPLES, 5) < 0.6)

    def build(self) -> None:
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor, labels: Tensor, masked: Tensor) -> Any:
        h = torch.tanh(self.words(ids))
        with self.block(1):
            logits = self.head(h)
            return F.cross_entropy(logits[masked], labels[masked])


# -- parameters and state ----------------------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


class Parametrized(Model):
    def build(self) -> None:
        self.first = parametrizations.weight_norm(nn.Linear(6, 8))
        self.second = parametrizations.spectral_norm(nn.Linear(8, 8))
        self.third = parametrizations.orthogonal(nn.Linear(8, 8, bias=False))
        self.fourth = nn.Linear(8, 8)
        parametrize.register_parametrization(self.fourth, "weight", Symmetric())

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        with self.block(1):
            return F.mse_loss(self.fourth(self.third(self.second(h))), y.expand(-1, 8))


class LowRank(nn.Module):
    """As LoRA: a frozen layer and two small ones beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = (
            nn.Parameter(torch.randn(2, base.in_features)),
            nn.Parameter(torch.randn(base.out_features, 2) / 9),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * 0.5


class Adapters(Model):
    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        for name, module in list(self.net.named_children()):
            if isinstance(module, nn.Linear):
                setattr(self.net, name, LowRank(module))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = self.net[:2](x)
        with self.block(1):
            return F.mse_loss(self.net[2:](h), y)


class Momentum(Model):
    """A teacher that follows its student, in buffers and frozen parameters written in place."""

    def build(self) -> None:
        self.student, self.teacher = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.head = nn.Linear(4, 4)
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = self.student(x)
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs.detach(), alpha=0.1)
            taught = self.teacher(x)
        with self.block(1):
            with torch.no_grad():
                target = F.softmax((taught - self.centre) / 0.5, -1)
                self.centre.copy_(self.centre * 0.9 + target.mean(0) * 0.1)
                self.steps += 1
            return final(-(target * F.log_softmax(self.head(h), -1)).sum(-1).mean())


class Quantizer(Model):
    """As VQ-VAE: the nearest word of a book, with the gradient passed straight through."""

    def build(self) -> None:
        self.encode, self.book, self.decode = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        z = self.encode(x)
        with self.block(1):
            far = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.weight.t() + self.book.weight.pow(2).sum(1)
            code = self.book(far.argmin(1))
            straight = z + (code - z).detach()
            losses = F.mse_loss(self.decode(straight), y) + F.mse_loss(code, z.detach())
            return final(losses + 0.25 * F.mse_loss(z, code.detach()))


class Member(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Ensemble(Model):
    """``torch.func.functional_call`` under ``vmap`` over weights in a stack."""

    def build(self) -> None:
        self.first = nn.Linear(6, 6)
        members = [Member() for _ in range(3)]
        stacked, _ = func.stack_module_state(members)  # type: ignore[arg-type]
        self.stacked = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(v.detach()) for k, v in stacked.items()})
        self.names = {k: k.replace(".", "_") for k in stacked}
        object.__setattr__(self, "plain", members[0].requires_grad_(False))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        with self.block(1):
            weights = {name: self.stacked[key] for name, key in self.names.items()}
            out = torch.vmap(lambda w, z: func.functional_call(self.plain, w, (z,)), in_dims=(0, None))(weights, h)
            return out.std(0), F.mse_loss(out.mean(0), y)


# -- how models are called, and what they give -------------------------------------------------------------------------


@dataclass
class Output:
    logits: Tensor
    loss: Tensor


class Pair(NamedTuple):
    hidden: Tensor
    loss: Tensor


class ByName(Model):
    """Arguments by name only, one left out; a mapping of modules; a dataclass of results."""

    def build(self) -> None:
        self.heads = nn.ModuleDict({"mean": nn.Linear(8, 1), "scale": nn.Linear(8, 1)})
        self.trunk = nn.Linear(6, 8)

    def forward(self, *, x: Tensor, y: Tensor, weights: Tensor | None = None, **more: Any) -> Output:
        h = torch.tanh(self.trunk(x))
        with self.block(1):
            results = {name: head(h) for name, head in self.heads.items()}
            loss = F.gaussian_nll_loss(results["mean"], y, F.softplus(results["scale"]) + 0.1)
            return Output(logits=results["mean"], loss=loss)


class Nested(Model):
    """A mapping of inputs with a list in it; a named tuple of results."""

    def build(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.LazyLinear(1)
        self.second(torch.zeros(1, 8))

    def samples(self) -> dict[str, Any]:
        halves = [torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 3)]
        return {"batch": {"views": halves, "target": (torch.randn(SAMPLES, 1),)}}

    def forward(self, batch: dict[str, Any]) -> Pair:
        a, b = (torch.tanh(self.first(view)) for view in batch["views"])
        with self.block(1):
            h = torch.hstack([a, b])
            return Pair(h, F.huber_loss(self.second(h), batch["target"][0], delta=0.7))


class Contrastive(Model):
    """As CLIP: labels are places in the batch, and a learned temperature is limited."""

    samples = drawn(x=normal(6), ids=tokens(3))

    def build(self) -> None:
        self.pictures, self.texts = nn.Linear(6, 4), nn.EmbeddingBag(11, 4)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: Tensor, ids: Tensor) -> Any:
        a = F.normalize(self.pictures(x), dim=-1)
        with self.block(1):
            b = F.normalize(self.texts(ids), dim=-1)
            logits = self.scale.exp().clamp(max=100) * a @ b.t()
            places = torch.arange(logits.shape[0])
            return final((F.cross_entropy(logits, places) + F.cross_entropy(logits.t(), places)) / 2)


class Hooked(Model):
    """Hooks of modules and of a tensor's gradient."""

    def build(self) -> None:
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)
        self.first.register_forward_hook(lambda module, inputs, output: output * 1.5)
        self.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        h.register_hook(lambda gradient: gradient * 0.5)
        with self.block(1):
            return F.mse_loss(self.second(h), y)


class Checkpointed(Model):
    def build(self) -> None:
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.second = nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = checkpoint_sequential(self.first, 2, x, use_reentrant=False)
        with self.block(1):
            z = checkpoint(self.second, h, use_reentrant=True)
            return F.mse_loss(z, y)


class Compiled(Model):
    """``torch.compile`` of a part, autocast that is off, and a chosen kernel of attention."""

    def build(self) -> None:
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)
        self.mix = torch.compile(lambda h: torch.sin(h) * h)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            h = self.first(x)
        with self.block(1), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q = h.view(-1, 1, 2, 4)
            z = F.scaled_dot_product_attention(q, q, q).flatten(1)
            return F.mse_loss(self.second(torch.sin(z) * z), y)


# -- control flow, derivatives, probability ----------------------------------------------------------------------------


class Loops(Model):
    """A loop as long as its data asks for, without a gradient through it."""

    def build(self) -> None:
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        with self.block(1):
            with torch.no_grad():
                _, scaled = torch._higher_order_ops.while_loop(
                    lambda i, z: (i < 6) & (z.abs().sum() > 1.0),
                    lambda i, z: (i + 1, z * 0.5),
                    (torch.tensor(0), h.detach()),
                )
            return F.mse_loss(self.second(h + scaled), y)


class Scanned(Model):
    """``scan`` over time, with a gradient."""

    samples = drawn(x=normal(5, 3), y=normal(1))

    def build(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        from torch._higher_order_ops.scan import scan

        h = self.first(x)
        with self.block(1):

            def step(carry: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
                state = torch.tanh(carry * 0.9 + now)
                return state, state * 1.0

            last, every = scan(step, torch.zeros(x.shape[0], 4), h.transpose(0, 1), dim=0)
            return F.mse_loss(self.second(last + every.mean(0)), y)


class NeuralOde(Model):
    """Runge-Kutta, and the trace of the Jacobian by a product with a vector."""

    def build(self) -> None:
        self.first, self.second, self.flow = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def change(self, z: Tensor) -> Tensor:
        return torch.tanh(self.flow(z))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        z = self.first(x)
        with self.block(1):
            for _ in range(2):
                k1 = self.change(z)
                k2 = self.change(z + 0.25 * k1)
                k3 = self.change(z + 0.25 * k2)
                z = z + 0.5 / 6 * (k1 + 2 * k2 + 2 * k3 + self.change(z + 0.5 * k3))
            _, along = func.jvp(self.change, (z,), (torch.ones_like(z),))
            return final(F.mse_loss(self.second(z), y.expand(-1, 4)) + 0.1 * along.square().mean())


class Molecule(Model):
    """Energies of distances, and forces by ``autograd.grad``."""

    samples = drawn(at=normal(4, 3), kinds=tokens(4, 4), forces=normal(4, 3))

    def build(self) -> None:
        self.kinds = nn.Embedding(4, 4)
        self.net = nn.Sequential(nn.Linear(9, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, at: Tensor, kinds: Tensor, forces: Tensor) -> Any:
        z = self.kinds(kinds)
        with self.block(1):
            at = at.detach().requires_grad_(True)
            rows, columns = torch.triu_indices(4, 4, 1)
            far = (at[:, rows] - at[:, columns]).norm(dim=-1, keepdim=True)
            energy = self.net(torch.cat([z[:, rows], z[:, columns], torch.exp(-far)], -1)).sum((1, 2))
            (slope,) = torch.autograd.grad(energy.sum(), at, create_graph=True)
            return F.mse_loss(-slope, forces)


class Variational(Model):
    """``torch.distributions``, with the noise given."""

    samples = drawn(x=uniform(6), noise=normal(4))

    def build(self) -> None:
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor, noise: Tensor) -> Any:
        mean, log_variance = self.encode(x).chunk(2, -1)
        with self.block(1):
            q = torch.distributions.Normal(mean, torch.exp(0.5 * log_variance), validate_args=False)
            prior = torch.distributions.Normal(torch.zeros(4), torch.ones(4), validate_args=False)
            kl = torch.distributions.kl_divergence(q, prior).sum(-1)
            likely = torch.distributions.Bernoulli(logits=self.decode(mean + q.scale * noise), validate_args=False)
            return final((kl - likely.log_prob(x.round()).sum(-1)).mean())


class Flow(Model):
    """A coupling layer and a matrix with its determinant."""

    def build(self) -> None:
        self.net, self.mix = (
            nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6)),
            nn.Parameter(torch.eye(6) + 0.1),
        )

    def forward(self, x: Tensor, y: Tensor) -> Any:
        a, b = x.split(3, -1)
        scale, shift = self.net(a).chunk(2, -1)
        with self.block(1):
            z = torch.cat([a, b * scale.tanh().exp() + shift], -1) @ self.mix
            log_det = scale.tanh().sum(-1) + torch.linalg.slogdet(self.mix).logabsdet
            return final((0.5 * z.square().sum(-1) - log_det).mean() + 0 * y.sum())


class Process(Model):
    """The marginal likelihood of a Gaussian process, by a Cholesky factor."""

    samples = drawn(x=normal(4, 6), y=normal(4, 1))

    def build(self) -> None:
        self.first, self.length, self.noise = (
            nn.Linear(6, 2),
            nn.Parameter(torch.tensor(0.3)),
            nn.Parameter(torch.tensor(0.1)),
        )

    def forward(self, x: Tensor, y: Tensor) -> Any:
        z = self.first(x)
        with self.block(1):
            far = (z[:, :, None] - z[:, None]).square().sum(-1)
            k = torch.exp(-0.5 * far / self.length.exp() ** 2) + (self.noise.exp() + 0.01) * torch.eye(4)
            factor = torch.linalg.cholesky(k)
            alpha = torch.cholesky_solve(y, factor)
            fit = 0.5 * (y * alpha).sum((1, 2)) + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            return final(fit.mean() + 0.01 * torch.linalg.solve_triangular(factor, y, upper=False).square().mean())


class Splines(Model):
    """As KAN: B-splines by recursion, masks by comparison."""

    def build(self) -> None:
        self.first, self.weights = nn.Linear(6, 4), nn.Parameter(torch.randn(1, 4, 5) / 3)
        self.register_buffer("grid", torch.linspace(-1.8, 1.8, 8))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        with self.block(1):
            z, g = h.unsqueeze(-1), self.grid
            bases = ((z >= g[:-1]) & (z < g[1:])).to(z.dtype)
            for k in range(1, 3):
                left = (z - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)])
                right = (g[k + 1 :] - z) / (g[k + 1 :] - g[1:-k])
                bases = left * bases[..., :-1] + right * bases[..., 1:]
            return F.mse_loss(torch.einsum("bik,oik->bo", bases, self.weights), y)


class Speech(Model):
    """Spectra of sound, a convolution over time and connectionist temporal classification."""

    samples = drawn(sound=normal(40), words=whole(1, 4, 3), lengths=whole(1, 4))

    def build(self) -> None:
        self.conv, self.head = nn.Conv1d(5, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, sound: Tensor, words: Tensor, lengths: Tensor) -> Any:
        spectra = torch.stft(sound, 8, 4, window=torch.hann_window(8), center=False, return_complex=True).abs()
        h = F.glu(torch.cat([self.conv(torch.log1p(spectra))] * 2, 1), 1)
        with self.block(1):
            scores = self.head(h.permute(2, 0, 1)).log_softmax(-1)
            times = torch.full((sound.shape[0],), scores.shape[0], dtype=torch.long)
            return F.ctc_loss(scores, words, times, lengths, zero_infinity=True)


class HalfInputs(Model):
    """Inputs of 16 bits, converted where they are read."""

    samples = drawn(x=lambda: torch.randn(SAMPLES, 6).half(), y=lambda: torch.randn(SAMPLES, 1).half())

    def build(self) -> None:
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = torch.tanh(self.first(x.to(self.first.weight.dtype)))
        with self.block(1):
            return F.mse_loss(self.second(h), y.float())


class Hyper(Model):
    """Weights that a network makes, each sample its own, turned by a Cayley transform."""

    def build(self) -> None:
        self.make, self.gain = nn.Linear(6, 16), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        w = self.make(x).view(-1, 4, 4)
        with self.block(1):
            turned = torch.linalg.solve(torch.eye(4) + 0.1 * (w - w.mT), torch.eye(4) - 0.1 * (w - w.mT))
            z = torch.baddbmm(w, turned, torch.diag_embed(self.gain.expand(x.shape[0], 4)), beta=0.5)
            z = torch.vmap(lambda a, b: a @ b[:4])(z, x)
            return final(F.mse_loss(torch.logsumexp(z, -1, keepdim=True), y) + torch.linalg.vector_norm(self.gain))


class Triplets(Model):
    """Losses of pairs and triplets, each weighed by what is learned of its noise."""

    samples = drawn(anchor=normal(6), near=normal(6), far=normal(6))

    def build(self) -> None:
        self.embed, self.noise = (
            nn.Sequential(nn.Linear(6, 8), nn.Mish(), nn.LayerNorm(8), nn.Linear(8, 4)),
            nn.Parameter(torch.zeros(3)),
        )

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Any:
        a, n, f = self.embed(torch.cat([anchor, near, far])).chunk(3)
        with self.block(1):
            same = torch.ones(a.shape[0])
            losses = torch.stack(
                [
                    F.triplet_margin_loss(a, n, f, 0.5),
                    F.cosine_embedding_loss(a, n, same),
                    F.margin_ranking_loss(a[:, 0], f[:, 0], same, 0.2),
                ]
            )
            return final((losses * torch.exp(-self.noise) + self.noise).sum())

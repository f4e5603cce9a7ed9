"""Twenty-one small models of the usual families, each with a batch: ``CASES`` maps a name to what makes both.

A model gives its loss. Inputs that are whole numbers stay so in float16. GELU is the tanh form, as PopART's is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipuperf import poptorch

Case = tuple[nn.Module, tuple[Tensor, ...]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


class Trained(nn.Module):
    """A module of one or two inputs, and a loss of its result and the last input."""

    def __init__(self, body: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.loss = body, loss

    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
        return self.loss(self.body(x), y) if z is None else self.loss(self.body(x, y), z)


def classified(body: nn.Module, *given: Tensor, classes: int = 5) -> Case:
    return Trained(body, F.cross_entropy), (*given, torch.arange(len(given[0])) % classes)


def fitted(body: nn.Module, *given: Tensor, target: Tensor) -> Case:
    return Trained(body, F.mse_loss), (*given, target)


def tokens(batch: int, length: int, vocabulary: int = 20) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Attention(nn.Module):
    """Self-attention over ``[batch, length, width]``; causal if asked."""

    def __init__(self, width: int = 16, heads: int = 2, causal: bool = False) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.joint(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def encoder(width: int = 16, causal: bool = False) -> nn.Sequential:
    fed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))
    return nn.Sequential(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, causal=causal))), Residual(fed))


class Mean(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


@case
def perceptron() -> Case:
    body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))
    return classified(body, torch.randn(8, 12))


@case
def lenet() -> Case:
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 5)
    )
    return classified(body, torch.randn(4, 1, 16, 16))


@case
def resnet() -> Case:
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), Residual(block), Mean(2, 3), nn.Linear(8, 5))
    return classified(body, torch.randn(4, 3, 12, 12))


@case
def mobilenet() -> Case:
    """Depthwise convolutions, group norm, hard swish."""
    deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.GroupNorm(2, 8), nn.Hardswish())
    body = nn.Sequential(nn.Conv2d(3, 8, 1), Residual(deep), nn.Conv2d(8, 8, 1), nn.ReLU6(), Mean(2, 3))
    return classified(nn.Sequential(body, nn.Linear(8, 5)), torch.randn(4, 3, 8, 8))


class Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.SiLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        return self.head((x * self.gate(x)).mean((2, 3)))


@case
def efficientnet() -> Case:
    return classified(Excited(), torch.randn(4, 3, 8, 8))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells = kind(6, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


@case
def lstm() -> Case:
    return classified(Recurrent(nn.LSTM), torch.randn(4, 7, 6))


@case
def gru() -> Case:
    return classified(Recurrent(nn.GRU), torch.randn(4, 7, 6))


class Words(nn.Module):
    """Embedded tokens through ``body``."""

    def __init__(self, body: nn.Module, length: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(length, 16))
        self.body = body

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.words(ids) + self.places)


@case
def bert() -> Case:
    body = Words(nn.Sequential(encoder(), encoder(), nn.Linear(16, 20), nn.Flatten(0, 1)))
    return Trained(body, lambda x, y: F.cross_entropy(x, y.flatten())), (tokens(4, 6), tokens(4, 6))


@case
def gpt() -> Case:
    body = Words(nn.Sequential(encoder(causal=True), encoder(causal=True), nn.LayerNorm(16), nn.Linear(16, 20)))
    return Trained(body, lambda x, y: F.cross_entropy(x[:, :-1].flatten(0, 1), y[:, 1:].flatten())), (tokens(4, 6),) * 2


@case
def vision_transformer() -> Case:
    patches = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Flatten(2))

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.body, self.head = patches, encoder(), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.patches(x).transpose(1, 2)).mean(1))

    return classified(Patches(), torch.randn(4, 3, 8, 8))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.transformer(self.words(source), self.words(target))).flatten(0, 1)


@case
def translator() -> Case:
    target = tokens(2, 5)
    return Trained(Translator(), lambda x, y: F.cross_entropy(x, y.flatten())), (tokens(2, 6), target, target)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2), nn.LeakyReLU(0.1), nn.ConvTranspose2d(8, 1, 2, 2))

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.body(z[:, :, None, None]))


@case
def generator() -> Case:
    return fitted(Generator(), torch.randn(4, 4), target=torch.randn(4, 1, 6, 6))


@case
def waveform_network() -> Case:
    """Dilated convolutions of one axis with gates."""
    body = nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=2, dilation=2), nn.GLU(1), nn.Conv1d(4, 8, 3, padding=4, dilation=4)
    )
    return classified(nn.Sequential(body, nn.ELU(), Mean(2), nn.Linear(8, 5)), torch.randn(4, 2, 16))


class Vae(nn.Module):
    """A variational autoencoder; the noise is an input, so that both sides draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))
        self.decode = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 16))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, spread = self.encode(x).chunk(2, 1)
        rebuilt = self.decode(mean + torch.exp(0.5 * spread) * noise)
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        return poptorch.identity_loss(F.binary_cross_entropy_with_logits(rebuilt, x) + 0.1 * divergence, "none")


@case
def vae() -> Case:
    return Vae(), (torch.rand(8, 16), torch.randn(8, 4))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.low = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        return self.head(torch.cat([high, self.up(self.low(high))], 1))


@case
def unet() -> Case:
    return Trained(UNet(), F.cross_entropy), (torch.randn(2, 1, 8, 8), torch.randint(0, 2, (2, 8, 8)))


class GraphAttention(nn.Module):
    """One layer of graph attention over edges: gather, softmax over each node's edges, scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(6, 8), nn.Linear(8, 5)
        self.source, self.target = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.project(x)
        start, end = edges[0], edges[1]
        weight = torch.exp(F.leaky_relu((x @ self.source)[start] + (x @ self.target)[end], 0.2))
        total = x.new_zeros(x.shape[0]).index_add(0, end, weight)
        share = (weight / (total[end] + 1e-4))[:, None]
        return self.head(F.elu(torch.zeros_like(x).index_add(0, end, share * x[start])))


@case
def graph_attention() -> Case:
    edges = torch.stack([torch.randint(0, 8, (20,)), torch.cat([torch.arange(8), torch.randint(0, 8, (12,))])])
    body, (x, labels) = classified(GraphAttention(), 0.5 * torch.randn(8, 6))
    return body, (x, edges, labels)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.places = nn.Sequential(nn.Linear(4, 8), nn.GELU("tanh"), nn.Linear(8, 4))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.first(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.second(x))).mean(1))


@case
def mixer() -> Case:
    return classified(Mixer(), torch.randn(4, 3, 8, 8))


class Recommender(nn.Module):
    """Tables of categories, a tower of numbers, products of all pairs (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 6) for size in (10, 20, 30))
        self.bottom, self.top = nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6 + 6, 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        self.register_buffer("pairs", rows * 4 + columns)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        every = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([dense, products], 1))[:, 0]


@case
def recommender() -> Case:
    given = (torch.randn(8, 4), torch.randint(0, 10, (8, 3)), torch.rand(8).round())
    return Trained(Recommender(), F.binary_cross_entropy_with_logits), given


class Sampler(nn.Module):
    """A decoder whose loss sees each place's best words only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Words(nn.Sequential(encoder(causal=True), nn.Linear(16, 20)))

    def forward(self, ids: Tensor) -> Tensor:
        best, _ = torch.topk(self.body(ids), 4, dim=-1)
        return poptorch.identity_loss(-F.log_softmax(best, -1)[..., 0], "mean")


@case
def sampling_decoder() -> Case:
    return Sampler(), (tokens(4, 6),)


class Siamese(nn.Module):
    """Two towers of shared weights and a contrastive loss over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = (F.normalize(self.tower(each), dim=1) for each in (x, y))
        return F.cross_entropy(4 * x @ y.t(), torch.arange(len(x)))


@case
def siamese_towers() -> Case:
    return Siamese(), (torch.randn(6, 10), torch.randn(6, 10))


class Speech(nn.Module):
    """Convolutions over time, a recurrent layer, and the CTC loss of transcripts of several lengths."""

    def __init__(self, features: int = 10, letters: int = 7) -> None:
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv1d(features, 12, 3, 2, 1), nn.ReLU(), nn.Conv1d(12, 12, 3, padding=1), nn.Tanh()
        )
        self.memory, self.out = nn.LSTM(12, 12, batch_first=True), nn.Linear(12, letters)

    def forward(self, sound: Tensor, letters: Tensor, times: Tensor, lengths: Tensor) -> Tensor:
        x, _ = self.memory(self.ears(sound).transpose(1, 2))
        return F.ctc_loss(self.out(x).log_softmax(-1).transpose(0, 1), letters, times, lengths)


@case
def speech() -> Case:
    letters = torch.tensor([[1, 2, 2, 5], [3, 6, 0, 0], [4, 1, 2, 0]])
    return Speech(), (torch.randn(3, 10, 24), letters, torch.tensor([12, 9, 12]), torch.tensor([4, 2, 3]))

"""A PopTorch program whose model, pipeline, batch and memory options are arguments (``test_levers_grid.py``)."""

from __future__ import annotations

import argparse
from typing import Any

import poptorch
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("encoder", "gpt", "vit", "mlp", "cnn"))
for name in ("size", "layers", "stages", "replicas", "batch", "accumulation"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--recompute", type=int, default=-1)
parser.add_argument("--proportion", type=float, default=0.0)
parser.add_argument("--first", type=int, default=0, help="layers of the first stage; 0: all stages alike")
args = parser.parse_args()
torch.manual_seed(0)
WORDS, LENGTH = 1024, 64


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, size: int, causal: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.heads, self.causal = max(size // 64, 1), causal
        self.norm2, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, size // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Residual(nn.Module):
    """Two convolutions with group norms, and what they take."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class Embed(nn.Module):
    """Words and places."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, size), nn.Parameter(torch.randn(LENGTH, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x) + self.places


class Mean(nn.Module):
    """The mean over places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def layers_of(model: str, size: int, count: int) -> list[nn.Module]:
    """The layers of a model, the first and last ones included."""
    if model == "mlp":
        inner = [nn.Sequential(nn.ReLU(), nn.Linear(size, size)) for _ in range(count)]
        return [nn.Linear(784, size), *inner, nn.Linear(size, 10)]
    if model == "cnn":
        channels = size // 4
        inner = [Residual(channels) for _ in range(count)]
        return [nn.Conv2d(3, channels, 3, padding=1), *inner, nn.Sequential(Mean(), nn.Linear(channels, 10))]
    blocks = [Block(size, model == "gpt") for _ in range(count)]
    first = nn.Linear(192, size) if model == "vit" else Embed(size)
    return [first, *blocks, nn.Linear(size, WORDS) if model == "gpt" else nn.Sequential(Mean(), nn.Linear(size, 10))]


class Model(nn.Module):
    """The layers in stages, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleList(layers_of(args.model, args.size, args.layers))

    def stage_of(self, number: int) -> int:
        """The stage of a layer."""
        first = args.first or -(-len(self.net) // args.stages)
        if number < first or args.stages == 1:
            return 0
        return 1 + (number - first) * (args.stages - 1) // (len(self.net) - first)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        for number, layer in enumerate(self.net):
            with poptorch.Block(f"layer{number}", ipu_id=self.stage_of(number)):
                x = layer(x)
                if number == len(self.net) - 1:
                    return nn.functional.cross_entropy(x.flatten(0, -2), labels.flatten())
        return x


options = poptorch.Options()
options.replicationFactor(args.replicas)
options.Training.gradientAccumulation(args.accumulation)
if args.proportion:
    options.setAvailableMemoryProportion({f"IPU{ipu}": args.proportion for ipu in range(args.stages)})
if args.recompute >= 0:
    options._Popart.set("autoRecomputation", args.recompute)
net = Model()
trained = poptorch.trainingModel(net, options, optimizer=poptorch.optim.AdamW(net.parameters()))
samples = args.batch * args.accumulation * args.replicas
shapes = {"mlp": (784,), "cnn": (3, 32, 32), "vit": (LENGTH, 192)}
shape = shapes.get(args.model, (LENGTH,))
inputs = torch.randn(samples, *shape) if args.model in shapes else torch.randint(0, WORDS, (samples, *shape))
trained(inputs, torch.randint(0, 10, (samples, *shape) if args.model == "gpt" else (samples,)))

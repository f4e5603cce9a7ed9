"""GPT-2 as a language model: every token predicts the next one.

The embedding and the language-model head run on IPU 0, because they share the word embedding; the layers follow
``layers_per_ipu``. The head computes its loss in ``loss_parts`` parts of the sequence, because the scores of a whole
sequence over the vocabulary are large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.attention import PreNormLayer
from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

__all__ = [
    "Gpt2",
    "Gpt2Options",
    "batch",
    "medium",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "small",
    "throughput",
    "validation_program",
]


@dataclass(frozen=True)
class Gpt2Options(RunOptions):
    """Sizes of GPT-2 (default: small, sequences of 1024 tokens) and how it runs.

    Attributes:
        embedding_parts: the products of the head are computed in so many parts of the vocabulary.
        loss_parts: the head and its loss are computed in so many parts of the sequence.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 50257
    sequence: int = 1024
    embedding_parts: int = 4
    loss_parts: int = 4
    dropout: float = 0.1
    attention_dropout: float = 0.1
    epsilon: float = 1e-5
    layers_per_ipu: tuple[int, ...] = (0, 4, 4, 4)
    memory_proportions: tuple[float, ...] = (0.15,)
    offload_optimiser: bool = True
    sharding: bool = True

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the word embedding: the vocabulary, rounded up to a multiple of the parts of the head."""
        return -(-self.vocabulary // self.embedding_parts) * self.embedding_parts


def small(**changes: Any) -> Gpt2Options:
    """GPT-2 small on four IPUs."""
    return replace(Gpt2Options(), **changes)


def medium(**changes: Any) -> Gpt2Options:
    """GPT-2 medium on eight IPUs; a pipeline of 17 parts needs as many micro-batches of an update, or more."""
    options = Gpt2Options(
        gradient_accumulation=32,
        layers=24,
        hidden=1024,
        heads=16,
        layers_per_ipu=(0, 3, 3, 3, 3, 4, 4, 4),
        memory_proportions=(0.3, 0.15),
    )
    return replace(options, **changes)


class Gpt2(nn.Module):
    """GPT-2; with labels it gives the loss, without the scores of every token."""

    def __init__(self, options: Gpt2Options) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(options.layers)
        self.words = nn.Embedding(options.padded_vocabulary, options.hidden)
        self.positions = nn.Embedding(options.sequence, options.hidden)
        self.dropout = nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(
            PreNormLayer(
                options.hidden,
                options.heads,
                4 * options.hidden,
                epsilon=options.epsilon,
                dropout=options.dropout,
                attention_dropout=options.attention_dropout,
                causal=True,
            )
            for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.hidden, options.epsilon)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary."""
        channels = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(x, self.words.weight.t(), channels, self.options.embedding_parts)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """``tokens`` and ``labels`` (the tokens that follow) of shape ``(batch, sequence)``."""
        with poptorch.Block("Embeddings", ipu_id=0):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.dropout(self.words(tokens) + self.positions(places))
        last = len(self.layers) - 1
        for number, (ipu, layer) in enumerate(zip(self.places, self.layers, strict=True)):
            with poptorch.Block(f"Layer{number}", ipu_id=ipu):
                x = layer(x)
                if number == last:
                    x = self.norm(x)
                if self.options.checkpoint_layers and self.training:
                    x = poptorch.recomputationCheckpoint(x)
        with poptorch.Block("Head", ipu_id=0):
            if labels is None:
                return self.scores(x)
            return poptorch.identity_loss(self.loss(x, labels), "none")

    def loss(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of all tokens."""
        parts = self.options.loss_parts
        total = []
        for piece, wanted in zip(x.chunk(parts, 1), labels.chunk(parts, 1), strict=True):
            scores = self.scores(piece)
            flat = scores.reshape(-1, scores.shape[2])
            total.append(F.cross_entropy(flat, wanted.reshape(-1)).float() * (wanted.shape[1] / labels.shape[1]))
        return torch.stack(total).sum() if len(total) > 1 else total[0]


def model(options: Gpt2Options) -> Gpt2:
    """A new model, initialised by PyTorch."""
    return Gpt2(options)


def batch(options: Gpt2Options, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    shape = (options.samples_per_call, options.sequence)
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)
    count = 2 if options.training else 1
    return [
        torch.randint(0, options.vocabulary, shape, generator=generator, dtype=torch.int32, device=device)
        for _ in range(count)
    ]


_RUN = ModelRun(model, batch, {"small": small(), "medium": medium()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

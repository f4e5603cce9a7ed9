"""The Conformer of WeNet for speech: an encoder with relative positions and convolutions, and an attention decoder.

Two losses are added up: CTC on what the encoder gives, and smoothed labels on what the decoder gives. Written from
``speech/conformer/pytorch`` of graphcore/examples, whose operation ``RemapCE`` is a copy into rows of grains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options
from ipuperf.poptorch import custom_ops
from ipuperf.popxl.custom_ops import Copy, CustomOp, TensorSpec

__all__ = [
    "Conformer",
    "ConformerOptions",
    "batch",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]


@dataclass(frozen=True)
class ConformerOptions(RunOptions):
    """Sizes (default: WeNet's medium model for Mandarin) and how it runs.

    Attributes:
        layers: of the encoder; the decoder stands with the last of them.
        frames, features: of the audio; the encoder sees every fourth frame.
        text: tokens of a text.
        kernel: frames of a depthwise convolution.
        ctc_weight: of CTC in the sum of both losses.
    """

    layers: int = 12
    decoder_layers: int = 6
    hidden: int = 256
    heads: int = 4
    feed_forward: int = 2048
    kernel: int = 15
    frames: int = 1220
    features: int = 80
    vocabulary: int = 4233
    text: int = 48
    dropout: float = 0.1
    attention_dropout: float = 0.0
    smoothing: float = 0.1
    ctc_weight: float = 0.3
    layers_per_ipu: tuple[int, ...] = (2, 4, 5, 1)
    optimiser: str = "adam"
    max_grad_norm: float = 5.0
    checkpoint_layers: bool = False


class Remap(CustomOp):
    """A copy of the operand that lies in rows of grains, as ``RemapCE`` of the program."""

    type = "RemapCE"

    def infer(self) -> list[TensorSpec]:
        """The operand's shape and type."""
        return [self.inputs[0].spec]

    def value(self, x: Any) -> Any:
        """The operand."""
        return x

    def gradient(self, builder: Any, grads: Any) -> list[Any]:
        """The gradient is copied likewise."""
        return [builder.op(Remap, [grads[0]])]

    def work(self) -> list[Copy]:
        """Everything moves."""
        return [Copy(self.inputs[0].spec.bytes)]


custom_ops.register("RemapCE", "ai.graphcore", 1, Remap)


def remapped(x: torch.Tensor) -> torch.Tensor:
    """See :class:`Remap`; PyTorch itself knows no layouts."""
    if not poptorch.isRunningOnIpu():
        return x
    return poptorch.custom_op([x], "RemapCE", "ai.graphcore", 1, example_outputs=[x])[0]


def positions(length: int, size: int, device: torch.device | str) -> torch.Tensor:
    """Sines of even features, cosines of odd ones: ``(1, length, size)``."""
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(1, length, size)


def within(lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Which of ``length`` places are within ``lengths``: ``(batch, 1, length)``."""
    places = torch.arange(length, dtype=lengths.dtype, device=lengths.device)
    return (places < lengths[:, None])[:, None, :]


class Attention(nn.Module):
    """Attention with one product for keys and values; with ``relative`` the scores have a part by positions."""

    def __init__(self, options: ConformerOptions, relative: bool = False) -> None:
        super().__init__()
        self.heads, self.size = options.heads, options.hidden // options.heads
        self.query, self.key_value, self.output = (nn.Linear(options.hidden, options.hidden) for _ in range(3))
        self.dropout = nn.Dropout(options.attention_dropout)
        if relative:
            self.positions = nn.Linear(options.hidden, options.hidden, bias=False)
            self.bias_u, self.bias_v = (nn.Parameter(torch.zeros(self.heads, self.size)) for _ in range(2))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, length, hidden)`` to ``(batch, length, heads, size)``."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x`` attends to ``memory`` where ``mask`` (``(batch, 1 or length, length)``) allows it."""
        q, k, v = self.split(self.query(x)), self.split(self.key_value(memory)), self.split(self.key_value(memory))
        keys = k.transpose(1, 2).transpose(2, 3)
        if places is None:
            scores = q.transpose(1, 2) @ keys
        else:
            by_position = self.split(self.positions(places)).transpose(1, 2).transpose(2, 3)
            scores = (q + self.bias_u).transpose(1, 2) @ keys + (q + self.bias_v).transpose(1, 2) @ by_position
        allowed = mask.to(x.dtype)[:, None]
        scores = scores / math.sqrt(self.size) * allowed + (allowed - 1) * 1e3
        context = self.dropout(torch.softmax(scores, -1) * allowed) @ v.transpose(1, 2)
        return self.output(context.transpose(1, 2).reshape(x.shape))


def feed_forward(options: ConformerOptions, activation: nn.Module) -> nn.Sequential:
    """Two linear layers."""
    inner = options.feed_forward
    layers = [nn.Linear(options.hidden, inner), activation, nn.Dropout(options.dropout)]
    return nn.Sequential(*layers, nn.Linear(inner, options.hidden))


class Convolution(nn.Module):
    """A gated pointwise convolution, a depthwise one, a norm and another pointwise one."""

    def __init__(self, options: ConformerOptions) -> None:
        super().__init__()
        hidden, kernel = options.hidden, options.kernel
        self.gated = nn.Conv1d(hidden, 2 * hidden, 1, bias=False)
        self.depthwise = nn.Conv1d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)
        self.last = nn.Conv1d(hidden, hidden, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, length, hidden)`` to the same."""
        x = self.depthwise(F.glu(self.gated(x.transpose(1, 2)), dim=1))
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.last(x * torch.sigmoid(x)).transpose(1, 2)


class Swish(nn.Module):
    """``x`` times its sigmoid, two operations as in the program."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return x * torch.sigmoid(x)


class EncoderLayer(nn.Module):
    """Half a feed-forward part, attention, convolution, half a feed-forward part, each after a norm."""

    def __init__(self, options: ConformerOptions) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(options.hidden) for _ in range(5))
        self.first, self.second = feed_forward(options, Swish()), feed_forward(options, Swish())
        self.attention, self.convolution = Attention(options, relative=True), Convolution(options)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """``(batch, length, hidden)`` to the same."""
        x = remapped(x)
        x = x + 0.5 * self.dropout(self.first(self.norms[0](x)))
        y = self.norms[1](x)
        x = x + self.dropout(self.attention(y, y, mask, places))
        x = x + self.dropout(self.convolution(self.norms[2](x)))
        x = x + 0.5 * self.dropout(self.second(self.norms[3](x)))
        return remapped(self.norms[4](x))


class DecoderLayer(nn.Module):
    """Attention to the text so far, to the audio, and a feed-forward part, each after a norm."""

    def __init__(self, options: ConformerOptions) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(options.hidden) for _ in range(3))
        self.own, self.source = Attention(options), Attention(options)
        self.feed_forward, self.dropout = feed_forward(options, nn.ReLU()), nn.Dropout(options.dropout)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor
    ) -> torch.Tensor:
        """``(batch, text, hidden)`` to the same."""
        y = self.norms[0](x)
        x = remapped(x + self.dropout(self.own(y, y, mask)))
        x = x + self.dropout(self.source(self.norms[1](x), memory, memory_mask))
        return remapped(x + self.dropout(self.feed_forward(self.norms[2](x))))


class Conformer(nn.Module):
    """Loss of both parts."""

    def __init__(self, options: ConformerOptions) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.ipu_of_layer(options.layers)
        hidden = options.hidden
        for name in ("mean", "scale"):
            self.register_buffer(name, torch.ones(options.features))
        self.one, self.two = nn.Conv2d(1, hidden, 3, 2), nn.Conv2d(hidden, hidden, 3, 2)
        self.embedded = nn.Linear(hidden * (((options.features - 1) // 2 - 1) // 2), hidden)
        self.dropout = nn.Dropout(options.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(options) for _ in range(options.layers))
        self.words = nn.Embedding(options.vocabulary, hidden)
        self.decoder = nn.ModuleList(DecoderLayer(options) for _ in range(options.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.classes, self.output = (nn.Linear(hidden, options.vocabulary) for _ in range(2))

    def encoded(self, audio: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the encoder gives, and which frames of it count."""
        with poptorch.Block("Embedding", ipu_id=self.places[0]):
            x = ((audio - self.mean) * self.scale).float().to(audio.dtype)
            mask = within(lengths, audio.shape[1])[:, :, :-2:2][:, :, :-2:2]
            x = F.relu(self.two(F.relu(self.one(x[:, None])))).transpose(1, 2)
            x = self.embedded(x.reshape(x.shape[0], x.shape[1], -1))
            x = self.dropout(x * math.sqrt(self.options.hidden))
            places = positions(x.shape[1], x.shape[2], x.device)
            places = self.dropout(places).to(x.dtype)
        for number, (ipu, layer) in enumerate(zip(self.places, self.encoder, strict=True)):
            with poptorch.Block(f"Layer{number}", ipu_id=ipu):
                x = layer(x, mask, places)
        with poptorch.Block("Decoder", ipu_id=self.places[-1]):
            return self.norms[0](x), mask

    def decoded(
        self, words: torch.Tensor, lengths: torch.Tensor, memory: torch.Tensor, memory_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of each word of the text, and which words count."""
        counts = within(lengths, words.shape[1])
        order = torch.arange(words.shape[1], device=words.device)
        earlier = (order <= order[:, None])[None]
        mask = (counts.int().repeat(1, words.shape[1], 1) + earlier.int()).eq(2)
        x = self.words(words)
        places = positions(x.shape[1], x.shape[2], x.device).to(x.dtype)
        x = self.dropout(x * math.sqrt(self.options.hidden) + places)
        memory_mask = within(memory_lengths, memory.shape[1])
        for layer in self.decoder:
            x = layer(x, mask, memory, memory_mask)
        return self.output(self.norms[1](x)), counts[:, 0]

    def forward(
        self,
        audio: torch.Tensor,
        audio_lengths: torch.Tensor,
        words: torch.Tensor,
        labels: torch.Tensor,
        lengths: torch.Tensor,
    ) -> Any:
        """Losses of ``(batch, frames, features)`` of audio and ``(batch, text)`` words: their sum, and both."""
        memory, mask = self.encoded(audio, audio_lengths)
        with poptorch.Block("Decoder", ipu_id=self.places[-1]):
            memory_lengths = mask[:, 0].sum(1, dtype=torch.int32)
            logs = torch.log_softmax(self.classes(memory), -1).transpose(0, 1)
            scores, counts = self.decoded(words, lengths, memory, memory_lengths)
            smoothed = self.smoothed_loss(scores, labels, counts)
            ctc = F.ctc_loss(logs, labels, memory_lengths, lengths - 1, reduction="sum") / audio.shape[0]
            weight = self.options.ctc_weight
            whole = (1 - weight) * smoothed + weight * ctc.to(smoothed.dtype)
            return poptorch.identity_loss(whole, "mean"), smoothed, ctc

    def smoothed_loss(self, scores: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Divergence from smoothed labels, summed over the words that count, by rows of the batch."""
        other = self.options.smoothing / (scores.shape[-1] - 1)
        right = F.one_hot(labels.long(), scores.shape[-1]).to(scores.dtype)
        target = right * (1 - self.options.smoothing - other) + other
        loss = target * (torch.log(target) - torch.log_softmax(scores, -1)) * counts[..., None]
        return loss.sum() / labels.shape[0]


def model(options: ConformerOptions) -> Conformer:
    """A new model, initialised by PyTorch."""
    return Conformer(options)


def batch(options: ConformerOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random audio and text of full length; on ``meta`` only their shapes."""
    rows = options.samples_per_call
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int, low: int = 1) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32, device=device)

    audio = torch.randn((rows, options.frames, options.features), generator=generator, device=device)
    words = [whole(options.vocabulary, rows, options.text) for _ in range(2)]
    ends = [whole(length + 1, rows, low=length) for length in (options.frames, options.text)]
    return [audio.to(options.dtype), ends[0], *words, ends[1]]


_RUN = ModelRun(model, batch, {"medium": ConformerOptions()})
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

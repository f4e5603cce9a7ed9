"""BERT for pre-training (masked language model and next-sentence heads, unpacked or packed sequences) or for
fine-tuning on questions and answers.

Embeddings and both heads of pre-training run on IPU 0, because the decoder of the masked language model is the word
embedding and a tensor lives on one IPU; the layers follow ``layers_per_ipu``. The heads are a pipeline stage of their
own. The head for questions and answers runs where the last layer does.

Packed sequences: a row holds up to ``sequences_per_pack`` sequences one after the other. The mask has their
number (1, 2 ...; 0: padding) at each token, tokens attend within their own; their ``[CLS]`` tokens are the last tokens
of the row. Differences to upstream's application: accuracies are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.base.near_names import instead_of
from ipuperf.models.attention import ExportedGelu, PostNormLayer
from ipuperf.models.ipu_run import InFloat32, ModelRun, RunOptions, poptorch_options

__all__ = [
    "Bert",
    "BertOptions",
    "base",
    "batch",
    "large",
    "model",
    "placed_layers",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]

MASK_MADE = ("ipu", "first", "layers")
_MASKED_OUT = -1000.0
_NO_LABEL = 0


@dataclass(frozen=True)
class BertOptions(RunOptions):
    """Sizes of BERT (default: base, sequences of 128 tokens) and how it runs.

    Attributes:
        masked_tokens: predicted tokens per row.
        packed, sequences_per_pack, sequences_in_pack: packed rows, most sequences of a row, and sequences in an average
            row (``throughput`` counts sequences).
        embedding_parts: the decoder's product is computed in so many parts, to need less memory.
        split_qkv: three products instead of one for queries, keys and values.
        joined_qkv: one product with parameters for each of the three, joined for it.
        attention_bias: the products of the attention have biases.
        scale_scores: scores are scaled, not queries.
        exported_gelu: GELU of the layers in single ops (:class:`~.attention.ExportedGelu`).
        mask_made: where what is added to the scores is made: ``ipu``, once on each IPU that has attention; ``first``,
            before the embeddings, from where it goes on from IPU to IPU (as transformers' BERT); ``layers``, by each
            layer (as PopART's programs with packed rows, whose custom op AttentionMask takes differences of the numbers
            in the mask through tanh).
        next_sentence: pre-training tells next sentences from others, besides masked tokens.
        heads_on_ipu: pre-training heads; else the model gives the last hidden states (inference of an encoder).
        wide: GELU and norms of the layers and the embeddings in float32, with casts around them (PopRT's converter with
            ``fp16_skip_op_types="Gelu,GroupNormalization"``).
        questions: instead of those, a head that scores each token as the first and as the last one of the answer.
        halves: IPU and number of half layers (attention, feed-forward, attention ...) of each stage in order, for
            pipelines that divide layers; ``layers_per_ipu`` then counts a layer where its attention is, and says no
            more than how many IPUs there are.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    vocabulary: int = 30522
    sequence: int = 128
    positions: int = 512
    masked_tokens: int = 20
    packed: bool = False
    sequences_per_pack: int = 3
    sequences_in_pack: float = 1.0
    embedding_parts: int = 1
    split_qkv: bool = False
    joined_qkv: bool = False
    attention_bias: bool = True
    scale_scores: bool = True
    exported_gelu: bool = False
    mask_made: str = "ipu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    epsilon: float = 1e-3
    next_sentence: bool = True
    heads_on_ipu: bool = True
    wide: bool = False
    questions: bool = False
    halves: tuple[tuple[int, int], ...] = ()
    layers_per_ipu: tuple[int, ...] = (0, 4, 4, 4)
    optimiser: str = "lamb"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_made not in MASK_MADE:
            raise ValueError(f"mask_made {self.mask_made!r}{instead_of(self.mask_made, MASK_MADE)}")
        if self.mask_made == "layers" and not self.packed:
            raise ValueError("mask_made 'layers' is for packed rows")

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the word embedding: the vocabulary, rounded up to a multiple of the parts of the decoder."""
        return -(-self.vocabulary // self.embedding_parts) * self.embedding_parts

    def places(self) -> list[tuple[int, int]]:
        """IPU of the attention and of the feed-forward part of each layer.

        Raises:
            ValueError: the layers are not all placed, or ``halves`` and ``layers_per_ipu`` contradict each other.
        """
        whole = self.ipu_of_layer(self.layers)
        if not self.halves:
            return [(ipu, ipu) for ipu in whole]
        found = [ipu for ipu, count in self.halves for _ in range(count)]
        if len(found) != 2 * self.layers:
            raise ValueError(f"halves {self.halves} place {len(found)} half layers, the model has {2 * self.layers}")
        if sorted(found[::2]) != whole:
            raise ValueError(
                f"halves {self.halves} place other attention parts than layers_per_ipu {self.layers_per_ipu}"
            )
        return list(zip(found[::2], found[1::2], strict=True))


def base(**changes: Any) -> BertOptions:
    """BERT base."""
    return replace(BertOptions(), **changes)


def large(**changes: Any) -> BertOptions:
    """BERT large on four IPUs as upstream pre-trains it: LAMB with its state sharded and in Streaming Memory."""
    options = BertOptions(
        layers=24,
        hidden=1024,
        heads=16,
        feed_forward=4096,
        embedding_parts=2,
        layers_per_ipu=(3, 7, 7, 7),
        memory_proportions=(0.15, 0.25, 0.25, 0.25),
        offload_optimiser=True,
        sharding=True,
    )
    return replace(options, **changes)


class Embeddings(nn.Module):
    """Words, positions and segments, added and normalised."""

    def __init__(self, options: BertOptions) -> None:
        super().__init__()
        self.words = nn.Embedding(options.padded_vocabulary, options.hidden)
        self.positions = nn.Embedding(options.positions, options.hidden)
        self.segments = nn.Embedding(2, options.hidden)
        self.norm: nn.Module = nn.LayerNorm(options.hidden, options.epsilon)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """``(batch, sequence)`` each."""
        return self.dropout(self.norm(self.words(tokens) + self.positions(positions) + self.segments(segments)))


class Heads(nn.Module):
    """Scores of masked tokens over the vocabulary, and of "is the next sentence" for each sequence where the options
    ask for them."""

    def __init__(self, options: BertOptions, words: nn.Embedding) -> None:
        super().__init__()
        self.options = options.of_model()
        self.transform = nn.Linear(options.hidden, options.hidden)
        self.gelu = nn.GELU("tanh")
        self.norm = nn.LayerNorm(options.hidden, options.epsilon)
        self.decoder = words.weight
        self.bias = nn.Parameter(torch.zeros(options.padded_vocabulary))
        if options.next_sentence:
            self.pooler = nn.Linear(options.hidden, options.hidden)
            self.next_sentence = nn.Linear(options.hidden, 2)

    def forward(self, x: torch.Tensor, masked: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``(batch, masked tokens, vocabulary)`` and ``(batch, sequences, 2)``."""
        options = self.options
        places = torch.arange(x.shape[1], dtype=masked.dtype, device=masked.device)
        chosen = (masked.unsqueeze(2) == places).to(x.dtype) @ x  # upstream gathers by a product with one-hot rows
        chosen = self.norm(self.gelu(self.transform(chosen)))
        channels = poptorch.MatMulSerializationMode.OutputChannels
        scores = poptorch.serializedMatMul(chosen, self.decoder.t(), channels, options.embedding_parts) + self.bias
        if not options.next_sentence:
            return (scores,)
        first = x[:, -options.sequences_per_pack :] if options.packed else x[:, :1]
        return scores, self.next_sentence(torch.tanh(self.pooler(first)))


class AnswerHead(nn.Module):
    """Scores of each token as first and as last one of the answer."""

    def __init__(self, options: BertOptions) -> None:
        super().__init__()
        self.scores = nn.Linear(options.hidden, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(batch, sequence)`` each."""
        first, last = self.scores(x).split(1, dim=2)
        return first.squeeze(2), last.squeeze(2)


class Bert(nn.Module):
    """BERT; with labels it gives losses, without the scores of both heads, without heads the hidden states."""

    def __init__(self, options: BertOptions) -> None:
        super().__init__()
        self.options = options.of_model()
        self.places = options.places()
        self.embeddings = Embeddings(options)
        self.layers = nn.ModuleList(
            PostNormLayer(
                options.hidden,
                options.heads,
                options.feed_forward,
                epsilon=options.epsilon,
                dropout=options.dropout,
                attention_dropout=options.attention_dropout,
                split_qkv=options.split_qkv,
                joined_qkv=options.joined_qkv,
                attention_bias=options.attention_bias,
                scale_scores=options.scale_scores,
                activation=ExportedGelu() if options.exported_gelu else None,
            )
            for _ in range(options.layers)
        )
        if options.wide:
            self.widen()
        pretraining = options.heads_on_ipu and not options.questions
        self.heads = Heads(options, self.embeddings.words) if pretraining else None
        self.answer = AnswerHead(options) if options.questions else None

    def widen(self) -> None:
        """GELU and norms in float32."""
        self.embeddings.norm = InFloat32(self.embeddings.norm)
        for layer in self.layers:
            assert isinstance(layer, PostNormLayer)
            layer.attention_norm = InFloat32(layer.attention_norm)
            layer.feed_forward_norm = InFloat32(layer.feed_forward_norm)
            layer.feed_forward.gelu = InFloat32(layer.feed_forward.gelu)

    def encoded(
        self, tokens: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor | None
    ) -> torch.Tensor:
        """The last hidden states."""
        made, added = self.options.mask_made, None
        with poptorch.Block("Embeddings", ipu_id=0):
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
            if made == "first":
                added = self.added_mask(mask, self.embeddings.words.weight.dtype)
            x = self.embeddings(tokens, segments, positions)
        last = -1
        for number, ((attention, forward), layer) in enumerate(zip(self.places, self.layers, strict=True)):
            assert isinstance(layer, PostNormLayer)
            with poptorch.Block(f"Layer{number}", ipu_id=attention):
                if made == "layers":
                    added = self.masked_out(mask, x.dtype)
                elif made == "ipu" and attention != last:
                    added = self.added_mask(mask, x.dtype)
                last = attention
                x = layer.attended(x, added)
                if attention == forward:
                    x = self.layer_end(layer, x)
            if attention != forward:
                with poptorch.Block(f"Layer{number}/FeedForward", ipu_id=forward):
                    x = self.layer_end(layer, x)
        return x

    def layer_end(self, layer: PostNormLayer, x: torch.Tensor) -> torch.Tensor:
        """The second half of a layer, kept for the backward pass if the options say so."""
        x = layer.fed_forward(x)
        keep = self.options.checkpoint_layers and self.training
        return poptorch.recomputationCheckpoint(x) if keep else x

    def added_mask(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What is added to the attention scores: 0, or a number that the softmax turns into 0."""
        allowed = mask[:, :, None] == mask[:, None, :] if self.options.packed else (mask != 0)[:, None, :]
        return (allowed[:, None].to(dtype) - 1) * -_MASKED_OUT

    def masked_out(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The same for packed rows, as PopART's AttentionMask makes it: differences are 0 or go to 1 by tanh."""
        numbers = mask.to(dtype)
        return (torch.tanh((numbers[:, :, None] - numbers[:, None, :]).abs()) * (10 * _MASKED_OUT))[:, None]

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        segments: torch.Tensor,
        masked: torch.Tensor | None = None,
        masked_labels: torch.Tensor | None = None,
        next_labels: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> Any:
        """Losses (total, masked tokens, next sentence), scores or hidden states; without ``next_sentence``
        no scores and losses of it.

        With the head for questions and answers, ``masked`` and ``masked_labels`` of shape ``(batch,)`` are the places
        of the first and the last token of the answer, and the result is loss and scores, or scores.

        Args:
            tokens, mask, segments, positions: ``(batch, sequence)``; positions are needed for packed rows.
            masked, masked_labels: ``(batch, masked tokens)``: where they are, and which (0: none).
            next_labels: ``(batch,)`` in {0, 1}; packed ``(batch, sequences)``, -100 for a sequence that is not there.
        """
        x = self.encoded(tokens, mask, segments, positions)
        if self.answer is not None:
            return self.answered(x, masked, masked_labels)
        if self.heads is None or masked is None:
            return x
        with poptorch.Block("Heads", ipu_id=0):
            scores, *following = self.heads(x, masked)
            if masked_labels is None or next_labels is None:
                return scores, *following
            masked_loss = F.cross_entropy(
                scores.reshape(-1, scores.shape[2]), masked_labels.reshape(-1), ignore_index=_NO_LABEL
            ).float()
            if not following:
                return poptorch.identity_loss(masked_loss, "none"), masked_loss
            next_loss = F.cross_entropy(following[0].reshape(-1, 2), next_labels.reshape(-1)).float()
            return poptorch.identity_loss(masked_loss + next_loss, "none"), masked_loss, next_loss

    def answered(self, x: torch.Tensor, first: torch.Tensor | None, last: torch.Tensor | None) -> Any:
        """Scores of first and last tokens; with their places also the mean of both cross entropies."""
        with poptorch.Block("Answer", ipu_id=self.places[-1][1]):
            assert self.answer is not None
            scores = self.answer(x)
            if first is None or last is None:
                return scores
            losses = [F.cross_entropy(s.float(), place) for s, place in zip(scores, (first, last), strict=True)]
            return poptorch.identity_loss((losses[0] + losses[1]) * 0.5, "none"), *scores


def model(options: BertOptions) -> Bert:
    """A new model, initialised by PyTorch."""
    return Bert(options)


def batch(options: BertOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call; on ``meta`` only their shapes."""
    o, rows = options, options.samples_per_call
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)

    def numbers(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32, device=device)

    tokens, segments = numbers(o.vocabulary, rows, o.sequence), numbers(2, rows, o.sequence)
    mask = numbers(o.sequences_per_pack + 1, rows, o.sequence) if o.packed else numbers(2, rows, o.sequence, low=1)
    found = [tokens, mask, segments]
    if o.questions and o.training:
        return [*found, numbers(o.sequence, rows), numbers(o.sequence, rows)]
    if o.questions or not o.heads_on_ipu:
        return found
    found.append(numbers(o.sequence, rows, o.masked_tokens))
    if o.training:
        shape = (rows, o.sequences_per_pack) if o.packed else (rows,)
        found += [numbers(o.vocabulary, rows, o.masked_tokens, low=1), numbers(2, *shape)]
        if o.packed:
            found.append(numbers(o.positions, rows, o.sequence))
    return found


_RUN = ModelRun(
    model,
    batch,
    {"base": base(), "large": large()},
    lambda options: options.sequences_in_pack if options.packed else 1.0,
)
simulate, throughput = _RUN.simulate, _RUN.throughput
validation_program, placed_layers = _RUN.validation_program, _RUN.placed_layers

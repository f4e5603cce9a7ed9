"""Multi-head self-attention and the feed-forward part of a transformer layer, in plain PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

#: What is added to the score of a place that must not be seen: its weight is 0 in float16 too.
UNSEEN = -10_000.0


class SelfAttention(nn.Module):
    """Softmax attention of a sequence to itself, ``(batch, sequence, hidden)`` to the same.

    Args:
        hidden: features, divided among ``heads``.
        dropout: probability to drop an attention weight.
        causal: no position sees later ones.
        split_qkv: queries, keys and values by three products instead of one wide product.
        joined_qkv: by one product, with parameters for each of the three that are joined for it.
        bias: the products have biases.
        scale_scores: the scores are scaled, as in Graphcore's BERT and Hugging Face's BERT and ViT; else the queries,
            which are smaller.
        grain: queries, keys and values are padded to a multiple of so many places, and no place sees the padding.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        *,
        causal: bool = False,
        split_qkv: bool = False,
        joined_qkv: bool = False,
        bias: bool = True,
        scale_scores: bool = False,
        grain: int = 1,
    ) -> None:
        super().__init__()
        if causal and scale_scores:
            raise ValueError("scale_scores: causal attention scales its queries here")
        if hidden % heads:
            raise ValueError(f"hidden size {hidden} is not a multiple of the {heads} heads")
        self.heads, self.dropout, self.causal, self.scale_scores = heads, dropout, causal, scale_scores
        self.joined_qkv, self.grain = joined_qkv, grain
        widths = [hidden] * 3 if split_qkv or joined_qkv else [3 * hidden]
        self.inputs = nn.ModuleList([nn.Linear(hidden, width, bias) for width in widths])
        self.output = nn.Linear(hidden, hidden, bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """``mask`` is added to the scores: ``(batch, 1, 1 or sequence, sequence)``."""
        batch, sequence, hidden = x.shape
        joint = [self.joined(x)] if self.joined_qkv else [linear(x) for linear in self.inputs]
        parts = joint if len(joint) == 3 else joint[0].chunk(3, dim=2)
        q, k, v = (part.reshape(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        if more := -sequence % self.grain:
            q, k, v = (F.pad(part, (0, 0, 0, more)) for part in (q, k, v))
            mask = F.pad(x.new_zeros(1, sequence), (0, more), value=UNSEEN)
        if self.causal:
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=True)
        else:
            scale = 1 / math.sqrt(hidden // self.heads)
            scores = q @ k.transpose(2, 3) * scale if self.scale_scores else q * scale @ k.transpose(2, 3)
            weights = F.softmax(scores if mask is None else scores + mask, dim=3)
            context = F.dropout(weights, dropout, dropout > 0) @ v
        return self.output(context[:, :, :sequence].transpose(1, 2).reshape(batch, sequence, hidden))

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values by one product of the joined parameters."""
        weight = torch.cat([linear.weight for linear in self.inputs])
        biases = [linear.bias for linear in self.inputs if linear.bias is not None]
        return F.linear(x, weight, torch.cat(biases) if biases else None)


class ExportedGelu(nn.Module):
    """GELU with the error function, in five ops as PyTorch exports it to ONNX (``torch.onnx``).

    PopRT makes one op of them only where ``enable_erf_gelu`` asks for it (its user guide, 4.1.1). The division is the
    multiplication that its pass ``replace_div_with_mul`` makes of it, here as in the scale of scores.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x (1 + erf(x / sqrt(2))) / 2``."""
        return x * (torch.erf(x * math.sqrt(0.5)) + 1) * 0.5


class FeedForward(nn.Module):
    """Two linear layers with an activation between them: GELU (in the tanh form that PopTorch makes of every GELU), or
    another one; ``dropout``: probability to drop what it gives."""

    def __init__(self, hidden: int, inner: int, activation: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.gelu: nn.Module = nn.GELU("tanh") if activation is None else activation
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
        self.down = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last axis is mapped."""
        return self.down(self.dropout(self.gelu(self.up(x))))


class PreNormLayer(nn.Module):
    """A layer of GPT-2, ViT and CLIP: norm, attention, add; norm, feed-forward, add."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        inner: int,
        *,
        epsilon: float,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        causal: bool = False,
        activation: nn.Module | None = None,
        scale_scores: bool = False,
        split_qkv: bool = False,
        inner_dropout: float = 0.0,
        grain: int = 1,
    ) -> None:
        super().__init__()
        self.attention_norm: nn.Module = nn.LayerNorm(hidden, epsilon)
        self.attention = SelfAttention(
            hidden,
            heads,
            attention_dropout,
            causal=causal,
            scale_scores=scale_scores,
            split_qkv=split_qkv,
            grain=grain,
        )
        self.feed_forward_norm: nn.Module = nn.LayerNorm(hidden, epsilon)
        self.feed_forward = FeedForward(hidden, inner, activation, inner_dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, sequence, hidden)`` to the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class PostNormLayer(nn.Module):
    """A layer of BERT: attention, add, norm; feed-forward, add, norm."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        inner: int,
        *,
        epsilon: float,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        split_qkv: bool = False,
        joined_qkv: bool = False,
        attention_bias: bool = True,
        scale_scores: bool = True,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(
            hidden,
            heads,
            attention_dropout,
            split_qkv=split_qkv,
            joined_qkv=joined_qkv,
            bias=attention_bias,
            scale_scores=scale_scores,
        )
        self.attention_norm: nn.Module = nn.LayerNorm(hidden, epsilon)
        self.feed_forward = FeedForward(hidden, inner, activation)
        self.feed_forward_norm: nn.Module = nn.LayerNorm(hidden, epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """``(batch, sequence, hidden)`` to the same."""
        return self.fed_forward(self.attended(x, mask))

    def attended(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """The first half of the layer."""
        return self.attention_norm(x + self.dropout(self.attention(x, mask)))

    def fed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The second half."""
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))

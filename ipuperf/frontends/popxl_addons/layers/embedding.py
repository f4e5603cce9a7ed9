"""Rows of a table by indices."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module
from .parameters import drawn

#: Shards of a vocabulary are padded to a multiple of this many rows (popxl-addons: popxl_addons/layers/embedding.py).
ROWS_OF_SHARDS = 16


class Embedding(Module):
    """Rows of ``weight`` ``(rows of the shard, hidden_size)``, drawn from N(0, 0.02).

    With a ``replica_grouping`` of several groups each group holds a shard of the vocabulary; indices come less the
    number of the shard's first row (:meth:`get_offsets`), and those of other shards give zeros.
    """

    @checked_arguments
    def __init__(
        self,
        dtype: popxl.dtype,
        vocab_size: int,
        hidden_size: int,
        axis: int = 0,
        replica_grouping: ReplicaGrouping | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dtype, self.vocab_size, self.hidden_size = dtype, vocab_size, hidden_size
        self.axis, self.replica_grouping = axis, replica_grouping
        self.n_shards = replica_grouping.num_groups if replica_grouping is not None else 1
        self.vocab_shard_size = self.get_vocab_shard_size(vocab_size, self.n_shards)
        self.offsets = self.get_offsets(vocab_size, self.n_shards)

    @checked_arguments
    def build(self, indices: popxl.Tensor) -> popxl.Tensor:
        """``indices.shape -> (*indices.shape, hidden_size)`` for axis 0."""
        draw = partial(drawn, (self.vocab_shard_size, self.hidden_size))
        self.weight = self.add_variable_input("weight", draw, self.dtype, replica_grouping=self.replica_grouping)
        return ops.gather(self.weight, indices, axis=self.axis, zero_OOR=self.n_shards > 1)

    @staticmethod
    @checked_arguments
    def get_vocab_shard_size(vocab_size: int, n_shards: int) -> int:
        """Rows of each shard: a multiple of 16, also of the only one."""
        return ROWS_OF_SHARDS * math.ceil(math.ceil(vocab_size / n_shards) / ROWS_OF_SHARDS)

    @staticmethod
    @checked_arguments
    def get_offsets(vocab_size: int, n_shards: int) -> np.ndarray:
        """The number of each shard's first row."""
        return np.arange(n_shards) * Embedding.get_vocab_shard_size(vocab_size, n_shards)

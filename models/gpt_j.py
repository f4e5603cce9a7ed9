"""GPT-J in popxl.addons: one token for each sequence of a batch, with all weights in Streaming Memory.

As in Graphcore's program (graphcore/examples ``nlp/gpt_j/popxl``, configurations ``gpt-j`` and ``gpt-j-gq-4bit``): the
layers are tensor-parallel over the replicas, the weights of each come from Streaming Memory before it runs, and a whole
sequence is computed for every token. Weights may be stored in groups of 4-bit numbers, which the tiles decompress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import popxl
import popxl_addons as addons
from popxl import ops
from popxl_addons.layers import Embedding, LayerNorm, Linear
from popxl_addons.layers.linear_gq import LinearGQ
from popxl_addons.named_tensors import NamedTensors
from popxl_addons.ops.replicated_all_reduce_TP import (
    replicated_all_reduce_identical_grad_inputs,
    replicated_all_reduce_identical_inputs,
)
from popxl_addons.ops.rotary_pos_embed import rotary_pos_embed, trig_table_constants

if TYPE_CHECKING:
    from ipuperf.validation.cases import Case
    from ipuperf.validation.programs import Program

__all__ = ["Generation", "GptJOptions", "generation_session", "validation_program"]

#: Added to the scores of tokens that come later; the largest number of a half is 65,504.
_MASKED = -1e4


@dataclass(frozen=True)
class GptJOptions:
    """Sizes (default: the model with 6 billion parameters) and how it runs.

    Attributes:
        rotary: elements of each head that are turned by their position.
        replicas: IPUs that share every layer.
        group: weights with one scale and one offset, in 4-bit numbers; 0: weights in half precision.
        memory_proportion: share of tile memory that the plan of a product may use.
    """

    layers: int = 28
    hidden: int = 4096
    heads: int = 16
    rotary: int = 64
    sequence: int = 1024
    vocabulary: int = 50400
    micro_batch: int = 12
    replicas: int = 4
    group: int = 0
    memory_proportion: float = 0.4


class _Sharded(addons.Module):
    """A module whose weights are divided over the replicas."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__()
        self.options = options
        self.shards = popxl.gcg().ir.replica_grouping(stride=options.replicas, group_size=1)
        self.all = self.shards.transpose()

    def linear(self, features: int, *, bias: bool = False, along_inputs: bool = False) -> addons.Module:
        """A layer with the weights as they are stored; groups lie along the features out, or in."""
        if not self.options.group:
            return Linear(features, bias=bias, replica_grouping=self.shards)
        dim = 0 if along_inputs else -1
        return LinearGQ(features, bias=bias, replica_grouping=self.shards, group_size=self.options.group, dim=dim)


class Embeddings(_Sharded):
    """Rows of the vocabulary's shards, added up over the replicas."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__(options)
        self.word = Embedding(popxl.float16, options.vocabulary, options.hidden, replica_grouping=self.shards)

    def build(self, words: popxl.Tensor) -> popxl.Tensor:
        """``(tokens,)`` numbers less the shard's first one to ``(tokens, hidden)``."""
        return replicated_all_reduce_identical_grad_inputs(self.word(words), group=self.all)


class Attention(_Sharded):
    """Causal attention; each replica has its share of the heads."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__(options)
        self.qkv = self.linear(3 * options.hidden // options.replicas)
        self.output = self.linear(options.hidden)

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(tokens, hidden)`` to the same."""
        options = self.options
        heads = options.heads // options.replicas
        shape = (options.micro_batch, options.sequence, heads, options.hidden // options.heads)
        x = replicated_all_reduce_identical_inputs(x, group=self.all)
        query, key, value = (part.reshape(shape) for part in ops.split(self.qkv(x), 3, axis=-1))
        tables = trig_table_constants(options.sequence, options.rotary, dtype=popxl.float16)
        query = rotary_pos_embed(query, *tables, options.rotary).transpose((0, 2, 1, 3))
        key = rotary_pos_embed(key, *tables, options.rotary).transpose((0, 2, 3, 1))
        later = np.triu(np.full((options.sequence, options.sequence), _MASKED), 1)
        scores = query @ key * (1 / math.sqrt(shape[-1])) + popxl.constant(later, popxl.float16, "mask")
        z = ops.softmax(scores, axis=-1) @ value.transpose((0, 2, 1, 3))
        z = z.transpose((0, 2, 1, 3)).reshape((options.micro_batch * options.sequence, -1))
        return replicated_all_reduce_identical_grad_inputs(self.output(z), group=self.all)


class FeedForward(_Sharded):
    """Two layers with GELU between them; the inner features are divided over the replicas."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__(options)
        self.intermediate = self.linear(4 * options.hidden // options.replicas, bias=True)
        self.output = self.linear(options.hidden)

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(tokens, hidden)`` to the same."""
        x = replicated_all_reduce_identical_inputs(x, group=self.all)
        z = replicated_all_reduce_identical_grad_inputs(self.output(ops.gelu(self.intermediate(x))), group=self.all)
        # The bias is the same on all replicas, so it is added after their sum.
        return z + self.add_variable_input("bias", partial(np.zeros, (self.options.hidden,)), z.dtype)


class Layer(addons.Module):
    """Attention and feed-forward side by side behind one norm."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__()
        self.norm, self.attention, self.feed_forward = LayerNorm(), Attention(options), FeedForward(options)

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(tokens, hidden)`` to the same."""
        z = self.norm(x)
        return self.attention(z) + self.feed_forward(z) + x


class Head(_Sharded):
    """The last norm, and the logits of the replica's share of the vocabulary."""

    def __init__(self, options: GptJOptions) -> None:
        super().__init__(options)
        self.norm = LayerNorm()
        self.logits = self.linear(math.ceil(options.vocabulary / options.replicas), bias=True, along_inputs=True)

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(tokens, hidden)`` to ``(tokens, share of the vocabulary)``."""
        return self.logits(replicated_all_reduce_identical_inputs(self.norm(x), group=self.all))


@dataclass
class Generation:
    """A program ready to run: ``session.run`` takes ``words`` (numbers of tokens less the first row of each replica's
    shard) and ``last`` (the place of each sequence's last token), and gives ``tokens``. ``variables``: the embeddings',
    each layer's and the head's."""

    session: Any
    words: Any
    last: Any
    tokens: Any
    variables: list[NamedTensors]


def generation_session(options: GptJOptions, *, weights: bool = True, device: str = "ipu_hw") -> Generation:
    """Build the program; one ``session.run`` is the next token of each sequence.

    Args:
        weights: make the variables, all zeros (12 GB in half precision). Without them only time and memory can be had.
    """
    ir = popxl.Ir(replication=options.replicas)
    ir._pb_ir.getSessionOptions().partialsTypeMatMuls = "half"
    with ir.main_graph:
        words = popxl.h2d_stream((options.micro_batch * options.sequence,), popxl.int32, "words")
        last = popxl.h2d_stream((options.micro_batch,), popxl.int32, "last")
        tokens = popxl.d2h_stream((options.micro_batch,), popxl.int32, "tokens")
        embed = _Phase("embeddings", Embeddings(options), words.spec)
        layer = _Phase("layer", Layer(options), embed.output.spec, options.layers)
        head = _Phase("head", Head(options), embed.output.spec)
        phases = (embed, layer, head) if weights else ()
        variables = [entry for phase in phases for entry in phase.make_variables()]
        addons.set_available_memory_proportion_by_ipu(ir, (options.memory_proportion,))
        with popxl.in_sequence():
            word, places = ops.host_load(words), ops.host_load(last)
            x = embed.call(0, word)

            def trip(x: popxl.Tensor, number: popxl.Tensor) -> tuple[popxl.Tensor, popxl.Tensor]:
                return layer.call(number, x), number + 1

            body = ir.create_graph(trip, x, first := popxl.constant(0, name="number"))
            x, _ = ops.repeat(body, options.layers, x, first)
            ops.host_store(tokens, _next_tokens(options, head.call(0, x), places))
    return Generation(popxl.Session(ir, device), words, last, tokens, variables)


class _Phase:
    """A module whose variables are loaded from Streaming Memory before each call.

    Args:
        spec: of its input.
        entries: sets of variables.

    Attributes:
        output: of the module's graph.
    """

    def __init__(self, name: str, module: addons.Module, spec: popxl.TensorSpec, entries: int = 1) -> None:
        self._name, self._entries = name, entries
        self._factories, self._graph = module.create_graph(spec)
        self._buffers = addons.named_variable_buffers(self._factories, entries=entries, shard_over_dict=False)
        self.output = self._graph.graph.outputs[0]

    def make_variables(self) -> list[NamedTensors]:
        """Zeros in all entries."""
        names = [f"{self._name}.{entry}" for entry in range(self._entries)]
        return [self._factories.init_remote(self._buffers, n, name, empty=True) for n, name in enumerate(names)]

    def call(self, entry: int | popxl.Tensor, x: popxl.Tensor) -> popxl.Tensor:
        """Load the variables of ``entry`` and run."""
        load, names = addons.load_remote_graph(self._buffers)
        (y,) = self._graph.bind(NamedTensors.pack(names, load.call(entry))).call(x)
        return y


def _next_tokens(options: GptJOptions, logits: popxl.Tensor, last: popxl.Tensor) -> popxl.Tensor:
    """``(micro_batch,)``: the likeliest token after the last one of each sequence."""
    starts = popxl.constant(np.arange(options.micro_batch) * options.sequence, popxl.int32)
    everyone = popxl.gcg().ir.replica_grouping(group_size=options.replicas)
    shares = ops.collectives.replicated_all_gather(logits[last + starts], group=everyone, output_shape="new_axis")
    whole = shares.transpose((1, 0, 2)).reshape_((options.micro_batch, options.vocabulary))
    return ops.argmax(whole, dim=1).reshape_((options.micro_batch,))


def validation_program(case: Case) -> Program:
    """The program of a case of ``ipuperf validate``; times are those of one token of one sequence."""
    from ipuperf.validation.programs import Program, UnknownOption, require

    require(case, mode=("inference",), precision=("f16.16",), optimiser=("none",), recompute=("none",))
    require(case, offload=(("weights",),), sharding=(0,), io=("streams",), prefetch=(1,), pipeline=((),))
    require(case, accumulation=(1,))
    options = GptJOptions(micro_batch=case.micro_batch, replicas=case.replicas, **_known(case.config, UnknownOption))
    session = generation_session(options, weights=False).session
    return Program(session.executable, case.micro_batch, steps=case.micro_batch)


def _known(config: Mapping[str, Any], error: type[Exception]) -> Mapping[str, Any]:
    allowed = [name for name in GptJOptions.__dataclass_fields__ if name not in ("micro_batch", "replicas")]
    for name in config:
        if name not in allowed:
            raise error(f"config: unknown key {name!r}, allowed: {', '.join(allowed)}")
    return config

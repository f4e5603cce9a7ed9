"""GPT-J: its tokens against NumPy, in halves and in 4-bit numbers; what a step loads; bad options."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

TINY = {"layers": 2, "hidden": 32, "heads": 4, "rotary": 4, "sequence": 6, "vocabulary": 64, "micro_batch": 3}
REPLICAS = 2


@pytest.fixture(scope="module")
def gpt_j(installed_front_ends: Callable[[], Any]) -> Iterator[Any]:
    """The module of the model."""
    with installed_front_ends():
        yield importlib.import_module("ipuperf.models.gpt_j")


def drawn(variables: list[Any], rng: np.random.Generator) -> dict[Any, np.ndarray]:
    """Random data for all variables, a shard for each replica of what is divided."""
    data = {}
    for entry in variables:
        for name, tensor in entry.to_dict().items():
            shape = (REPLICAS, *tensor.shape) if divided(name) else tensor.shape
            if tensor.dtype.as_numpy() == np.uint16:
                data[tensor] = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
            elif name.endswith("scale"):
                data[tensor] = rng.uniform(0.02, 0.06, shape).astype(np.float16)
            else:
                data[tensor] = rng.normal(0.0, 0.3, shape).astype(np.float16)
    return data


def divided(name: str) -> bool:
    """Whether each replica has a shard of the variable."""
    return not (name.startswith("norm") or name == "feed_forward.bias")


class Reference:
    """The network in double precision, from the shards of one layer of variables."""

    def __init__(self, values: list[dict[str, np.ndarray]]) -> None:
        self.embeddings, *self.layers, self.head = values

    def weight(self, entry: dict[str, np.ndarray], name: str, shard: int, *, along_inputs: bool = False) -> np.ndarray:
        """Of one shard; 4-bit numbers from the highest bits of each word, times scale plus offset."""
        if f"{name}.weight" in entry:
            return entry[f"{name}.weight"][shard].astype(np.float64)
        words = entry[f"{name}.weight_compressed"][shard].astype(np.int64)
        numbers = np.stack([words >> shift & 15 for shift in (12, 8, 4, 0)], -1).reshape(*words.shape[:2], -1)
        scale, offset = (entry[f"{name}.weight_decompression_{part}"][shard] for part in ("scale", "bias"))
        rows = (numbers * scale.astype(np.float64) + offset).reshape(words.shape[0], -1)
        return rows.T if along_inputs else rows

    @staticmethod
    def norm(x: np.ndarray, entry: dict[str, np.ndarray]) -> np.ndarray:
        """Layer norm."""
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5) * entry["norm.weight"] + entry["norm.bias"]

    @staticmethod
    def turned(x: np.ndarray, rotary: int) -> np.ndarray:
        """Neighbouring pairs of ``(batch, sequence, heads, n)`` turned by position times rate."""
        angles = np.outer(np.arange(x.shape[1]), 10000.0 ** (-np.arange(0, rotary, 2) / rotary))[:, None, :]
        even, odd = x[..., :rotary:2], x[..., 1:rotary:2]
        out = x.copy()
        out[..., :rotary:2] = even * np.cos(angles) - odd * np.sin(angles)
        out[..., 1:rotary:2] = odd * np.cos(angles) + even * np.sin(angles)
        return out

    def attention(self, x: np.ndarray, entry: dict[str, np.ndarray], shard: int) -> np.ndarray:
        """The share of one replica."""
        heads, n = TINY["heads"] // REPLICAS, TINY["hidden"] // TINY["heads"]
        parts = np.split(x @ self.weight(entry, "attention.qkv", shard), 3, axis=-1)
        query, key, value = (part.reshape(TINY["micro_batch"], TINY["sequence"], heads, n) for part in parts)
        query, key = self.turned(query, TINY["rotary"]), self.turned(key, TINY["rotary"])
        scores = np.einsum("bqhn,bkhn->bhqk", query, key) / np.sqrt(n)
        scores = np.where(np.tri(TINY["sequence"], dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        z = np.einsum("bhqk,bkhn->bqhn", scores / scores.sum(-1, keepdims=True), value)
        return z.reshape(len(x), -1) @ self.weight(entry, "attention.output", shard)

    def feed_forward(self, x: np.ndarray, entry: dict[str, np.ndarray], shard: int) -> np.ndarray:
        """The share of one replica."""
        z = x @ self.weight(entry, "feed_forward.intermediate", shard) + entry["feed_forward.intermediate.bias"][shard]
        z = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        return z @ self.weight(entry, "feed_forward.output", shard)

    def logits(self, words: np.ndarray) -> np.ndarray:
        """``(tokens,)`` to ``(tokens, vocabulary)``."""
        x = np.concatenate(self.embeddings["word.weight"]).astype(np.float64)[words]
        for entry in self.layers:
            z = self.norm(x, entry)
            shares = [self.attention(z, entry, shard) + self.feed_forward(z, entry, shard) for shard in range(REPLICAS)]
            x = x + sum(shares) + entry["feed_forward.bias"]
        z, head = self.norm(x, self.head), self.head
        shards = [
            z @ self.weight(head, "logits", n, along_inputs=True) + head["logits.bias"][n] for n in range(REPLICAS)
        ]
        return np.concatenate(shards, -1)


@pytest.mark.parametrize("group", [0, 8])
def test_tokens_are_the_likeliest(gpt_j: Any, group: int) -> None:
    options = gpt_j.GptJOptions(**TINY, replicas=REPLICAS, group=group)
    made, rng = gpt_j.generation_session(options), np.random.default_rng(3)
    data = drawn(made.variables, rng)
    values = [{name: data[tensor] for name, tensor in entry.to_dict().items()} for entry in made.variables]
    batch, sequence = TINY["micro_batch"], TINY["sequence"]
    words, last = rng.integers(0, TINY["vocabulary"], batch * sequence), np.array([5, 2, 0])
    shard = TINY["vocabulary"] // REPLICAS
    with made.session:
        made.session.write_variables_data(data)
        inputs = {
            made.words: np.stack([words - n * shard for n in range(REPLICAS)]).astype(np.int32),
            made.last: np.stack([last] * REPLICAS).astype(np.int32),
        }
        tokens = made.session.run(inputs)[made.tokens]
    logits = Reference(values).logits(words)[np.arange(batch) * sequence + last]
    # Halves may exchange two tokens that are about as likely.
    for found in tokens:
        np.testing.assert_allclose(logits[np.arange(batch), found], logits.max(-1), atol=0.02 * np.ptp(logits))


def test_a_step_loads_each_weight_once(gpt_j: Any) -> None:
    """Two bytes a weight; half a byte in 4-bit numbers, and their scales and offsets; the rest is never compressed."""
    loaded = {}
    for group in (0, 8):
        options = gpt_j.GptJOptions(**TINY, replicas=REPLICAS, group=group)
        trace = gpt_j.generation_session(options, weights=False).session.executable.trace
        steps = trace.expand()
        loads = steps[(steps["kind"] == "remote_load") & (steps["replica"] == 0)]
        loaded[group] = int(loads["bytes_in"].sum())
    hidden, layers, share = TINY["hidden"], TINY["layers"], REPLICAS
    products = layers * 12 * hidden**2 // share + hidden * TINY["vocabulary"] // share
    others = (TINY["vocabulary"] // share + 2 * layers + 2 + layers * (4 // share + 1)) * hidden
    others += TINY["vocabulary"] // share
    assert loaded[0] == 2 * (products + others)
    assert loaded[8] == products // 2 + 2 * (2 * products // 8) + 2 * others


def test_unknown_options_are_named(gpt_j: Any) -> None:
    from ipuperf.validation import CaseError
    from ipuperf.validation.cases import read_cases, select

    case = select(read_cases(), ["GPTJ-fp16"]).cases[0]
    for changes, text in (({"config": {"groups": 4}}, "unknown key 'groups'"), ({"mode": "training"}, "mode")):
        with pytest.raises(CaseError, match=text):
            gpt_j.validation_program(dataclasses.replace(case, **changes))

"""Functions and optimizers of ``tensorflow.python.ipu``: how a call is drawn, and what TensorFlow gives for it.

An operand is ``["normal", shape]``, or ``["fixed", dtype, values]``. Oracles get what the CPU computes in float64.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.ctc_ops import ctc_loss_dense

from ipuperf.tensorflow.python import ipu

REPLICAS, RATE = 2, 0.25
tf1 = tf.compat.v1
LIBRARY = Path(__file__).with_name("libscaled.so")
"""A library that is not there; the module beside it stands for it."""
Drawn = tuple[list[list[Any]], dict[str, Any]]


def plain(function: Callable[..., Any], *tensors: Any, **arguments: Any) -> Any:
    """The call itself."""
    return function(*tensors, **arguments)


@dataclass(frozen=True)
class Case:
    """A public function.

    Attributes:
        draw: operands and arguments.
        oracle: the value of the operands and the arguments; of a ``random`` function also of what ipuperf gave, first.
        build: the call.
        gradient: whether gradients of the operands are compared.
        across: the oracle takes lists of what all replicas have, and gives a list.
        steps: the oracle takes all operands of all steps (arrays ``[step, replica, ...]``), and gives all results.
        shards: IPUs of a replica.
        alone: on one replica only.
    """

    draw: Callable[[random.Random], Drawn]
    oracle: Callable[..., Any]
    build: Callable[..., Any] = plain
    gradient: bool = True
    random: bool = False
    across: bool = False
    steps: bool = False
    shards: int = 1
    alone: bool = False


def _shape(r: random.Random, low: int = 1, high: int = 3) -> list[int]:
    return [r.randint(1, 5) for _ in range(r.randint(low, high))]


def _one(r: random.Random) -> Drawn:
    return [["normal", _shape(r)]], {}


def _two(r: random.Random) -> Drawn:
    shape = _shape(r)
    return [["normal", shape], ["normal", shape]], {}


def _scaling(r: random.Random) -> Drawn:
    operands, _ = _two(r)
    return operands, {"attributes": str(r.choice([0.5, -2.0, 3.0]))}


def _of_library(function: Callable[..., Any], a: Any, b: Any, attributes: str) -> Any:
    outs = {"output_types": [a.dtype], "output_shapes": [a.shape]}
    return function([a, b], str(LIBRARY), outs=outs, attributes=attributes)[0]


def _vector(r: random.Random) -> Drawn:
    return [["normal", [r.randint(1, 9)]]], {}


def _whole(values: Any) -> list[Any]:
    return ["fixed", "int32", values]


def _same(x: Any) -> Any:
    return x


# -- networks ----------------------------------------------------------------------------------------------------------


def _images(r: random.Random) -> Drawn:
    image, kernel = [r.randint(1, 2), r.randint(3, 5), r.randint(3, 5), r.randint(1, 3)], [2, 2]
    kernels = [["normal", [*kernel, image[-1], r.randint(1, 3)]] for _ in range(2)]
    return [["normal", image], *kernels], {}


def _convolutions(x: Any, v: Any, w: Any) -> Any:
    return tf.nn.conv2d(x, v, 1, "SAME"), tf.nn.conv2d(tf.tanh(x), w, 1, "VALID")


def _sequences(r: random.Random) -> Drawn:
    time, batch, classes, longest = r.randint(6, 7), r.randint(1, 3), r.randint(3, 5), 3
    labels = [[r.randint(1, classes - 1) for _ in range(longest)] for _ in range(batch)]
    counts = [[r.randint(low, high) for _ in range(batch)] for low, high in ((1, longest), (6, time))]
    return [["normal", [time, batch, classes]], *map(_whole, (labels, *counts))], {}


def _ctc(x: Any, labels: Any, label_length: Any, length: Any) -> Any:
    return ctc_loss_dense(labels, tf.cast(x, tf.float32), label_length, length, blank_index=0)


def _searched(r: random.Random) -> Drawn:
    time, batch = r.randint(3, 5), r.randint(1, 3)
    operands = [["normal", [time, batch, r.randint(2, 4)]], _whole([r.randint(1, time) for _ in range(batch)])]
    return operands, {"beam_width": 20, "top_paths": r.randint(1, 2)}


def _beams(x: Any, lengths: Any, beam_width: int, top_paths: int) -> Any:
    """Labels are padded with the blank, the last class."""
    paths, logs = tf.nn.ctc_beam_search_decoder(tf.cast(x, tf.float32), lengths, beam_width, top_paths)
    dense = [tf.sparse.to_dense(path, default_value=-1).numpy() for path in paths]
    counts = np.stack([(rows >= 0).sum(-1) for rows in dense], -1)
    padded = [np.pad(rows, [[0, 0], [0, len(x) - rows.shape[1]]], constant_values=-1) for rows in dense]
    labels = np.stack(padded, 1)
    return -logs, counts, np.where(labels < 0, x.shape[-1] - 1, labels)


def _logs(f: Any, x: Any, *more: Any, **arguments: Any) -> Any:
    """For logits, what takes logarithms of probabilities."""
    return f(tf.nn.log_softmax(x), *more, **arguments)


def _layer(f: Any, x: Any, lengths: Any, **arguments: Any) -> Any:
    return f(blank_index=x.shape[-1] - 1, from_logits=True, **arguments)(x, lengths)


def _channels(r: random.Random) -> Drawn:
    groups = r.randint(1, 3)
    return [["normal", [r.randint(1, 3), r.randint(3, 5), groups * r.randint(1, 2)]]], {"groups": groups}


def _normalised(x: Any, groups: int | None = None, channels: bool = False) -> Any:
    """Group ``g`` has the channels whose number leaves ``g`` when divided by the number of groups."""
    groups = x.shape[-1] if channels else groups or 1
    grouped = tf.reshape(x, [x.shape[0], -1, x.shape[-1] // groups, groups])
    mean, variance = tf.nn.moments(grouped, [1, 2], keepdims=True)
    return tf.reshape((grouped - mean) / tf.sqrt(variance + 1e-2), x.shape)


def _with_epsilon(f: Any, x: Any, **arguments: Any) -> Any:
    return f(x, epsilon=1e-2, scope="norm", reuse=tf1.AUTO_REUSE, **arguments)


def _kept(got: Sequence[Any], x: Any, rate: float) -> Any:
    """What was left is larger; no more is said of which that is."""
    return tf.where(got[0] != 0, x / (1 - rate), 0)


NETWORKS = {
    "nn_ops.gelu": Case(_one, lambda x: 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    "nn_ops.hard_sigmoid": Case(_one, lambda x: tf.clip_by_value(0.2 * x + 0.5, 0, 1)),
    "nn_ops.swish": Case(_one, tf.nn.silu),
    "nn_ops.softmax": Case(lambda r: (_one(r)[0], {"stable": r.random() < 0.5}), lambda x, stable: tf.nn.softmax(x)),
    "nn_ops.multi_conv": Case(_images, _convolutions, lambda f, *x: f(_convolutions)(*x)),
    "nn_ops.ctc_loss_v2": Case(_sequences, _ctc, lambda f, x, labels, *n: f(labels, x, *n, blank_index=0)),
    "nn_ops.ctc_loss_with_log_probs": Case(
        _sequences, _ctc, lambda f, x, labels, *n: f(labels, tf.nn.log_softmax(x), *n, blank_index=0)
    ),
    "nn_ops.ctc_beam_search_decoder": Case(_searched, _beams, gradient=False),
    "nn_ops.ctc_beam_search_decoder_with_log_probs": Case(_searched, _beams, _logs, gradient=False),
    "keras.layers.CTCLoss": Case(
        _sequences,
        lambda *x: tf.reshape(tf.reduce_mean(_ctc(*x)), [1]),
        lambda f, x, labels, *n: f(from_logits=True)(labels, x, *n),
    ),
    "keras.layers.CTCInferenceLayer": Case(_searched, _beams, _layer, gradient=False),
    "keras.layers.CTCPredictionsLayer": Case(
        _searched, lambda *x, **a: _beams(*x, **a)[2][:, 0], _layer, gradient=False
    ),
    "normalization_ops.group_norm": Case(_channels, _normalised, _with_epsilon),
    "normalization_ops.layer_norm": Case(lambda r: (_channels(r)[0], {}), _normalised, _with_epsilon),
    "normalization_ops.instance_norm": Case(
        lambda r: (_channels(r)[0], {}), lambda x: _normalised(x, channels=True), _with_epsilon
    ),
    "rand_ops.dropout": Case(
        lambda r: (_one(r)[0], {"rate": r.choice([0.0, 0.5])}), _kept, gradient=False, random=True
    ),
}

# -- rows, sums, histograms --------------------------------------------------------------------------------------------


def _summed(r: random.Random) -> Drawn:
    rows, count = r.randint(1, 6), r.randint(1, 4)
    numbers = sorted(r.randrange(count) for _ in range(rows))
    return [["normal", [rows, *_shape(r, 0, 2)]], _whole(numbers)], {"num_segments": count}


def _segments(x: Any, numbers: Any, num_segments: int) -> Any:
    return tf.tensordot(tf.one_hot(numbers, num_segments, axis=0, dtype=x.dtype), x, 1)


def _product(r: random.Random) -> Drawn:
    factor, dimension = r.randint(1, 3), r.choice(["a_columns", "b_rows", "a_rows_b_columns"])
    lengths = {name: factor * r.randint(1, 3) for name in ("a_columns", "a_rows_b_columns", "b_rows")}
    (n, k, m), flipped = lengths.values(), r.random() < 0.5
    arguments = {"serialization_factor": factor, "serialization_dimension": dimension, "transpose_b": flipped}
    return [["normal", [n, k]], ["normal", [m, k] if flipped else [k, m]]], arguments


def _table(r: random.Random) -> Drawn:
    factor = r.randint(1, 3)
    rows = factor * r.randint(1, 3)
    ids = [r.randrange(rows) for _ in range(r.randint(1, 5))]
    return [["normal", [rows, r.randint(1, 4)]], _whole(ids)], {"serialization_factor": factor}


def _slices(r: random.Random) -> Drawn:
    """Slices of rows: how many, from where, to where; those written do not meet."""
    source, width = r.randint(3, 6), r.randint(1, 3)
    counts = [r.randint(1, 2) for _ in range(r.randint(1, 3))]
    starts = [r.randint(0, source - n) for n in counts]
    places = [2 * i + r.randint(0, 2 - n) for i, n in enumerate(counts)]
    data = [["normal", [2 * len(counts) + r.randint(0, 2), width]], ["normal", [source, width]]]
    return [*data, *map(_whole, (counts, starts, places))], {"zero_unused": r.random() < 0.5}


def _sliced(dst: Any, src: Any, counts: Any, starts: Any, places: Any, zero_unused: bool) -> Any:
    rows = list(tf.unstack(tf.zeros_like(dst) if zero_unused else dst))
    for n, start, place in zip(*(np.asarray(x).tolist() for x in (counts, starts, places)), strict=True):
        rows[place : place + n] = tf.unstack(src)[start : start + n]
    return tf.stack(rows)


def _unpacking(r: random.Random) -> Drawn:
    (_, src, counts, starts, _), _ = _slices(r)
    return [src, counts, starts], {"total_elements": sum(counts[2]) + r.randint(0, 2)}


def _unpacked(src: Any, counts: Any, starts: Any, total_elements: int) -> Any:
    rows = [tf.unstack(src)[s + i] for n, s in zip(counts.numpy(), starts.numpy(), strict=True) for i in range(n)]
    return tf.stack([*rows, *[tf.zeros_like(src[0])] * (total_elements - len(rows))])


def _packing(r: random.Random) -> Drawn:
    (dst, _, counts, _, places), arguments = _slices(r)
    return [dst, ["normal", [sum(counts[2]), dst[1][1]]], counts, places], arguments


def _packed(dst: Any, src: Any, counts: Any, places: Any, zero_unused: bool) -> Any:
    return _sliced(dst, src, counts, np.cumsum(counts) - counts, places, zero_unused)


def _levels(r: random.Random) -> Drawn:
    levels = sorted(r.uniform(-2, 2) for _ in range(r.randint(1, 4)))
    return [["normal", [r.randint(1, 20)]], ["fixed", "float32", levels]], {"absolute_of_input": r.random() < 0.5}


def _counted(x: Any, levels: Any, absolute_of_input: bool) -> Any:
    places = np.searchsorted(levels, np.abs(x) if absolute_of_input else x, "right")
    return np.bincount(places, minlength=len(levels) + 1).astype(np.float64)


def _more(r: random.Random) -> Drawn:
    (x, levels), arguments = _levels(r)
    return [["fixed", "float32", [float(r.randint(0, 4)) for _ in range(len(levels[2]) + 1)]], x, levels], arguments


def _photo(r: random.Random) -> Drawn:
    arguments = {"channel_offsets": [0.5, 1.0, -1.0], "channel_scales": [2.0, 0.5, 1.0], "scale": r.choice([1, 0.25])}
    return [["normal", [*_shape(r), 3]]], arguments


def _image(x: Any, channel_offsets: Any, channel_scales: Any, scale: float) -> Any:
    return tf.concat([(x * scale - channel_offsets) * channel_scales, tf.zeros_like(x[..., :1])], -1)


ROWS = {
    "math_ops.segment_sum": Case(_summed, _segments),
    "math_ops.serialized_matmul": Case(
        _product, lambda a, b, transpose_b, **_: tf.matmul(a, b, transpose_b=transpose_b)
    ),
    "embedding_ops.embedding_lookup": Case(_table, lambda table, ids, **_: tf.gather(table, ids)),
    "slicing_ops.sequence_slice": Case(_slices, _sliced),
    "slicing_ops.sequence_slice_unpack": Case(_unpacking, _unpacked),
    "slicing_ops.sequence_slice_pack": Case(_packing, _packed),
    "statistics_ops.fixed_width_bins": Case(
        lambda r: (_vector(r)[0], {"n_bins": r.randint(2, 6)}),
        lambda x, n_bins: tf.linspace(tf.reduce_min(x), tf.reduce_max(x), n_bins), gradient=False,
    ),
    "statistics_ops.histogram": Case(_levels, _counted, gradient=False),
    "statistics_ops.histogram_update": Case(
        _more, lambda counts, x, levels, **more: counts + _counted(x, levels, **more), gradient=False
    ),
    "statistics_ops.histogram_normalize": Case(
        lambda r: ([_more(r)[0][0]], {}), lambda x: (x + 1) / tf.reduce_sum(x + 1), lambda f, x: f(x + 1.0)
    ),
    "image_ops.normalise_image": Case(_photo, _image),
}  # fmt: skip
# -- programs ----------------------------------------------------------------------------------------------------------


def _within(*arguments: Any) -> Callable[..., Any]:
    def build(f: Any, x: Any) -> Any:
        with f(*arguments):
            return tf.tanh(x) * 2.0

    return build


def _doubled(x: Any) -> Any:
    return tf.tanh(x) * 2


def _placed(f: Any, x: Any) -> Any:
    start = value = tf.identity(x)
    for _ in range(3):
        value = tf.tanh(value) + 1.0
    total = tf.reduce_sum(value)
    f(2, start, total)
    return total


def _chain(x: Any) -> Any:
    for _ in range(3):
        x = tf.tanh(x) + 1
    return tf.reduce_sum(x)


def _halved(x: Any) -> Any:
    return x * 0.5 + 1.0


def _printed(f: Any, x: Any) -> Any:
    f(x)
    return x * 1.0


def _outlined(f: Any, x: Any) -> Any:
    once = f(_doubled)
    return once(x) + once(once(x))


def _marked(f: Any, x: Any) -> Any:
    """On the shard that is written on the op."""
    y = tf.tanh(x)
    f(y.op, 1)
    return y * 2.0 + float(ipu.sharding.get_shard(y.op) - 1)


_LOOP = {
    "loops.repeat": Case(_one, lambda x: _halved(_halved(_halved(x))), lambda f, x: f(3, _halved, x), gradient=False),
    "loops.while_loop": Case(
        _one, lambda x: _halved(_halved(x)),
        lambda f, x: f(lambda _: tf.constant(True), _halved, x, maximum_iterations=2), gradient=False,
    ),
}  # fmt: skip
PROGRAMS = {
    **_LOOP,
    **{
        f"scopes.{name}": Case(_one, _doubled, _within(*given), shards=1 + (name == "ipu_shard"))
        for name, given in {
            "frontend_attribute": ("a", "b"),
            "ipu_jit_scope": (0,),
            "ipu_shard": (1,),
            "partials_type": (tf.float32,),
            "stochastic_rounding": (False,),
        }.items()
    },
    "autoshard.automatic_sharding": Case(_one, _chain, _placed, gradient=False, shards=2),
    "autoshard.ipu_autoshard": Case(_one, _doubled, _within()),
    "sharding.set_shard": Case(_one, _doubled, _marked, gradient=False, shards=2),
    "internal_ops.print_tensor": Case(_one, _same, _printed),
    **{
        name: Case(_one, _same)
        for name in (
            "internal_ops.remap",
            "internal_ops.remap_deduce",
            "cross_replica_ops.assume_equal_across_replicas",
            "pipelining_ops.recomputation_checkpoint",
        )
    },
    "functional_ops.outlined_function": Case(_one, lambda x: _doubled(x) + _doubled(_doubled(x)), _outlined),
    "control_flow_ops.barrier": Case(_one, lambda x: (x, 2 * x), lambda f, x: tuple(f([x, x * 2.0]))),
    "custom_ops.codelet_expression_op": Case(
        _two, lambda a, b: a * b + 1, lambda f, a, b: f(lambda p, q: p * q + 1.0, a, b)
    ),
    "custom_ops.precompiled_user_op": Case(_scaling, lambda a, b, attributes: a * b * float(attributes), _of_library),
}

# -- shards and replicas -----------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[..., Any]] = {"ADD": np.add, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


def _reducing(r: random.Random) -> Drawn:
    (x,), _ = _vector(r)
    return [x, x], {"op": f"COLLECTIVE_OP_{r.choice(list(REDUCTIONS))}"}


def _reduced(xs: Sequence[Any], op: str) -> Any:
    return REDUCTIONS[op.removeprefix("COLLECTIVE_OP_")].reduce(np.stack(xs))


def _parts(xs: Sequence[Any], op: str) -> list[Any]:
    """Of the reduced vectors, filled with zeros."""
    whole = _reduced(xs, op)
    return list(np.split(np.pad(whole, [0, len(whole) % len(xs)]), len(xs)))


def _on_shards(f: Any, *tensors: Any, **arguments: Any) -> Any:
    spread = []
    for number, tensor in enumerate(tensors):
        with ipu.scopes.ipu_shard(number):
            spread.append(tf.identity(tensor))
    return tuple(f(spread, **arguments))


def _on_all(f: Any, x: Any, **arguments: Any) -> Any:
    return f(x, replication_factor=REPLICAS, **arguments)


def _swapped(r: random.Random) -> Drawn:
    shape = [r.randint(1, 3) for _ in range(r.randint(1, 3))]
    split, joined = r.randrange(len(shape)), r.randrange(len(shape))
    shape[split] = REPLICAS * r.randint(1, 2)
    return [["normal", shape]], {"split_dimension": split, "concat_dimension": joined}


def _exchanged(xs: Sequence[Any], split_dimension: int, concat_dimension: int) -> list[Any]:
    parts = [np.split(x, len(xs), split_dimension) for x in xs]
    return [np.concatenate([row[i] for row in parts], concat_dimension) for i in range(len(xs))]


_ACROSS: dict[str, Any] = {"gradient": False, "across": True}
COLLECTIVES = {
    "within_replica_ops.all_reduce": Case(
        _reducing, lambda *xs, op: (_reduced(xs, op),) * 2, _on_shards, gradient=False, shards=2
    ),
    "within_replica_ops.reduce_scatter": Case(
        _reducing, lambda *xs, op: _parts(xs, op), _on_shards, gradient=False, shards=2
    ),
    "within_replica_ops.all_gather": Case(
        _two, lambda *xs: (np.concatenate(xs),) * 2, _on_shards, gradient=False, shards=2
    ),
    "cross_replica_ops.cross_replica_sum": Case(_one, lambda xs: [sum(xs)] * len(xs), **_ACROSS),
    "cross_replica_ops.cross_replica_mean": Case(_one, lambda xs: [sum(xs) / len(xs)] * len(xs), **_ACROSS),
    "reduce_scatter_op.reduce_scatter": Case(
        lambda r: (_vector(r)[0], _reducing(r)[1]), _parts, _on_all, **_ACROSS
    ),
    "all_to_all_op.all_to_all": Case(_swapped, _exchanged, _on_all, **_ACROSS),
    "all_to_all_op.all_gather": Case(_one, lambda xs: [np.stack(xs)] * len(xs), _on_all, **_ACROSS),
    "replication_ops.replication_index": Case(
        _one, lambda xs: [x + i for i, x in enumerate(xs)], lambda f, x: x + tf.cast(f(), x.dtype), **_ACROSS
    ),
}  # fmt: skip

# -- optimizers --------------------------------------------------------------------------------------------------------


def _updates(r: random.Random) -> Drawn:
    return [["normal", [r.randint(1, 4)]]], {"count": r.choice([1, 2])}


def _trained(*given: Any, accumulates: bool = False) -> Callable[..., Any]:
    """The loss ``sum(x w + w^2 / 2)`` before each update of ``w``."""

    def build(f: Any, x: Any, count: int) -> Any:
        with tf1.variable_scope("train", reuse=tf1.AUTO_REUSE, use_resource=True):
            w = tf1.get_variable("w", initializer=np.ones(x.shape, np.float32))
        loss = tf.reduce_sum(x * w + 0.5 * w * w)
        optimizer = f(tf1.train.GradientDescentOptimizer(RATE), *given, *[count] * accumulates)
        with tf1.control_dependencies([optimizer.minimize(loss)]):
            return tf.identity(loss)

    return build


def _descent(change: Callable[..., Any] = _same, accumulates: bool = False, mean: bool = False) -> Callable[..., Any]:
    """One weight per replica; ``mean``: its gradient is that of all replicas."""

    def losses(xs: Any, count: int) -> Any:
        w, sums = np.ones(xs.shape[1:]), np.zeros(xs.shape[1:])
        found = []
        for step, x in enumerate(xs):
            found.append((x * w + 0.5 * w * w).sum(-1))
            sums += change(x + w)
            if (step + 1) % (count if accumulates else 1) == 0:
                w, sums = w - RATE * (sums.mean(0, keepdims=True) if mean else sums), np.zeros_like(sums)
        return np.stack(found)

    return losses


def _optimizer(build: Any, oracle: Any, reduces: bool = False) -> Case:
    """``reduces``: over replicas; another one on several is refused."""
    return Case(_updates, oracle, build, gradient=False, steps=True, alone=not reduces)


OPTIMIZERS = {
    "IpuOptimizer": _optimizer(_trained(), _descent()),
    "ShardedOptimizer": _optimizer(_trained(), _descent()),
    "CrossReplicaOptimizer": _optimizer(_trained(), _descent(mean=True), True),
    "MapGradientOptimizer": _optimizer(_trained(lambda g, _: g * 0.5), _descent(lambda g: g * 0.5)),
    **{
        f"{prefix}GradientAccumulationOptimizer{version}": _optimizer(
            _trained(accumulates=True), _descent(accumulates=True, mean=bool(prefix)), bool(prefix)
        )
        for prefix in ("", "CrossReplica")
        for version in ("", "V2")
    },
}
CASES = {
    **NETWORKS,
    **ROWS,
    **PROGRAMS,
    **COLLECTIVES,
    **{f"optimizers.{name}": case for name, case in OPTIMIZERS.items()},
}

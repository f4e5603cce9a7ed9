"""The vendor's custom ops, run as programs of several replicas, against plain NumPy and PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl.errors import popart_exception
from ipuperf.popxl_addons import layers
from ipuperf.popxl_addons.ops import replicated_all_reduce_TP as all_reduces
from ipuperf.popxl_addons.ops import replicated_strided_collectives as strided
from ipuperf.popxl_addons.ops.cross_entropy_sharded_loss import cross_entropy_sharded_loss
from ipuperf.popxl_addons.ops.grad_reduce_square_add import grad_reduce_square_add
from ipuperf.popxl_addons.ops.group_quantize_decompress import (
    group_quantize_compress_numpy,
    group_quantize_decompress,
    group_quantize_decompress_numpy,
)
from ipuperf.popxl_addons.ops.layer_norm_distributed import layer_norm_distributed
from ipuperf.popxl_addons.ops.rotary_pos_embed import rotary_pos_embed, trig_table_constants, trig_tables

#: Replicas, stride and size of groups.
GROUPS = [(1, 1, 1), (4, 1, 4), (4, 1, 2), (4, 2, 2), (8, 2, 4)]
TOLERANCE: dict[Any, dict[str, float]] = {
    np.float32: {"rtol": 1e-5, "atol": 1e-5},
    np.float16: {"rtol": 4e-3, "atol": 4e-3},
}

Build = Callable[..., popxl.Tensor]


def members_of(replicas: int, stride: int, size: int) -> list[list[int]]:
    """Groups by definition: members are ``stride`` apart."""
    span = stride * size
    return [
        [block + first + k * stride for k in range(size)]
        for block in range(0, replicas, span)
        for first in range(stride)
    ]


def run(
    build: Build,
    arrays: Sequence[np.ndarray],
    grad: np.ndarray | None = None,
    group: tuple[int, int] | None = None,
    required: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """``[value, gradients ...]`` of ``build(*tensors[, group])`` for data ``(replicas, *shape)``.

    ``required``: the operands whose gradients are wanted (default: the first) when ``grad``, the value's, is given.
    """
    replicas = len(arrays[0])
    ir = popxl.Ir(replication=replicas)
    own = ir.replica_grouping(group_size=1)
    keywords = {} if group is None else {"group": ir.replica_grouping(*group)}

    def variable(array: np.ndarray) -> popxl.Tensor:
        return popxl.variable(array if replicas > 1 else array[0], replica_grouping=own)

    with ir.main_graph, popxl.in_sequence():
        tensors = [variable(a) for a in arrays]
        graph = ir.create_graph(build, *tensors, **keywords)
        info = ops.call_with_info(graph, *tensors)
        outputs = [addons.host_store(info.outputs[0])]
        if grad is not None:
            wanted = [graph.inputs[i] for i in required or (0,)]
            back = popxl.transforms.autodiff(graph, grads_required=wanted)
            found = ops.call(back.graph, variable(grad), inputs_dict=back.inputs_dict(info))
            outputs += [addons.host_store(t) for t in found]
    with popxl.Session(ir, "ipu_hw") as session:
        results = session.run()
    return [results[o] if replicas > 1 else results[o][np.newaxis] for o in outputs]


def summed(array: np.ndarray, groups: Sequence[Sequence[int]], mean: bool = False) -> np.ndarray:
    out = np.empty_like(array)
    for members in groups:
        total = array[list(members)].astype(np.float32).sum(axis=0)
        out[list(members)] = total / len(members) if mean else total
    return out


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    return rng.normal(size=tuple(shape)).astype(dtype)


# -- all-reduces -------------------------------------------------------------------------------------------------------

#: Function, whether it sums forward, whether its gradient is a sum.
ALL_REDUCES = [
    (all_reduces.replicated_all_reduce, True, True),
    (all_reduces.replicated_all_reduce_identical_inputs, False, True),
    (all_reduces.replicated_all_reduce_identical_grad_inputs, True, False),
    (strided.replicated_all_reduce_strided, True, True),
    (strided.replicated_all_reduce_strided_identical_inputs, False, True),
    (strided.replicated_all_reduce_strided_identical_grad_inputs, True, False),
]


@pytest.mark.parametrize(("function", "forward", "backward"), ALL_REDUCES)
@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_all_reduce_and_gradient(
    rng: np.random.Generator,
    function: Build,
    forward: bool,
    backward: bool,
    replicas: int,
    stride: int,
    size: int,
    dtype: Any,
    shape: tuple[int, ...],
) -> None:
    x, grad = (drawn(rng, (replicas, *shape), dtype) for _ in range(2))
    value, back = run(lambda t, group: function(t, "add", group), [x], grad, (stride, size))
    groups = members_of(replicas, stride, size)
    np.testing.assert_allclose(value, summed(x, groups) if forward else x, **TOLERANCE[dtype])
    np.testing.assert_allclose(back, summed(grad, groups) if backward else grad, **TOLERANCE[dtype])


def test_all_replicas_are_the_default_group(rng: np.random.Generator) -> None:
    x = drawn(rng, (4, 3), np.float32)
    for function in (all_reduces.replicated_all_reduce, strided.replicated_all_reduce_strided):
        (value,) = run(function, [x])
        np.testing.assert_allclose(value, np.broadcast_to(x.sum(0), x.shape), rtol=1e-5)


def test_only_sums_are_differentiable_all_reduces() -> None:
    with popxl.Ir(replication=2).main_graph:
        x = popxl.variable(np.ones(3, np.float32))
        with pytest.raises(popart_exception, match="'max'.*add"):
            all_reduces.replicated_all_reduce(x, "max")
        with pytest.raises(popart_exception, match="'max'.*add, mean"):
            strided.replicated_all_reduce_strided(x, "max")
        with pytest.raises(ValueError, match="median"):
            all_reduces.replicated_all_reduce(x, "median")


@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("op", ["add", "mean"])
@pytest.mark.parametrize("elements", [8, 6, 1])
def test_strided_scatter_and_gather(
    rng: np.random.Generator, replicas: int, stride: int, size: int, op: Any, elements: int
) -> None:
    x = drawn(rng, (replicas, elements), np.float32)
    wanted = summed(x, members_of(replicas, stride, size), op == "mean")
    shard = -(-elements // size)
    (scattered,) = run(
        lambda t, group: strided.replicated_reduce_scatter_strided(t, op, group), [x], group=(stride, size)
    )
    padded = np.pad(wanted, ((0, 0), (0, shard * size - elements)))
    for members in members_of(replicas, stride, size):
        for place, replica in enumerate(members):
            np.testing.assert_allclose(
                scattered[replica], padded[replica, place * shard : (place + 1) * shard], rtol=1e-5
            )

    def there_and_back(t: popxl.Tensor, group: popxl.ReplicaGrouping) -> popxl.Tensor:
        return strided.replicated_all_gather_strided(
            strided.replicated_reduce_scatter_strided(t, op, group, True), group
        )

    (whole,) = run(there_and_back, [x], group=(stride, size))
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-6)
    (flat,) = run(lambda t, group: strided.replicated_all_gather_strided(t, group), [x], group=(stride, size))
    for members in members_of(replicas, stride, size):
        np.testing.assert_array_equal(flat[members], np.broadcast_to(x[members].reshape(-1), (size, size * elements)))


@pytest.mark.parametrize("io", [False, True])
def test_a_graph_of_strided_all_reduces(io: bool) -> None:
    ir = popxl.Ir(replication=4)
    ir.num_io_tiles = 32
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with ir.main_graph, popxl.in_sequence():
        own = ir.replica_grouping(group_size=1)
        tensors = addons.NamedTensors(
            a=popxl.variable(x, replica_grouping=own), b=popxl.variable(-x, replica_grouping=own)
        )
        graph, names = strided.replicated_all_reduce_strided_graph(tensors, "add", ir.replica_grouping(2, 2), io)
        results = addons.NamedTensors.pack(names, graph.bind(tensors).call())
        outputs = [addons.host_store(ops.io_tile_copy(t) if io else t) for t in (results.a, results.b)]
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run()
    wanted = summed(x, members_of(4, 2, 2))
    for output, sign in zip(outputs, (1, -1), strict=True):
        np.testing.assert_allclose(found[output], sign * wanted)


# -- cross entropy -----------------------------------------------------------------------------------------------------


def whole_classes(logits: np.ndarray, members: Sequence[int]) -> np.ndarray:
    """The logits of all members' classes, side by side."""
    return np.concatenate([logits[m] for m in members], axis=-1)


@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [False, True])
def test_sharded_cross_entropy(
    rng: np.random.Generator, replicas: int, stride: int, size: int, dtype: Any, reduction: Any, ignored: bool
) -> None:
    torch = pytest.importorskip("torch")
    samples, classes = 5, 6
    logits = drawn(rng, (replicas, samples, classes), dtype) * dtype(3)
    labels, offsets = np.zeros((replicas, samples), np.int32), np.zeros(replicas, np.int32)
    groups = members_of(replicas, stride, size)
    for members in groups:
        labels[members] = rng.integers(0, classes * size, samples)
        labels[members, 0] = 2
        offsets[members] = np.arange(size) * classes
    grad = drawn(rng, (replicas, samples) if reduction == "none" else (replicas,), dtype)
    for members in groups:
        grad[members] = grad[members[0]]
    adjusted, ignore = (labels.T - offsets).T.astype(np.int32), (2 - offsets).astype(np.int32)

    def build(
        t: popxl.Tensor, indices: popxl.Tensor, index: popxl.Tensor, group: popxl.ReplicaGrouping
    ) -> popxl.Tensor:
        return cross_entropy_sharded_loss(t, indices, index if ignored else None, group, reduction)

    loss, back = run(build, [logits, adjusted, ignore], grad, (stride, size))
    for members in groups:
        leaf = torch.tensor(whole_classes(logits, members).astype(np.float64), requires_grad=True)
        expected = torch.nn.functional.cross_entropy(
            leaf, torch.tensor(labels[members[0]]).long(), reduction=reduction, ignore_index=2 if ignored else -100
        )
        expected.backward(torch.tensor(grad[members[0]].astype(np.float64)))
        for replica in members:
            np.testing.assert_allclose(loss[replica], expected.detach().numpy(), **TOLERANCE[dtype])
        tolerance = TOLERANCE[dtype]["atol"] * 4
        np.testing.assert_allclose(whole_classes(back, members), leaf.grad.numpy(), atol=tolerance, rtol=1e-2)


def test_sharded_cross_entropy_of_large_logits_is_finite() -> None:
    logits = np.array([[[1000.0, 0.0]], [[990.0, 1000.0]]], np.float32)
    labels = np.array([[1], [-1]], np.int32)
    (loss,) = run(lambda t, i: cross_entropy_sharded_loss(t, i), [logits, labels])
    np.testing.assert_allclose(loss, [1000.0 + np.log(2)] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [((4, 3, 2), (4,), "rank 2"), ((4, 3), (4, 1), "rank 1"), ((4, 3), (5,), "same number of samples")],
)
def test_sharded_cross_entropy_refuses_other_shapes(
    logits: tuple[int, ...], labels: tuple[int, ...], message: str
) -> None:
    with popxl.Ir().main_graph:
        with pytest.raises(popart_exception, match=message):
            cross_entropy_sharded_loss(
                popxl.variable(np.zeros(logits, np.float32)), popxl.variable(np.zeros(labels, np.int32))
            )
        t, indices = popxl.variable(np.zeros((4, 3), np.float32)), popxl.variable(np.zeros(4, np.int32))
        with pytest.raises(ValueError, match="mean, sum, none"):
            cross_entropy_sharded_loss(t, indices, reduction="median")


# -- rotary embedding --------------------------------------------------------------------------------------------------


def rotated(x: np.ndarray, sin: np.ndarray, cos: np.ndarray, n: int) -> np.ndarray:
    """Pairs as complex numbers times ``exp(i angle)``."""
    pairs = (x[..., 0:n:2] + 1j * x[..., 1:n:2]) * (cos + 1j * sin)[:, :, None]
    out = x.astype(np.float64).copy()
    out[..., 0:n:2], out[..., 1:n:2] = pairs.real, pairs.imag
    return out


@pytest.mark.parametrize("n", [None, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("batches", [0, 1, 3])
def test_rotary_pos_embed(rng: np.random.Generator, n: int | None, dtype: Any, batches: int) -> None:
    x, grad = (drawn(rng, (2, 3, 5, 2, 8), dtype) for _ in range(2))
    sin, cos = (table.astype(dtype) for table in trig_tables(5, n or 8))
    if batches:
        sin, cos = (np.stack([table * (b + 1) / batches for b in range(batches)]).astype(dtype) for table in (sin, cos))
    tables = [np.stack([table] * 2) for table in (sin, cos)]
    value, back = run(lambda t, s, c: rotary_pos_embed(t, s, c, n), [x, *tables], grad)
    sin, cos = (table if batches else table[None] for table in (sin, cos))
    wanted = [rotated(x[r], sin, cos, n or 8) for r in range(2)]
    np.testing.assert_allclose(value, wanted, **TOLERANCE[dtype])
    np.testing.assert_allclose(back, [rotated(grad[r], -sin, cos, n or 8) for r in range(2)], **TOLERANCE[dtype])


def test_trig_tables() -> None:
    sin, cos = trig_tables(3, 4, base=100)
    angles = np.array([[m * 100 ** (-2 * i / 4) for i in range(2)] for m in range(3)])
    np.testing.assert_allclose(sin, np.sin(angles), rtol=1e-6)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=1e-6)
    with popxl.Ir().main_graph:
        tables = trig_table_constants(3, 4, dtype=popxl.float16)
        assert [(t.shape, t.dtype) for t in tables] == [((3, 2), popxl.float16)] * 2


@pytest.mark.parametrize(
    ("shape", "tables", "n", "message"),
    [
        ((3, 5, 8), (5, 4), None, "rank 4"),
        ((1, 5, 2, 8), (5, 4), 7, "rotary_dim is 7"),
        ((1, 5, 2, 8), (5, 4), 10, "rotary_dim is 10"),
        ((1, 5, 2, 8), (6, 4), None, r"sin has shape \(1, 6, 4\)"),
    ],
)
def test_rotary_pos_embed_refuses(shape: Any, tables: Any, n: int | None, message: str) -> None:
    with popxl.Ir().main_graph:
        x, table = popxl.variable(np.zeros(shape, np.float32)), popxl.variable(np.zeros(tables, np.float32))
        with pytest.raises(popart_exception, match=message):
            rotary_pos_embed(x, table, table, n)


# -- norms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layer_norm_distributed(rng: np.random.Generator, replicas: int, stride: int, size: int, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x, grad = (drawn(rng, (replicas, 7, 6), dtype) for _ in range(2))
    scale, bias = (drawn(rng, (replicas, 6), dtype) for _ in range(2))
    found = run(
        lambda t, w, b, group: layer_norm_distributed(t, w, b, 1e-3, group),
        [x, scale, bias],
        grad,
        (stride, size),
        (0, 1, 2),
    )
    for members in members_of(replicas, stride, size):
        leaves = [
            torch.tensor(whole_classes(a, members).astype(np.float64), requires_grad=True) for a in (x, scale, bias)
        ]
        expected = torch.nn.functional.layer_norm(leaves[0], (6 * size,), *leaves[1:], eps=1e-3)
        expected.backward(torch.tensor(whole_classes(grad, members).astype(np.float64)))
        wanted = [expected.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]
        for mine, other in zip(found, wanted, strict=True):
            factor = 4 if dtype is np.float16 else 1
            np.testing.assert_allclose(
                whole_classes(mine, members),
                other,
                atol=TOLERANCE[dtype]["atol"] * factor,
                rtol=TOLERANCE[dtype]["rtol"],
            )


def test_the_layer_norm_layer_holds_parts() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        tensor = popxl.variable(x, replica_grouping=ir.replica_grouping(group_size=1))
        factories, graph = layers.LayerNormDistributed().create_graph(tensor)
        (y,) = graph.bind(factories.init()).call(tensor)
        out = addons.host_store(y)
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run()[out]
    wanted = torch.nn.functional.layer_norm(torch.tensor(np.concatenate(x, -1)), (12,))
    np.testing.assert_allclose(np.concatenate(found, -1), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 7, 5)])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_grad_reduce_square_add(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], as_tensor: bool) -> None:
    x = drawn(rng, (2, *shape), dtype) * dtype(30)

    def build(t: popxl.Tensor) -> popxl.Tensor:
        return grad_reduce_square_add(t, popxl.constant(64.0, popxl.float32) if as_tensor else 64)

    (found,) = run(build, [x])
    assert found.dtype == np.float32
    wanted = [((x[r].astype(np.float64) / 64) ** 2).sum() for r in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


# -- quantised weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat_tables", [False, True])
def test_group_quantize(rng: np.random.Generator, flat_tables: bool) -> None:
    weight = drawn(rng, (5, 48), np.float16)
    words, scale, bias = group_quantize_compress_numpy(weight, 16)
    assert (words.shape, words.dtype, scale.shape) == ((5, 3, 4), np.uint16, (5, 3, 1))
    decompressed = group_quantize_decompress_numpy(words, scale, bias)
    error = np.abs(decompressed.reshape(5, 3, 16) - weight.reshape(5, 3, 16))
    assert (error <= scale * 0.51 + 2e-3).all(), "half of a step between the numbers"
    tables = [t[..., 0] if flat_tables else t for t in (scale, bias)]
    (found,) = run(group_quantize_decompress, [np.stack([a] * 2) for a in (words, *tables)])
    assert found.dtype == np.float16
    for replica in found:
        np.testing.assert_allclose(replica, decompressed, rtol=2e-3, atol=1e-3)
    first = int(words[0, 0, 0])
    numbers = [first >> 12, first >> 8 & 15, first >> 4 & 15, first & 15]
    np.testing.assert_allclose(found[0][0, :4], np.array(numbers) * scale[0, 0] + bias[0, 0], rtol=2e-3, atol=1e-3)


def test_group_quantize_refuses() -> None:
    with pytest.raises(ValueError, match="non-finite"):
        group_quantize_compress_numpy(np.array([[np.inf] * 4], np.float16), 4)
    with popxl.Ir().main_graph:
        words = popxl.variable(np.zeros((5, 3, 4), np.uint16))
        good, short = (popxl.variable(np.zeros((5, n), np.float16)) for n in (3, 2))
        with pytest.raises(NotImplementedError, match="rank 3"):
            group_quantize_decompress(popxl.variable(np.zeros((5, 3), np.uint16)), good, good)
        with pytest.raises(ValueError, match="group_bias"):
            group_quantize_decompress(words, good, short)
        with pytest.raises(popart_exception, match="uint16"):
            group_quantize_decompress(popxl.variable(np.zeros((5, 3, 4), np.int32)), good, good)


def as_four_bits(line: np.ndarray, group: int = 16) -> np.ndarray:
    """Each number of a line as the nearest of the sixteen between the ends of its group."""
    parts = []
    for part in line.astype(np.float16).reshape(-1, group):
        step = (part.max() - part.min()) / 15
        parts.append(np.round((part - part.min()) / step) * step + part.min())
    return np.concatenate(parts)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_a_layer_of_quantised_weights(rng: np.random.Generator, dim: int) -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(48, 32).half()
    x = drawn(rng, (4, 48), np.float16)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        tensor = popxl.variable(x)
        factories, graph = layers.LinearGQ(32, group_size=16, dim=dim).create_graph(tensor)
        variables = factories.init()
        forward = graph.bind(variables).call_with_info(tensor)
        backward = addons.autodiff(graph, grads_required=[graph.graph.inputs[0]])
        ones = popxl.constant(np.ones((4, 32)), popxl.float16)
        (dx,) = backward.call(ones, args=backward.grad_graph_info.inputs_dict(forward))
        out, grad = addons.host_store(forward.outputs[0]), addons.host_store(dx)
    with popxl.Session(ir, "ipu_hw") as session:
        session.write_variables_data(layers.LinearGQ.torch_mapping(variables, linear, popxl.float16, 16, dim))
        results = session.run()
    weight = np.apply_along_axis(as_four_bits, dim, linear.weight.T.detach().numpy()).astype(np.float32)
    wanted = x.astype(np.float32) @ weight + linear.bias.detach().numpy()
    np.testing.assert_allclose(results[out], wanted, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(results[grad], np.tile(weight.sum(1), (4, 1)), rtol=1e-2, atol=1e-2)


def test_groups_have_64_weights_unless_told_otherwise() -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(8, 128, bias=False)
    with popxl.Ir().main_graph:
        x = popxl.variable(np.zeros((4, 8), np.float32))
        factories, _ = layers.LinearGQ(128, bias=False, group_size=64).create_graph(x)
        variables = factories.init()
    found = layers.LinearGQ.torch_mapping(variables, linear)
    wanted = group_quantize_compress_numpy(linear.weight.T.detach().numpy(), 64)
    np.testing.assert_array_equal(found[variables.weight_compressed], wanted[0])


@pytest.mark.parametrize(
    ("shape", "dim"), [((32, 5), 0), ((5, 32), 1), ((3, 32, 5), 1), ((32, 2), 0), ((2, 3, 32), -1)]
)
def test_groups_along_any_axis(rng: np.random.Generator, shape: tuple[int, ...], dim: int) -> None:
    weight = drawn(rng, shape, np.float16)
    words, scale, bias = group_quantize_compress_numpy(weight, 16, dim)
    rows = tuple(n for axis, n in enumerate(shape) if axis != dim % len(shape))
    assert (words.shape, scale.shape, bias.shape) == ((*rows, 2, 4), (*rows, 2, 1), (*rows, 2, 1))
    wanted = np.apply_along_axis(as_four_bits, dim, weight)
    np.testing.assert_allclose(group_quantize_decompress_numpy(words, scale, bias, dim), wanted, rtol=2e-3, atol=2e-3)


def test_axes_that_groups_cannot_have() -> None:
    with pytest.raises(ValueError, match="dim is 2; allowed: -1, 0, 1"):
        layers.LinearGQ(32, group_size=16, dim=2)
    with popxl.Ir().main_graph:
        with pytest.raises(ValueError, match="divides the features in 8 is needed"):
            layers.LinearGQ(6, group_size=16, dim=0).create_graph(popxl.TensorSpec((4, 8), popxl.float16))
        words, table = (popxl.variable(np.zeros((5, 3, n), np.uint16)) for n in (4, 1))
        with pytest.raises(ValueError, match="dim is 2; allowed: -2 to 1"):
            group_quantize_decompress(words, ops.cast(table, popxl.float16), ops.cast(table, popxl.float16), 2)


def test_group_sizes_of_a_layer() -> None:
    for size in (0, 6, 12):
        with pytest.raises(ValueError, match=f"group_size is {size}"):
            layers.LinearGQ(32, group_size=size)

"""Array helpers of popxl.addons, piece by piece with plain indexing; also with one piece or one replica."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf import popxl
from ipuperf.popxl_addons import DotTree, NamedTensors
from ipuperf.popxl_addons.array_munging import (
    pad_axis,
    repeat,
    repeat_axis,
    repeat_shard,
    shard,
    shard2D,
    split2D,
    squeeze_safe,
    tensor_parallel_input,
    tensor_parallel_output,
    unshard,
    unshard2D,
    unshard_arrays,
)

WHOLE = np.arange(4 * 6 * 2).reshape(4, 6, 2)


@pytest.mark.parametrize(("n", "axis"), [(1, 0), (2, 0), (4, -3), (3, 1), (1, -1), (2, -1)])
def test_pieces_and_the_whole(n: int, axis: int) -> None:
    pieces = shard(WHOLE, n, axis)
    length = WHOLE.shape[axis] // n
    for i in range(n):
        np.testing.assert_array_equal(pieces[i], np.take(WHOLE, range(i * length, (i + 1) * length), axis))
    np.testing.assert_array_equal(unshard(pieces, axis), WHOLE)
    np.testing.assert_array_equal(unshard_arrays([piece[np.newaxis] for piece in pieces], axis), WHOLE)


@pytest.mark.parametrize(("n_1", "n_2", "axis_1", "axis_2"), [(1, 1, 0, 1), (2, 3, 0, 1), (3, 2, 1, -1), (1, 2, 2, 0)])
def test_pieces_in_two_directions(n_1: int, n_2: int, axis_1: int, axis_2: int) -> None:
    rows = split2D(WHOLE, n_1, n_2, axis_1, axis_2)
    assert [len(row) for row in rows] == [n_2] * n_1
    pieces = shard2D(WHOLE, n_1, n_2, axis_1, axis_2)
    for number, (i, j) in enumerate(itertools.product(range(n_1), range(n_2))):
        np.testing.assert_array_equal(pieces[number], rows[i][j])
    np.testing.assert_array_equal(unshard2D(pieces, n_1, n_2, axis_1, axis_2), WHOLE)


def test_pieces_that_do_not_fit() -> None:
    with pytest.raises(AssertionError, match="3 pieces, 2 x 2 are needed"):
        unshard2D(WHOLE[:3], 2, 2, 0, 1)
    with pytest.raises(ValueError, match="same rank"):
        unshard_arrays([WHOLE, WHOLE[0]], 0)
    with pytest.raises(IndexError, match="axis 3 is out of range"):
        shard(WHOLE, 2, 3)
    with pytest.raises(AssertionError, match="longer than 3"):
        pad_axis(WHOLE, 3, 0)


@pytest.mark.parametrize("n", [1, 3])
def test_repeated(n: int) -> None:
    assert repeat(WHOLE, n, 1).shape == (4, n, 6, 2)
    assert repeat_axis(WHOLE, n, -1).shape == (4, 6, 2 * n)
    for kind in ("contiguous", "strided"):
        found = repeat_shard(WHOLE, n, 2, 0, kind)
        order = [0, 1] * n if kind == "contiguous" else [0] * n + [1] * n
        np.testing.assert_array_equal(found, np.stack([WHOLE[2 * i : 2 * i + 2] for i in order]))


@pytest.mark.parametrize(("tp", "rf"), [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("batches", [4, 8])
def test_what_each_replica_gets(tp: int, rf: int, batches: int) -> None:
    data = np.random.default_rng(0).normal(size=(batches, 3, 1))
    found = tensor_parallel_input(data, tp, rf)
    moved = tensor_parallel_input(data, tp, rf, lambda t, i: t + 100 * i)
    transfers = batches * tp // rf
    assert found.shape == (*(n for n in (transfers, rf) if n > 1), 3, 1)
    for k, replica in itertools.product(range(transfers), range(rf)):
        wanted = data[k * (rf // tp) + replica // tp]
        np.testing.assert_array_equal(found.reshape(transfers, rf, 3, 1)[k, replica], wanted)
        np.testing.assert_array_equal(moved.reshape(transfers, rf, 3, 1)[k, replica], wanted + 100 * (replica % tp))
    np.testing.assert_array_equal(tensor_parallel_output(found, transfers, tp, rf, (3, 1)), data)


def test_only_axes_of_length_one_go() -> None:
    array = np.zeros((1, 3, 1))
    assert squeeze_safe(array).shape == (3,)
    assert squeeze_safe(array, [0, 1]).shape == (3, 1)
    assert squeeze_safe(array, -1).shape == (1, 3)


NAMES = st.from_regex(r"[a-d]{1,2}(\.[e-h]){0,2}", fullmatch=True)


def _compatible(names: list[str]) -> list[str]:
    """Names of which none is a prefix path of another."""
    return [n for n in names if not any(o != n and o.startswith(f"{n}.") for o in names)]


@pytest.mark.heavy
@given(st.lists(NAMES, unique=True))
def test_dictionaries_round_trip(names: list[str]) -> None:
    flat = {name: i for i, name in enumerate(_compatible(names))}
    tree: DotTree[int] = DotTree.from_dict(flat)
    assert tree.to_dict() == flat
    assert str(tree) == str(tree.to_dict())
    assert DotTree.pack(*tree.unpack()).to_dict() == flat
    assert tree.copy().to_dict() == flat
    assert tree.len_flat() == len(flat)
    assert tree.keys() == list(dict.fromkeys(name.partition(".")[0] for name in flat))
    assert dict(zip(tree.keys_flat(), tree.values_flat(), strict=True)) == flat
    for name, value in flat.items():
        assert tree[name] == value
        assert name in tree
    assert tree.to_mapping(tree.map(lambda v: -v)) == {v: -v for v in flat.values()}


def test_access_and_change() -> None:
    tree: DotTree[int] = DotTree(a=DotTree.from_dict({"b": 1}), c=2)
    assert tree.a.b == tree["a.b"] == 1
    tree.insert("a.d", 3, overwrite=True)
    tree.c = 5
    assert tree.to_dict() == {"a.b": 1, "a.d": 3, "c": 5}
    assert tree.filter_keys(["a"]).to_dict() == {"a.b": 1, "a.d": 3}
    assert tree.pop("a").to_dict() == {"b": 1, "d": 3}
    assert tree.get("a.b", 0) == 0
    with pytest.raises(AttributeError, match=r"no entry 'a'; there are \['c'\]"):
        _ = tree.a
    with pytest.raises(KeyError, match="'x' is not in"):
        tree.pop("x")
    with pytest.raises(KeyError, match="'x' is not in"):
        tree.get("x")


def test_keys_must_not_repeat() -> None:
    tree: DotTree[int] = DotTree.from_dict({"a": 1, "b.c": 2})
    with pytest.raises(KeyError, match="must not repeat"):
        tree.insert("a", 2)
    with pytest.raises(KeyError, match="must not repeat"):
        tree.update(DotTree.from_dict({"b.c": 1}))
    with pytest.raises(ValueError, match="'a' already exists"):
        tree.insert("a.x", 2)
    with pytest.raises(ValueError, match="'b' already exists"):
        tree.insert("b.d", 2)
    with pytest.raises(KeyError, match="is a value, not a tree"):
        DotTree.from_dict({"a": 1, "a.x": 2})
    tree.update({"b.d": 3})
    assert tree.to_dict() == {"a": 1, "b.c": 2, "b.d": 3}
    with pytest.raises(ValueError, match="2 names for 1 values"):
        DotTree.pack(["a", "b"], [1])


def test_a_copy_is_its_own() -> None:
    tree: DotTree[int] = DotTree.from_dict({"a.b": 1})
    other = tree.copy()
    other.insert("a.c", 2, overwrite=True)
    assert tree.to_dict() == {"a.b": 1}


def test_tensors_are_sorted_by_their_own_names() -> None:
    with popxl.Ir().main_graph:
        b, a, c = (popxl.variable(np.float32(0), name=n) for n in "bac")
    tree = NamedTensors.from_dict({"x": b, "y.z": a, "w": c})
    assert tree.tensors == (a, b, c)
    assert list(tree.named_tensors) == ["x", "y.z", "w"]

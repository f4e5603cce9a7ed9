"""``DotTree`` and ``NamedTensors``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf import popxl
from ipuperf.popxl_addons import DotTree, NamedTensors

NAMES = st.from_regex(r"[a-d]{1,2}(\.[e-h]){0,2}", fullmatch=True)


def _compatible(names: list[str]) -> list[str]:
    """Names of which none is a prefix path of another."""
    return [n for n in names if not any(o != n and o.startswith(f"{n}.") for o in names)]


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

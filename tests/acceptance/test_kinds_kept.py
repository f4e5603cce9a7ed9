"""Every kind of an annotation with values of every kind, and how arguments are bound, kept as text; texts of others."""

from __future__ import annotations

import collections
import typing
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rows import Golden

from ipuperf.base.kinds import NUMBER, Kinds, ParameterKinds, checked, is_number, name_of, told
from ipuperf.frontends.enumerations import NativeEnum, NumberedEnum
from ipuperf.trace.printable import in_cell, in_markdown, of_cell, printable, with_texts

Pair = tuple[int, str]


class Thing:
    """A class of this module."""


class Index:
    def __index__(self) -> int:
        return 3


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError


class Readable(typing.Protocol):
    def read(self) -> str: ...


VALUES: Mapping[str, Any] = {"None": None, "True": True, "0": 0, "1": 1, "2": 2, "-1": -1, "1.0": 1.0, "0.5": 0.5}
VALUES |= {"nan": float("nan"), "1j": 1j, "'a'": "a", "''": "", "b'a'": b"a", "int32": np.int32(1)}
VALUES |= {"int64 2": np.int64(2), "float32": np.float32(0.5), "float32 1": np.float32(1), "bool_": np.bool_(True)}
VALUES |= {"array 0-d": np.array(1), "array 0-d of text": np.array("a"), "array": np.ones(2)}
VALUES |= {"array of ints": np.ones((2, 2), np.int32), "[]": [], "[1]": [1], "[1.5]": [1.5], "['a']": ["a"]}
VALUES |= {"[None]": [None], "[[1]]": [[1]], "(1, 'a')": (1, "a"), "{}": {}, "{1: 2}": {1: 2}, "{1}": {1}}
VALUES |= {"range": range(3), "keys": {1: 2}.keys(), "OrderedDict": collections.OrderedDict()}
VALUES |= {"path": PurePosixPath("a"), "function": len, "class": Thing, "thing": Thing(), "index": Index()}
VALUES |= {"object": object()}
ANNOTATIONS = ("int", "float", "bool", "str", "None", "Callable", "Callable[[int], str]", "Path", "os.PathLike", "Any")
ANNOTATIONS += ("object", "", "int | None", "int | float", "int | Any", "str | int | None", "Optional[int]")
ANNOTATIONS += ("Union[int, str]", "Literal['a', 1]", "Literal[2]", "list", "list[int]", "List[float]")
ANNOTATIONS += ("tuple[int, ...]", "tuple[int, str]", "Sequence[str]", "Sequence[Any]", "Iterable[int]", "Collection")
ANNOTATIONS += ("Collection[float]", "Mapping", "dict[str, int]", "MutableMapping[int, int]", "Sequence[Sequence[int]]")
ANNOTATIONS += ("Sequence[int | None] | None", "Thing", "Readable", "Nowhere", "Pair", "'int'", "np.ndarray")
ANNOTATIONS += ("numpy.ndarray", "typing.Sequence[int]", "np.nowhere", "pd.DataFrame", "gone.Thing", "Thing | ", "Own")
ANNOTATIONS += ("list[Own]", "collections.OrderedDict", "type(None)")


def test_annotations(golden: Golden) -> None:
    """What each allows, and what errors call it."""
    kinds = Kinds({"Own": NUMBER})
    said = []
    for annotation in ANNOTATIONS:
        kind = kinds.of(annotation, globals())
        allowed = [name for name, value in VALUES.items() if kind.holds(value)]
        exact = sorted(each.__name__ for each in kind.exact)
        left = [name for name in VALUES if name not in allowed]
        names = "all" if not left else f"all but {', '.join(left)}" if len(left) < len(allowed) else ", ".join(allowed)
        said.append(f"{annotation!r}: {kind.words}, exact {exact}, ordered {kind.ordered}: {names}")
    said.append(f"numbers: {', '.join(name for name, value in VALUES.items() if is_number(value))}")
    golden(said)


class Room:
    def __init__(self, size: int) -> None:
        self.size = size

    def moved(self, by: float, *more: int, often: int = 1) -> None: ...


def mixed(one: int, many: list[float], /, some: typing.Sequence[int] = (), *rest: str, free: int = 0,
          other: dict[str, int] | None = None, unknown: Any = 1) -> tuple[Any, ...]:  # fmt: skip
    """All kinds of parameters."""
    return one, many, some, rest, free, other, unknown


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (((1, [2.5]), {}), ((1, [2.5], [3], "a", "b"), {"free": 2}))
CALLS += (((1.5, []), {}), (("1", []), {}), ((1, 2.0), {}), ((1, ["a"]), {}), ((1, [], "ab"), {}))
CALLS += (((1, [], {1: 2}.keys()), {}), ((1, [], (each for each in (4, 5))), {}), ((1, []), {"some": iter([7])}))
CALLS += (((1, []), {"some": {1: 2}}), ((1, [], [1], 2), {}), ((1, [], [1], "a", 2), {}), ((1, []), {"free": "b"}))
CALLS += (((1, []), {"other": []}), ((1, []), {"other": {}, "unknown": Thing}), ((1, range(3)), {}), ((1, {2.5}), {}))
CALLS += (((1, np.ones(2)), {}), ((1, np.array(2.0)), {}), ((Silent(), []), {}), ((1, [], [0.5]), {}))


@pytest.mark.parametrize("skipped", [(), ("free", "many")])
def test_arguments(skipped: tuple[str, ...], golden: Golden) -> None:
    """What a function is given, or the error, for each call; the kinds of its parameters."""
    kinds = Kinds({})
    call = checked(kinds, skipped)(mixed)
    said = [f"{place} {name}: {kind.words}" for place, name, kind in kinds.parameters(mixed, skipped)]
    for given, named in CALLS:
        try:
            said.append(f"{call(*given, **named)}".replace("array(", "(").replace(repr(Thing), "Thing"))
        except TypeError as error:
            said.append(f"refused: {error}")
    golden(said)


def test_names_of_functions() -> None:
    def inner() -> None: ...

    assert [name_of(each) for each in (Room.__init__, Room.moved, inner, mixed, checked()(mixed))] == [
        "Room", "Room.moved", "inner", "mixed", "mixed"]  # fmt: skip
    places = [place for place, _, _ in Kinds({}).parameters(Room.moved, ())]
    assert places == [1, None, slice(2, None)]
    with pytest.raises(TypeError, match="^x: by is 'a'; a number is needed$"):
        ParameterKinds(Room.moved, "x", Kinds({})).check((None, "a"), {})


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), ("a\n b", r"'a\n b'"), ([1, 2], "[1, 2]"), (np.ones(1), "array([1.]) (ndarray)"), (b"a", "b'a' (bytes)"),
     ("x" * 58, f"'{'x' * 58}'"), ("x" * 59, f"'{'x' * 56}..."), (None, "None"), (Silent(), "a value (Silent)"),
     ((True, {}), "(True, {})"), (range(2), "range(0, 2) (range)")],
)  # fmt: skip
def test_values_in_errors(value: Any, text: str) -> None:
    assert told(value) == text


# -- texts and enumerations --------------------------------------------------------------------------------------------

TEXTS = ("plain", "a\tb\nc", "\x1b[31m", "\x00\x07\x0b\x7f\x9f", "a\u200eb\u2028c\u2066", "<b>a|b</b> &*_`[x]\\")
TEXTS += ("  two  words ", "=1+2", "-5", "+5.5e3", "-a", "@x", "'=1", "'a", "", "\t7", "--5", "-", "5", "'-5", "''=1")


def test_texts_of_others(golden: Golden) -> None:
    said = [repr((text, printable(text), in_markdown(text), in_cell(text), of_cell(text))) for text in TEXTS]
    said += [repr((value, in_cell(value), of_cell(value))) for value in (1, None, 2.5, b"=")]
    assert all(of_cell(in_cell(text)) == text for text in TEXTS if not text.startswith("'"))
    table = with_texts(pd.DataFrame({"n": [1, 2], "t": np.array(["=1", "a"], dtype=object)}), in_cell)
    said.append(f"{table['n'].tolist()} {table['t'].tolist()}")
    golden(said)


def test_members_of_enumerations() -> None:
    native, numbered = NativeEnum("Native", {"A": 3}), NumberedEnum("Numbered", {"A": 3})
    assert (int(native.A), [0, 1, 2, 7][native.A], native.A == 3, str(native.A)) == (3, 7, False, "Native.A")
    assert (int(numbered.A), numbered.A == 3, str(numbered.A), f"{numbered.A:02}") == (3, True, "Numbered.A", "03")

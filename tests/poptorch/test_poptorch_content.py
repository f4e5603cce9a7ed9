"""Digests of contents: equal in every process for what an export cannot tell apart, and others for anything else."""

from __future__ import annotations

import argparse
import array
import collections
import enum
import functools
import json
import logging
import math
import os
import random
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch.export.content import UnknownContent, _installed, digest_of  # noqa: E402


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ([1], (1,)), ({"a": 1}, {"a": 2}), (torch.ones(2), torch.zeros(2)),
     (lambda x: x + 1, lambda x: x + 2), (torch.float16, torch.float32), ({1, 2}, {1, 3})],
)  # fmt: skip
def test_digests_differ(one: Any, other: Any) -> None:
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(one)


def test_equal_tuples_count_as_equal_whether_they_are_one_object_or_two() -> None:
    one, two = (1, [2]), (1, [2])
    assert digest_of([(1, 2), (1, 2)]) == digest_of([tuple(range(1, 3)), tuple(range(1, 3))])
    assert digest_of(one) == digest_of(two)


def test_a_cached_function_counts_by_its_code() -> None:
    assert digest_of(functools.cache(lambda x: x + 1)) != digest_of(functools.cache(lambda x: x + 2))


CONTENTS = """
    1 # 2 # 1.0 # True # None # "1" # b"1" # (1,) # [1] # [1, 1] # [[1], 1] # {1: 1} # {1} # frozenset([1]) # {1, 2}
    2.5 # 1j # range(3) # range(4) # slice(1, 2) # [a, a] # [[1, 2], [1, 2]] # {"a": 1, "b": 2} # {"b": 2, "a": 1}
    ... # -0.5 # torch.ones(2) # torch.zeros(2) # torch.ones(2, 1) # torch.ones(2).half() # torch.ones(3, 2).t()
    torch.ones(2, 3) # torch.ones(2, requires_grad=True) # torch.ones(4)[1:3] # torch.empty(2, device="meta")
    torch.float16 # torch.float32 # torch.arange(2) # [t, t] # [torch.ones(5), torch.ones(5)] # [t, t[1:]]
    torch.ones(4)[2:4] # torch.zeros(2).int() # [t, t.view(5)] # [[[1], 2]] # [[[1, 2]]] # {1: 2, 3: 4} # {1: 4, 3: 2}
    np.ones(2) # np.ones((2, 1)) # np.ones(2, "f") # np.zeros(2) # np.zeros(2, "l") # nn.Linear(2, 3) # nn.Linear(3, 2)
    nn.Linear(2, 3, bias=False) # nn.Sequential(nn.ReLU()) # nn.ReLU() # nn.Sequential(nn.ReLU(), nn.ReLU())
    nn.Dropout(0.5) # nn.Dropout(0.25) # nn.Dropout(0.5).eval() # nn.BatchNorm1d(2) # lambda: 1 # lambda: 2
    lambda x: x # lambda x=1: x # lambda x=2: x # lambda *, x=1: x # lambda y: y # lambda: a # lambda: torch.relu
    lambda: torch.tanh # lambda: nn.functional.relu # lambda: environ["MINE"] # lambda: unknown
    lambda: (lambda: 1) # lambda: (lambda: 2) # (lambda k: lambda: k)(1) # (lambda k: lambda: k)(2) # torch.relu
    torch.tanh # partial(max, 1) # partial(max, 2) # partial(min, 1) # partial(max, 1, key=abs)
    partial(max, 1, key=len) # max # min # property(lambda s: 1) # property(lambda s: 2)
    property(lambda s: 1, lambda s, v: 2) # staticmethod(lambda: 1) # staticmethod(lambda: 2) # [].append
    [1].append # "a".upper # "b".upper # math # torch # logging.getLogger("a") # logging.getLogger("b") # Kind.A
    Kind.B # Other.A # Held(1) # Held(2) # Slotted(1) # Slotted(2) # Held # Slotted # int # str # Held(1).get
    Held(2).get # Held(1).give # [Held(1), Held(1)] # [h, h] # torch.ops.aten.add # torch.ops.aten.add.Tensor
    Path("a") # Path("b") # collections.OrderedDict(a=1) # collections.deque # property(None, None, lambda s: 1)
    code("a + b", a=1) # code("a + b", b=1) # code("a + b") # code("a", a=1) # code("a", a=2) # code("a", 7, a=1)
    code("a", file="other", a=1) # code("m.x", m=mod(x=1)) # code("m.x", m=mod(x=2)) # code("m.x", m=mod(y=1))
    code("m.x.y", m=mod(x=mod(y=1))) # code("m.x.y", m=mod(x=mod(y=2))) # code("m.x.y", m=mod(x=Held(1)))
    code("getenv('MINE')", getenv=os.getenv) # code("m.x + m.y", m=mod(x=1, y=1)) # code("m.x + m.y", m=mod(x=1, y=2))
    named(lambda: 3) # named(lambda: 3, x=1) # named(lambda: 3, x=2) # named(lambda: 3, y=1) # Thing(a=1) # Thing(b=1)
    Thing(a=1, b=1) # Thing(a=1, b=2) # OneSlot(1) # OneSlot(2) # type("K", (), {"x": 1}) # type("K", (), {"x": 2})
    type("K", (), {"y": 1}) # type("K", (Held,), {"x": 1}) # type("K", (Thing,), {"x": 1}) # type("L", (), {"x": 1})
    Held(1).__init__ # partialmethod(max, 1) # partialmethod(max, 2) # classmethod(lambda c: 1) # code("max", max=min)
    changed(nn.ReLU(), x=1) # changed(nn.ReLU(), x=2) # changed(nn.ReLU(), y=1) # holding(register_buffer="a")
    holding(register_buffer="b") # holding(register_parameter="a") # holding(register_buffer="a", none=True)
    hooked("forward", one) # hooked("forward_pre", one) # hooked("forward", two) # hooked("forward", one, one)
    code("n.x", n=ns(x=1)) # code("n.x", n=ns(x=2)) # code("n.x", n=ns()) # code("n.x", n=ns(x=None))
    code("n.x.y", n=ns(x=ns(y=1))) # code("n.x.y", n=ns(x=ns(y=2))) # code("n.x.y", n=ns(x=Held(1)))
    code("n", n=ns(x=1)) # code("n", n=ns(x=2)) # code("vars(n)", n=ns(x=1)) # code("vars(n)", n=ns(x=2))
    code("n.x + len(n)", n=ns(x=1, y=1)) # code("n.x + len(n)", n=ns(x=1, y=2)) # code("n.x", n=Thing(x=1, y=1))
    code("n.__dict__", n=ns(x=1)) # code("n.__dict__", n=ns(x=2)) # code("n.x", n=Thing(x=1, y=2))
    code("(lambda: n)().x", n=ns(x=1, y=1)) # code("(lambda: n)().x", n=ns(x=1, y=2))
    code("n.x", n=types.SimpleNamespace(x=1)) # code("n._get_args()", n=ns(x=1)) # code("n._get_args()", n=ns(x=2))
"""

SAME = """
    nn.Linear(2, 3) # graded(nn.Linear(2, 3)) # changed(nn.Linear(2, 3), _compiled_call_impl=len)
    Held # noted(Held)
    object() # object()
    hooked("forward", one) # hooked("forward", one, gone=3)
    code("n.x", n=ns(x=1)) # code("n.x", n=ns(x=1, y=1)) # code("n.x", n=ns(x=1, y=2))
    code("n.x.y + n.z", n=ns(x=ns(y=1), z=2)) # code("n.x.y + n.z", n=ns(x=ns(y=1, u=3), z=2, u=3))
"""


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class OneSlot:
    __slots__ = "number"

    def __init__(self, number: int) -> None:
        self.number = number


class Thing:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


def code(text: str, line: int = 1, file: str = "mine", **scope: Any) -> Any:
    """A function that gives ``text``, of a program whose global values are ``scope``."""
    return eval(compile("\n" * (line - 1) + f"lambda: {text}", file, "eval"), {**scope, "__name__": "a program"})


def module(**named: Any) -> types.ModuleType:
    """A module that no file made."""
    made = types.ModuleType("made")
    vars(made).update(named)
    return made


def changed(target: Any, **named: Any) -> Any:
    """``target`` with other attributes."""
    for name, value in named.items():
        setattr(target, name, value)
    return target


def graded(layer: Any) -> Any:
    """A layer that has gradients."""
    layer(torch.ones(1, 2)).sum().backward()
    return layer


def holding(none: bool = False, **kinds: str) -> Any:
    """A layer with a tensor (or ``none``) of a name and a kind."""
    made = torch.nn.ReLU()
    for register, name in kinds.items():
        getattr(made, register)(name, None if none else torch.nn.Parameter(torch.ones(2), requires_grad=False))
    return made


def hooked(kind: str, *hooks: Callable[..., Any], gone: int = 0) -> Any:
    """A layer with hooks, after others are ``gone``."""
    made = torch.nn.ReLU()
    for hook in [len] * gone:
        getattr(made, f"register_{kind}_hook")(hook).remove()
    for hook in hooks:
        getattr(made, f"register_{kind}_hook")(hook)
    return made


def content(text: str) -> Any:
    """What a text says, with new objects behind its names."""

    class Held:
        def __init__(self, number: int) -> None:
            self.number = number

        def get(self) -> int:
            return self.number

        def give(self) -> None:
            """Another method."""

    names = {"torch": torch, "nn": torch.nn, "np": np, "math": math, "logging": logging, "partial": functools.partial}
    names |= {"Kind": enum.Enum("Kind", "A B"), "Other": enum.Enum("Other", "A"), "Held": Held, "Slotted": Slotted}
    names |= {"a": [1], "t": torch.ones(5), "h": Held(1), "environ": os.environ, "mod": module, "named": changed}
    names |= {"Path": Path, "collections": collections, "Thing": Thing, "OneSlot": OneSlot, "os": os, "code": code}
    names |= {"partialmethod": functools.partialmethod, "one": lambda *_: None, "two": lambda *_: 1, "hooked": hooked}
    names |= {"types": types, "ns": argparse.Namespace, "changed": changed, "holding": holding, "graded": graded}
    names |= {"noted": lambda kind: changed(kind, __doc__="A note.")}
    return eval(text, {**names, "__name__": "a program"})


def texts_of(lines: str) -> list[str]:
    """The texts of a table."""
    return [text.strip() for text in re.split(r"#|\n", lines) if text.strip()]


def test_equal_contents_have_one_digest_and_others_another(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of(CONTENTS)
    first, again = ([digest_of(content(text)) for text in texts] for _ in range(2))
    assert [text for text, one, other in zip(texts, first, again, strict=True) if one != other] == []
    alike: dict[str, list[str]] = {}
    for text, digest in zip(texts, first, strict=True):
        alike.setdefault(digest, []).append(text)
    assert [each for each in alike.values() if len(each) > 1] == []
    monkeypatch.setenv("MINE", "another")
    moved = [text for text, digest in zip(texts, first, strict=True) if digest != digest_of(content(text))]
    assert moved == ['lambda: environ["MINE"]', "code(\"getenv('MINE')\", getenv=os.getenv)"]


@pytest.mark.parametrize("line", SAME.strip().splitlines())
def test_what_no_export_sees_has_no_part(line: str) -> None:
    assert len({digest_of(content(text)) for text in texts_of(line)}) == 1


@pytest.mark.parametrize(
    "mode",
    [lambda: torch.no_grad(), lambda: torch.autocast("cpu"), lambda: torch.autocast("cpu", torch.float16),
     lambda: torch.device("meta")],
)  # fmt: skip
def test_modes_of_pytorch_are_content(mode: Callable[[], Any]) -> None:
    with mode():
        inside = digest_of(1)
    assert inside != digest_of(1)


def test_a_variable_that_has_no_value_yet_is_told_from_one_that_has() -> None:
    def late() -> tuple[Callable[[], Any], str]:
        def reader() -> Any:
            return value

        before = digest_of(reader)
        value = 1
        return reader, before

    reader, before = late()
    assert digest_of(reader) != before


@pytest.mark.parametrize(
    "hidden",
    [iter([1]), (x for x in "a"), threading.Lock(), random.Random(1), memoryview(b"a"), array.array("i", [1]),
     torch.Generator(), torch.ones(2).to_sparse()],
    ids=lambda hidden: type(hidden).__name__,
)  # fmt: skip
def test_what_has_no_digest(hidden: Any) -> None:
    with pytest.raises(UnknownContent):
        digest_of(hidden)


def test_what_counts_by_its_version() -> None:
    known = {
        **dict.fromkeys(("builtins", "", "not.there", __name__)),
        **dict.fromkeys(("torch", "torch.nn.functional", "ipuperf.poptorch.export.content"), "ours"),
        "sys": sys.version,
    }
    assert {name: _installed(name) for name in known} == known
    for package in (np, json):
        stamp = os.stat(os.path.realpath(str(package.__file__))).st_mtime_ns
        assert _installed(package.__name__) == f"{package.__name__} {package.__version__} {stamp}"

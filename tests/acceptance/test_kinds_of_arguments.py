"""Functions that simulate, sweep and tune name an argument of a wrong kind, and say what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ipuperf
from ipuperf import popxl, report
from ipuperf.base.kinds import WHOLE, ArgumentKind, Kinds, checked, told
from ipuperf.datasets import load_mnist
from ipuperf.lowering import lower
from ipuperf.machine import load_machine, load_scaled
from ipuperf.simulation import simulate
from ipuperf.sweep import read_sweep
from ipuperf.validation import read_cases

IR = popxl.Ir()._ir


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate(5, load_machine("pod4")), "simulate: program is 5; a DeviceProgram is needed"),
        (lambda: lower(IR, "pod4"), "lower: machine is 'pod4'; a Machine is needed"),
        (lambda: lower(IR, load_machine("pod4"), name=5), "lower: name is 5; a string is needed"),
        (lambda: lower(IR, load_machine("pod4"), strict_memory="a"), "strict_memory is 'a'; True or False is needed"),
        (lambda: load_scaled("pod4", 5), "load_scaled: factors is 5; a mapping is needed"),
        (lambda: read_sweep(5), "read_sweep: path is 5; a string or a path is needed"),
        (lambda: read_cases([]), r"read_cases: path is \[\]; a string or a path is needed"),
        (lambda: load_mnist("a"), "load_mnist: train is 'a'; True or False is needed"),
        (lambda: report.to_perfetto(5, "x"), "to_perfetto: trace is 5; a Trace is needed"),
        (lambda: report.summary_text("x"), "summary_text: trace is 'x'; a Trace is needed"),
        (lambda: report.write_report([], "x"), r"write_report: trace is \[\]; a Trace is needed"),
        (lambda: ipuperf.simulate_session(5), "simulate_session: 5 is no session"),
    ],
)
def test_arguments_of_another_kind(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


class ndarray:
    """A class with the name of another module's."""


@checked()
def of_a_module(value: np.ndarray, other: ndarray | None = None) -> None:
    """A name of a module is that module's."""


def test_names_of_modules() -> None:
    of_a_module(np.ones(2), ndarray())
    with pytest.raises(TypeError, match="value is <.*; a ndarray is needed"):
        of_a_module(ndarray())
    with pytest.raises(TypeError, match="other is array.*; a ndarray or None is needed"):
        of_a_module(np.ones(2), np.ones(2))


class Thing:
    def __repr__(self) -> str:
        raise RuntimeError


def test_kinds_follow_annotations() -> None:
    kinds = Kinds({"int": WHOLE})

    @checked(kinds, ["free"])
    def function(
        one: int, many: list[float], *rest: str, free: int = 0, other: dict[str, int] | None = None, unknown: Any = 1
    ) -> tuple[Any, ...]:
        return one, many, rest, free, other, unknown

    assert function(np.int32(1), (1, 2.5), "a", free="b", unknown=Thing)[0] == 1
    assert function(1, np.ones(2), other={})[4] == {}
    for arguments, named, message in (
        ((1.5, []), {}, "function: one is 1.5; a whole number is needed"),
        ((1, 2), {}, "function: many is 2; a sequence of numbers is needed"),
        ((1, "ab"), {}, "function: many is 'ab'; a sequence of numbers is needed"),
        ((1, [None]), {}, r"function: many is \[None\]; a sequence of numbers is needed"),
        ((1, [], "a", 5), {}, "function: rest is 5; a string is needed"),
        ((1, []), {"other": 5}, "function: other is 5; a mapping or None is needed"),
        ((Thing(), []), {}, r"function: one is a value \(Thing\); a whole number is needed"),
    ):
        with pytest.raises(TypeError, match=message):
            function(*arguments, **named)


def test_long_values_are_cut() -> None:
    assert told(list(range(100))).endswith("...")
    assert len(told("a" * 500)) == 60
    assert ArgumentKind(lambda value: True, "anything").holds(5)

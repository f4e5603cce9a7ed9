"""Every function as a row: the ops that it makes, their values, and what it refuses, its arguments spoiled in turn."""

import ast
import linecache
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import spoiled, together
from opcases import digest
from programtext import checksum
from rows import Golden

from ipuperf.functions import products
from ipuperf.functions.scattering import Change
from ipuperf.ir import Constant
from ipuperf.ir import dtype as types

CASES = (Path(__file__).parent / "functioncases.txt").read_text(encoding="utf-8").splitlines()
MODULES = ("activations", "arithmetic", "arranging", "elementary", "gamma", "losses", "networks", "products", "random")
MODULES += ("recurrences", "reductions", "scattering", "selection", "shapes")
RNG = np.random.default_rng(3)
X, Y, Q = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)), RNG.uniform(0.05, 0.95, (3, 4))
WHOLE = RNG.integers(-9, 9, (3, 4)).astype(np.int32)
OPERANDS: dict[str, np.ndarray] = {
    "x": X, "y": Y, "q": Q, "p": 1 - Q / 2, "logs": np.log(Q), "p2": Q[:, :2], "h": X.astype(np.float16),
    "x3": RNG.normal(size=(2, 3, 4)), "i": WHOLE, "j": abs(WHOLE) % 3 + 1, "j2": abs(WHOLE[:2, :2]) % 3,
    "k": np.int32([2, 0, 1]), "k1": np.int32([1]), "flag": X > 0, "ends": np.float64([[0, 1, 0.5, 1]] * 3),
    "half_ends": np.float16([[0, 1, 0.5, 1]] * 3), "counts": abs(WHOLE).astype(np.float64),
    "targets": np.int32([[1, 3, -1, 0], [0, -1, 1, 2], [3, 2, 1, 0]]), "scalar": np.float64(1.5),
    "one": np.float64([0.5]), "m": abs(WHOLE) % 3, "k4": np.int32([2, 0, 1, 3]), "y3": RNG.normal(size=(2, 3, 3)),
    "broken": np.float64([np.nan, np.inf, -np.inf, 2.5, -1]), "w2": Q[0, :2], "w3": Q[:, 0], "w4": Q[0], "v4": Y[0],
    "u4": Q[1], "image": RNG.normal(size=(2, 4, 5, 6)), "kernel": RNG.normal(size=(6, 2, 3, 2)),
    "whole": RNG.normal(size=(6, 4, 3, 2)), "turned": RNG.normal(size=(4, 3, 3, 2)), "turned4": X.T.copy(),
    "regions": RNG.uniform(0, 9, (3, 4)), "places": np.int32([0, 1, 0]), "number": np.int32(1), "word": np.uint32(7),
    "seed": np.uint32([3, 4]), "sequence": RNG.normal(size=(4, 3, 5)), "own": RNG.normal(size=(2, 5)),
    "inner": RNG.normal(size=(2, 2)), "bias": Q[0, :2], "state": Q[:, :2],
}  # fmt: skip
NAMES: dict[str, Any] = {**{name: import_module(f"ipuperf.functions.{name}") for name in MODULES}}
NAMES |= {**{name: getattr(types, name) for name in ("FLOAT16", "FLOAT32", "FLOAT64")}, "inf": np.inf}
NAMES |= {"eight": products.pow2scale_cast_to_fp8}
NAMES |= {"change": lambda table, at, values, axis=0: Change(table, at, values, axis, values.shape[axis])}
Run = Callable[..., Any]


def asked(expression: str, run: Run) -> tuple[str, list[np.ndarray]]:
    """(what was made, or why nothing; its values)."""
    used = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    arrays = {name: OPERANDS[name] for name in OPERANDS if name in used} or {"x": X}
    made: list[str] = []

    def write(**tensors: Any) -> list[Any]:
        result = eval(expression, NAMES | tensors)
        graph = next(iter(tensors.values())).graph
        made.extend(f"{op.type} {sorted(op.attributes.items())} {op.inputs} {op.outputs}" for op in graph.ops)
        made.extend(
            f"{t.id}={checksum(str(t.data.tolist()))}" for t in graph.tensors.values() if isinstance(t, Constant)
        )
        made.append(repr(result))
        several = result if isinstance(result, list | tuple) else [result]
        return [each for each in several if hasattr(each, "producer")]

    try:
        values = run(write, arrays)[0]
        return "\n".join(made), values
    except Exception as error:
        return f"{type(error).__name__}: {_own_text(error)}", []


def _own_text(error: Exception) -> str:
    """The text of an error that ipuperf raises; Python's change from version to version."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    raised = linecache.getline(place.filename, place.lineno or 0).strip().startswith("raise")
    return str(error) if raised and "ipuperf" in place.filename else ""


def room(case: str) -> str:
    """The module of the function that a case calls."""
    return case.partition(".")[0]


@together(CASES, room)
def test_every_function(cases: list[str], run: Run, golden: Golden) -> None:
    lines = []
    for case in cases:
        text, values = asked(case, run)
        lines += [case, text, *map(digest, values)]
    golden(lines)


@pytest.mark.heavy
@together(CASES, room)
def test_every_spoiled_function(cases: list[str], run: Run, golden: Golden) -> None:
    lines = []
    for case in cases:
        lines += [case, *(f"{how}: {asked(expression, run)[0]}" for how, expression in spoiled(case))]
    golden(lines)

"""What a call says, as one line: its value, or the class and text of its error."""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programtext import checksum, program_text

from ipuperf.ir import Ir

LONGEST = 300
"""Characters of an answer; the rest becomes a checksum."""
_HERE = str(Path(__file__).resolve().parents[2])


def answer(act: Callable[[], Any]) -> str:
    """What ``act`` gives or raises, without addresses and places of files."""
    try:
        text = shown(act())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    text = re.sub(r" at 0x[0-9a-f]+", "", text.replace(_HERE, ""))
    text = re.sub(r"( at )?(/tmp|<string>|[\w./-]+\.py)[\w./-]*:\d+", "", text)
    text = text.replace(" and no __dict__ for setting new attributes", "")  # Python 3.13 adds it
    text = re.sub(r"/tmp/[\w./-]*/", "", text).replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... {checksum(text)}"


def shown(value: Any) -> str:
    """A value as text: arrays with type, shape and elements, mappings and sequences item by item."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return f"{array.dtype}{list(array.shape)} {array.tolist()}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + ", ".join(map(shown, value)) + "]"
    return repr(value)


def asked(expression: str, names: Mapping[str, Any]) -> str:
    """The answer of an expression, or of statements separated by ``;`` of which the last is an expression."""
    *statements, last = expression.split("; ")

    def act() -> Any:
        scope = dict(names)
        for statement in statements:
            exec(statement, scope)
        return eval(last, scope)

    return answer(act)


def spoiled(expression: str) -> list[tuple[str, str]]:
    """(what was done, the expression) with one argument of the last call left out or of another kind in turn."""
    *statements, last = expression.split("; ")
    tree = ast.parse(last, mode="eval")
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call)), None)
    if call is None:
        return []
    found = []
    places = [(call.args, n) for n in range(len(call.args))] + [(call.keywords, n) for n in range(len(call.keywords))]
    for number, (row, place) in enumerate(places):
        kept: Any = row[place]
        name = kept.arg if isinstance(kept, ast.keyword) else str(number)
        del row[place]
        found.append((f"-{name}", "; ".join([*statements, ast.unparse(tree)])))
        for other in OTHERS:
            value = ast.parse(other, mode="eval").body
            new: Any = ast.keyword(kept.arg, value) if isinstance(kept, ast.keyword) else value
            row.insert(place, new)
            found.append((f"{name}={other}", "; ".join([*statements, ast.unparse(tree)])))
            del row[place]
        row.insert(place, kept)
    return found


OTHERS = ("None", "-1", "0", "3", "1.5", "'x'", "[]", "x")


def called_lines(expression: str, names: Mapping[str, Any], ir: Ir) -> list[str]:
    """What an expression says, and the program after it."""
    return [expression, asked(expression, names), program_text(ir)]


def spoiled_lines(expression: str, names: Mapping[str, Any], ir: Ir) -> list[str]:
    """What all :func:`spoiled` calls say, made one after the other in one program, which goes on after each error."""
    said = [f"{change}: {asked(call, names)}" for change, call in spoiled(expression)]
    return [expression, *said, program_text(ir)]


def listed(text: str) -> list[str]:
    """The cases of a table: one in a line, ``#`` in front of remarks."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def subject(case: str) -> str:
    """What a case is about, roughly: its first word, and of a function in a module the initial."""
    words = re.search(r"[A-Za-z_]\w*(\.\w)?", case)
    return words[0] if words else "numbers"


def together(cases: Iterable[str], group: Callable[[str], str] = subject) -> pytest.MarkDecorator:
    """Runs a test with all ``cases`` of a group, for one golden row of them."""
    groups: dict[str, list[str]] = {}
    for case in cases:
        groups.setdefault(group(case), []).append(case)
    return pytest.mark.parametrize("cases", list(groups.values()), ids=list(groups))

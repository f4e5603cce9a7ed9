"""The code cells of a notebook as plain Python, in which every line keeps its number.

A cell that is Python stays as it is. In any other cell, IPython finds where its own lines begin
(``IPython.core.inputtransformer2``, which comes with the extra ``notebooks``); this module decides what
replaces them. Line magics, shell lines and questions (``%matplotlib inline``, ``!pip install x``, ``x?``) become
``pass`` with a note on standard error. ``%time STATEMENT`` becomes its statement. ``%%time``, ``%%timeit``,
``%%capture`` and ``%%prun`` leave the rest of their cell; any other cell magic leaves nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from ipuperf.base.requirements import pip_install

from .sources import ScriptError, Source

_CELL_MAGICS_WITH_PYTHON = ("time", "timeit", "capture", "prun")
_TIMED = re.compile(r"%time\s+(?=\S)")


def notebook_sources(path: Path, content: bytes) -> list[Source]:
    """The code cells of the notebook ``content``, called ``PATH[cell N]`` with N from 1.

    Raises:
        ScriptError: it is no notebook of format 4, a cell needs IPython and there is none, or takes a value from it.
    """
    sources: list[Source] = []
    for position, cell in enumerate(_cells(path, content), start=1):
        kind, text = _kind_and_text(cell)
        if not isinstance(kind, str) or not isinstance(text, str):
            raise ScriptError(
                f"{path}: entry {position} of 'cells' is no cell: texts 'cell_type' and 'source' expected"
            )
        if kind == "code":
            filename = f"{path}[cell {len(sources) + 1}]"
            sources.append(Source(filename, plain_python(text, filename)))
    return sources


def _cells(path: Path, content: bytes) -> list[Any]:
    try:
        notebook = json.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ScriptError(f"{path}: not a notebook: JSON expected, but {error}") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ScriptError(f"{path}: not a notebook of format 4: an object with a list 'cells' expected")
    return cells


def _kind_and_text(cell: Any) -> tuple[Any, Any]:
    if not isinstance(cell, dict):
        return None, None
    text = cell.get("source")
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    return cell.get("cell_type"), text


def plain_python(text: str, filename: str) -> str:
    """The Python of a cell; every line keeps its number."""
    text = text.replace("\r\n", "\n").rstrip("\n") + "\n"
    problem = _not_python(text)
    if problem is None:
        return text
    lines = text.splitlines(keepends=True)
    _need_ipython(lines, problem, filename)
    return "".join(_without_lines_of_ipython(_without_cell_magic(lines, filename), filename))


def _not_python(text: str) -> int | None:
    """The line (from 1) at which ``text`` stops being Python; None: it is Python."""
    try:
        # Warnings belong to the run of the cell, and not to this look at it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, MemoryError, RecursionError):
        return 1
    return None


def _need_ipython(lines: list[str], number: int, filename: str) -> None:
    try:
        import IPython.core.inputtransformer2  # noqa: F401
    except ImportError:
        # A cell that is not complete fails behind its last line.
        line = lines[min(number, len(lines)) - 1].strip()
        raise ScriptError(
            f"{filename} line {number}: {line!r} is not Python; cells with magics or shell lines need IPython: "
            f"{pip_install('notebooks')}"
        ) from None


def _without_cell_magic(lines: list[str], filename: str) -> list[str]:
    first_line = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if not lines[first_line].startswith("%%"):
        return lines
    magic = re.split(r"\W", lines[first_line][2:], maxsplit=1)[0]
    if magic not in _CELL_MAGICS_WITH_PYTHON:
        _note(filename, first_line, f"skipped the whole cell, as %%{magic} is not Python")
        return []
    _note(filename, first_line, f"skipped {lines[first_line].strip()!r}")
    # An empty line takes the magic's place, so that later lines keep their numbers.
    return [*lines[:first_line], "\n", *lines[first_line + 1 :]]


def _without_lines_of_ipython(lines: list[str], filename: str) -> list[str]:
    """Remove from ``lines`` what only IPython understands, one statement at a time."""
    from IPython.core import inputtransformer2 as ipython

    clean: Any
    for clean in (ipython.leading_indent, ipython.classic_prompt, ipython.ipython_prompt):
        lines = clean(lines)
    kinds: Any = ipython.TransformerManager().token_transformers
    # Each replacement changes the tokens, so they are made again for the next statement.
    while True:
        tokens = ipython.make_tokens_by_line(lines)
        statements = [statement for kind in kinds if (statement := kind.find(tokens)) is not None]
        if not statements:
            return lines
        # A replacement changes the tokens behind it, so only the first statement is handled in each pass.
        statement = min(statements, key=lambda candidate: candidate.sortby())
        start = statement.start_line
        is_question = isinstance(statement, ipython.HelpEnd)
        last_line = statement.q_line if is_question else ipython.find_end_of_continued_line(lines, start)
        # The program needs the value, so leaving the line out would change what it computes.
        if isinstance(statement, ipython.MagicAssign | ipython.SystemAssign):
            _refuse_value(lines[start : last_line + 1], start, filename)
        instead = _instead("".join(lines[start : last_line + 1]).rstrip("\n"), start, filename)
        # The replacement has as many lines as the statement: tracebacks stay right.
        lines = [*lines[:start], *_of_length(instead, last_line + 1 - start), *lines[last_line + 1 :]]


def _refuse_value(lines: list[str], number: int, filename: str) -> NoReturn:
    raise ScriptError(
        f"{filename} line {number + 1}: {''.join(lines).strip()!r} takes a value from a magic or a shell line, which "
        "only IPython can run; give the value in plain Python"
    )


def _instead(statement: str, number: int, filename: str) -> str:
    """What stands for one of IPython's statements, indented as it is."""
    command = statement.strip()
    indent = statement[: len(statement) - len(statement.lstrip())]
    # These characters make IPython turn the rest of the line into a call.
    if command[0] in "/,;":
        raise ScriptError(f"{filename} line {number + 1}: {command!r}: write the call in plain Python")
    timed = _TIMED.match(command)
    if timed:
        _note(filename, number, "ran the statement of %time without timing it")
        return indent + command[timed.end() :]
    _note(filename, number, f"skipped {command!r}")
    return f"{indent}pass"


def _of_length(statement: str, count: int) -> list[str]:
    """``statement`` as ``count`` lines."""
    lines = [f"{line}\n" for line in statement.split("\n")]
    return [*lines, *["\n"] * (count - len(lines))]


def _note(filename: str, number: int, action: str) -> None:
    print(f"ipuperf: {filename} line {number + 1}: {action}", file=sys.stderr)

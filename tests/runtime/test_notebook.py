"""Cells of notebooks become plain Python whose lines keep their numbers."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from answers import answer
from rows import Golden

from ipuperf.runtime.notebook import _not_python, notebook_sources, plain_python
from ipuperf.runtime.sources import ScriptError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", sorted(ROOT.glob("ipuperf/**/*.py"))[::7], ids=lambda path: path.name)
def test_plain_python_is_left_alone(path: Path) -> None:
    text = path.read_text()
    assert plain_python(text, "f").rstrip("\n") == text.rstrip("\n")
    assert plain_python(f"%a\n{text}", "f").rstrip("\n") == f"pass\n{text}".rstrip("\n")


@pytest.mark.parametrize("beside", ["", "%a\n"])
@pytest.mark.parametrize(
    "text",
    [
        's = """\n%time x\n"""',
        "s = '''a\\'''\n%b'''",
        "s = 'a \\\n%b'",
        "x = 5 \\\n%y",
        "z = (x\n%y)",
        "z = {x\n%y: [1,\n%y]}",
        "x = [\n# (\n'(', \"]\",\n5\n% 3\n]",
        "x = f'{1}' # '''\ny = 2",
        "s = r'\\'\n'",
        "x = 3  # what?",
    ],
)
def test_lookalikes_are_left_alone(text: str, beside: str) -> None:
    plain = plain_python(beside + text, "f").rstrip("\n")
    assert plain == beside.replace("%a", "pass") + text


def test_lines_keep_their_numbers() -> None:
    text = "%a\n!b \\\n c \\\n d\nx = '''\n%c\n'''\n%%not_first\n  \ny = 1"
    plain = plain_python(text, "f")
    assert plain.count("\n") == text.count("\n") + 1
    assert ast.parse(plain).body[-1].lineno == 10


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\n\n%%time\nx = 1\n!ls", "\n\n\nx = 1\npass\n"),
        ("%%bash\nrm -rf build", ""),
        ("if x:\n    %cd there\ny", "if x:\n    pass\ny\n"),
        ("%time a = f(1,\n  2)", "a = f(1,\n  2)\n"),
        ("x.y?", "pass\n"),
        ("?x", "pass\n"),
        ("(a,\n b)?\nc", "pass\n\nc\n"),
        ("x = 1\n!echo 'it''s (\ny = 2", "x = 1\npass\ny = 2\n"),
        ("%load_ext a\n%%b\n", "pass\npass\n"),
    ],
)
def test_lines_of_ipython_are_gone(text: str, wanted: str) -> None:
    assert plain_python(text, "f") == wanted


def test_a_syntax_error_stays_for_python_to_tell() -> None:
    assert plain_python("%a\nx = = 1", "f") == "pass\nx = = 1\n"


@pytest.mark.parametrize("line", ["files = !ls", "a, b = %who_ls", "x.y[0] = !date", "if True:\n  x = %time 3"])
def test_values_of_magics_are_errors(line: str) -> None:
    with pytest.raises(ScriptError, match=r"f line \d: .* takes a value from a magic or a shell line"):
        plain_python(line, "f")


def test_automatic_calls_are_errors() -> None:
    with pytest.raises(ScriptError, match="f line 2: '/f x': write the call in plain Python"):
        plain_python("a = 1\n/f x", "f")


def test_without_ipython_plain_cells_run_and_others_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.core.inputtransformer2", None)
    assert plain_python("x = 1", "f") == "x = 1\n"
    with pytest.raises(
        ScriptError, match=r"f line 2: '%matplotlib inline' is not Python; .*pip install 'ipykernel<.*'ipython<"
    ):
        plain_python("x = 1\n%matplotlib inline\ny = 2", "f")


def test_cells_are_counted_as_a_run_from_the_top_counts_them(tmp_path: Path) -> None:
    cells = ['{"cell_type": "markdown", "source": "a"}', '{"cell_type": "code", "source": ["x = 1\\n", "y"]}']
    found = notebook_sources(tmp_path / "n.ipynb", f'{{"cells": [{", ".join(cells)}]}}'.encode())
    assert [(each.filename, each.text) for each in found] == [(f"{tmp_path / 'n.ipynb'}[cell 1]", "x = 1\ny\n")]


CELLS = {
    "cells": "[]",
    "cells of another kind": '{"cells": 3}',
    "a cell of another kind": '{"cells": [3]}',
    "a text of another kind": '{"cells": [{"cell_type": "code", "source": 3}]}',
    "lines of another kind": '{"cells": [{"cell_type": "code", "source": ["a", 3]}]}',
    "lines": '{"cells": [{"cell_type": "code", "source": ["a = 1\\n", "b"]}, {"cell_type": "code", "source": "c"}]}',
    "others": '{"cells": [{"cell_type": "raw", "source": "%a"}, {"cell_type": "code", "source": "c\\r\\nd\\n\\n"}]}',
    "no source": '{"cells": [{"cell_type": "code"}]}',
    "marked": '\ufeff{"cells": []}',
    "cut": '{"cells": [',
}


@pytest.mark.parametrize("name", CELLS)
def test_notebooks(name: str, golden: Golden) -> None:
    content = CELLS[name].encode()
    golden({"says": answer(lambda: notebook_sources(Path("n.ipynb"), content))})


MAGICS = ["%time x = 1", "%time  x = 1\n", "%time", "%timeit x", "  %time x", "!ls\nx = 1", "x?\ny", "%%time\nx = 1"]
MAGICS += ["\n%%time a b\nx\n", "%%bash\nls", "%%capture out\n!ls\nx", "%%prun\nx", "%%writefile a\nx", "x = !ls"]
MAGICS += ["/f 1", ",f 1", ";f 1", "%a \\\n b\nx", "if 1:\n    !ls\n    %time y = 2", ">>> x = 1\n... y"]
MAGICS += ["In [1]: x = 1", "x = (", "def f(:\n%a"]


@pytest.mark.parametrize("cell", MAGICS)
def test_cells_with_magics(cell: str, golden: Golden, capsys: Any) -> None:
    pytest.importorskip("IPython")
    said = answer(lambda: plain_python(cell, "n.ipynb[cell 1]"))
    golden({"says": said, "stderr": capsys.readouterr().err.strip()})


def test_what_no_parser_reads_is_not_python() -> None:
    assert [_not_python(text) for text in ("x = 1\n", "x = 1\n(\n", "a\0b\n")] == [None, 2, 1]

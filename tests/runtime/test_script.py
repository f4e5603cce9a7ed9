"""Scripts and notebooks run as Python runs them, on the clock and the front ends of ipuperf."""

import builtins
import importlib.util
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuperf.runtime import script as script_room
from ipuperf.runtime.clock import SimulatedClock, active_clock
from ipuperf.runtime.script import ScriptError, run_script

HERE = Path(__file__).resolve()


@pytest.fixture(autouse=True)
def _process_is_left_alone() -> Iterator[None]:
    """Every test here also checks that a run leaves the process as it was."""
    loaded = _front_ends()
    before = (
        sys.argv,
        list(sys.path),
        sys.modules.get("__main__"),
        builtins.__import__,
        sys.excepthook,
        list(sys.meta_path),
    )
    yield
    assert before == (
        sys.argv,
        list(sys.path),
        sys.modules.get("__main__"),
        builtins.__import__,
        sys.excepthook,
        list(sys.meta_path),
    )
    assert active_clock() is None
    assert _front_ends() == loaded


def _front_ends() -> set[str]:
    """Modules under upstream's names, and helper files of programs, that are loaded."""
    return {name for name in sys.modules if name.partition(".")[0] in {"popxl", "torchvision", "helper", "helpers"}}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Write a script (and helper files beside it) and run it."""

    def write_and_run(program: str, files: dict[str, str] | None = None, *args: str, **options: Any) -> Any:
        for name, text in {"program.py": program, **(files or {})}.items():
            path = tmp_path / "folder" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return run_script(tmp_path / "folder" / "program.py", args, **options)

    return write_and_run


def cell(source: str | list[str], kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": source}


def write_notebook(path: Path, *cells: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


class TestAsPythonDoes:
    def test_main_argv_and_path(self, run: Callable[..., Any], tmp_path: Path) -> None:
        result = run(
            "import sys, __main__\n"
            "import helper\n"
            "name, file, argv, first = __name__, __file__, list(sys.argv), sys.path[0]\n"
            "same = __main__.__dict__ is globals()\n"
            "rest = (__spec__, __package__, __builtins__.__name__)\n"
            "where = helper.__file__\n",
            {"helper.py": ""},
            "--batch",
            "8",
        )
        assert result.exit_code == 0
        assert result.error is None
        found = result.globals
        script = tmp_path / "folder" / "program.py"
        assert (found["name"], found["file"]) == ("__main__", str(script))
        assert found["argv"] == [str(script), "--batch", "8"]
        assert found["first"] == str(script.parent)
        assert found["same"]
        assert found["rest"] == (None, None, "builtins")
        assert found["where"] == str(script.parent / "helper.py")

    def test_dataclasses_and_pickle(self, run: Callable[..., Any]) -> None:
        result = run(
            "from __future__ import annotations\n"
            "import pickle, typing\n"
            "from dataclasses import dataclass, field, KW_ONLY\n"
            "@dataclass\n"
            "class Options:\n"
            "    lr: float = 1e-3\n"
            "    _: KW_ONLY = None\n"
            "    sizes: typing.List[int] = field(default_factory=list)\n"
            "del Options.__annotations__['_']  # Python 3.10 takes KW_ONLY for no type\n"
            "hints = typing.get_type_hints(Options)\n"
            "copied = pickle.loads(pickle.dumps(Options(0.5, sizes=[3])))\n"
            "equal = copied == Options(0.5, sizes=[3]) and type(copied) is Options\n"
        )
        assert result.exit_code == 0
        assert result.globals["equal"]
        assert result.globals["hints"]["lr"] is float
        assert pickle.loads(pickle.dumps(result.globals["copied"].sizes)) == [3]

    def test_future_flags_are_not_inherited_and_encodings_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.py"
        path.write_bytes("# -*- coding: latin-1 -*-\nword = 'é'\ndef f(x: int): pass\n".encode("latin-1"))
        result = run_script(path)
        assert result.globals["word"] == "é"
        assert result.globals["f"].__annotations__ == {"x": int}

    @pytest.mark.parametrize(
        ("ending", "code", "said"),
        [
            ("sys.exit()", 0, ""),
            ("sys.exit(None)", 0, ""),
            ("sys.exit(3)", 3, ""),
            ("sys.exit(True)", 1, ""),
            ("sys.exit('no such option')", 1, "no such option\n"),
            ("raise SystemExit(4)", 4, ""),
            ("exit_code = 0", 0, ""),
        ],
    )
    def test_exit_codes(
        self, ending: str, code: int, said: str, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = run(f"import sys\nprint('before')\n{ending}\n")
        captured = capsys.readouterr()
        assert result.exit_code == code
        assert captured.out == "before\n"
        assert captured.err == said

    def test_the_traceback_of_an_error_about_the_program_ends_with_its_line(
        self, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The frames of ipuperf that found the shapes do not fit tell nothing about the program."""
        source = "import numpy as np\nimport popxl\nfrom popxl import ops\nir = popxl.Ir()\nwith ir.main_graph:\n"
        source += "    x = popxl.variable(np.zeros((2, 3), np.float32))\n    ops.matmul(x, x)\n"
        assert run(source).exit_code == 1
        lines = capsys.readouterr().err.splitlines()
        assert [line for line in lines if line.startswith("  File ")] == [line for line in lines if "line 7" in line]
        assert lines[-1].startswith("ipuperf.ir.errors.ShapeError: ")

    def test_the_traceback_of_any_other_error_is_whole(
        self, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("from ipuperf.trace import Trace\nTrace(3, 4)\n").exit_code == 1
        assert "ipuperf/trace/" in capsys.readouterr().err

    def test_keyboard_interrupt_passes(self, run: Callable[..., Any]) -> None:
        with pytest.raises(KeyboardInterrupt):
            run("raise KeyboardInterrupt\n")

    def test_scripts_of_different_folders_have_their_own_helpers(self, tmp_path: Path) -> None:
        for folder in ("one", "two"):
            (tmp_path / folder / "helpers").mkdir(parents=True)
            (tmp_path / folder / "helpers" / "__init__.py").write_text("")
            (tmp_path / folder / "helpers" / "names.py").write_text(f"NAME = {folder!r}\n")
            (tmp_path / folder / "main.py").write_text("from helpers.names import NAME\n")
        for folder in ("one", "two"):
            assert run_script(tmp_path / folder / "main.py").globals["NAME"] == folder

    @pytest.mark.parametrize("name", ["missing.py", "folder", "data.txt"])
    def test_what_cannot_be_started(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "data.txt").write_text("1 2 3")
        with pytest.raises(ScriptError, match=rf"{name}.*expected a \.py script or an \.ipynb notebook"):
            run_script(tmp_path / name)

    def test_unknown_clock(self, run: Callable[..., Any]) -> None:
        with pytest.raises(ValueError, match="'wall'"):
            run("", clock="sundial")


class TestTracebacks:
    PROGRAM = "import helper\n\ndef outer():\n    return helper.divide(1, 0)\n\nouter()\n"
    HELPER = "def divide(a, b):\n    # comment\n    return a / b\n"

    def test_equals_that_of_python(
        self, run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = run(self.PROGRAM, {"helper.py": self.HELPER})
        assert result.exit_code == 1
        assert isinstance(result.error, ZeroDivisionError)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "folder" / "program.py")], capture_output=True, text=True, check=False
        )
        assert "line 4, in outer" in done.stderr
        assert capsys.readouterr().err == done.stderr

    @pytest.mark.parametrize(
        "program",
        [
            "x = 1\nif x:\n  y = (\n",
            "import no_such_module_at_all\n",
            "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error\n",
            "try:\n    import no_such_module_at_all\nexcept ImportError:\n    1 / 0\n",
            "class Odd(BaseException):\n    pass\nraise Odd('c')\n",
        ],
    )
    def test_other_failures_equal_those_of_python(
        self, program: str, run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(program).exit_code == 1
        done = subprocess.run(
            [sys.executable, str(tmp_path / "folder" / "program.py")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        # Python 3.10 names the module of an exception of the program, its own traceback module does not.
        assert capsys.readouterr().err == done.stderr.replace("__main__.", "")

    def test_the_programs_excepthook(self, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
        result = run(
            "import sys\nsys.excepthook = lambda kind, error, trace: print('own:', error)\nraise ValueError(5)\n"
        )
        assert result.exit_code == 1
        assert capsys.readouterr().out == "own: 5\n"


MEASURE = """
import time
from time import perf_counter, time as now
from ipuperf.runtime.clock import active_clock

def measure(run):
    import time as inner
    start, counter, clock = inner.time_ns(), perf_counter(), now()
    run()
    return inner.time_ns() - start, perf_counter() - counter, now() - clock
"""


class TestClock:
    def test_program_and_helper_see_the_simulated_time(self, run: Callable[..., Any]) -> None:
        clock = SimulatedClock(epoch=1_700_000_000)
        result = run(
            MEASURE + "import helper\n"
            "import helpers.deep as deep\n"
            "durations = [m.measure(lambda: active_clock().advance(0.25)) for m in (helper, deep)]\n"
            "durations.append(measure(lambda: time.sleep(0.25)))\n"
            "is_one = time is helper.time is deep.time\n"
            "year = time.gmtime(time.time()).tm_year\n",
            {"helper.py": MEASURE, "helpers/__init__.py": "", "helpers/deep.py": MEASURE},
            clock=clock,
        )
        assert result.exit_code == 0
        assert result.clock is clock
        for nanoseconds, counted, seconds in result.globals["durations"]:
            assert nanoseconds == pytest.approx(250_000_000, abs=500)
            assert counted == pytest.approx(0.25, abs=1e-6)
            assert seconds == pytest.approx(0.25, abs=2e-6)
        assert result.globals["is_one"]
        assert result.globals["time"] is clock.time_module()
        assert result.globals["year"] == 2023
        assert clock.now == pytest.approx(0.75, abs=1e-5)

    def test_libraries_keep_the_real_time(
        self, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "outside_library.py").write_text("import time\nfrom time import sleep\n")
        monkeypatch.syspath_prepend(tmp_path / "elsewhere")
        installed = "venv/lib/python3/site-packages"
        result = run(
            "import sys, os\n"
            f"sys.path.append(os.path.join(os.path.dirname(__file__), {installed!r}))\n"
            "import outside_library, inside_library\n"
            "import tqdm.std, threading\n",
            {f"{installed}/inside_library.py": "import time\n"},
        )
        assert result.exit_code == 0
        assert result.globals["outside_library"].time is time
        assert result.globals["outside_library"].sleep is time.sleep
        assert result.globals["inside_library"].time is time
        assert result.globals["tqdm"].std.time() > 1e9
        for name in ("outside_library", "inside_library"):
            del sys.modules[name]

    def test_ipuperf_itself_is_no_users_module(self) -> None:
        root = Path(script_room.__file__).parents[2]
        assert not script_room._is_users(script_room.__file__, str(root))
        assert script_room._is_users(str(root / "somewhere" / "mine.py"), str(root))
        assert not script_room._is_users(json.__file__, "/")
        assert not script_room._is_users(str(root.parent / (root.name + "_beside") / "mine.py"), str(root))

    def test_wall_clock(self, run: Callable[..., Any]) -> None:
        result = run(
            "import time\nfrom ipuperf.runtime.clock import active_clock\nclock = active_clock()\n", clock="wall"
        )
        assert result.clock is None
        assert result.globals["time"] is time
        assert result.globals["clock"] is None

    @pytest.mark.parametrize("loaded", [True, False])
    def test_a_clock_that_libraries_show_too(self, run: Callable[..., Any], loaded: bool) -> None:
        """A bar of tqdm lasts as long as the simulated clock; afterwards its module has the real clock again."""
        import tqdm.std

        program = (
            "import time\nimport tqdm.std\nbar = tqdm.std.tqdm(range(3))\n"
            "for _ in bar:\n    time.sleep(1000)\nelapsed = bar.format_dict['elapsed']\n"
        )
        if not loaded:
            del sys.modules["tqdm.std"]
        try:
            assert run(program, clock="everywhere").globals["elapsed"] == 3000
            assert sys.modules["tqdm.std"].time() == pytest.approx(time.time(), abs=1000)
        finally:
            sys.modules["tqdm.std"] = tqdm.std
        assert run(program).globals["elapsed"] < 1000
        assert tqdm.std.time is time.time

    def test_main_is_the_users_whatever_it_calls_its_file(self, run: Callable[..., Any]) -> None:
        assert run("__file__ = '/elsewhere/x.py'\nimport time\n").globals["time"] is not time

    def test_a_new_clock_for_each_run(self, run: Callable[..., Any]) -> None:
        program = "import time\nstart = time.perf_counter_ns()\n"
        assert run(program).globals["start"] == run(program).globals["start"] == 50

    def test_the_clock_ends_with_a_failing_program(self, run: Callable[..., Any]) -> None:
        assert run("import time\n1 / 0\n").exit_code == 1  # the fixture checks the rest


class TestFrontEnds:
    def test_upstream_names_resolve_and_are_gone_afterwards(
        self, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "libs" / "standing" / "xl").mkdir(parents=True)
        (tmp_path / "libs" / "standing" / "__init__.py").write_text("")
        (tmp_path / "libs" / "standing" / "xl" / "__init__.py").write_text("import time\n")
        (tmp_path / "libs" / "standing" / "xl" / "ops.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path / "libs")
        result = run("import otherxl, otherxl.ops as ops\n", names={"otherxl": "standing.xl"})
        assert result.exit_code == 0
        assert result.globals["ops"] is sys.modules["standing.xl.ops"]
        assert result.globals["otherxl"].time is time
        assert "otherxl" not in sys.modules
        for name in [name for name in sys.modules if name.partition(".")[0] == "standing"]:
            del sys.modules[name]

    @pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is not None, reason="torchvision is really installed here"
    )
    def test_torchvision_is_there(self, run: Callable[..., Any]) -> None:
        result = run("import torchvision\nchain = torchvision.transforms.Compose([])\n")
        assert result.exit_code == 0
        assert result.globals["chain"](3) == 3


class TestNotebooks:
    def test_cells_in_order_with_magics(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_notebook(
            tmp_path / "nb.ipynb",
            cell("# A title\nx = not python", "markdown"),
            cell(["%matplotlib inline\n", "import sys\n", "!pip install -q nothing 'it''s\n", "x = 1"]),
            cell(""),
            cell("%%time\nx += 1\nif x:\n    %config InlineBackend.figure_format = 'svg'\nsys?"),
            cell("%%bash\nrm -rf build; exit 1"),
            cell("%time y = (x +\n  40)\n!ls \\\n  --all\nz = '''\n%matplotlib\n!rm\n'''\nw = (100\n% 7)"),
            cell("x", "raw"),
            cell("done = (__name__, sys.argv[1:])"),
        )
        result = run_script(path, ["a"])
        captured = capsys.readouterr()
        assert result.exit_code == 0
        found = result.globals
        assert (found["x"], found["y"], found["w"]) == (2, 42, 100 % 7)
        assert found["z"] == "\n%matplotlib\n!rm\n"
        assert found["done"] == ("__main__", ["a"])
        assert found["__file__"] == str(path)
        notes = captured.err.splitlines()
        assert len(notes) == 8
        assert all(note.startswith(f"ipuperf: {path}[cell ") for note in notes)
        assert notes[0].endswith("nb.ipynb[cell 1] line 1: skipped '%matplotlib inline'")
        assert "[cell 4] line 1: skipped the whole cell" in captured.err
        assert "pip install" in captured.err
        assert captured.out == ""

    def test_traceback_names_cell_and_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_notebook(
            tmp_path / "nb.ipynb",
            cell("def f(a):\n    return 1 / a"),
            cell("text", "markdown"),
            cell("!pip install \\\n  nothing\n\nf(0)\n"),
        )
        result = run_script(path)
        error = capsys.readouterr().err
        assert result.exit_code == 1
        assert f'File "{path}[cell 2]", line 4, in <module>\n    f(0)\n' in error
        assert f'File "{path}[cell 1]", line 2, in f\n    return 1 / a\n' in error
        assert "script.py" not in error
        assert error.rstrip().endswith("ZeroDivisionError: division by zero")

    def test_syntax_error_in_a_cell(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_notebook(tmp_path / "nb.ipynb", cell("print('first')"), cell("x = 1\ny = = 2"))
        assert run_script(path).exit_code == 1
        captured = capsys.readouterr()
        assert captured.out == "first\n"
        assert f'File "{path}[cell 2]", line 2' in captured.err
        assert "y = = 2" in captured.err

    def test_cells_are_on_the_simulated_clock(self, tmp_path: Path) -> None:
        path = write_notebook(
            tmp_path / "nb.ipynb",
            cell("from time import time, sleep\nstart = time()"),
            cell("sleep(7)\ntook = time() - start"),
        )
        assert run_script(path).globals["took"] == pytest.approx(7, abs=1e-6)

    @pytest.mark.parametrize("line", ["files = !ls", "a, b = %who_ls", "  x.y[0] = !date"])
    def test_values_of_magics_are_errors_before_anything_runs(
        self, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_notebook(tmp_path / "nb.ipynb", cell("print('ran')"), cell(f"if True:\n  pass\n{line}"))
        with pytest.raises(ScriptError, match=r"nb\.ipynb\[cell 2\] line 3.*plain Python"):
            run_script(path)
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "JSON expected"),
            (b"{'cells': []}", "JSON expected"),
            (b"\xff\xfe\x00", "JSON expected"),
            (b"[1, 2]", "list 'cells'"),
            (b'{"worksheets": []}', "list 'cells'"),
            (b'{"cells": {}}', "list 'cells'"),
            (b'{"cells": [{"cell_type": "code"}]}', "entry 1 of 'cells'"),
            (b'{"cells": [{"cell_type": "markdown", "source": "a"}, 3]}', "entry 2 of 'cells'"),
            (b'{"cells": [{"cell_type": "code", "source": [1]}]}', "entry 1 of 'cells'"),
        ],
    )
    def test_malformed_notebooks(self, content: bytes, said: str, tmp_path: Path) -> None:
        path = tmp_path / "bad.ipynb"
        path.write_bytes(content)
        with pytest.raises(ScriptError) as caught:
            run_script(path)
        assert str(path) in str(caught.value)
        assert said in str(caught.value)

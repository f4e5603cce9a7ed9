"""Every option of every command with bad values: one clear line, exit code 2, and nothing left behind.

The table holds bad values by command and option; that it misses none is itself a test. All of it runs in this process.
"""

import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ipuperf.cli import cli

FILES = {
    "ok.py": "print('the script ran')\n",
    "table.csv": "a,b\n",
    "broken.ipynb": "{",
    "list.ipynb": "[]",
    "words.toml": "these are words",
    "deep.toml": "a = " + "[" * 5000,
    "digits.toml": "a = " + "9" * 5000,
    "huge.toml": 'extends = "pod4"\n[chip]\n'
    'clock = { value = 1e300, unit = "GHz", source = "none", kind = "assumed" }\n',
    "many.toml": 'extends = "pod64"\n[system]\n'
    'ipus = { value = 65536, unit = "count", source = "none", kind = "assumed" }\n',
    "case.toml": "[[case]]\nid = 'X'\n",
    "questions.csv": "kind,target,dtype,M,K,N\nmatmul,mk2,f16,64,64,64\n",
    "wrong.csv": "kind,target,dtype,M,K,N\nmatmul,mk2,f16,64,0,64\n",
}
CASE = """
[[case]]
id = "X"
category = "kernel"
source = "none"
machine = "pod4"
model = "matmul"
mode = "kernel"
config = { m = 64, k = 64, n = 64 }
measured = { metric = "time", quantity = "cycles", value = 1, unit = "cycles" }
"""
FILES |= {
    "no-plan.toml": CASE.replace("64", str(10**9)),
    "size.toml": CASE.replace("64", str(10**12)),
    "value.toml": CASE.replace("value = 1", f"value = {10**400}"),
    "model.toml": CASE.replace("matmul", "mnist_mlp").replace("m = 64, k = 64, n = 64", "a = 3")
    + 'precision = "f32"\nio = "streams"',
    "torch.toml": CASE.replace("matmul", "bert").replace("m = 64, k = 64, n = 64", 'preset = "base", layers = "x"'),
    "small.toml": CASE.replace("model =", "replicas = 5\nmodel ="),
}
WITH_PYTORCH = "case 'X': config.layers: 'x' is not supported by model 'bert', allowed: a value like 12"
BINARY = bytes(range(256))

MACHINES = {
    "''": "unknown machine ''",
    "pod5": "unknown machine 'pod5' (did you mean pod",
    "gone.toml": "gone.toml: cannot be read: No such file or directory",
    "./folder": "folder: cannot be read: Is a directory",
    "words.toml": "words.toml: not valid TOML",
    "deep.toml": "deep.toml: not valid TOML",
    "digits.toml": "digits.toml: not valid TOML",
    "binary.toml": "binary.toml: ",
    "huge.toml": "huge.toml: chip.clock: value = 1e+300 GHz, a frequency must not exceed 100 GHz",
    "many.toml": "many.toml: system.ipus: 65536 IPUs in 16 IPU-Machines of 4, allowed: 61 to 64",
}
CHIPS = {
    **dict.fromkeys(["''", "gc3"], "allowed: gc2, mk1, gc200"),
    "huge.toml": "must not exceed",
    "gone.toml": "cannot be read",
}
TYPES = dict.fromkeys(["''", "int8", "f64"], "allowed: f16, f32")
SIZES = dict.fromkeys(["0", "-1", "1.5", "''", "x", str(10**30)], "")
OUTPUTS = {"''": "an empty text is no path", "gone/x.csv": "the folder gone does not exist", "folder": "is a directory"}
PRODUCT = "estimate matmul --m 64 --k 64 --n 64"
CONVOLUTION = "estimate convolution --height 8 --kh 3 --cin 8 --cout 8"
VERTEX = "estimate vertex --name relu"

#: Beginning of the command line -> option or argument -> bad value -> what the line says.
TABLE: dict[str, dict[str, dict[str, str]]] = {
    "run": {
        "script": {
            "gone.py": "'gone.py' does not exist",
            "''": "an empty text is no path",
            "folder": "'folder' is a directory",
            "table.csv": "expected a .py script or an .ipynb notebook",
            "broken.ipynb": "not a notebook: JSON expected",
            "list.ipynb": "not a notebook of format 4",
            "binary.ipynb": "not a notebook",
        },
    },
    "run ok.py": {
        "--machine": MACHINES,
        "--clock": dict.fromkeys(["''", "real"], "is not one of 'simulated', 'everywhere', 'wall'"),
        "--between-calls": {
            "''": "is not a valid float",
            "-1": "is not in the range x>=0",
            "soon": "not a valid float",
            "nan": "nan is not a finite number",
        },
        "--fault": {
            "''": "'' cannot be at fault",
            "'ipu 0 at 2'": "a rate of 2, allowed: above 0 and at most 1",
            "'host sync exponential 20'": "'20' is no time",
            "'links ipu0-ipu1 down'": "'links' cannot be at fault (did you mean link?)",
        },
        "--samples": {
            "''": "is not a valid integer",
            "-1": "is not in the range",
            "many": "is not a valid integer",
            "3": "--samples is for a machine with faults",
        },
        "--seed": {"''": "is not a valid integer", "-1": "is not in the range", "1": "--seed is for --samples N"},
        "--report": {
            "''": "an empty text is no path",
            "ok.py": "'ok.py' is a file",
            "ok.py/below": "ok.py/below: the folder cannot be made or written to: ",
            "x" * 300: "File name too long",
        },
    },
    "report": {
        "run": {
            "gone.ipt": "'gone.ipt' does not exist",
            "''": "an empty text is no path",
            "empty": "empty: no trace.ipt in this folder",
            "ok.py": "cannot read trace ok.py",
        },
        "--output": OUTPUTS,
    },
    "export": {
        "run": {
            "gone.ipt --format chakra": "'gone.ipt' does not exist",
            "'' --format chakra": "an empty text is no path",
            "empty --format chakra": "empty: no trace.ipt in this folder",
            "ok.py --format chakra": "cannot read trace ok.py",
        },
        "--format": {"''": "is not one of 'chakra', 'perfetto'", "chakr": "(did you mean chakra?)"},
        "--out": {"''": "an empty text is no path"},
    },
    "compare": {
        "runs": {
            "gone.ipt ok.py": "'gone.ipt' does not exist",
            "''": "an empty text is no path",
            "ok.py": "one RUN is given (ok.py), a comparison takes at least two",
            "ok.py empty": "empty: no trace.ipt in this folder",
            "ok.py binary.toml": "cannot read trace ok.py",
        },
        "--html": OUTPUTS,
        "--json": OUTPUTS,
        "--fail-above": dict.fromkeys(["''", "2", "-1%", "nan%", "x"], "is no percentage, expected one such as 2%"),
    },
    "machines": {"name": {name: text for name, text in MACHINES.items() if name != "many.toml"}},
    "demo": {
        "--steps": dict.fromkeys(["0", "-1", "1.5", "''", "x"], "Invalid value for '--steps'"),
        "--machine": {**MACHINES, "gc200-1": "4 replicas"},
        "--seed": dict.fromkeys(["-1", str(2**32), "1.5", "''", "x"], "Invalid value for '--seed'"),
    },
    "calibrate": {"measurements": {"gone.csv": "'gone.csv' does not exist", "''": "an empty text is no path"}},
    "calibrate ok.py": {
        "programs": {"gone.py": "'gone.py' does not exist", "''": "an empty text is no path"},
        # The file of measurements comes first; tests/calibration has wrong machines and figures beside a right one.
        "--machine": {"nosuch": "ok.py: unknown column"},
        "--figure": {"chip.synk": "ok.py: unknown column"},
        "--noise": {"x": "not a valid float range", "-1": "not in the range 0<x<1", "1": "not in the range 0<x<1"},
        "--out": {"''": "an empty text is no path"},
    },
    "validate": {
        "--cases": {
            "''": "an empty text is no path",
            "gone.toml": "does not exist",
            "empty": "no cases",
            "words.toml": "words.toml: cannot be read as TOML",
            "deep.toml": "deep.toml: cannot be read as TOML",
            "digits.toml": "digits.toml: cannot be read as TOML",
            "binary.toml": "binary.toml: cannot be read as TOML",
            "case.toml": "case 'X': key 'category' is missing",
            "no-plan.toml": "case 'X': matmul [1, 1000000000, 1000000000] x [1, 1000000000, 1000000000]: ",
            "size.toml": "case 'X': config.m: 1000000000000, allowed: 1000000000 at most",
            "value.toml": "case 'X': measured.value: ",
            "model.toml": "case 'X': config: {'a': 3} is not supported by model 'mnist_mlp', allowed: an empty table",
            "torch.toml": WITH_PYTORCH if find_spec("torch") else "no case could run: X: needs PyTorch: pip install",
            "small.toml": "case 'X': pod4: 5 replicas x 1 IPUs per replica need 5",
        },
        "-k": {
            "''": "-k '': allowed: a part of an id",
            "nosuchrow": "no case has 'nosuchrow' in its id",
            "TUT6": "TUT6-TOTAL, TUT6-COMP, TUT6-EXCH: a compiled C++ vertex",
        },
        "--figure": {"chip.sync": "--figure means nothing without --sensitivity"},
        "--jobs": dict.fromkeys(["0", "-1", "65", "1.5", "''", "x"], "Invalid value for '--jobs'"),
        "--json": OUTPUTS,
        "--plot": {**OUTPUTS, "picture.xyz": "no picture has the suffix 'xyz'", "picture": "the suffix ''"},
    },
    "estimate --out answers.csv": {
        "--csv": {
            "''": "an empty text is no path",
            "gone.csv": "does not exist",
            "folder": "is a directory",
            "binary.toml": "not a CSV file",
            "table.csv": "header, column a: unknown",
            "wrong.csv": "row 1, column K: is '0'",
        },
    },
    "estimate --csv questions.csv": {"--out": OUTPUTS},
    "sweep": {
        "source": {
            "''": "an empty text is no path",
            "gone.py": "does not exist",
            "folder": "is a directory",
            "words.toml": "cannot be read as TOML",
            "binary.toml": "cannot be read as TOML",
            "case.toml": "unknown key 'case'; allowed: script",
            "table.csv": "say what with --plot",
        },
    },
    "sweep --format csv ok.py": {
        "--factor": {
            **dict.fromkeys(["''", "n", "=1"], "allowed: NAME=VALUE"),
            "n=1": "unknown factor 'n'",
            "machine=pod5": "unknown machine 'pod5'",
        },
        "--where": {"''": "no expression", "n=1": "no expression", "n": "unknown factor 'n'", "0": "rules out 1"},
        "--out": {
            "''": "an empty text is no path",
            "ok.py": "'ok.py' is a file",
            "ok.py/below": "the file ok.py is in the way",
        },
        "--jobs": dict.fromkeys(["0", "-1", "1.5", "''", "x"], "Invalid value for '--jobs'"),
        "--scheduler": {"nowhere://x": "scheduler"},
        "--format": dict.fromkeys(["''", "xlsx"], "is not one of"),
        "--plot": dict.fromkeys(["''", "lines", "lines:a", "circles:a,b", "pareto:a,"], "allowed: lines:X,Y"),
    },
    "tune --machine pod4 --global-batch 64": {
        "program": {
            "''": "unknown model ''; allowed: bert, clip",
            "nosuch": "unknown model 'nosuch'; allowed: bert, clip",
            "gone.py": "cannot be read",
            "gone.toml": "cannot be read",
        },
        "--like": {"nosuch": "no case has 'nosuch' in its id"},
    },
    "tune ok.py --machine pod4 --global-batch 64": {
        "--machine": {"pod5": "unknown machine 'pod5'", "''": "machine"},
        "--global-batch": dict.fromkeys(["0", "-1", "1.5", "x"], "Invalid value for '--global-batch'"),
        "--set": {"n": "--set 'n', allowed: NAME=VALUE", "n=1": "unknown factor 'n'"},
        "--factor": {"n": "--factor 'n', allowed: NAME=VALUE", "n=1,2": "unknown factor 'n'"},
        "--where": {"n": "none of the factors micro_batch, accumulation, replicas"},
        "--trials": dict.fromkeys(["0", "x"], "Invalid value for '--trials'"),
        "--jobs": dict.fromkeys(["0", "-1", "1.5", "''", "x"], "Invalid value for '--jobs'"),
        "--seed": dict.fromkeys(["-1", "x"], "Invalid value for '--seed'"),
        "--out": {"''": "an empty text is no path", "ok.py": "'ok.py' is a file"},
    },
    PRODUCT: {
        "--chip": CHIPS,
        "--dtype": TYPES,
        "--partials": TYPES,
        "--amp": dict.fromkeys(["0", "-1", "1.1", "nan", "inf", "''", "x"], ""),
        **dict.fromkeys(["--groups", "--m", "--k", "--n"], SIZES),
        "--pass": dict.fromkeys(["''", "fwd"], "pass"),
    },
    CONVOLUTION: {
        "--chip": CHIPS,
        "--dtype": TYPES,
        "--partials": TYPES,
        "--amp": dict.fromkeys(["0", "-1", "1.1", "nan", "inf", "''", "x"], ""),
        **dict.fromkeys(["--batch", "--height", "--width", "--kh", "--kw", "--cin", "--cout", "--groups"], SIZES),
        "--stride": dict.fromkeys(["0", "-1", "1.5", "x"], ""),
        "--pad": dict.fromkeys(["-1", "1.5", "x", str(10**30)], ""),
        "--pass": dict.fromkeys(["''", "nonemm"], "pass"),
    },
    VERTEX: {
        "--chip": CHIPS,
        "--name": dict.fromkeys(["''", "nosuch"], ""),
        "--dtype": TYPES,
        "--elements": dict.fromkeys(["''", "x", "1.5", "-1", "1,,2", str(10**30)], ""),
    },
}


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with the words that call it."""
    for name, command in cli.commands.items():
        yield name, command
        for below, inner in getattr(command, "commands", {}).items():
            yield f"{name} {below}", inner


def _rows() -> Iterator[tuple[str, str]]:
    """Every bad command line, and what is to be said."""
    for start, options in TABLE.items():
        for option, values in options.items():
            for value, text in values.items():
                yield f"{start} {option} {value}" if option.startswith("-") else f"{start} {value}", text
    for name, command in _commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.is_flag:
                yield f"{name} {parameter.opts[0]}=yes", "does not take a value"
            elif isinstance(parameter, click.Option):
                yield f"{name} {parameter.opts[0]}", "requires an argument"
        if name != "run":  # there behind the script they are the script's
            yield f"{name} --nosuch", "No such option"
    yield from MORE.items()


MORE = {
    "--nosuch": "No such option",
    "fly": "No such command 'fly'",
    "run": "Missing argument 'SCRIPT'",
    "machines pod4 pod16": "unexpected extra argument",
    "demo now": "unexpected extra argument",
    "validate now": "unexpected extra argument",
    "validate --sensitivity --leave-one-out": "--sensitivity and --leave-one-out, allowed: one of them",
    "validate --sensitivity --choices": "--choices means nothing with --sensitivity, leave it out",
    "validate --leave-one-out --plot p.png": "--plot means nothing with --leave-one-out, leave it out",
    "validate -k TES-TMAP --sensitivity --figure chip.synk": "figure 'chip.synk': not assumed or calibrated",
    "validate -k TES-ADD --leave-one-out": "no figure was fitted to any of these cases",
    "estimate fly": "No such command 'fly'",
    "estimate matmul --m 1 --k 1": "Missing option '--n'",
    "estimate vertex": "Missing option '--name'",
    "estimate --csv questions.csv": "--csv IN and --out OUT go together",
    "estimate --out answers.csv": "--csv IN and --out OUT go together",
    "estimate --csv questions.csv matmul --m 1 --k 1 --n 1": "--csv and --out go without a command",
    "estimate matmul --m 1 --k 1 --n 1 --partials f16 --dtype f32": "partials are",
    "estimate convolution --height 2 --kh 3 --cin 1 --cout 1": "kernel",
    "estimate convolution --height 8 --kh 3 --cin 9 --cout 8 --groups 2": "groups have to divide",
    "tune encoder --machine pod4 --global-batch 8 --factor stage=1,2": "unknown factor 'stage'",
    "tune encoder --machine pod4 --global-batch 8 --where stage<1": "unknown factor 'stage'",
    "tune encoder --machine pod4 --global-batch 7 --factor micro_batch=2,4": "cannot be divided",
    "tune gone.py --machine pod4 --global-batch 8 -- {a}": "unknown factor 'a'",
    "sweep ok.py --factor machine=pod4 --json -- {m}": "unknown factor 'm'",
    "run --epochs 1 ok.py": "No such option",
    "run -x ok.py": "No such option",
    "run --macine pod4 ok.py": "--macine",
    "run ok.py --macine pod4": "'--macine'. Did you mean '--machine'? If it is the script's own, put it after '--'.",
    "run ok.py --machien=pod4": "Did you mean '--machine'?",
    "run ok.py -machine pod4": "Did you mean '--machine'?",
    "run ok.py --mach pod4": "Did you mean '--machine'?",
    "run ok.py --Machine pod4": "Did you mean '--machine'?",
    "run ok.py --strict_memory": "Did you mean '--strict-memory'?",
    "run ok.py --strict": "Did you mean '--strict-memory'?",
    "run ok.py --reports out": "Did you mean '--report'?",
    "run ok.py 1 --epochs 2 --clok wall": "Did you mean '--clock'?",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: files of :data:`FILES`, some of other kinds, an empty folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in ("binary.toml", "binary.ipynb"):
        (tmp_path / name).write_bytes(BINARY)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IPUPERF_DATA", raising=False)
    return tmp_path


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def _checked(result: Result, text: str) -> None:
    """One line on standard error that begins as all do, and nothing else."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("ipuperf: ")
    assert text in line
    assert "Errno" not in line


@pytest.mark.parametrize(("line", "text"), [pytest.param(*row, id=row[0][:80]) for row in _rows()])
def test_bad_input_is_one_line_and_leaves_nothing(line: str, text: str, folder: Path) -> None:
    before = _tree(folder)
    _checked(CliRunner().invoke(cli, shlex.split(line)), text)
    assert _tree(folder) == before


def test_the_table_has_every_option_and_argument() -> None:
    called = {"estimate matmul": PRODUCT, "estimate convolution": CONVOLUTION, "estimate vertex": VERTEX}
    for name, command in _commands():
        starts = [start for start in TABLE if start == called.get(name, name) or start.startswith(f"{name} -")]
        starts += [start for start in TABLE if start.startswith(f"{name} ok.py")]
        listed = {option for start in starts for option in TABLE[start]}
        for parameter in command.params:
            free = parameter.name == "args" or (isinstance(parameter, click.Option) and parameter.is_flag)
            assert free or listed & {parameter.name, *parameter.opts}, f"{name}: no bad value for {parameter.opts}"


@pytest.mark.parametrize(
    "words",
    [
        ["ok.py", "--epochs", "1", "-v"],
        ["ok.py", "--", "--macine", "pod4", "--report"],
        ["--", "ok.py", "--machine"],
        ["ok.py", "--import", "x", "--models", "--rate"],
    ],
)
def test_what_is_clearly_the_scripts_is_not_questioned(words: list[str], folder: Path) -> None:
    (folder / "ok.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    result = CliRunner().invoke(cli, ["run", *words])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split() == [word for word in words if word not in ("--", "ok.py")]


def test_ipuperf_alone_is_its_help(folder: Path) -> None:
    result = CliRunner().invoke(cli, [])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == CliRunner().invoke(cli, ["--help"]).stdout

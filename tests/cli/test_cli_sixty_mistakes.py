"""Sixty mistakes that users make: one message each, with what is wrong, what is allowed and what was probably meant.

Wrong command lines are one line on standard error and exit code 2. A program's own error is the last line of Python's
traceback. That of a name that does not exist ends in the program's line.
"""

import shlex
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.machine import load_machine
from ipuperf.runtime.tracebacks import shorten

MATMUL = "estimate matmul --m 8 --k 8 --n 8"
TUNE = "tune encoder --machine pod4 --global-batch 64"

#: Command line -> parts of the message.
LINES: dict[str, tuple[str, ...]] = {
    # names of commands and options
    "swep train.py": ("No such command 'swep'", "Did you mean 'sweep'?"),
    "machine pod4": ("No such command 'machine'", "Did you mean", "'machines'"),
    "run --machin pod4 train.py": ("No such option '--machin'", "Did you mean '--machine'?"),
    "run train.py --machin pod4": ("No such option '--machin'", "Did you mean '--machine'?", "put it after '--'"),
    "run --report train.py": ("Directory 'train.py' is a file",),
    "run --why train.py": ("No such option '--why'", "`ipuperf report` has it."),
    "report --wy .": ("No such option '--wy'", "Did you mean", "--why"),
    "validate --sensitivty": ("No such option '--sensitivty'", "--sensitivity"),
    "estimate matmull --m 8": ("No such command 'matmull'", "Did you mean 'matmul'?"),
    "-q -v machines": ("--quiet and --verbose", "allowed: one of them"),
    # machines and chips
    "machines pood4": ("unknown machine 'pood4'", "did you mean pod4", "presets: bow-1, ", "end in .toml"),
    "machines POD16": ("unknown machine 'POD16'", "did you mean pod16"),
    "machines bowpod64": ("unknown machine 'bowpod64'", "did you mean bow-pod64"),
    "run --machine pod-4 train.py": ("unknown machine 'pod-4'", "did you mean pod4"),
    "demo --machine bow4": ("unknown machine 'bow4'", "did you mean bow-1 or bow-pod4"),
    "machines clok.toml": ("clok.toml: chip.clok: unknown key", "did you mean clock", "allowed here: "),
    "machines unit.toml": ("unit.toml: chip.clock: unknown unit 'Ghz'", "did you mean GHz", "allowed: Hz, kHz"),
    "machines kind.toml": ("chip.clock: unknown kind 'mesured'", "did you mean measured", "allowed: datasheet"),
    f"{MATMUL} --chip gc20": ("chip is 'gc20'", "did you mean gc200", "allowed: gc2, mk1"),
    # estimates
    f"{MATMUL} --dtype f166": ("dtype is 'f166'", "did you mean f16?", "allowed: f16, f32"),
    f"{MATMUL} --pass fcfw": ("matmul pass is 'fcfw'", "did you mean fcfwd", "allowed: nonemm"),
    f"{MATMUL} --amp 7": ("availableMemoryProportion is 7", "allowed: above 0, at most 1"),
    "estimate vertex --name rellu": ("vertex is 'rellu'", "did you mean RELU?", "families: UnaryOp1D"),
    "estimate vertex --name ScaleAdd": ("vertex is 'ScaleAdd'", "did you mean ScaledAdd?"),
    "estimate --csv colum.csv --out o.csv": ("column targt: unknown", "did you mean target?", "allowed: kind, "),
    "estimate --csv kind.csv --out o.csv": (
        "row 1, column kind: is 'matmull'",
        "did you mean matmul?",
        "allowed: matmul",
    ),
    # sweeps
    "sweep train.py --format parket": ("'parket' is not one of 'parquet'", "did you mean parquet?"),
    "sweep train.py --factor machin=pod4": ("unknown factor 'machin'", "did you mean machine", "allowed: machine, "),
    "sweep train.py --factor machine=pod44": ("unknown machine 'pod44'", "did you mean pod4"),
    "sweep train.py --factor width": ("--factor 'width'", "allowed: NAME=VALUE"),
    "sweep train.py --plot line:a,b": (
        "unknown kind 'line'",
        "did you mean lines?",
        "allowed: lines:X",
    ),
    "sweep train.py --format csv --factor width=1 --where widht>0 -- {width}": (
        "unknown factor 'widht'",
        "did you mean width?",
    ),
    "sweep train.py --factor width=1 -- {widht}": ("unknown factor 'width'", "did you mean widht?", "allowed: machine"),
    "sweep keys.toml": ("keys.toml: unknown key 'factor'", "did you mean factors?", "allowed: script, model"),
    "sweep model.toml": ("unknown factor 'micro_batc' of model 'encoder'", "did you mean micro_batch?"),
    "sweep figure.toml": ("unknown factor 'machine.chip.clok'", "did you mean machine.chip.clock?"),
    "sweep table.csv --plot lines:width,cycle": ("no column 'cycle'", "did you mean cycles?"),
    # tuning
    "tune bertt --machine pod4 --global-batch 64": (
        "unknown model 'bertt'",
        "did you mean bert?",
        "allowed: bert, clip",
    ),
    "tune Encoder --machine pod4 --global-batch 64": ("unknown model 'Encoder'", "did you mean encoder?"),
    "tune encoder --global-batch 64": ("--machine is missing", "`ipuperf machines` lists them"),
    f"{TUNE} --set config.layres=8": ("config.layres: no such option", "did you mean layers?", "allowed: "),
    f"{TUNE} --set micro_bach=8": ("unknown factor 'micro_bach'", "did you mean micro_batch?", "allowed: accumulation"),
    f"{TUNE} --factor recompte=1": ("unknown factor 'recompte'", "did you mean recompute?"),
    "tune --like OSM-H2": ("no case has the id 'OSM-H2'", "did you mean OSM-H2D?", "`ipuperf validate` lists"),
    "tune --like GPP-RN5O-P16": ("no case has 'GPP-RN5O-P16'", "did you mean GPP-RN50-P16"),
    # validation
    "validate -k OSMH2D": ("no case has 'OSMH2D'", "did you mean OSM-H2D"),
    "validate --sensitivity --figure chip.snyc": ("figure 'chip.snyc'", "did you mean chip.sync", "allowed: "),
    "validate --cases case.toml": ("unknown key 'metrik'", "did you mean metric?", "allowed: "),
    "validate --plot out.pgn": ("no picture has the suffix 'pgn'", "allowed: ", "png"),
    "validate --figure chip.sync": ("--figure means nothing without --sensitivity",),
    # runs and reports
    "run trian.py": ("'trian.py' does not exist", "see 'ipuperf run --help'"),
    "run --clock wal train.py": ("'wal' is not one of 'simulated', 'everywhere', 'wall'", "did you mean wall?"),
    "report table.csv": ("cannot read trace table.csv",),
    "compare table.csv": ("one RUN is given (table.csv)", "at least two"),
}
FIGURE = '{ value = 1.3, unit = "GHz", source = "me", kind = "measured" }'
FILES = {
    "train.py": "print('trained')\n",
    "clok.toml": f'extends = "pod4"\n[chip]\nclok = {FIGURE}\n',
    "unit.toml": f'extends = "pod4"\n[chip]\nclock = {FIGURE.replace("GHz", "Ghz")}\n',
    "kind.toml": f'extends = "pod4"\n[chip]\nclock = {FIGURE.replace("measured", "mesured")}\n',
    "colum.csv": "kind,targt\nmatmul,mk2\n",
    "kind.csv": "kind,target,dtype,M,K,N\nmatmull,mk2,f16,64,64,64\n",
    "keys.toml": 'script = "train.py"\n[factor]\nwidth = [1]\n',
    "model.toml": 'model = "encoder"\n[factors]\nmicro_batc = [1]\n',
    "figure.toml": 'script = "train.py"\n[factors]\nmachine = ["pod4"]\n"machine.chip.clok" = [2]\n',
    "case.toml": "[[case]]\nid = 'X'\ncategory = 'kernel'\nsource = 's'\nmachine = 'pod4'\nmodel = 'matmul'\n"
    "mode = 'kernel'\nmeasured = { metrik = 'time' }\n",
    "table.csv": "width,seed,fits,reason,failure,samples,cycles,seconds,seconds_low,"
    "seconds_high,samples_per_second,runs_per_second,ipus,"
    "max_tile_bytes,bytes_per_tile,took_seconds,ipuperf,format\n1,0,True,,,1,9,1e-9,1e-9,1e-9,1,1,1,1,1,1,0,FORMAT\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the lines name."""
    from ipuperf.tools.sweep.table import FORMAT

    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("FORMAT", str(FORMAT)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_command_line(line: str, folder: Path) -> None:
    done = CliRunner().invoke(cli, shlex.split(line), prog_name="ipuperf")
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (message,) = done.stderr.splitlines()
    assert message.startswith("ipuperf: ")
    assert [part for part in LINES[line] if part not in message] == [], message


def _popxl() -> Any:
    import popxl

    return popxl


def _session_options() -> Any:
    import popart

    return popart.SessionOptions()


def _in_graph(write: Callable[[Any, Any], object]) -> None:
    popxl = _popxl()
    with popxl.Ir().main_graph:
        write(popxl, popxl.variable([1.0, 2.0]))


#: What a program writes -> parts of the message.
PROGRAMS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "op": (lambda: _popxl().ops.matmull, ("popxl.ops.matmull", "did you mean matmul?", "dir(popxl.ops)")),
    "collective": (lambda: _popxl().ops.collectives.all_reduc, ("all_reduc ", "did you mean all_reduce?")),
    "type": (lambda: _popxl().dtypes.dtype.as_dtype("flaot32"), ("'flaot32'", "did you mean float32?", "allowed: ")),
    "option": (
        lambda: setattr(_session_options(), "enableOutliningg", True),
        ("no option 'enableOutliningg'", "did you mean enableOutlining"),
    ),
    "reduction": (
        lambda: _in_graph(lambda popxl, x: popxl.ops.nll_loss(x, x, reduction="men")),
        ("'men'", "mean"),
    ),
    "device": (lambda: _popxl().Session(_popxl().Ir(), "cpuu"), ("device_desc is 'cpuu'", "allowed: ")),
    "schedule": (
        lambda: __import__("ipuperf.schedules", fromlist=["x"]).timetable_of("groupd", 2, 4),
        ("schedule is 'groupd'", "did you mean grouped?", "allowed: "),
    ),
    "table of a trace": (lambda: _trace().table("variabels"), ("variabels", "did you mean variables")),
    "machine": (lambda: load_machine("pood4"), ("unknown machine 'pood4'", "did you mean pod4")),
}


def _trace() -> Any:
    from ipuperf.trace import Trace

    return Trace.load(Path(__file__).parents[1] / "golden" / "report" / "loop.ipt")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("upstream_names")
def test_a_wrong_program(name: str) -> None:
    write, parts = PROGRAMS[name]
    with pytest.raises(Exception) as raised:
        write()
    message = "".join(traceback.format_exception_only(raised.value)).strip()
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message
    if isinstance(raised.value, AttributeError):
        shorten(raised.value)
        shown = traceback.extract_tb(raised.value.__traceback__)
        assert {Path(frame.filename).name for frame in shown} == {Path(__file__).name}, shown


def test_they_are_sixty() -> None:
    assert len(LINES) + len(PROGRAMS) >= 60

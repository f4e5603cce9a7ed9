"""Every wrong input of ``ipuperf calibrate`` is one line (what, where, what is allowed), and nothing is written."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.calibration import CalibrationError, calibrate, read_measurements
from ipuperf.cli import cli

pytest.importorskip("scipy")

HEAD = "program,quantity,measured,unit,machine\n"
COPY = "host_to_device mode=kernel config.bytes=400"


def wrong(folder: Path, text: str, *arguments: str) -> str:
    """What the command says of a file of measurements."""
    file = folder / "steps.csv"
    file.write_text(text, encoding="utf-8")
    before = sorted(folder.iterdir())
    done = CliRunner().invoke(cli, ["calibrate", str(file), "--out", str(folder / "mine.toml"), *arguments])
    assert done.exit_code == 2, done.output
    assert done.output.startswith("ipuperf: ")
    assert done.output.count("\n") == 1
    assert sorted(folder.iterdir()) == before
    return done.output.removeprefix("ipuperf: ").replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program,time\na,1\n", "steps.csv: unknown column 'time'; allowed: program, quantity, measured, unit"),
        ("program,mesured\na,1\n", "unknown column 'mesured' (did you mean measured?)"),
        ("program,unit\na,s\n", "steps.csv: column 'measured' is missing, needed: program, measured"),
        ("program,measured,measured\na,1,1\n", "column 'measured' is there twice"),
        ("", "steps.csv: column 'program' is missing"),
        (HEAD, "steps.csv: no measurements, a row for each is needed"),
        (f"{HEAD}{COPY},time,0,s,pod4\n", "steps.csv: line 2: measured: '0', allowed: a finite number above 0"),
        (f"{HEAD}{COPY},time,-1.5,s,pod4\n", "line 2: measured: '-1.5'"),
        (f"{HEAD}{COPY},time,fast,s,pod4\n", "line 2: measured: 'fast'"),
        (f"{HEAD}{COPY},time,nan,s,pod4\n", "line 2: measured: 'nan'"),
        (f"{HEAD}{COPY},time\n", "line 2: measured: ''"),
        (f"{HEAD},time,1,s,pod4\n", "line 2: program is empty, allowed: a script, a case or a model"),
        (f"{HEAD}{COPY},times,1,s,pod4\n", "line 2: quantity: 'times' (did you mean time?); allowed: time, "),
        (f"{HEAD}{COPY},memory: peak,1,MB,pod4\n", "line 2: quantity: 'memory: peak'"),
        (f"{HEAD}{COPY},time,1,GB/s,pod4\n", "line 2: unit: 'GB/s' is no unit of 'time'; allowed: s, ms"),
        (f"{HEAD}{COPY},time,1,s,pod4,why\n", "line 2: more cells than columns"),
        (f"{HEAD}{COPY},time,1,s,pod4\n{COPY},time,1,s,pod16\n", "line 3: machine: 'pod16', but 'pod4' is fitted"),
        (f"{HEAD}{COPY},time,1,s,\n", "no machine: name one with --machine, or in a column 'machine'"),
        (f"{HEAD}{COPY},time,1,s,pod5\n", "unknown machine 'pod5'"),
        (f"{HEAD}host_to_devise mode=kernel,time,1,s,pod4\n",
         "line 2: no program 'host_to_devise' (did you mean host_to_device?), allowed: a script, the id of"),
        (f"{HEAD}host_to_device mode=kernel,time,1,s,pod4\n", "steps.csv: line 2: config: key 'bytes' is missing"),
        (f"{HEAD}host_to_device mod=kernel,time,1,s,pod4\n", "steps.csv: line 2: unknown key 'mod' (did you mean"),
        (f"{HEAD}host_to_device 400,time,1,s,pod4\n", "line 2: '400', allowed: NAME=VALUE"),
        (f"{HEAD}host_to_device machine=pod4,time,1,s,pod4\n", "'machine=pod4', the machine is named elsewhere"),
        (f"{HEAD}host_to_device config=400 config.bytes=4,time,1,s,pod4\n", "'config=400', allowed: config.NAME=VALUE"),
        (f"{HEAD}train.py,time,1,s,pod4\n", "line 2: no script 'train.py'"),
        (f'{HEAD}"train.py ""a",time,1,s,pod4\n', "No closing quotation"),
        (f"{HEAD}TES-PEAK-N48 rows=1,flop rate,1,TFLOP/s,bow-1\n", "'rows=1' behind the case 'TES-PEAK-N48'"),
        (f"{HEAD}mnist_mlp precision=f16.16 io=streams,time,1,s,pod4\n",
         "steps.csv: line 2: precision: 'f16.16' is not supported by model 'mnist_mlp', allowed: 'f32'"),
        (f"{HEAD}all_reduce mode=kernel replicas=8 config.bytes=400,time,1,s,pod4\n",
         "steps.csv: line 2: pod4: 8 replicas x 1 IPUs per replica need 8 IPUs, there are 4"),
        (f"{HEAD}{COPY},rate,1,it/s,pod4\n", "line 2: quantity: 'rate' is not defined for 'host_to_device mode"),
    ],
)  # fmt: skip
def test_a_wrong_file(tmp_path: Path, text: str, message: str) -> None:
    assert message in wrong(tmp_path, text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machine", "pod16"], "line 2: machine: 'pod4', but 'pod16' is fitted"),
        (["--figure", "host.pcie_bandwith"],
         "figure 'host.pcie_bandwith': pod4 has no such figure (did you mean host.pcie_bandwidth?); allowed: chip."),
        (["--figure", "chip.clock"], "figure 'chip.clock': datasheet, which is fixed, allowed: figures of the kinds "
                                     "measured, calibrated, assumed"),
        (["--figure", "chip.code.vertex"], "figure 'chip.code.vertex': "),
        (["--noise", "0"], "--noise"),
        (["--out", "mine.txt"], "--out mine.txt: allowed: the name of a machine file, which ends in .toml"),
    ],
)  # fmt: skip
def test_a_wrong_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in wrong(tmp_path, f"{HEAD}{COPY},time,1,s,pod4\n", *arguments)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", "", "notes.txt: allowed: a script (.py, .ipynb) or a file of cases (.toml)"),
        ("train.py", "", "train.py: no measurement names it"),
        ("cases.toml", "[[case]]\n", "cases.toml: case number 1: key 'id' is missing"),
    ],
)
def test_a_wrong_program(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert message in wrong(tmp_path, f"{HEAD}{COPY},time,1,s,pod4\n", str(tmp_path / name))


@pytest.mark.parametrize(
    ("script", "message"),
    [("raise ValueError('no data')", "ValueError: no data"), ("", "makes 0 sessions, the run is of number 0")],
)
def test_a_script_that_makes_no_session(tmp_path: Path, script: str, message: str) -> None:
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    said = wrong(tmp_path, f"{HEAD}train.py,time,1,s,pod4\n")
    assert "line 2: " in said
    assert message in said


def test_the_machine_that_is_fitted_is_not_replaced(tmp_path: Path) -> None:
    machine = tmp_path / "mine.toml"
    machine.write_text('extends = "pod4"\n', encoding="utf-8")
    said = wrong(tmp_path, f"{HEAD}{COPY},time,1,s,\n", "--machine", str(machine))
    assert "this is the machine that is fitted, take another name" in said


def test_a_program_on_which_no_figure_has_an_effect(tmp_path: Path) -> None:
    said = wrong(tmp_path, f"{HEAD}tile_products mode=kernel precision=f16.16 config.rows=64,cycles,1000,cycles,pod4\n")
    assert "pod4: no figure that is assumed or calibrated changes one of these programs" in said


def test_two_scripts_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("", encoding="utf-8")
    paths = [str(tmp_path / folder / "train.py") for folder in ("a", "b")]
    assert "allowed: scripts with different names" in wrong(tmp_path, f"{HEAD}train.py,time,1,s,pod4\n", *paths)


def test_a_program_without_time_on_the_device(tmp_path: Path) -> None:
    script = "import popxl\nwith popxl.Session(popxl.Ir(), 'ipu_hw') as session:\n    session.run()\n"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    said = wrong(tmp_path, f"{HEAD}train.py,device time,1,s,pod4\n")
    assert "line 2: 'device time' of 'train.py' is predicted as 0.0, which no factor changes" in said


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert "the fit needs SciPy: " in wrong(tmp_path, f"{HEAD}{COPY},time,1,s,pod4\n")


def test_a_noise_from_python(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"noise 2\.0, allowed: above 0, below 1"):
        calibrate(tmp_path / "steps.csv", machine="pod4", noise=2.0)
    with pytest.raises(CalibrationError, match="cannot be read: No such file"):
        read_measurements(tmp_path / "steps.csv")


def test_units_have_defaults_and_spreadsheets_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("\ufeffprogram,measured,quantity,note\na, 2.5 ,,x\nb,3,cycles,\nc,4,bandwidth,\n", encoding="utf-8")
    rows = read_measurements(file)
    assert [(row.quantity, row.unit, row.base) for row in rows] == [
        ("time", "s", 2.5),
        ("cycles", "cycles", 3.0),
        ("bandwidth", "MB/s", 4e6),
    ]

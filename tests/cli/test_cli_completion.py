"""What a shell offers behind TAB: values of options and arguments, by click's classes for Bash and Zsh, and in Bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from ipuperf.cli import cli
from ipuperf.machine import list_machines
from ipuperf.pipelines.schedules import SCHEDULES

#: Words of a command line, the last one incomplete -> what is offered for it.
OFFERED = {
    "run --machine bow-pod1": ["bow-pod16", "bow-pod128"],
    "run --machine a": ["auto"],
    "run --clock ": ["simulated", "everywhere", "wall"],
    "run --repo": ["--report"],
    "demo --machine pod4": ["pod4"],
    "machines gc2": ["gc2-1", "gc200-1"],
    "estimate matmul --chip mk": ["mk1", "mk2"],
    "estimate matmul --dtype ": ["f16", "f32"],
    "estimate matmul --pass fc": ["fcinf", "fcfwd", "fcbwd", "fcwu"],
    "estimate convolution --pass b": ["bwd"],
    "sweep train.py --format ": ["parquet", "csv", "json"],
    "sweep train.py --factor mach": ["machine=", "machine.="],
    "tune be": ["bert"],
    "tune encoder --machine bow-1": ["bow-1"],
    "tune --like OSM-": ["OSM-COPY8K", "OSM-H2D"],
    "validate -k OSM-H": ["OSM-H2D"],
}
#: The same with ``=`` and ``:``, at which Bash breaks words: the word as Zsh has it, the words of Bash.
BROKEN = {
    "run --machine=bow-pod4": ("run --machine = bow-pod4", ["bow-pod4"], ["bow-pod4"]),
    "tune encoder --set config.schedule=zb": (
        "tune encoder --set config.schedule = zb",
        ["config.schedule=zb_h1"],
        ["zb_h1"],
    ),
    "sweep a.py --factor machine=pod4,bow-1": (
        "sweep a.py --factor machine = pod4,bow-1",
        ["machine=pod4,bow-1"],
        ["pod4,bow-1"],
    ),
    "sweep a.py --plot heat": ("sweep a.py --plot heat", ["heatmap:"], ["heatmap:"]),
}


def _values(shell: str, line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the values that a shell is told for the last word of a line."""
    words = ["ipuperf", *line.split(" ")]
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    lines = completion_class(cli, {}, "ipuperf", "_IPUPERF_COMPLETE").complete().splitlines()
    return [line.split(",", 1)[1] for line in lines] if shell == "bash" else lines[1::3]


@pytest.mark.parametrize("line", OFFERED)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_values_are_offered(shell: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _values(shell, line, monkeypatch) == OFFERED[line]


@pytest.mark.parametrize("line", BROKEN)
def test_words_that_bash_breaks(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole, rest = BROKEN[line]
    assert [_values("zsh", line, monkeypatch), _values("bash", broken, monkeypatch)] == [whole, rest]


def test_all_machines_and_schedules_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _values("zsh", "demo --machine ", monkeypatch) == list_machines()
    offered = _values("zsh", "tune encoder --set config.schedule=", monkeypatch)
    assert offered == [f"config.schedule={name}" for name in SCHEDULES]


def test_files_are_offered_where_no_name_begins_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("run --machine ./mine", "tune mine"):
        assert _values("bash", line, monkeypatch) == [line.split()[-1]]
        monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
        assert get_completion_class("bash")(cli, {}, "ipuperf", "_X").complete().startswith("file,")  # type: ignore[misc]


def _choices(command: click.Command, name: str) -> list[str]:
    (option,) = [option for option in command.params if option.name == name]
    return [item.value for item in option.type.shell_complete(click.Context(command), option, "")]


def test_offered_names_are_those_that_commands_take() -> None:
    """Names that the command line lists itself are those of the rooms that read them."""
    from ipuperf.lowering.planner.form import CONVOLUTION_PASSES, PRODUCT_PASSES
    from ipuperf.tools.sweep.plots import _COLUMNS

    estimate = cli.commands["estimate"]
    assert isinstance(estimate, click.Group)
    assert _choices(estimate.commands["matmul"], "pass_") == list(PRODUCT_PASSES)
    assert _choices(estimate.commands["convolution"], "pass_") == list(CONVOLUTION_PASSES)
    assert _choices(cli.commands["sweep"], "plots") == [f"{kind}:" for kind in _COLUMNS]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no Bash")
def test_in_bash(tmp_path: Path) -> None:
    """Bash evaluates click's script and completes with it."""
    program = tmp_path / "ipuperf"
    program.write_text(f"#!{sys.executable}\nfrom ipuperf.cli import main\nmain()\n")
    program.chmod(0o755)
    script = """
        eval "$(_IPUPERF_COMPLETE=bash_source ipuperf)"
        COMP_WORDS=(ipuperf run --machine = bow-pod4)
        COMP_CWORD=4
        _ipuperf_completion ipuperf
        echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("bow-pod4\n", "")

"""``ipuperf --version``, ``ipuperf machines`` and what happens with names that are not there."""

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ipuperf
from ipuperf.cli import cli, main
from ipuperf.trace import TraceError


def test_version_of_the_installed_command(run_ipuperf: Callable, tmp_path: Path) -> None:
    done = run_ipuperf("--version", cwd=tmp_path)
    told = f"ipuperf, version {ipuperf.__version__}, numbers by NumPy {np.__version__}"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(told)


def test_help_names_every_command(run_ipuperf: Callable, tmp_path: Path) -> None:
    done = run_ipuperf("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout for command in ("run", "machines", "demo"))


def test_machines_describes_one_with_its_links_and_sources(ipuperf_here: Callable, tmp_path: Path) -> None:
    done = ipuperf_here("machines", "pod4", cwd=tmp_path)
    assert done.returncode == 0
    text = done.stdout
    assert "1,472 with 6 workers" in text
    assert "638,976 bytes per tile" in text
    for link in ("pod4/ipu0->ipu1", "pod4/ipu1->ipu3", "pod4/ipu3->gateway0", "pod4/gateway0->ddr0"):
        assert link in text
    figures = text[text.index("\nFigures\n") :].splitlines()[3:]
    kinds = {"datasheet", "measured", "calibrated", "assumed"}
    assert len(figures) > 20
    for line in figures:
        assert kinds & set(line.split()), f"no kind in {line!r}"
    ddr = next(line for line in figures if "ipu_machine.ddr_bandwidth" in line)
    assert "calibrated" in ddr
    assert "GPTJ-fp16" in ddr, "a calibrated figure names the measurements it was fitted to"


def test_a_machine_of_ones_own_is_described(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'extends = "pod4"\nname = "mine"\n[ipu_machine]\n'
        'ddr_bandwidth = { value = 20, unit = "GB/s", source = "what if", kind = "assumed" }\n'
    )
    done = ipuperf_here("machines", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("mine: ")
    assert "what if" in done.stdout


def test_a_wrong_machine_file_names_file_and_key(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('extends = "pod4"\n[ipu_machine]\nddr_speed = 3\n')
    done = ipuperf_here("machines", "wrong.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ipuperf: wrong.toml: ipu_machine.ddr_speed: unknown key")
    assert "Traceback" not in done.stderr


def test_errors_of_ipuperf_outside_a_users_program_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ipuperf", "demo", "--steps", "1", "--machine", "nosuch"])
    monkeypatch.setattr("ipuperf.cli.demo.demo.callback", lambda **options: ipuperf_error())
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "ipuperf: load_machine: no such thing\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError("Unable to allocate 7.11 PiB"), 2, "out of memory: Unable to allocate 7.11 PiB"),
        (MemoryError(), 2, "out of memory"),
        (OverflowError("int too large"), 2, "a number is too large: int too large"),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deep: maximum recursion depth exceeded"),
        (OSError(errno.ENOSPC, "No space left on device", "a/file"), 2, "a/file: No space left on device"),
        (OSError("no number and no file"), 2, "no number and no file"),
        (TraceError("first line\n  second line"), 2, "first line second line"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("command", ["demo", "machines", "validate"])
def test_limits_of_the_computer_are_one_line(
    command: str, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli.commands[command], "callback", fail)
    result = CliRunner().invoke(cli, [command])
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (code, "", f"ipuperf: {said}")


def test_a_defect_of_ipuperf_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.commands["machines"], "callback", lambda **options: {}["key"])
    result = CliRunner().invoke(cli, ["machines"])
    assert isinstance(result.exception, KeyError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output(ipuperf_command: list[str], child_environment: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*ipuperf_command, "machines"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=child_environment,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "ipuperf: No space left on device\n")


def ipuperf_error() -> None:
    """As a room of ipuperf would fail."""
    from ipuperf.machine import MachineError

    raise MachineError("load_machine: no such thing")

"""The pytest plug-in of ipuperf: fixture ``cycle_baseline`` and option ``--update-baselines``.

pytest loads this module in every run where ipuperf is installed. It therefore imports only pytest; everything else
is imported by the first test that asks for the fixture. ``pytest -p no:ipuperf`` leaves the plug-in out.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ipuperf.tools.testing.fixture import CycleBaseline, Ledger

_LEDGER: pytest.StashKey[Ledger] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options and settings."""
    group = parser.getgroup("ipuperf", "cycles and bytes of IPU programs (ipuperf)")
    group.addoption(
        "--update-baselines",
        action="store_true",
        default=False,
        help="write the baselines of the tests that run (fixture cycle_baseline) instead of comparing with them",
    )
    group.addoption(
        "--baselines-dir",
        metavar="DIR",
        default=None,
        help="folder of baselines; overrides the setting ipuperf_baselines",
    )
    parser.addini(
        "ipuperf_baselines",
        "folder of baselines: relative to the folder of each test file, or absolute and then with the folders of the "
        "test files below it",
        default="baselines",
    )


@pytest.fixture
def cycle_baseline(request: pytest.FixtureRequest) -> CycleBaseline:
    """Compare cycles, ops and bytes of a program with a recorded baseline: ``cycle_baseline.check(session)``.

    ``pytest --update-baselines`` records. See ipuperf.testing.CycleBaseline.
    """
    from ipuperf.tools.testing.fixture import CycleBaseline, Ledger, stem_of

    config, node = request.config, request.node
    # The identifier begins with the file's path. The folder and the stem name that file already.
    name = ".".join(node.nodeid.split("::", 1)[1:]).replace("::", ".") or node.name
    return CycleBaseline(
        test=node.nodeid,
        stem=stem_of(node.path.stem, name),
        folder=_folder(config, node.path.parent),
        update=bool(config.getoption("--update-baselines")),
        command=_command(config, node),
        ledger=config.stash.setdefault(_LEDGER, Ledger()),
    )


def _folder(config: pytest.Config, beside: Path) -> Path:
    """Return the folder of the baselines for the test files beside which it is asked for."""
    folder = Path(config.getoption("--baselines-dir") or config.getini("ipuperf_baselines"))
    if not folder.is_absolute():
        return beside / folder
    try:
        return folder / beside.relative_to(config.rootpath)
    except ValueError:
        # The test file lies outside of the root folder.
        return folder / beside.name


def _command(config: pytest.Config, node: pytest.Item) -> str:
    """Return the command that records a test's baselines, from the folder in which pytest was started."""
    try:
        place = os.path.relpath(node.path, config.invocation_params.dir)
    except ValueError:  # another drive
        place = str(node.path)
    test = "::".join([place, *node.nodeid.split("::")[1:]])
    return f"pytest {shlex.quote(test)} --update-baselines"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the baselines that were written."""
    ledger = config.stash.get(_LEDGER, None)
    if ledger is None or not config.getoption("--update-baselines"):
        return
    terminalreporter.section("baselines")
    for path, change in ledger.written:
        terminalreporter.line(f"{change}: {os.path.relpath(path, config.invocation_params.dir)}")
    terminalreporter.line(f"{len(ledger.written)} written, {ledger.unchanged} unchanged")

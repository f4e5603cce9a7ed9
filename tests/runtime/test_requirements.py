"""The commands that errors give where a package is missing name packages, not ipuperf itself."""

import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from ipuperf.base import requirements
from ipuperf.base.requirements import pip_install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_every_extra_has_the_packages_of_pyproject(repository: Path) -> None:
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in extras.items():
        named = {re.split(r"[<>=]", package)[0] for package in packages if not package.startswith("ipuperf[")}
        command = pip_install(extra)
        assert command.startswith("pip install '")
        assert "ipuperf" not in command
        assert named <= {re.split(r"[<>=]", part.strip("'"))[0] for part in command.split()[2:]}


def test_extras_of_extras() -> None:
    assert re.fullmatch(r"pip install 'torch<\S+' 'torch_geometric<\S+'", pip_install("geometric"))


def test_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "requires", missing)
    assert pip_install("torch") == "install the extra torch of ipuperf"

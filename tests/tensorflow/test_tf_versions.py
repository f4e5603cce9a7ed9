"""Versions of TensorFlow: what the extra installs is what runs."""

import re
from pathlib import Path

import pytest

from ipuperf.tensorflow.state import END, FIRST, check_version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_installs_the_versions_that_run():
    (line,) = re.findall(r"^tensorflow = (.*)$", PROJECT.read_text(encoding="utf-8"), re.MULTILINE)
    bounds = "{}.{}".format(*FIRST), "{}.{}".format(*END)
    assert re.findall(r"[\w-]+>=([\d.]+),<([\d.]+)", line) == [bounds, bounds]


@pytest.mark.parametrize("version", ["2.16.2", "2.19.1", "2.21.0", "2.21.1-rc0"])
def test_versions_that_run(version):
    check_version(version)


@pytest.mark.parametrize("version", ["1.15.5", "2.15.1", "2.22.0", "3.0.0-rc1"])
def test_other_versions_are_one_error(version):
    with pytest.raises(
        ImportError, match=f"TensorFlow {version} is installed.*2.16 and newer, below 2.22.*pip install"
    ):
        check_version(version)

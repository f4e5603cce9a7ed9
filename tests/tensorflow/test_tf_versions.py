"""Versions of TensorFlow: what the extra installs is what runs."""

import re
from pathlib import Path

from ipuperf.tensorflow.state import END, FIRST

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_installs_the_versions_that_run():
    (line,) = re.findall(r"^tensorflow = (.*)$", PROJECT.read_text(encoding="utf-8"), re.MULTILINE)
    bounds = "{}.{}".format(*FIRST), "{}.{}".format(*END)
    assert re.findall(r"[\w-]+>=([\d.]+),<([\d.]+)", line) == [bounds, bounds]

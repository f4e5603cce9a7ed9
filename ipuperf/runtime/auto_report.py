"""``POPLAR_ENGINE_OPTIONS``: reports that the environment of a program asks for with ``autoReport.*``.

The report is ipuperf's own: a folder with ``trace.ipt``, never a ``profile.pop``. It is written after the first run of
a session. The report of the first session stands in ``autoReport.directory`` itself, as Poplar's profile does; those
of PopTorch's models stand in ``training`` and ``inference`` below it. Further sessions of the process have
``<n>-<name>`` below that folder. A report is always whole, whichever part of it an option asks for.

Options: graphcore/examples ``tutorials/tutorials/popvision/libpva``. All other options of Poplar are without effect.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .effects import tell

if TYPE_CHECKING:
    from .executable import Executable

VARIABLE = "POPLAR_ENGINE_OPTIONS"
#: Options that ask for a report.
ASKING = ("autoReport.all", "autoReport.outputExecutionProfile", "autoReport.outputGraphProfile")
DIRECTORY = "autoReport.directory"
_WORDS = {"true": True, "false": False}

#: Number of reports that this process has written to each folder.
_written: dict[Path, int] = {}


class EngineOptionsError(ValueError):
    """``POPLAR_ENGINE_OPTIONS`` cannot be read."""


def report_directory() -> Path | None:
    """Return the folder in which the environment wants reports; None: it wants none.

    Raises:
        EngineOptionsError: the variable is no JSON object of strings, numbers and truths, or a value is neither true
            nor false.
    """
    options = _options()
    flags = [_flag(name, options[name]) for name in ASKING if name in options]
    for name in sorted(set(options) - {*ASKING, DIRECTORY}):
        tell(f"{VARIABLE}: {name} is without effect: it is about Poplar, which is not here")
    return Path(options.get(DIRECTORY, ".")) if any(flags) else None


def write_auto_report(executable: Executable) -> Path | None:
    """Write the report of a session that has run, if the environment asks for one, and print its folder.

    Raises:
        EngineOptionsError: see :func:`report_directory`.
        OSError: the folder cannot be written.
    """
    directory = report_directory()
    if directory is None:
        return None
    # Imported here: most runs write no such report.
    from ipuperf.report import write_report

    # Reports are counted by absolute folders, because a program may change its working directory.
    base = (directory / executable.report_name).absolute()
    number = _written.get(base, 0)
    # A name may hold anything; a folder's name should not.
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", executable.name).strip("-") or "program"
    folder = base / f"{number}-{stem}" if number else base
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_report(executable.trace, folder)
    _written[base] = number + 1
    print(f"ipuperf: {VARIABLE} asks for a report: {folder} (no profile.pop; pva.openReport reads it)", file=sys.stderr)
    return folder


def _options() -> dict[str, str]:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise EngineOptionsError(f"{VARIABLE}: {text!r} is no JSON: {error}") from None
    if not isinstance(options, dict) or not all(isinstance(value, (str, int, float)) for value in options.values()):
        raise EngineOptionsError(
            f'{VARIABLE}: {text!r}: expected a JSON object of strings, numbers and truths, {{"autoReport.all": true}}'
        )
    # Options are texts, as in Poplar, so true becomes 'true'.
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}


def _flag(name: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        raise EngineOptionsError(f"{VARIABLE}: {name} is {value!r}, allowed are 'true' and 'false'")
    return _WORDS[value.lower()]

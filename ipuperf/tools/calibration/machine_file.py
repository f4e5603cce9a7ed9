"""The machine file with fitted figures: it extends the machine that was fitted, which stays as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ipuperf.tools.errors import CalibrationError
from ipuperf.trace import replacing

from .fit import Calibration

_STILL = 0.001


def check_target(path: Path, machine: str) -> None:
    """Raise :class:`CalibrationError` unless ``path`` may become a machine file other than that of ``machine``."""
    if path.suffix != ".toml":
        raise CalibrationError(f"--out {path}: allowed: the name of a machine file, which ends in .toml")
    if machine.endswith(".toml") and path.resolve() == Path(machine).resolve():
        raise CalibrationError(f"--out {path}: this is the machine that is fitted, take another name")


def write_machine(calibration: Calibration, path: Path) -> None:
    """Write the file, whole or not at all.

    It has the figures that the measurements tell, as calibrated ones. Others have moved with these: they keep their
    kind, and are left out where they moved by less than :data:`_STILL`.
    """
    check_target(path, calibration.machine)
    lines = [
        f"# Figures fitted by ipuperf calibrate to {Path(calibration.file).name}.",
        f"extends = {_text(_base(calibration.machine, path))}",
        f"name = {_text(path.stem)}",
    ]
    for known in calibration.figures:
        if not known.told and abs(known.moved) < _STILL:
            continue
        before = f"{known.before:g} {known.unit} before ({known.kind}: {known.source})"
        source = (
            f"fitted by ipuperf calibrate to {len(calibration.rows)} measurements of {Path(calibration.file).name}, "
            f"known to {known.deviation:.1%}; {before}"
        )
        kind = "calibrated" if known.told else known.kind
        texts = f"unit = {_text(known.unit)}, source = {_text(source)}, kind = {_text(kind)}"
        # A number as Python prints it is one of TOML's.
        lines.append(f"{known.figure} = {{ value = {known.after!r}, {texts} }}")
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _base(machine: str, path: Path) -> str:
    """The preset's name, or the way from the new file to the machine's own."""
    if not machine.endswith(".toml"):
        return machine
    return Path(os.path.relpath(machine, path.resolve().parent)).as_posix()


def _text(text: str) -> str:
    """A string of TOML: its escapes are among those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

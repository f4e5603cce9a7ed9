"""Measured steps, read strictly from CSV.

A file looks like this::

    program,quantity,measured,unit
    train.py --batch 8,time,1.31,ms
    host_to_device mode=kernel config.bytes=50000000,time,9.1,ms
    HYD-gather-256x128->1024,cycles,3920,cycles

``program`` and ``measured`` are needed. ``program`` is a script with its arguments, the id of a case of
``ipuperf validate``, or a model of it with keys of a case (:mod:`.programs`). ``quantity`` is one of
:data:`~ipuperf.tools.validation.units.QUANTITIES` but those of memory (default: ``time``). ``unit`` is one of its units
(default: s, cycles, it/s, GFLOP/s, MB/s). ``machine`` names the machine of the row, which has to be the one that is
fitted. ``note`` is for the reader.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipuperf.base.near_names import instead_of
from ipuperf.tools.errors import CalibrationError
from ipuperf.tools.validation.units import QUANTITIES, UNITS, units_of

NEEDED = ("program", "measured")
COLUMNS = ("program", "quantity", "measured", "unit", "machine", "note")
QUANTITIES_OF_TIME = tuple(name for name, quantity in QUANTITIES.items() if quantity.dimension != "bytes")


@dataclass(frozen=True)
class Measurement:
    """A row of the file.

    Attributes:
        where: file and line, for messages.
        program, quantity, value, unit, machine: its columns; ``machine`` may be empty.
    """

    where: str
    program: str
    quantity: str
    value: float
    unit: str
    machine: str = ""

    @property
    def base(self) -> float:
        """The value in the base unit of its quantity."""
        return self.value * UNITS[self.unit][1]


def read_measurements(path: str | Path) -> list[Measurement]:
    """Read a file of measured steps.

    Raises:
        CalibrationError: the file cannot be read or has no rows; a column or a value is not allowed.
    """
    try:
        # Spreadsheets begin a file with a byte order mark.
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(str(path), list(reader.fieldnames or ()))
            rows = [_measurement(f"{path}: line {reader.line_num}", row) for row in reader]
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeError) as error:
        raise CalibrationError(f"{path}: cannot be read as CSV: {error}") from error
    if not rows:
        raise CalibrationError(f"{path}: no measurements, a row for each is needed")
    return rows


def _check_columns(path: str, names: list[str]) -> None:
    for name in names:
        if name not in COLUMNS:
            raise CalibrationError(f"{path}: unknown column {name!r}{instead_of(name, COLUMNS)}")
        if names.count(name) > 1:
            raise CalibrationError(f"{path}: column {name!r} is there twice")
    for name in NEEDED:
        if name not in names:
            raise CalibrationError(f"{path}: column {name!r} is missing, needed: {', '.join(NEEDED)}")


def _measurement(where: str, row: Mapping[str | None, str | list[str] | None]) -> Measurement:
    # DictReader puts cells beyond the last column under None, and None into cells that are missing.
    if None in row:
        raise CalibrationError(f"{where}: more cells than columns; a comma within a cell needs quotes around it")
    cells = {str(name): str(cell or "").strip() for name, cell in row.items()}
    if not cells["program"]:
        raise CalibrationError(f"{where}: program is empty, allowed: a script, a case or a model")
    quantity = cells.get("quantity") or "time"
    if quantity not in QUANTITIES_OF_TIME:
        raise CalibrationError(f"{where}: quantity: {quantity!r}{instead_of(quantity, QUANTITIES_OF_TIME)}")
    unit = cells.get("unit") or units_of(quantity)[0]
    if unit not in units_of(quantity):
        raise CalibrationError(
            f"{where}: unit: {unit!r} is no unit of {quantity!r}{instead_of(unit, units_of(quantity))}"
        )
    value = _positive(where, cells["measured"])
    return Measurement(where, cells["program"], quantity, value, unit, cells.get("machine", ""))


def _positive(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise CalibrationError(f"{where}: measured: {text!r}, allowed: a finite number above 0")
    return value

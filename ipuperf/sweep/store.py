"""The folder of a sweep: one folder for each run, whole or not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import SweepError
from .table import check_format

ROW = "row.json"
_UNFINISHED = ".unfinished-"


class Store:
    """The runs below ``folder/runs``, which is made for the first one that is written.

    Raises:
        SweepError: there is a file in its place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        for place in (self.runs, *self.runs.parents):
            if place.exists() and not place.is_dir():
                raise SweepError(f"{folder}: cannot be a folder, the file {place} is in the way")
        for left in self.runs.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def row(self, key: str) -> dict[str, Any] | None:
        """The row of a run; None where it is still to be made.

        Raises:
            SweepError: it is of another version, or no row.
        """
        path = self.runs / key / ROW
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SweepError(f"{path}: no row of `ipuperf sweep`: {error}; delete its folder") from None
        if not isinstance(found, dict):
            raise SweepError(f"{path}: no row of `ipuperf sweep`; delete its folder")
        check_format(found.get("format"), path)
        return found

    def write(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row; one that is there is replaced."""
        target = self.runs / key
        self.runs.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=self.runs, prefix=_UNFINISHED))
        try:
            (made / ROW).write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
            if target.exists():
                shutil.rmtree(target)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

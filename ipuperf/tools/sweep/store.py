"""The folder of a sweep. Each run has a folder of its own, whose row is written completely or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipuperf.tools.errors import SweepError
from ipuperf.trace import replacing

from .table import check_format

ROW = "row.json"


class Store:
    """The runs in ``folder/runs``, which is made when the first run is written.

    Raises:
        SweepError: a file is in the place of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        for place in (self.runs, *self.runs.parents):
            if place.exists() and not place.is_dir():
                raise SweepError(f"{folder}: cannot be a folder, the file {place} is in the way")
        # A process that was killed leaves the place where it was writing.
        for unfinished in self.runs.glob(f"*/.{Path(ROW).stem}.*.tmp"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def row(self, key: str) -> dict[str, Any] | None:
        """The row of a run; None if there is none yet.

        Raises:
            SweepError: the file has another version, or it is no row.
        """
        path = self.runs / key / ROW
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SweepError(f"{path}: no row of `ipuperf sweep`: {error}; delete its folder") from None
        if not isinstance(row, dict):
            raise SweepError(f"{path}: no row of `ipuperf sweep`; delete its folder")
        check_format(row.get("format"), path)
        return row

    def write(self, key: str, row: Mapping[str, Any]) -> None:
        """Write a row. A previous row of the run stays until the new one is whole."""
        folder = self.runs / key
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(folder / ROW) as temporary:
                temporary.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        except OSError:
            with suppress(OSError):  # a previous row is in it
                folder.rmdir()
            raise

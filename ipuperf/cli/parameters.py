"""Parameter types that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class FilePath(click.Path):
    """A path as `pathlib.Path`. Empty text, which ``pathlib`` reads as the current folder, is refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; `click.BadParameter` if the name cannot be a path."""
        if value == "":
            self.fail("an empty text is no path", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(FilePath):
    """A file to be written. Its folder must exist and be writable before any work is done for the file."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; `click.BadParameter` if no file can be written there."""
        path = super().convert(value, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: the folder {path.parent} does not exist", param, ctx)
        # A simulation of minutes should not end in an error about its output.
        if not os.access(path.parent, os.W_OK):
            self.fail(f"{path}: the folder {path.parent} is not writable", param, ctx)
        return path

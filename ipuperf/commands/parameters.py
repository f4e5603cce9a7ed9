"""Types of parameters that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class FilePath(click.Path):
    """A path as `pathlib.Path`; an empty text, which ``pathlib`` takes for the current folder, is refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; `click.BadParameter` when there cannot be one of this name."""
        if value == "":
            self.fail("an empty text is no path", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(FilePath):
    """A file to be written: its folder has to be there, and writable, before any work is done for it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; `click.BadParameter` when no file can be written there."""
        path = super().convert(value, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: the folder {path.parent} does not exist", param, ctx)
        if not os.access(path.parent, os.W_OK):
            self.fail(f"{path}: the folder {path.parent} is not writable", param, ctx)
        return path

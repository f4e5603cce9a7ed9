"""Parameter types that several commands share, with what a shell offers for them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ipuperf.base.near_names import did_you_mean


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


class Finite(click.FloatRange):
    """A number within bounds; a number of Python may also be ``nan`` and ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


class NamedChoice(click.Choice[str]):
    """One of a few names; an error has those that are near."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return click's message with the names near ``value``."""
        return f"{super().get_invalid_choice_message(value, ctx)[:-1]}{did_you_mean(value, self.choices)}."


class Name(click.ParamType[str]):
    """A name that a command looks up itself. A shell offers the names, and files where no name begins as the word does.

    Args:
        names: returns the names; called for a completion only, as most of them need NumPy.
        files: whether the name of a file will do too.
    """

    name = "name"

    def __init__(self, names: Callable[[], Iterable[str]], *, files: bool = False) -> None:
        self._names, self._files = names, files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it is."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with ``incomplete``."""
        items = [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]
        return items if items or not self._files else [CompletionItem(incomplete, type="file")]


class Assignment(Name):
    """``NAME=VALUE``; a shell offers the names, and behind ``=`` the values that are known.

    Args:
        names: as of :class:`Name`.
        values: the functions that return the values of a name.
    """

    def __init__(self, names: Callable[[], Iterable[str]], values: dict[str, Callable[[], Iterable[str]]]) -> None:
        super().__init__(names)
        self._values = values

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return ``NAME=`` for the names that begin so, or ``NAME=VALUE`` for the values."""
        name, equals, text = incomplete.partition("=")
        if not equals:
            return [CompletionItem(f"{item.value}=") for item in super().shell_complete(ctx, param, incomplete)]
        # A factor has several values, with commas between them.
        before, comma, last = text.rpartition(",")
        values = self._values.get(name, tuple)()
        return [CompletionItem(f"{name}={before}{comma}{value}") for value in values if value.startswith(last)]


def machine_names() -> Sequence[str]:
    """Return the names of the machines that come with ipuperf."""
    from ipuperf.machine import list_machines

    return list_machines()


def chip_names() -> Sequence[str]:
    """Return what ``--chip`` takes: chips, and machines for their chip."""
    from ipuperf.lowering.planner.arguments import CHIPS

    return [*CHIPS, *machine_names()]


def model_names() -> Sequence[str]:
    """Return the models of ``ipuperf.models`` that have a program."""
    from ipuperf.tools.validation.programs import model_names as names

    return names()


def case_ids() -> Sequence[str]:
    """Return the ids of the cases that come with ipuperf."""
    from ipuperf.tools.validation import read_cases

    return [case.id for case in read_cases().cases]


def figure_keys() -> Sequence[str]:
    """Return the dotted keys of the figures that machines may have."""
    from ipuperf.machine.schema import FIGURES

    return list(FIGURES)


def _schedules() -> Sequence[str]:
    from ipuperf.pipelines.schedules import SCHEDULES

    return list(SCHEDULES)


def _factors() -> Sequence[str]:
    from ipuperf.tools.sweep.spec import FIGURE, MACHINE
    from ipuperf.tools.validation.cases import PROGRAM_KEYS

    return [
        MACHINE,
        *sorted({*PROGRAM_KEYS} - {"model", "config", MACHINE}),
        "config.preset",
        "config.schedule",
        FIGURE,
    ]


MACHINE_OR_FILE = Name(machine_names, files=True)
FACTOR = Assignment(_factors, {"machine": machine_names, "config.schedule": _schedules})

"""``ipuperf.toml``: defaults of the command line's options, read from the folder in which a command is run.

Keys at the top are ``quiet``, ``verbose`` and ``debug``. A table with the name of a command holds its options by their
long names without the dashes; what is said on the command line wins::

    quiet = true

    [run]
    machine = "pod16"
    strict-memory = true
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ipuperf.base.near_names import instead_of

FILE = "ipuperf.toml"
_TOP = ("quiet", "verbose", "debug")


def read_settings(context: click.Context) -> dict[str, Any]:
    """Return the file's values for click's ``default_map``; empty without a file.

    Args:
        context: of the group, with the command that is about to run.

    Raises:
        click.ClickException: the file cannot be read, a key is unknown, or a value of that command is wrong.
    """
    path = Path(FILE)
    if not path.is_file():
        return {}
    data = _read(path)
    values: dict[str, Any] = {name: data.pop(name) for name in _TOP if name in data}
    assert isinstance(context.command, click.Group)  # the command line itself
    for name, value in values.items():
        if not isinstance(value, bool):
            raise click.ClickException(f"{path}: {name}: {value!r}; allowed: true, false")
    tables = context.command.commands
    for name, table in data.items():
        if name not in tables:
            raise click.ClickException(f"{path}: unknown key {name!r}{instead_of(name, (*_TOP, *tables))}")
        is_run = name == context.invoked_subcommand
        values[name] = _options(path, name, tables[name], table, context if is_run else None)
    return values


def _read(path: Path) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        # Some editors begin a file with a byte order mark.
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path}: not valid TOML: {error}") from error
    return data


def _options(
    path: Path, where: str, command: click.Command, table: Any, context: click.Context | None
) -> dict[str, Any]:
    """Return the values of one command by the names of click's parameters; with a context they are checked."""
    if not isinstance(table, dict):
        raise click.ClickException(f"{path}: {where}: {table!r}; allowed: a table of options")
    commands = command.commands if isinstance(command, click.Group) else {}
    options = {
        name.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option) and not option.is_eager and not option.required
        for name in option.opts
        if name.startswith("--")
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{where}.{key}"
        if key in commands:
            values[key] = _options(path, place, commands[key], value, context)
            continue
        if key not in options:
            raise click.ClickException(
                f"{path}: {where}: unknown option {key!r}{instead_of(key, (*options, *commands))}"
            )
        option = options[key]
        assert option.name is not None
        values[option.name] = value
        if context is not None:
            _check(path, place, option, value, context)
    return values


def _check(path: Path, place: str, option: click.Option, value: Any, context: click.Context) -> None:
    """Refuse a value of another kind than the option has, or one that the option does not have."""
    if option.is_flag and not isinstance(value, bool):
        raise click.ClickException(f"{path}: {place}: {value!r}; allowed: true, false")
    if option.multiple and not isinstance(value, list):
        raise click.ClickException(f"{path}: {place}: {value!r}; allowed: a list")
    try:
        option.type_cast_value(context, value)
    except click.BadParameter as error:
        raise click.ClickException(f"{path}: {place}: {error.message}") from error

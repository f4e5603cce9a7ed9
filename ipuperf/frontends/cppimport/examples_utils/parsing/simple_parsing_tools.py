"""Configurations as nested data classes: from presets in YAML or JSON, then from the command line.

It stands on simple-parsing, as upstream. Two things differ, so that Python 3.11 and simple-parsing 0.1 read
configurations of 2022. A configuration has a hash, and so may be the default of a field. A field of a file that the
class does not have is dropped, and simple-parsing logs it.
Names: graphcore/examples-utils, ``parsing/simple_parsing_tools.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from ipuperf.base.requirements import pip_install

try:
    import yaml
    from simple_parsing import ArgumentParser
    from simple_parsing.helpers import Serializable, field
    from simple_parsing.helpers.serialization.decoding import register_decoding_fn
    from simple_parsing.helpers.serialization.encoding import encode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"examples_utils.parsing needs {error.name}: {pip_install('applications')}", name=error.name
    ) from error


@dataclass
class Config(Serializable):
    """The base of configurations, with ``to_dict``, ``dumps_yaml``, ``load`` and more of simple-parsing."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Data classes have no hash since they are mutable, and what has no hash is no default since Python 3.11.
        cls.__hash__ = object.__hash__  # type: ignore[method-assign]


class Choice(Enum):
    """The base of enumerations that files and command lines name by their members' names."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_decoding_fn(cls, lambda name: cls[name])
        encode.register(cls, lambda member: member.name)


def flag(default: bool, **options: Any) -> Any:
    """A field that is True where the command line names it without a value; ``options`` of simple-parsing's field."""
    return field(default=default, **options)


def parse_args_with_config_file(configuration: type[Any], args: Sequence[str] | None = None) -> Any:
    """Return a configuration from the file that ``--config`` names and from the other options of the command line.

    Args:
        configuration: its data class.
        args: a command line; default: that of the process.
    """
    option = {"help": "file with a configuration, which other options change"}
    file, rest = _config_option(args, option)
    preset = configuration() if file is None else configuration.load(file, drop_extra_fields=True)
    return _parsed(configuration, preset, option, rest)[0]


def parse_args_with_presets(
    configuration: type[Any],
    config_file: str | Path,
    presets_key: str,
    default: str,
    custom_args: Callable[[argparse.ArgumentParser], None] | None = None,
    CLI_args: Sequence[str] | None = None,
) -> tuple[Any, argparse.Namespace]:
    """Return a configuration from the preset that ``--config`` names and from the command line, and all its options.

    Args:
        configuration: its data class.
        config_file: the file of the presets, in YAML or JSON.
        presets_key: under which name of the file the presets stand; empty: the file's own names are presets.
        default: the preset without ``--config``.
        custom_args: adds options of the program to the parser.
        CLI_args: a command line; default: that of the process. A notebook's process may have options of others.

    Raises:
        ValueError: a file of another kind, or without ``presets_key``.
    """
    presets = _presets(Path(config_file), presets_key)
    option = {"choices": list(presets), "default": default, "help": f"preset of {config_file}"}
    name, rest = _config_option(CLI_args, option)
    preset = configuration.from_dict(presets[name], drop_extra_fields=True)
    parsed, options = _parsed(configuration, preset, option, rest, custom_args)
    options.config = name
    return parsed, options


def _config_option(words: Sequence[str] | None, option: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return what ``--config`` says, and the other words of a command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", **option)
    named, rest = parser.parse_known_args(words)
    return named.config, rest


def _presets(file: Path, key: str) -> dict[str, Any]:
    """Read the presets of a file. YAML reads JSON too."""
    if file.suffix not in (".yml", ".yaml", ".json"):
        raise ValueError(f"{file}: presets are read from .yml, .yaml and .json")
    presets: dict[str, Any] = yaml.full_load(file.read_text(encoding="utf-8"))
    if key and key not in presets:
        raise ValueError(f"{file} has no {key!r}; it has {', '.join(presets)}")
    return presets[key] if key else presets


def _parsed(
    configuration: type[Any],
    preset: Any,
    config_option: dict[str, Any],
    words: Sequence[str],
    custom_args: Callable[[argparse.ArgumentParser], None] | None = None,
) -> tuple[Any, argparse.Namespace]:
    """Parse ``words`` with the preset's values as defaults; return the configuration and all options."""
    place = configuration.__name__.lower()  # as upstream calls it among the options
    with _defaults(configuration, preset):
        parser = ArgumentParser()
        parser.add_arguments(configuration, dest=place)
        parser.add_argument("--config", **config_option)  # for the help
        if custom_args:
            custom_args(parser)
        options: argparse.Namespace = parser.parse_known_args(words)[0] if _in_notebook() else parser.parse_args(words)
    return getattr(options, place), options


@contextlib.contextmanager
def _defaults(configuration: type[Any], preset: Any) -> Iterator[None]:
    """Let the fields of a class have a preset's values as defaults within the block."""
    before = {each.name: each.default for each in fields(configuration)}
    try:
        for each in fields(configuration):
            each.default = getattr(preset, each.name)
        yield
    finally:
        for each in fields(configuration):
            each.default = before[each.name]


def _in_notebook() -> bool:
    """Whether IPython runs the program, whose command line is then the kernel's."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and interactive.get_ipython() is not None


__all__ = ["Choice", "Config", "flag", "parse_args_with_config_file", "parse_args_with_presets"]

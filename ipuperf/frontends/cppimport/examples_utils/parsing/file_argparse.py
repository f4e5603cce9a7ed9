"""Options of a program from a YAML file, below those of its command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def parse_yaml_config(args: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options of the configuration ``args.config`` of the file ``args.config_path``.

    The parser checks the file's options as those of a command line, whose own options come first. Without
    ``args.config``, ``args`` is returned.

    Raises:
        ValueError: the file has no such configuration.
        ModuleNotFoundError: PyYAML is not installed.
    """
    if args.config is None:
        return args
    import yaml

    configurations = yaml.full_load(Path(args.config_path).read_text(encoding="utf-8"))
    if args.config not in configurations:
        raise ValueError(f"{args.config_path} has no configuration {args.config!r}; it has {', '.join(configurations)}")
    words = [word for name, value in configurations[args.config].items() for word in _words(name, value)]
    parser.set_defaults(**vars(parser.parse_args(words)))
    return parser.parse_args()


def _words(name: str, value: Any) -> list[str]:
    """The words of a command line that give an option a value, or a list of values."""
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


__all__ = ["parse_yaml_config"]

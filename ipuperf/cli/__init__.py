"""The command line ``ipuperf``: one module for each command, and the group that puts them together."""

from .group import cli, main

__all__ = ["cli", "main"]

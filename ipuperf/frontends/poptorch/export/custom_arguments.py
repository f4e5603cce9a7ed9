"""Classes of the user whose objects are arguments or results of a model: which tensors they hold, and how they are made
anew with others (``poptorch: docs/user_guide/overview.rst``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch

from ipuperf.runtime.run_context import RUN

from ..errors import require


class ICustomArgParser(ABC):
    """What PopTorch needs to know of a class; register it with :func:`registerCustomArgParser`."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of an object, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """An object like ``original_structure`` with the tensors of ``tensor_iterator``, which come in the order of
        :meth:`yieldTensors`."""


_LASTING: dict[type, ICustomArgParser] = {}


class CustomArgParsers:
    """The parsers of this process by their classes (``RUN.of(CustomArgParsers)``)."""

    def __init__(self) -> None:
        self.by_class: dict[type, ICustomArgParser] = dict(_LASTING)


def registerCustomArgParser(arg_type: type, parser: ICustomArgParser) -> None:
    """Let models take and return objects of ``arg_type`` (and its subclasses); a parser given before is replaced.

    Raises:
        AssertionError: ``arg_type`` is no class, or ``parser`` no :class:`ICustomArgParser`.
    """
    require(isinstance(arg_type, type), f"registerCustomArgParser: arg_type is {arg_type!r}, expected a class")
    require(
        isinstance(parser, ICustomArgParser),
        f"registerCustomArgParser: parser is a {type(parser).__name__}, expected an object of ICustomArgParser",
    )
    RUN.of(CustomArgParsers).by_class[arg_type] = parser


def register_for_all_runs(arg_type: type, parser: ICustomArgParser) -> None:
    """:func:`registerCustomArgParser` by a front end: for later runs too, which import it no second time."""
    _LASTING[arg_type] = parser
    registerCustomArgParser(arg_type, parser)


def parser_of(value: Any) -> ICustomArgParser | None:
    """The parser of the nearest registered class of an object."""
    known = RUN.of(CustomArgParsers).by_class
    return next((known[kind] for kind in type(value).__mro__ if kind in known), None) if known else None

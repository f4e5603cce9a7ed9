"""``torch.ops.poptorch``: names of PopTorch's native library that programs call beside the Python front end.

Source: graphcore/poptorch, the PyTorch ops ``poptorch::push_name_scope(str name) -> ()`` and
``poptorch::pop_name_scope() -> ()``.
"""

from __future__ import annotations

import torch

from .ops import NameScope


def push_name_scope(name: str) -> None:
    """Begin a :class:`~ipuperf.poptorch.NameScope`, which is without effect."""
    NameScope(name).__enter__()


def pop_name_scope() -> None:
    """End the name scope begun last."""


def offer() -> None:
    """Put these names into ``torch.ops.poptorch``."""
    for function in (push_name_scope, pop_name_scope):
        setattr(torch.ops.poptorch, function.__name__, function)

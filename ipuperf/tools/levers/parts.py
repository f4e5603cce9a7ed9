"""The parts of a PyTorch module that a lever changes one by one."""

from __future__ import annotations

import re
from typing import Any

MOST = 4
"""The largest number of parts that are tried, those with the most parameters."""


def parts_of(module: Any) -> list[str]:
    """Paths of the largest parts with parameters, such as ``blocks.0``.

    A part that holds more than half of all parameters is taken apart, and so is a container, which cannot be called.
    """
    total = _size(module)
    sizes: dict[str, int] = {}
    pending = list(module.named_children())
    while pending:
        path, part = pending.pop(0)
        children = [(f"{path}.{name}", child) for name, child in part.named_children()]
        container = type(part).__name__ in ("ModuleList", "ModuleDict", "Sequential")
        if children and (container or 2 * _size(part) > total):
            pending += children
        elif _size(part):
            sizes[path] = _size(part)
    largest = sorted(sizes, key=lambda path: -sizes[path])[:MOST]
    return [path for path in sizes if path in largest]


def _size(module: Any) -> int:
    return sum(int(parameter.numel()) for parameter in module.parameters())


def expression(module: str, path: str) -> str:
    """The Python expression of a part: ``model.blocks[0]`` of ``blocks.0``."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"{module}.{path}")

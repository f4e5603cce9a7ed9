"""How addons objects print: as upstream objects do, under their upstream module path."""

from __future__ import annotations

from typing import Any


def upstream_repr(obj: Any) -> str:
    """``<popxl_addons.graph.BoundGraph object at 0x...>``: the default representation with the upstream path."""
    kind = type(obj)
    return f"<{kind.__module__.removeprefix('ipuperf.frontends.')}.{kind.__qualname__} object at {id(obj):#x}>"

"""The cases of the family ``ops`` by the public name of the op."""

from . import elementwise, networks, shape, special, updates
from .base import Case


def _public(name: str) -> str:
    return f"popxl.{name}" if name.startswith("transforms.") else f"popxl.ops.{name}"


CASES: dict[str, Case] = {
    _public(name): case
    for module in (elementwise, shape, networks, updates, special)
    for name, case in module.CASES.items()
}
"""Every op that a user can call, apart from those that move data to other places and those that call graphs."""

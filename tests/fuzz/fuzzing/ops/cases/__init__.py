"""The cases of the family ``ops`` by the public name of the op."""

from . import addons, elementwise, graphs, networks, shape, special, updates
from .base import Case

CASES: dict[str, Case] = {
    **{
        f"popxl.ops.{name}": case
        for module in (elementwise, shape, networks, updates, special)
        for name, case in module.CASES.items()
    },
    **{f"popxl.transforms.{name}": case for name, case in special.TRANSFORMS.items()},
    **{f"popxl.{name}": case for name, case in graphs.POPXL.items()},
    **{f"popxl_addons.{name}": case for name, case in {**addons.CASES, **graphs.ADDONS}.items()},
}
"""Every function that a user can call, apart from those of which programs are made anyway: loads, stores, calls."""

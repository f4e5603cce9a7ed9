"""Whether products are planned for a fully connected layer: with their gradients, or each for itself.

Source: popxl-addons: popxl_addons/transforms/use_fc_pass.py.
"""

from __future__ import annotations

from ipuperf.frontends import popxl
from ipuperf.frontends.options import ADDONS as EFFECTS


def disable_fc_pass(ir: popxl.Ir) -> None:
    """Plan each matrix product of the program for itself, which is what happens to PopXL programs anyway.

    Raises:
        TypeError: no program.
    """
    _given("disable_fc_pass", ir)


def enable_fc_pass(ir: popxl.Ir) -> None:
    """Without effect, which is said: each matrix product of a PopXL program is planned for itself.

    Raises:
        TypeError: no program.
    """
    _given("enable_fc_pass", ir)


def _given(name: str, ir: popxl.Ir) -> None:
    if not isinstance(ir, popxl.Ir):
        raise TypeError(f"{name}({ir!r}): a popxl.Ir is needed")
    EFFECTS.given(f"transforms.{name}(ir)", ir)


__all__ = ["disable_fc_pass", "enable_fc_pass"]

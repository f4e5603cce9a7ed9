"""PopART's rewriting of ops before in-placing, which programs ask for by name.

Source: popxl-addons: popxl_addons/patterns.py.
"""

from __future__ import annotations

from typing import Literal

from ipuperf.base.near_names import instead_of
from ipuperf.frontends.options import ADDONS as EFFECTS
from ipuperf.frontends.popxl import Ir
from ipuperf.frontends.popxl.arguments import checked_arguments

LEVELS = ("no_patterns", "minimal", "default", "all")


@checked_arguments
def apply_pre_alias_patterns(ir: Ir, level: Literal["no_patterns", "minimal", "default", "all"] = "default") -> None:
    """Nothing happens: ops run as they were made, and those of gradients are made in the form that the default patterns
    bring them into upstream. That other levels are without effect is said.

    Raises:
        KeyError: another level; TypeError: no program.
    """
    if not isinstance(ir, Ir):
        raise TypeError(f"apply_pre_alias_patterns({ir!r}): a popxl.Ir is needed")
    if level not in LEVELS:
        raise KeyError(f"apply_pre_alias_patterns: level {level!r}{instead_of(level, LEVELS)}")
    EFFECTS.given("patterns.apply_pre_alias_patterns(level)", level)


__all__ = ["apply_pre_alias_patterns"]

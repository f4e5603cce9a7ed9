"""Errors of the PopXL front end.

``popart_exception`` stands for the exception of the upstream C++ layer: every :class:`ipuperf.ir.IrError` (shape and
type rules, ambiguous in-place changes, autodiff of in-place ops) is one.
"""

from __future__ import annotations

from ipuperf.ir import IrError

popart_exception = IrError


class UndefinedValue(RuntimeError):
    """A property was asked for that was never given, for example the IPU of a tensor that has none."""


def unsupported(qualified: str, supported: list[str]) -> AttributeError:
    """The error for an upstream name that ipuperf does not have."""
    return AttributeError(f"{qualified} is not supported by ipuperf yet; supported: {', '.join(sorted(supported))}")

"""Errors of the PopXL front end.

``popart_exception`` stands for the exception of the upstream C++ layer: every :class:`ipuperf.ir.IrError` (shape and
type rules, ambiguous in-place changes, autodiff of in-place ops) is one.
"""

from __future__ import annotations

from ipuperf.base.near_names import did_you_mean
from ipuperf.ir import IrError

popart_exception = IrError


_SPANNING = (
    "its gradient is not that of its value, for which one op would have to be on several IPUs; write the copies "
    "between IPUs with ops.ipu_copy, or use collectives.all_reduce"
)
_COMPLEX = "complex numbers have no type on the IPU either"

#: Upstream names that cannot be here, with the reason.
CANNOT = {
    "popxl.complex64": _COMPLEX,
    "popxl.complex128": _COMPLEX,
    "popxl.ops.collectives.all_reduce_identical_inputs": _SPANNING,
    "popxl.ops.collectives.all_reduce_identical_grad_inputs": _SPANNING,
}


class UndefinedValue(RuntimeError):
    """A property was asked for that was never given, for example the IPU of a tensor that has none."""


def unsupported(qualified: str, supported: list[str]) -> AttributeError:
    """The error for an upstream name that ipuperf does not have: why it cannot, where that is known."""
    if qualified in CANNOT:
        return AttributeError(f"{qualified} does not work in ipuperf: {CANNOT[qualified]}")
    module, _, name = qualified.rpartition(".")
    near = did_you_mean(name, supported)
    # A list of more than a hundred names would hide the few that are meant.
    names = (
        f"; dir({module}) has the {len(supported)} that are" if near else f"; supported: {', '.join(sorted(supported))}"
    )
    return AttributeError(f"{qualified} is not supported by ipuperf yet{near}{names}")

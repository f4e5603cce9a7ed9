"""The warning about an argument or a setting without effect, at the program's line and once in a run."""

from __future__ import annotations

import warnings

from ipuperf.ir.location import user_location
from ipuperf.trace.printable import printable


class WithoutEffectWarning(UserWarning):
    """A program has given an argument that has no effect here."""


warnings.filterwarnings("once", category=WithoutEffectWarning, append=True)  # filters of the program come first


def tell(note: str) -> None:
    """Show ``note`` as a warning at the innermost line outside ipuperf, once in a run."""
    # The number of frames between differs from call to call, so no ``stacklevel`` of ``warnings.warn`` fits.
    file, _, line = user_location().rpartition(":")
    warnings.warn_explicit(printable(note), WithoutEffectWarning, file or "ipuperf", int(line or 0))

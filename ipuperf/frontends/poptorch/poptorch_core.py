"""``poptorch.poptorch_core``: the names of PopTorch's native module by which programs handle errors of the device.

A simulated device does not fail. :func:`_throwTestError` raises what upstream's does, so that a program can try its
handling of such errors. What else the native module has is not here.
Source: graphcore/poptorch, the bindings of ``TestErrorType`` and ``_throwTestError``, and ``throwTestError`` of its
PopART compiler (messages).
"""

from __future__ import annotations

from typing import NoReturn

from ipuperf.frontends.enumerations import NativeEnum

from .errors import Error, RecoverableError, UnrecoverableError


class TestErrorType(NativeEnum):
    """Kinds of errors that :func:`_throwTestError` raises."""

    __test__ = False  # no test of pytest's

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_RAISED: dict[TestErrorType, tuple[type[Error], str, str]] = {
    TestErrorType.Poptorch: (Error, "poptorch_cpp_error", "This is a PopTorch error"),
    TestErrorType.Popart: (Error, "popart_exception", "This is a Popart error"),
    TestErrorType.PopartInternal: (Error, "popart_internal_exception", "This is a Popart error"),
    TestErrorType.Poplibs: (Error, "poplibs_exception", "This is a Poplibs error"),
    TestErrorType.PoplarUnrecoverable: (
        UnrecoverableError,
        "poplar_unrecoverable_runtime_error",
        "This is not recoverable",
    ),
    TestErrorType.PoplarUnknown: (Error, "poplar_unknown_runtime_error", "Don't know what happened"),
    TestErrorType.PoplarRecoverableFullReset: (RecoverableError, "poplar_recoverable_runtime_error", "Reboot needed"),
    TestErrorType.PoplarLinkError: (
        Error,
        "poplar_link_error",
        "Link error. Output: Library -lfoo not found. check path",
    ),
}


def _throwTestError(kind: TestErrorType) -> NoReturn:
    """Raises the error of this kind, with the places that upstream's names."""
    error, of, message = _RAISED[kind]
    raise error(message, type=of, location=("throwTestError::bottomLevel", "throwTestError::topLevel"))


__all__ = ["Error", "RecoverableError", "TestErrorType", "UnrecoverableError"]

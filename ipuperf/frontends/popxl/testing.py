"""Lists of types for parametrised tests (upstream ``popxl.testing``)."""

from __future__ import annotations

from .dtypes import _BY_NAME, dtype


def get_all_dtypes() -> list[dtype]:
    """Every type, aliases once."""
    return list(dict.fromkeys(_BY_NAME.values()))


def get_all_int_dtypes(include_signed: bool = True, include_unsigned: bool = True) -> list[dtype]:
    """The integer types, those with and those without a sign as wanted."""
    signs = {True: include_signed, False: include_unsigned}
    return [candidate for candidate in get_all_dtypes() if candidate.is_int and signs[candidate.is_signed]]

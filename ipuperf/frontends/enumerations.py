"""Enumerations of the vendor's interfaces: they print, convert and compare as upstream in every version of Python.

A native one, bound by pybind11, is no integer and prints as ``Name.Member``. One written in Python for Python 3.8
prints the same way, where Python 3.11 prints the number of an ``IntEnum``; its format and JSON are the number in both.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class NativeEnum(Enum):
    """A native enumeration: its members equal no number, but ``int`` converts them."""

    def __int__(self) -> int:
        number: int = self.value
        return number

    __index__ = __int__


class NumberedEnum(IntEnum):
    """A Python enumeration whose members are integers."""

    def __str__(self) -> str:
        return Enum.__str__(self)

    def __format__(self, form: str) -> str:
        return format(self.value, form)


__all__ = ["NativeEnum", "NumberedEnum"]

"""The base of all option classes: a dictionary of values that can be read as attributes, frozen and copied."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from ipuperf.base.near_names import did_you_mean

_Self = TypeVar("_Self", bound="Freezable")
_FROZEN = "Can't modify frozen Options"


class Freezable:
    """Something that can be changed until :meth:`_freeze`; a deep copy can be changed again."""

    _is_frozen: bool = False

    def checkIsFrozen(self) -> None:
        """Raise ``AttributeError`` if frozen, as upstream does."""
        if self.__dict__.get("_is_frozen", False):
            raise AttributeError(_FROZEN)

    def _freeze(self) -> None:
        """Forbid every further change."""
        self.__dict__["_is_frozen"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        self.checkIsFrozen()
        super().__setattr__(name, value)

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__.update(
            (name, False if name == "_is_frozen" else copy.deepcopy(value, memo))
            for name, value in self.__dict__.items()
        )
        return duplicate


class OptionsDict(Freezable):
    """Named values with fixed types: a value can be replaced by one of its type, and read as an attribute.

    ``repr`` shows the values and upstream's bookkeeping (``_warnings`` ..., of which only ``_is_frozen`` means
    something here), as the printed outputs of the tutorials do.
    """

    _shown_members: tuple[str, ...] = ()

    def __init__(self, **default_values: Any) -> None:
        self._values: dict[str, Any] = default_values
        self._warnings: dict[str, str] = {}
        self._warnings_disabled: set[str] = set()
        self._is_frozen = False

    def __setattr__(self, name: str, value: Any) -> None:
        """``options.device_iterations = 2`` sets the value; what is neither a value nor known is an error."""
        is_set_up = "_is_frozen" in self.__dict__
        if is_set_up and not name.startswith("_"):
            self.set(**{name: value})
        elif is_set_up and name not in self.__dict__ and not hasattr(type(self), name):
            near = did_you_mean(name, self._values)
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name}{near}; its options are {list(self._values)}"
            )
        else:
            super().__setattr__(name, value)

    def set(self, **values: Any) -> None:
        """Replace values. ``AssertionError`` for an unknown name or another type."""
        self.checkIsFrozen()
        for option, value in values.items():
            if option not in self._values:
                raise AssertionError(self._unknown(option))
            expected = type(self._values[option])
            if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
                raise AssertionError(f"Unexpected type {type(value)} for option {option}. Expected {expected}")
            self._values[option] = value

    def createOrSet(self, **values: Any) -> None:
        """Replace values, or add those that are new."""
        self.checkIsFrozen()
        for option, value in values.items():
            if option in self._values:
                self.set(**{option: value})
            else:
                self._values[option] = value

    def exists(self, option: str) -> bool:
        """Whether ``option`` has a value."""
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        """Forget the value of ``option``."""
        self.checkIsFrozen()
        self._values.pop(option, None)

    def toDict(self) -> dict[str, Any]:
        """A copy of the values."""
        return dict(self._values)

    def __getattr__(self, option: str) -> Any:
        values = self.__dict__.get("_values", {})
        if option not in values:
            raise AttributeError(self._unknown(option))
        return values[option]

    def __call__(self, option: str) -> Any:
        """The value of ``option``; ``AttributeError`` if there is none."""
        return getattr(self, option)

    def _unknown(self, option: str) -> str:
        values = self.__dict__.get("_values", {})
        methods = [name for name in dir(type(self)) if not name.startswith("_")]
        near = did_you_mean(option, [*methods, *values])
        return f"Invalid option {option}{near}, valid options are {list(values)}"

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        members = (*self._shown_members, "_warnings", "_warnings_disabled", "_is_frozen")
        bookkeeping = ", ".join(f"{name}={getattr(self, name)!r}" for name in members)
        return f"{type(self).__name__}({values}, {bookkeeping})"

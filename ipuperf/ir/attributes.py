"""What an op is told besides its operands: each class declares its attributes, and reads them with their types.

The simplest form says what a value has to be, and what stands where none is given::

    class CumSum(Op):
        exclusive = Attribute(FLAG, False)

``CumSum.exclusive`` is then a ``bool`` for the type checker and for whoever reads ``op.exclusive``; an op that is made
with ``exclusive=1`` or ``exclusiv=True`` is an :class:`IrError`. Without a default the attribute has to be given.

The full form also brings the value into the one form that ops read, which may depend on the op's operands and on the
attributes declared before it::

        axis = Attribute(INTEGER, 0, settle=axis_of)

This happens once, when the op is made and before its shape rule; what ``op.attributes`` holds is settled already, and
an op made anew from it is the same op. A subclass has the attributes of its bases; its own come after them.
"""

from __future__ import annotations

import difflib
import numbers
import operator
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from .dtype import ALL_DTYPES, DType
from .errors import DTypeError, IrError

if TYPE_CHECKING:
    from .op import Op

T = TypeVar("T")
Given = TypeVar("Given")

#: The default of an attribute that has to be given.
REQUIRED: Any = object()


# -- what values may be ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What an attribute may be.

    Attributes:
        convert: the value as ops read it; TypeError, ValueError or OverflowError for what it cannot be.
        needed: the end of the error: what is allowed.
        error: the class of the error.
        exact: classes whose own values (not those of subclasses) are what ops read, so that nothing is converted.
    """

    convert: Callable[[Any], T]
    needed: str
    error: type[IrError] = IrError
    exact: frozenset[type[Any]] = frozenset()


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("a truth value is not a number")
    return operator.index(value)


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError("not a number")
    return float(value)


def _whole(value: Any) -> int:
    found = value if isinstance(value, int) else _number(value)
    if found != int(found):
        raise ValueError("not a whole number")
    return _integer(int(found) if isinstance(found, float) else found)


def _flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    if not isinstance(value, np.bool_):
        raise TypeError("not a truth value")
    return bool(value)


def _members(value: Any) -> tuple[Any, ...]:
    if type(value) is tuple:
        return value
    if not isinstance(value, (tuple, list, range, np.ndarray)):
        raise TypeError("not a sequence")
    return tuple(value)


def _dtype(value: Any) -> DType:
    if not isinstance(value, DType):
        raise TypeError("not a DType")
    return value


def _floating(value: Any) -> DType:
    if not _dtype(value).is_floating_point:
        raise ValueError("not a floating-point type")
    return value


def _named_floating(value: Any) -> DType:
    return _floating(ALL_DTYPES.get(value) if isinstance(value, str) else value)


#: A whole number; NumPy's are natural, truth values are not.
INTEGER: Kind[int] = Kind(_integer, "a whole number is needed", exact=frozenset([int]))
#: A real number.
NUMBER: Kind[float] = Kind(_number, "a number is needed", exact=frozenset([float]))
#: A truth value.
FLAG: Kind[bool] = Kind(_flag, "True or False is needed", exact=frozenset([bool]))
#: A type of elements.
DTYPE: Kind[DType] = Kind(_dtype, "a DType is needed", DTypeError, frozenset([DType]))
#: A floating-point type of elements.
FLOATING: Kind[DType] = Kind(_floating, "a floating-point DType is needed", DTypeError)
#: A floating-point type of elements, or its name.
NAMED_FLOATING: Kind[DType] = Kind(_named_floating, "allowed: float16, float32, float64", DTypeError)
#: A whole number, also when it is written as 3.0.
WHOLE: Kind[int] = Kind(_whole, "a whole number is needed")
#: Anything at all.
ANYTHING: Kind[Any] = Kind(lambda value: value, "a value is needed")


def optional(kind: Kind[T]) -> Kind[T | None]:
    """``kind``, or None."""
    needed = kind.needed.replace(" is needed", " or None is needed")
    exact = kind.exact | {type(None)}
    return Kind(lambda value: None if value is None else kind.convert(value), needed, kind.error, exact)


def many(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """A tuple (or list) whose members are each a ``kind``."""
    needed = f"a tuple is needed; of each member: {kind.needed}"
    is_exact = kind.exact.issuperset

    def convert(value: Any) -> tuple[T, ...]:
        members = _members(value)
        return members if is_exact(map(type, members)) else tuple([kind.convert(member) for member in members])

    return Kind(convert, needed, kind.error)


def one_or_many(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """One ``kind``, which becomes a tuple of one, or a tuple of them."""
    several = many(kind)

    def convert(value: Any) -> tuple[T, ...]:
        return several.convert(value) if isinstance(value, (tuple, list)) else (kind.convert(value),)

    return Kind(convert, f"{kind.needed}, or a tuple of these", kind.error)


#: A tuple of whole numbers.
INTEGERS: Kind[tuple[int, ...]] = replace(many(INTEGER), needed="a tuple of whole numbers is needed")


def instance(wanted: type[T]) -> Kind[T]:
    """An object of a class."""

    def convert(value: Any) -> T:
        if not isinstance(value, wanted):
            raise TypeError(f"not a {wanted.__name__}")
        return value

    return Kind(convert, f"a {wanted.__name__} is needed", exact=frozenset([wanted]))


def choice(*allowed: T) -> Kind[T]:
    """One of the ``allowed`` values."""

    def convert(value: Any) -> T:
        return allowed[allowed.index(value)]

    return Kind(convert, f"allowed: {', '.join(map(str, allowed))}")


# -- attributes --------------------------------------------------------------------------------------------------------


class Attribute(Generic[T]):
    """One attribute of an op class.

    Args:
        kind: what may be given.
        default: what counts as given where nothing is (:data:`REQUIRED`: an error).
        settle: ``(op, value of the kind) -> value that ops read``; settled values settle to themselves.

    Attributes:
        plain: where nothing is given, ops read the default whatever the op.
        exact: values of just these classes are what ops read.
    """

    @overload
    def __init__(self: Attribute[T], kind: Kind[T], default: Any = REQUIRED) -> None: ...

    @overload
    def __init__(
        self: Attribute[T], kind: Kind[Given], default: Any = REQUIRED, *, settle: Callable[[Any, Given], T]
    ) -> None: ...

    def __init__(self, kind: Kind[Any], default: Any = REQUIRED, *, settle: Callable[[Any, Any], Any] | None = None):
        self.kind = kind
        self.default = default if default is REQUIRED else kind.convert(default)
        self.name = ""
        self._convert = kind.convert
        self._settle = settle
        self.plain = settle is None and default is not REQUIRED
        self.exact = kind.exact if settle is None else frozenset()

    def __set_name__(self, owner: type[Op], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type[Op]) -> Attribute[T]: ...

    @overload
    def __get__(self, op: Op, owner: type[Op]) -> T: ...

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        return self if op is None else op.attributes[self.name]

    def __set__(self, op: Op, value: Any) -> None:
        """For passes over a program that decide about ops that are there already."""
        op.attributes[self.name] = self.settled(op, value)

    def settled(self, op: Op, value: Any) -> T:
        """What ``op`` reads where ``value`` is given; :class:`IrError` for what it cannot be."""
        try:
            found = self._convert(value)
        except (TypeError, ValueError, OverflowError):
            raise self.kind.error(f"{op.where()}: {self.name}={_shown(value)}; {self.kind.needed}") from None
        return found if self._settle is None else self._settle(op, found)

    def unsaid(self, op: Op) -> T:
        """What ``op`` reads where nothing is given; :class:`IrError` where something has to be."""
        if self.default is REQUIRED:
            raise IrError(f"{op.where()}: attribute {self.name} is missing; {self.kind.needed}")
        return self.default if self._settle is None else self._settle(op, self.default)


def declared(op_class: type) -> dict[str, Attribute[Any]]:
    """The attributes of a class by name, those of its bases first."""
    base, *others = op_class.__bases__
    known = getattr(base, "declared", None) if not others else None
    found: dict[str, Attribute[Any]] = dict(known or {})
    for base in (op_class,) if known is not None else reversed(op_class.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Attribute):
                found.pop(name, None)
                found[name] = value
    return found


def give(op: Op, given: Mapping[str, Any]) -> None:
    """Settle all attributes of a new op from those ``given``.

    Raises:
        IrError: an attribute that the op does not have, one that it needs and is not given, a value of a wrong type.
    """
    known, settled = op.declared, op.attributes
    if not given.keys() <= known.keys():
        name = next(name for name in given if name not in known)
        raise IrError(f"{op.where()}: there is no attribute {name}={_shown(given[name])}; {_instead(name, known)}")
    settled.update(op.defaults)
    for name in known if op.settles else given:
        attribute = known[name]
        if name in given:
            value = given[name]
            settled[name] = value if type(value) in attribute.exact else attribute.settled(op, value)
        elif not attribute.plain:
            settled[name] = attribute.unsaid(op)


def _shown(value: Any) -> str:
    """``value`` on one line."""
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def _instead(name: str, known: Mapping[str, Any]) -> str:
    """What can be given in place of an unknown attribute."""
    if not known:
        return "this op takes none"
    near = difflib.get_close_matches(name, list(known), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}allowed: {', '.join(known)}"

"""The attributes of ops: each class declares them and reads them with their types.

In the simplest form an attribute has a kind of value and a default::

    class CumSum(Op):
        exclusive = Attribute(FLAG, False)

``CumSum.exclusive`` is then a ``bool`` for the type checker and for readers of ``op.exclusive``. An op that is made
with ``exclusive=1`` or ``exclusiv=True`` raises an :class:`IrError`. An attribute without a default has to be given.

The full form also converts the value into the one form that ops read. This form may depend on the op's operands and on
the attributes declared before it::

        axis = Attribute(INTEGER, 0, settle=axis_of)

The conversion happens once, when the op is made and before its shape rule runs. ``op.attributes`` holds settled values,
and an op made anew from them is the same op. A subclass has the attributes of its bases; its own come after them.
"""

from __future__ import annotations

import numbers
import operator
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from ipuperf.base.near_names import instead_of

from .dtype import ALL_DTYPES, DType
from .errors import DTypeError, IrError

if TYPE_CHECKING:
    from .op import Op

T = TypeVar("T")
Given = TypeVar("Given")

#: Stands for "no default": the attribute has to be given.
REQUIRED: Any = object()


# -- kinds of values ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind(Generic[T]):
    """The values that an attribute may have.

    Attributes:
        convert: gives the value as ops read it; raises TypeError, ValueError or OverflowError for a value that is not
            allowed.
        needed: the end of the error message, which says what is allowed.
        error: the class of the error.
        exact: classes whose instances (not those of subclasses) ops read as they are, without conversion.
    """

    convert: Callable[[Any], T]
    needed: str
    error: type[IrError] = IrError
    exact: frozenset[type[Any]] = frozenset()


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    # bool is a subclass of int, but True is hardly meant as 1 here.
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
    number = value if isinstance(value, int) else _number(value)
    # Infinity raises an OverflowError here and NaN a ValueError; the caller expects both.
    if number != int(number):
        raise ValueError("not a whole number")
    return _integer(int(number) if isinstance(number, float) else number)


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
    dtype = _dtype(value)
    if not dtype.is_floating_point:
        raise ValueError("not a floating-point type")
    return dtype


def _named_floating(value: Any) -> DType:
    return _floating(ALL_DTYPES.get(value) if isinstance(value, str) else value)


#: A whole number. NumPy's integers are allowed, truth values are not.
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
    """One ``kind``, which becomes a tuple of one, or a tuple of several."""
    several = many(kind)

    def convert(value: Any) -> tuple[T, ...]:
        return several.convert(value) if isinstance(value, (tuple, list)) else (kind.convert(value),)

    return Kind(convert, f"{kind.needed}, or a tuple of these", kind.error)


#: A tuple of whole numbers.
INTEGERS: Kind[tuple[int, ...]] = replace(many(INTEGER), needed="a tuple of whole numbers is needed")


def instance(expected_class: type[T]) -> Kind[T]:
    """An object of a class."""

    def convert(value: Any) -> T:
        if not isinstance(value, expected_class):
            raise TypeError(f"not a {expected_class.__name__}")
        return value

    return Kind(convert, f"a {expected_class.__name__} is needed", exact=frozenset([expected_class]))


def choice(*allowed: T) -> Kind[T]:
    """One of the ``allowed`` values."""

    def convert(value: Any) -> T:
        # The declared value is given: an equal one may have another type, such as 1 for True.
        return allowed[allowed.index(value)]

    return Kind(convert, f"allowed: {', '.join(map(str, allowed))}")


# -- attributes --------------------------------------------------------------------------------------------------------


class Attribute(Generic[T]):
    """One attribute of an op class.

    Args:
        kind: the values that may be given.
        default: the value where none is given (:data:`REQUIRED`: an error).
        settle: ``(op, value of the kind) -> value that ops read``; settled values settle to themselves.

    Attributes:
        plain: whether ops read the default unchanged, whatever the op, where nothing is given.
        exact: classes whose instances ops read as they are.
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
        # A settled value may depend on the op, so no given value is read as it is.
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
        """Change an attribute of an existing op, for passes over a program."""
        op.attributes[self.name] = self.settled(op, value)

    def settled(self, op: Op, value: Any) -> T:
        """The value that ``op`` reads where ``value`` is given; :class:`IrError` for a value that is not allowed."""
        try:
            converted = self._convert(value)
        except (TypeError, ValueError, OverflowError):
            raise self.kind.error(f"{op.where()}: {self.name}={_shown(value)}; {self.kind.needed}") from None
        settled: T = converted if self._settle is None else self._settle(op, converted)
        return settled

    def unsaid(self, op: Op) -> T:
        """The value that ``op`` reads where nothing is given; :class:`IrError` where a value is required."""
        if self.default is REQUIRED:
            raise IrError(f"{op.where()}: attribute {self.name} is missing; {self.kind.needed}")
        settled: T = self.default if self._settle is None else self._settle(op, self.default)
        return settled


def declared(op_class: type) -> dict[str, Attribute[Any]]:
    """The attributes of a class by name, those of its bases first."""
    # With a single base its attributes are known already; only several bases need the whole MRO.
    base, *others = op_class.__bases__
    inherited = getattr(base, "declared", None) if not others else None
    attributes: dict[str, Attribute[Any]] = dict(inherited or {})
    for base in (op_class,) if inherited is not None else reversed(op_class.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Attribute):
                # A redeclared attribute moves to the end, as settling follows the order of declaration.
                attributes.pop(name, None)
                attributes[name] = value
    return attributes


def give(op: Op, given: Mapping[str, Any]) -> None:
    """Settle all attributes of a new op from those ``given``.

    Raises:
        IrError: an unknown attribute, a missing one, or a value of a wrong type.
    """
    known, settled = op.declared, op.attributes
    if not given.keys() <= known.keys():
        name = next(name for name in given if name not in known)
        raise IrError(f"{op.where()}: there is no attribute {name}={_shown(given[name])}{_instead(name, known)}")
    settled.update(op.defaults)
    # Classes whose defaults never depend on the op only look at the attributes that are given.
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
    """The end of the message about an unknown attribute: what can be given in its place."""
    if not known:
        return "; this op takes none"
    return instead_of(name, known)

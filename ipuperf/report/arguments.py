"""Kinds of arguments of report functions, by their annotations; windows and rows are checked by their users."""

from ipuperf.kinds import ANYTHING, ArgumentKind, Kinds
from ipuperf.trace import Trace

# Named here, because most modules import it for type checkers alone. Their sources would be parsed to find it.
_TRACE = ArgumentKind(lambda value: isinstance(value, Trace), "a Trace", frozenset([Trace]))

checked = Kinds({**dict.fromkeys(("Window", "ndarray"), ANYTHING), "Trace": _TRACE}).checked()

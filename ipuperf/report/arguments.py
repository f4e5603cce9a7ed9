"""Kinds of arguments of report functions, by their annotations; windows and rows are checked by their users."""

from ipuperf.kinds import ANYTHING, Kinds

checked = Kinds(dict.fromkeys(("Window", "ndarray"), ANYTHING)).checked()

"""What arguments and options of PopTorch do: the rows of :mod:`ipuperf.frontends.options`."""

from ipuperf.frontends.options import Effects

from .errors import UnsupportedError

EFFECTS = Effects("poptorch", UnsupportedError)

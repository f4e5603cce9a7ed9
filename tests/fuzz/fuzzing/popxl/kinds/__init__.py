"""All kinds of instructions of random PopXL programs, see :class:`.base.Kind`."""

from . import elementwise, exchange, graph, shape, update
from .base import KINDS, Kind

__all__ = ["KINDS", "Kind", "elementwise", "exchange", "graph", "shape", "update"]

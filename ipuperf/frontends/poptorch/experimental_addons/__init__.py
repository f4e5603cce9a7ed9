"""``poptorch_experimental_addons`` where it is not installed: its ops are C++, those that programs use are built in.

Source: graphcore-research/poptorch-experimental-addons.
"""

from . import collectives
from .core import autograd_proxy, distance_matrix

__all__ = ["autograd_proxy", "collectives", "distance_matrix"]

"""Graph transforms (upstream ``popxl.transforms``)."""

from ..package import refuse as _refuse
from .autodiff import ExpectedConnection, ExpectedConnectionType, GradGraphInfo, autodiff
from .exchange import decompose_sum, io_tile_exchange, merge_exchange

__all__ = ["ExpectedConnection", "ExpectedConnectionType", "GradGraphInfo", "autodiff", "decompose_sum"]
__all__ += ["io_tile_exchange", "merge_exchange"]
__getattr__ = _refuse(__name__, __all__)

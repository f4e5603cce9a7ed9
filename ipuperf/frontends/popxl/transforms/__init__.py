"""Graph transforms (upstream ``popxl.transforms``)."""

# ruff: noqa: F401  # what is imported is the package's content
from ..package import offer as _offer
from .autodiff import ExpectedConnection, ExpectedConnectionType, GradGraphInfo, autodiff
from .exchange import decompose_sum, io_tile_exchange, merge_exchange

__all__, __getattr__ = _offer(__name__)

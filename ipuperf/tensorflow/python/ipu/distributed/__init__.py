"""Programs of several instances, of which there is one here."""

from . import popdist_strategy

__all__ = ["popdist_strategy"]

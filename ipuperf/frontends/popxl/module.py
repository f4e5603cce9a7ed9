"""``popxl.Module``: a callable with a ``build`` method, for ``ir.create_graph``."""

from __future__ import annotations

from typing import Any


class Module:
    """Base of objects that build a graph: subclass and define ``build``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What :meth:`build` returns for these arguments."""
        return self.build(*args, **kwargs)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Build ops in the current graph and return the outputs. To be defined by the subclass."""
        raise NotImplementedError(f"{type(self).__name__} must define a `build` method")

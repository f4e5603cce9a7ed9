"""Import of TensorFlow's graphs into the IR; see :mod:`.importer` for how front ends call it."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from .errors import GraphError
from .graph import Importer, captured_values, import_graph, tensor_of
from .markers import MadeBy, Meaning, marker
from .place import Place
from .values import Resource, Value, resource_of

__all__ = _offered(__name__)

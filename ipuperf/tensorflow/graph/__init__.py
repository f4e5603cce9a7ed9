"""Import of TensorFlow's graphs into the IR; see :mod:`.importer` for how front ends call it."""

from .errors import GraphError
from .importer import Importer, captured_values, import_graph, tensor_of
from .markers import Meaning, marker
from .place import Place
from .values import Resource, Value, resource_of

__all__ = [
    "GraphError",
    "Importer",
    "Meaning",
    "Place",
    "Resource",
    "Value",
    "captured_values",
    "import_graph",
    "marker",
    "resource_of",
    "tensor_of",
]

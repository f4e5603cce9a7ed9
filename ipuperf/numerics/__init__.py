"""The numeric half: NumPy values of a program, all replicas at once. Knows nothing of time; see ``docs/design.md``."""

from .errors import EvaluationError, FloatingPointException, HostMemoryError
from .evaluator import Evaluator
from .streams import StreamedInput

__all__ = ["EvaluationError", "Evaluator", "FloatingPointException", "HostMemoryError", "StreamedInput"]

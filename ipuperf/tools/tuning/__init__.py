"""The fastest configuration of a program for a global batch that fits a machine, and why it is that.

:func:`tune` searches a :class:`TuningSpace`; :func:`model_space` makes one of a model of ``ipuperf.models``.
"""

from ipuperf.tools.errors import TuningError

from .answer import Answer, StepTaken, text_of
from .defaults import case_space, file_space, model_space, script_space
from .space import TuningSpace
from .tune import tune

__all__ = [
    "Answer",
    "StepTaken",
    "TuningError",
    "TuningSpace",
    "case_space",
    "file_space",
    "model_space",
    "script_space",
    "text_of",
    "tune",
]

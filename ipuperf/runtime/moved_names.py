"""Names of TensorFlow 2.6 and its Keras that stand elsewhere today, as the vendor's public programs import them.

What is a table here was found by comparing every name that those programs take from ``tensorflow``,
``tensorflow.python``, ``keras`` and ``horovod`` with the installed packages. A rule does the rest: a module of
Keras 2.6 was its own source, so a name that the public module of today lacks is looked for in the source.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import keras_names

#: Modules that are gone, by the module that has their names now.
MODULES = {
    "tensorflow.python.distribute.distribution_strategy_context": "tensorflow.python.distribute.distribute_lib",
    "tensorflow.python.training.training_ops": "tensorflow.python.ops.gen_training_ops",
}
#: Modules that lost names, and where those are now.
_LOST = {"tensorflow.python.eager.tape": "tensorflow.python.eager.record"}
_LOSS_SCALE = "tf_keras.src.mixed_precision.loss_scale_optimizer"
_answering: list[ModuleType] = []  # modules that ask another one for a name that they lack


def answer(_loaded: ModuleType | None = None) -> None:
    """Let the loaded modules of Keras, and those that lost names, answer with the names that they had."""
    for name, module in list(sys.modules.items()):
        if module is None or "__getattr__" in vars(module):
            continue
        source = _LOST.get(name) or keras_names.source_module(name)
        if source is not None and source != name:
            vars(module)["__getattr__"] = _asking(name, source)
            _answering.append(module)
    if (loss_scale := sys.modules.get(_LOSS_SCALE)) is not None:
        _let_derive(loss_scale)


def forget() -> None:
    """Undo :func:`answer`."""
    while _answering:
        del vars(_answering.pop())["__getattr__"]
    if (loss_scale := sys.modules.get(_LOSS_SCALE)) is not None and "__new__" in vars(
        loss_scale.LossScaleOptimizerMetaclass
    ):
        del loss_scale.LossScaleOptimizerMetaclass.__new__


def _let_derive(module: ModuleType) -> None:
    """Let programs derive from ``LossScaleOptimizer``, which today only chooses between the classes of two kinds of
    optimizers: what derives from it derives from that of 2.6's optimizers."""
    chooser, earlier = module.BaseLossScaleOptimizer, module.LossScaleOptimizer

    def __new__(kind: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        return type.__new__(kind, name, tuple(earlier if base is chooser else base for base in bases), namespace)

    module.LossScaleOptimizerMetaclass.__new__ = staticmethod(__new__)


def _asking(name: str, source: str) -> Callable[[str], Any]:
    def __getattr__(attribute: str) -> Any:
        # Python's own questions (``__path__``, ``__wrapped__``) are about the module itself.
        found = None if attribute.startswith("__") else vars(importlib.import_module(source)).get(attribute)
        if found is None:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}", name=attribute)
        return found

    return __getattr__

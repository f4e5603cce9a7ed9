"""The families of random programs by name; each is a module with ``draw``, ``check`` and ``Program``.

A module with tables of public names has ``drawn_names()`` as well: what its tables draw from, as users write it in full
(``popxl.ops.add``, ``popxl_addons.layers.Linear``, ``torch.nn.Linear``, ``poptorch.optim.SGD``, ``keras.layers.Dense``,
``tensorflow.python.ipu.config.IPUConfig``). Of a module without, the names count that its code uses.
"""

import importlib
from types import ModuleType

from .names import used_by

FAMILIES = {
    "popxl": "popxl",
    "autodiff": "autodiff",
    "torch": "torch.training",
    "statements": "torch.statements",
    "ops": "ops",
    "addons": "addons",
    "aten": "aten",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "ipu": "ipu",
}


def family(name: str) -> ModuleType:
    """The module of a family (which needs PyTorch or not, so it is imported when it is asked for)."""
    return importlib.import_module(f".{FAMILIES[name]}", __package__)


def drawn_names(name: str) -> set[str]:
    """The public names that programs of a family can hold."""
    module = family(name)
    return set(module.drawn_names()) if hasattr(module, "drawn_names") else used_by(module)

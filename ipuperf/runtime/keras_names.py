"""Keras under the names that TensorFlow for the IPU uses: Keras 2 with the optimizers of ``optimizers.legacy``.

TensorFlow for the IPU stands at 2.6. There ``keras`` is the package behind ``tf.keras``, with its modules directly
below it (``keras.engine.input_spec``). ``tf.keras.optimizers.SGD`` is the class that later versions call
``tf.keras.optimizers.legacy.SGD``: it takes ``gradient_transformers``, ``lr`` and ``decay``, and a program's own
optimizer derives from it with ``_resource_apply_dense``. Later optimizers (``AdamW``, ``Lion``) stay as they are.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc imports much that nobody here needs

#: The packages whose modules this file renames.
TOP = frozenset({"keras", "tf_keras", "tensorflow"})
_PACKAGES = ("keras", "tf_keras")
#: The modules that ``tf.keras.optimizers`` may be, depending on how a program imports it.
_OPTIMIZERS = ("tf_keras.optimizers", "tensorflow.keras.optimizers", "tf_keras.api._v2.keras.optimizers")
#: Places of Keras 2.6's modules in Keras 2.16 and newer.
_MOVED = {"optimizer_v2": "optimizers.legacy", "saving.saved_model": "saving.legacy.saved_model"}
#: The copy of Keras within TensorFlow. It was Keras itself up to 2.5, and programs still import it.
PRIVATE = "tensorflow.python.keras"
_private: dict[str, ModuleType] = {}  # the copy's modules, while Keras stands for it
_later: dict[ModuleType, dict[str, Any]] = {}  # the later classes of modules that now name the earlier ones


def source_module(fullname: str) -> str | None:
    """Return today's name of a module of Keras 2.6 (``keras.engine.input_spec``, ``tf_keras.engine...``), or None."""
    package, dot, below = fullname.partition(".")
    # Names below `src` are those of today.
    if not dot or package not in _PACKAGES or below.startswith("src"):
        return None
    for old, new in _MOVED.items():
        if below == old or below.startswith(f"{old}."):
            below = new + below[len(old) :]
    name = f"tf_keras.src.{below}"
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:
        return None


def below_source(fullname: str) -> str | None:
    """Return :func:`source_module` for a module whose parent package is already one of Keras' sources.

    The folder of that package has the module too, and Python would load it from there a second time.
    """
    parent = sys.modules.get(fullname.rpartition(".")[0])
    parent_name = getattr(parent, "__name__", "")
    return (
        source_module(fullname)
        if parent_name.startswith("tf_keras.src.") and not fullname.startswith(parent_name)
        else None
    )


def optimizers_spec(fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Return the real spec of ``tf.keras.optimizers``, whose loading ends with :func:`name_earlier`; else ``None``."""
    return spec_ending_with(_name, fullname, path) if fullname in _OPTIMIZERS else None


def with_ipu(module: ModuleType) -> None:
    """Let ``tensorflow.keras`` have ``ipu``: imported by name it is another module than ``tf.keras`` was before."""

    def __getattr__(name: str) -> ModuleType:
        if name == "ipu":
            return importlib.import_module("tensorflow.keras.ipu")
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name)

    vars(module)["__getattr__"] = __getattr__


def spec_ending_with(
    action: Callable[[ModuleType], None], fullname: str, path: Sequence[str] | None
) -> importlib.machinery.ModuleSpec | None:
    """Return the real spec of a module, whose loading ends with ``action`` of the module; None if there is none."""
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _NamingLoader(spec.loader, action)
    return spec


class _NamingLoader(Loader):
    """Loads as ``real`` does, then names what the module had at 2.6."""

    def __init__(self, real: Loader, action: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Create the module as the real loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as the real loader does, then set the names."""
        self._real.exec_module(module)
        self._action(module)


def is_private(fullname: str) -> bool:
    """Whether Keras now stands for module ``fullname`` of :data:`PRIVATE`."""
    return bool(_private) and (fullname == PRIVATE or fullname.startswith(f"{PRIVATE}."))


def stand_for_private() -> None:
    """Let Keras stand for TensorFlow's :data:`PRIVATE` copy, of which TensorFlow itself has loaded all it needs."""
    for name in [name for name in sys.modules if name == PRIVATE or name.startswith(f"{PRIVATE}.")]:
        # The modules are kept, as TensorFlow's own references to them must stay valid.
        _private[name] = sys.modules.pop(name)


def leave_private() -> None:
    """Undo :func:`stand_for_private`."""
    if _private:
        for name in [name for name in sys.modules if is_private(name)]:
            del sys.modules[name]
        sys.modules.update(_private)
        # ``import a.b as c`` reads the attribute of the package, not ``sys.modules``.
        sys.modules["tensorflow.python"].__dict__["keras"] = _private[PRIVATE]
        _private.clear()


def name_earlier() -> None:
    """Make each loaded ``tf.keras.optimizers`` name the classes of its ``legacy`` module."""
    for name in _OPTIMIZERS:
        if name in sys.modules:
            _name(sys.modules[name])


def name_later() -> None:
    """Undo :func:`name_earlier` and what :func:`optimizers_spec` did on loading."""
    while _later:
        module, classes = _later.popitem()
        vars(module).update(classes)


def _name(module: ModuleType) -> None:
    earlier = {name: value for name, value in vars(module.legacy).items() if isinstance(value, type)}
    # A second call would take the earlier classes for the later ones.
    _later.setdefault(module, {name: vars(module)[name] for name in earlier})
    vars(module).update(earlier)

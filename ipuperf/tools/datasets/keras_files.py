"""Local files for ``tf.keras.datasets``: a program that would download ``mnist.npz`` reads this machine's file instead.

:func:`serve_keras` wraps Keras' ``get_file`` in the modules of ``tf_keras.src.datasets``. It imports nothing: the
modules are changed when they are imported. A file is looked up in ``$IPUPERF_DATA`` under its own name
(``imdb.npz``). MNIST is also made from IDX files (:func:`~ipuperf.datasets.load_mnist`). Any other file is left to
Keras, which looks into its own folder and downloads.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ipuperf.tools.datasets.mnist import ENVIRONMENT_VARIABLE, data_folder, find_mnist, load_mnist
from ipuperf.tools.errors import DatasetError

_PACKAGE = "tf_keras.src.datasets."
_GET_FILE = "get_file"


def local_file(name: str) -> Path | io.BytesIO | None:
    """Return the local file ``name`` of ``tf.keras.datasets``: its path, or its content; None if there is none.

    Raises:
        DatasetError: ``IPUPERF_DATA`` names no folder, or MNIST's files are damaged.
    """
    configured_folder = data_folder()
    if configured_folder is not None and (configured_folder / name).is_file():
        return configured_folder / name
    if name == "mnist.npz" and find_mnist() is not None:
        (x_train, y_train), (x_test, y_test) = load_mnist(True), load_mnist(False)
        content = io.BytesIO()
        np.savez(content, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        content.seek(0)
        return content
    return None


def serve_keras() -> bool:
    """Let ``tf.keras.datasets`` read local files; return whether this changed anything."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return False
    # First in the list, so that it sees modules before Python's own finder loads them.
    sys.meta_path.insert(0, _Finder())
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            _serve(module)
    return True


def unserve_keras() -> None:
    """Undo :func:`serve_keras`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE) and hasattr(vars(module).get(_GET_FILE), "_serves_local_files"):
            setattr(module, _GET_FILE, vars(module)[_GET_FILE].__wrapped__)


def _serve(module: ModuleType) -> None:
    get_file = vars(module).get(_GET_FILE)
    if get_file is not None and not hasattr(get_file, "_serves_local_files"):
        setattr(module, _GET_FILE, _looking_here_first(get_file))


def _looking_here_first(get_file: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_file)
    def get(fname: Any = None, *args: Any, **kwargs: Any) -> Any:
        local = local_file(str(fname))
        if local is not None:
            return local
        try:
            return get_file(fname, *args, **kwargs)
        except Exception as error:
            raise DatasetError(
                f"{fname} is not on this machine and Keras could not fetch it ({error}). Put the file into the folder "
                f"that "
                f"{ENVIRONMENT_VARIABLE} names"
            ) from error

    vars(get)["_serves_local_files"] = True
    return get


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Keras' data set modules as Python does, and wraps their ``get_file`` after they are executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PACKAGE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _serve(module)

    def __getattr__(self, name: str) -> Any:
        # Importlib asks loaders for more than these methods, such as resources.
        return getattr(self._loader, name)

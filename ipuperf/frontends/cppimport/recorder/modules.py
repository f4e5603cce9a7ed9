"""Modules of PopXL's ops: what pybind11 would export of a recorded library."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ipuperf.ir import Op

from . import LibraryOp, RecordedCode, library_of, op_class


class RecordedLoader(importlib.abc.Loader):
    """Loads the module of a source."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module with a class for each class of ops. CompileError as :func:`.library_of`."""
        return recorded_module(spec.name, self.source)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


def recorded_module(name: str, source: Path) -> ModuleType:
    """The module of a source in C++; CompileError as :func:`.library_of`."""
    from ipuperf.frontends.popxl.bindings import Binding

    @dataclass(frozen=True)
    class RecordedBinding(Binding):
        """Stands for a class of ops of a recorded library.

        Attributes:
            recorder: the library.
            method: what the library exports it as, ``Class.createOpInGraph``.
            arguments: the names of the op's own values.
        """

        recorder: RecordedCode
        method: str
        arguments: tuple[str, ...]

        @property
        def attributes(self) -> Sequence[str]:
            """The names of the op's own values, in order."""
            return self.arguments

        def class_for(self, results: int) -> type[Op]:
            """The class of the op with so many results."""
            label = self.method.partition(".")[0].removesuffix("Op")
            return op_class(label, LibraryOp(self.recorder, "binding", (self.method, results), ()))

    recorder = library_of(source)
    module = ModuleType(name)
    module.__file__ = str(source)
    for method, arguments in recorder.contents["bindings"]:
        class_name = method.partition(".")[0]
        setattr(module, class_name, RecordedBinding(Op, recorder, method, tuple(arguments)))
    return module

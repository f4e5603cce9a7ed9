"""Operations in C++ whose functions ``Build`` record themselves (:mod:`ipuperf.frontends.cppimport.recorder`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ipuperf.frontends.cppimport.recorder import LibraryOp, is_vendors, library_of, records, specs_of
from ipuperf.frontends.tensorflow.importer import Importer, MadeBy, Value, marker, tensor_of
from ipuperf.frontends.tensorflow.importer.values import DTYPES
from ipuperf.functions import make_all
from ipuperf.ops.recorded import recorded_class


def source_of(folder: Path, library: str, op_name: str) -> Path | None:
    """The C++ that defines an operation and can be recorded: the file of the library's name, or the only one of its
    folder."""
    defines = re.compile(rf"\b{re.escape(op_name)}\s*\(")
    files = [path for path in sorted(folder.glob("*.c*")) if path.suffix in (".cpp", ".cc", ".cxx")]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    defining = [path for path, text in texts.items() if defines.search(text) and is_vendors(text)]
    named = [path for path in defining if path.stem == library.removeprefix("lib")] or defining
    return named[0] if len(named) == 1 and records(named[0]) else None


class RecordedLibrary:
    """The operations of a library as functions of TensorFlow's tensors, as a module in Python would have them.

    Args:
        source: the file that defines them.
        with_gradients: numbers of the inputs that have a gradient.
        separate: C++ gives one gradient at a time.
    """

    def __init__(self, source: Path, with_gradients: Sequence[int], separate: bool) -> None:
        self._recorder = library_of(source)
        self._with_gradients = with_gradients
        self._separate = separate
        self.__file__ = str(source)

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        if name.startswith("__") or not self._recorder.function(name):
            raise AttributeError(name)
        return self._gradients(name) if name.endswith("_grad") else self._results(name)

    def _results(self, name: str) -> Callable[..., list[Any]]:
        def build(inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
            return _made(name, LibraryOp(self._recorder, "build", (name,), attributes), inputs)

        return build

    def _gradients(self, name: str) -> Callable[..., list[Any]]:
        def build(
            gradients: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], attributes: str
        ) -> list[tf.Tensor | None]:
            operands = (*gradients, *inputs, *outputs)
            groups = (len(gradients), len(inputs), len(outputs))

            def of(number: int) -> list[tf.Tensor]:
                source = LibraryOp(self._recorder, "build_grad", (name, number), attributes, groups)
                return _made(name, source, operands)

            numbers = self._with_gradients
            made = [each for number in numbers for each in of(number)] if self._separate else of(0)
            if len(made) != len(numbers):
                raise ValueError(
                    f"custom_ops.precompiled_user_op: {name} gives {len(made)} gradients, and {len(numbers)} inputs "
                    "have one"
                )
            by_number = dict(zip(numbers, made, strict=True))
            return [by_number.get(number) for number in range(len(inputs))]

        return build


def _made(name: str, source: LibraryOp, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """A marker for the op of ``source``."""
    specs = specs_of(source, tuple((tuple(each.shape), DTYPES[each.dtype].name) for each in inputs))

    def build(importer: Importer, values: Sequence[Value]) -> Sequence[Value]:
        operands = [tensor_of(value, importer.place) for value in values]
        names = [f"{name}_{number}" for number in range(len(specs))]
        return make_all(recorded_class(name), operands, names, source=source)

    outputs = [tf.TensorSpec(spec.shape, spec.dtype.name) for spec in specs]
    return marker(name, MadeBy(build), inputs, outputs, effect=False)

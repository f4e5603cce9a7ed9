"""``ipu.custom_ops.precompiled_user_op``: operations in C++, for which functions in Python stand, or that are recorded.

The library itself is not run, and whether it is there makes no difference. A library's name with ``.py`` behind it
(``libcustom_op.so.py``) is a module that stands for it, if it lies beside it. The libraries of some public programs are
known by their sources (``KNOWN``). A module has a function of the operation's name, ``Build`` unless the program says
another: ``Build(inputs, attributes)`` gives the results, as TensorFlow's operations of the inputs. One named
``Build_grad`` is called as C++'s ``Build_grad(gradients, inputs, outputs, attributes)`` and gives the gradients of the
inputs; without it TensorFlow differentiates ``Build``. Other sources are compiled with recording headers
(:mod:`.recorded`), where there is a compiler.

Upstream: ``tensorflow: python/ipu/ops/custom_ops.py``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.util import dispatch

from ipuperf.frontends.cppimport.sources import digest

from ..effects import EFFECTS, checked_kinds
from .recorded import RecordedLibrary, source_of

_CROP = "6838d6188ed049f04c1da03c7072e55619b450c13d29efe02f0d55f36d563170"
_GROUPED = "566bbc7532681e0872e5c339f65ebd394f4a304966ae89b3657196d35e7505ba"
_NMS = "9bc942cde8f2222fd5c27a10c4adff81fb9429e354250b34b7b44a4cb0d3e787"
_NMS_MULTI = "b0757564fc35c83cc9bb46657ac38914fed7269a8575bd7723e7ff75d2687150"
_NMS_VERTICES = "b8414e44fd69c03db1e9d731e1ebd22632493298274b0d13db984046f957eef3"
KNOWN: Mapping[tuple[str, ...], str] = {
    (_CROP,): "central_crop.py",  # vision/unet_medical/tensorflow2
    (_GROUPED,): "grouped_rows.py",  # gnn/message_passing/tensorflow2
    (_NMS, _NMS_VERTICES): "suppression.py",  # vision/efficientdet/tensorflow2, one class for each box
    (_NMS_MULTI, _NMS_VERTICES): "suppression.py",  # a score for each box and class
}
"""By the digests of its sources and of its vertices, the module here that stands for a library.

All of graphcore/examples, v3.3."""

_BUILT = "build"


@dispatch.add_dispatch_support  # Keras makes a layer of a call with its symbolic tensors
@checked_kinds("inputs", "outs")
def precompiled_user_op(
    inputs: Sequence[Any],
    library_path: str,
    gp_path: str = "",
    outs: Mapping[str, Sequence[Any]] | None = None,
    name: str = "UserOp",
    op_name: str = "Build",
    separate_gradients: bool = False,
    inputs_with_gradients: Sequence[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[tf.Tensor]:
    """The results of an operation of a library in C++, one for each entry of ``outs``.

    Args:
        inputs: tensors.
        library_path: of the library; the files beside it, or beside the folder ``build`` that it is in, are its
            sources.
        gp_path: of its vertices; a function in Python does without, but they belong to what is known.
        outs: ``output_types`` and ``output_shapes``.
        op_name: of the function.
        separate_gradients: whether C++ is asked for one gradient at a time; a function in Python gives them all.
        inputs_with_gradients: numbers of the inputs that have one; None: all.
        attributes, gradient_attributes: for the function and for that of its gradients.

    Raises:
        NotImplementedError: nothing stands for the library.
        ValueError: the function gives other results than ``outs`` says.
    """
    EFFECTS.given("ipu.custom_ops.precompiled_user_op(gp_path)", gp_path)
    EFFECTS.given("ipu.custom_ops.precompiled_user_op(separate_gradients)", separate_gradients)
    numbers = range(len(inputs)) if inputs_with_gradients is None else inputs_with_gradients
    module = _standing_for(library_path, gp_path, op_name, numbers, separate_gradients)
    build = _function(module, op_name)
    of_gradients = getattr(module, f"{op_name}_grad", None)
    with tf.name_scope(name):
        tensors = [tf.convert_to_tensor(each) for each in inputs]
        kept = [each if number in numbers else tf.stop_gradient(each) for number, each in enumerate(tensors)]

        def forward(*operands: tf.Tensor) -> list[tf.Tensor]:
            return _checked(build(list(operands), attributes or ""), outs, op_name)

        if of_gradients is None:
            return forward(*kept)

        @tf.custom_gradient
        def differentiable(*operands: tf.Tensor) -> Any:
            results = forward(*operands)

            def backward(*gradients: tf.Tensor) -> Any:
                return of_gradients(list(gradients), list(operands), results, gradient_attributes or "")

            return results, backward

        results = differentiable(*kept)
        return list(results) if isinstance(results, (list, tuple)) else [results]


def _standing_for(
    library_path: str, gp_path: str, op_name: str, with_gradients: Sequence[int], separate: bool
) -> ModuleType | RecordedLibrary:
    """What stands for a library: a module in Python, or the library of its sources, recorded."""
    library = Path(library_path)
    file = library.with_name(f"{library.name}.py")
    if file.is_file():
        return loaded(file)
    folder = library.absolute().parent
    folder = folder.parent if folder.name == _BUILT else folder
    sources = [folder / library.name]
    if gp_path:
        sources.append(Path(gp_path))
    known = KNOWN.get(tuple(digest(each) for each in sources))
    if known is not None:
        return loaded(Path(__file__).with_name(known))
    source = source_of(folder, library.stem, op_name)
    if source is None:
        raise NotImplementedError(
            f"custom_ops.precompiled_user_op: {str(library)!r} is C++, which ipuperf cannot record here (that needs "
            f"g++, or the compiler that CXX names, and a source with {op_name} beside it); "
            f"write {file.name!r} beside it with a function `Build(inputs, attributes)` of TensorFlow's operations "
            "(docs/how-to/tensorflow.md)"
        )
    return RecordedLibrary(source, with_gradients, separate)


def loaded(file: Path) -> ModuleType:
    """The module of a file, whatever its name."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{file.name.partition('.')[0]}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType | RecordedLibrary, op_name: str) -> Callable[..., Any]:
    function = getattr(module, op_name, None)
    if not callable(function):
        raise NotImplementedError(f"custom_ops.precompiled_user_op: {module.__file__} has no function {op_name!r}")
    return function


def _checked(results: Any, outs: Mapping[str, Sequence[Any]] | None, op_name: str) -> list[tf.Tensor]:
    """The results as a list; ValueError unless they are as the program says."""
    given = [tf.convert_to_tensor(each) for each in results]
    types, shapes = (list((outs or {}).get(key, [])) for key in ("output_types", "output_shapes"))
    wanted = [(tf.as_dtype(kind), tf.TensorShape(shape)) for kind, shape in zip(types, shapes, strict=True)]
    found = [(each.dtype, each.shape) for each in given]
    if len(found) != len(wanted) or any(
        kind != other or not shape.is_compatible_with(its) for (kind, shape), (other, its) in zip(wanted, found)
    ):
        say = [", ".join(f"{kind.name} {shape}" for kind, shape in pairs) or "nothing" for pairs in (wanted, found)]
        raise ValueError(f"custom_ops.precompiled_user_op: {op_name} gives {say[1]}, and `outs` says {say[0]}")
    return given


__all__ = ["KNOWN", "precompiled_user_op"]

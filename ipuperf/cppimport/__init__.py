"""What ``import cppimport`` finds: ops in C++ are not compiled here, and every way to ask for one says so.

On the device cppimport compiles a custom op of PopART when its module is imported. ipuperf runs no C++: the vendor's
ops are built in, and a program's own is described in Python (``docs/adding-a-custom-op.md``).
Names: cppimport 22 (PyPI).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

#: Modules that the vendor's libraries compile (without ``.cpp``), and where their ops are built in.
BUILT_IN = {
    "crossentropysharded_binding": "popxl_addons.ops.cross_entropy_sharded_loss",
    "fp8_mse_scale_impl": "popxl_addons.ops.fp8_mse_scale",
    "grad_reduce_square_add_binding": "popxl_addons.ops.grad_reduce_square_add",
    "group_quantize_decompress_binding": "popxl_addons.ops.group_quantize_decompress",
    "layer_norm_distributed_binding": "popxl_addons.ops.layer_norm_distributed",
    "linear_layout_impl": "popxl_addons.ops.linear_layout",
    "replicated_all_gather_strided_binding": "popxl_addons.ops.replicated_strided_collectives",
    "replicated_all_reduce_TP_binding": "popxl_addons.ops.replicated_all_reduce_TP",
    "replicated_all_reduce_strided_binding": "popxl_addons.ops.replicated_strided_collectives",
    "replicated_reduce_scatter_strided_binding": "popxl_addons.ops.replicated_strided_collectives",
    "rotary_pos_embed_binding": "popxl_addons.ops.rotary_pos_embed",
}


class CppOpError(ImportError):
    """A program asked for a custom op in C++. An ImportError, so that a program can fall back on its description."""


def refused(fullname: str, file: str = "") -> CppOpError:
    """The error for the C++ module ``fullname``, whose source is ``file`` when that is known."""
    stem = fullname.rpartition(".")[2]
    what = f"{fullname!r} ({file})" if file else repr(fullname)
    if stem in BUILT_IN:
        return CppOpError(f"{what} is C++, which ipuperf does not compile; its op is built in: import {BUILT_IN[stem]}")
    return CppOpError(
        f"{what} is C++, which ipuperf does not compile; describe its op in Python as a class with shape rule, NumPy "
        "value, gradient and cost, and add it with popxl.custom_ops.custom_op: docs/adding-a-custom-op.md shows how"
    )


def imp(fullname: str, opt_in: bool = False) -> ModuleType:
    """Raises :class:`CppOpError`."""
    raise refused(fullname)


def imp_from_filepath(filepath: str | Path, fullname: str | None = None) -> ModuleType:
    """Raises :class:`CppOpError`."""
    raise refused(fullname or Path(filepath).stem, str(filepath))


def build(fullname: str) -> str:
    """Raises :class:`CppOpError`."""
    raise refused(fullname)


def build_filepath(filepath: str | Path, fullname: str | None = None) -> str:
    """Raises :class:`CppOpError`."""
    raise refused(fullname or Path(filepath).stem, str(filepath))


def build_all(root_directory: str | Path, **_options: Any) -> None:
    """Raises :class:`CppOpError` for the first module below ``root_directory`` that cppimport would compile."""
    for path in sorted(Path(root_directory).rglob("*.cpp")):
        if is_module(path):
            raise refused(path.stem, str(path))


def is_module(path: Path) -> bool:
    """Whether cppimport compiles this file: its first line says ``cppimport``."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return "cppimport" in file.readline()


__all__ = ["CppOpError", "build", "build_all", "build_filepath", "imp", "imp_from_filepath"]

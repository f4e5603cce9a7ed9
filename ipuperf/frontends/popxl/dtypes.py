"""Data types of the PopXL front end: ``popxl.float32``, ``popxl.int32`` and so on, one object per type.

Each wraps a :class:`ipuperf.ir.DType`. ``half``, ``float`` and ``double`` are aliases as upstream. The upstream types
``complex64`` and ``complex128`` are not supported and therefore absent: no op of the IPU takes them.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf.base.kinds import told
from ipuperf.base.near_names import instead_of

if TYPE_CHECKING:
    import torch


class dtype:
    """An element type. ``repr`` is ``popxl.dtypes.<name>``; equal only to itself."""

    def __init__(self, base: _ir.DType) -> None:
        if not isinstance(base, _ir.DType):
            raise TypeError(f"popxl.dtype cannot be constructed of {told(base)}; use popxl.dtype.as_dtype")
        self._ir = base

    @property
    def name(self) -> str:
        """NumPy-like name, ``float32``."""
        return self._ir.name

    @property
    def is_floating_point(self) -> builtins.bool:
        """True for the 8-bit floats, float16, float32, float64."""
        return self._ir.category in ("float", "float8")

    @property
    def is_int(self) -> builtins.bool:
        """True for signed and unsigned integers."""
        return self._ir.is_integer

    @property
    def is_signed(self) -> builtins.bool:
        """True for types with negative values."""
        return self._ir.category in ("float", "float8", "int")

    @property
    def is_complex(self) -> builtins.bool:
        """False: there are no complex types here (:data:`UNSUPPORTED`)."""
        return False

    def as_numpy(self) -> np.dtype:
        """The NumPy dtype of the same name."""
        return self._ir.numpy

    def as_torch(self) -> torch.dtype:
        """The PyTorch dtype of the same name (imports torch); ValueError when PyTorch has none."""
        import torch

        torch_dtype = getattr(torch, self.name, None)
        if not isinstance(torch_dtype, torch.dtype):
            raise ValueError(f"{self!r} has no PyTorch counterpart")
        return torch_dtype

    @classmethod
    def from_name(cls, name: str) -> dtype:
        """The type with this name or alias; ValueError lists the allowed names."""
        if name not in _BY_NAME:
            raise ValueError(f"unknown popxl dtype {name!r}{instead_of(name, _BY_NAME)}")
        return _BY_NAME[name]

    @classmethod
    def as_dtype(cls, type_like: Any) -> dtype:
        """``type_like`` as a dtype: a dtype, a name, a Python or NumPy type, a PyTorch dtype, an array or a tensor.

        Python's ``int`` is int64, as upstream (data of Python integers becomes int32 when 64-bit types are narrowed).

        Raises:
            ValueError: when there is no such type on the IPU.
        """
        if isinstance(type_like, dtype):
            return type_like
        if isinstance(type_like, np.dtype) and type_like in _NP_TO_POPXL:
            return _NP_TO_POPXL[type_like]
        if isinstance(type_like, _ir.DType):
            return _BY_NAME[type_like.name]
        if isinstance(type_like, str):
            return cls.from_name(type_like)
        if isinstance(type_like, type) and type_like in _PY_TO_POPXL:
            return _PY_TO_POPXL[type_like]
        type_like = getattr(type_like, "dtype", type_like) if not isinstance(type_like, type) else type_like
        if isinstance(type_like, np.dtype) and type_like.names:
            return cls.from_name(type_like.names[0])
        text = str(type_like)
        if text.startswith("torch."):
            return cls.from_name(text.removeprefix("torch."))
        try:
            if type_like is None:  # NumPy's default type is nobody's wish
                raise TypeError
            return cls.from_name(np.dtype(type_like).name)
        except TypeError:
            raise ValueError(f"{type_like!r} is not a dtype{instead_of(type_like, _BY_NAME)}") from None

    def __repr__(self) -> str:
        return f"popxl.dtypes.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype.from_name, (self.name,)


int8 = dtype(_ir.INT8)
int16 = dtype(_ir.INT16)
int32 = dtype(_ir.INT32)
int64 = dtype(_ir.INT64)
uint8 = dtype(_ir.UINT8)
uint16 = dtype(_ir.UINT16)
uint32 = dtype(_ir.UINT32)
uint64 = dtype(_ir.UINT64)
float16 = dtype(_ir.FLOAT16)
float32 = dtype(_ir.FLOAT32)
float64 = dtype(_ir.FLOAT64)
float8_143 = dtype(_ir.FLOAT8_143)
float8_152 = dtype(_ir.FLOAT8_152)
half = float16
double = float64

_BY_NAME: dict[str, dtype] = {
    "bool": dtype(_ir.BOOL),
    **{d.name: d for d in (int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64)},
    "float8_143": float8_143,
    "float8_152": float8_152,
    "half": float16,
    "float": float32,
    "double": float64,
}
_PY_TO_POPXL: dict[Any, dtype] = {builtins.bool: _BY_NAME["bool"], builtins.int: int64, builtins.float: float32}
_STR_TO_POPXL: dict[str, dtype] = {element_type.name: element_type for element_type in _BY_NAME.values()}
_NP_TO_POPXL: dict[np.dtype, dtype] = {element_type.as_numpy(): element_type for element_type in _STR_TO_POPXL.values()}
_IN_TORCH = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")

bool = _BY_NAME["bool"]  # the upstream names shadow the builtins in this module only
float = float32

np_dtype_float8_143 = float8_143.as_numpy()
np_dtype_float8_152 = float8_152.as_numpy()

UNSUPPORTED = ("complex64", "complex128")


def __getattr__(name: str) -> Any:
    if name == "_PT_TO_POPXL":  # needs PyTorch, which only some programs have
        import torch

        return {getattr(torch, text): _STR_TO_POPXL[text] for text in _IN_TORCH}
    if name in UNSUPPORTED:
        raise AttributeError(
            f"popxl.{name} is not supported by ipuperf: no op takes complex numbers; dtypes: {', '.join(_BY_NAME)}"
        )
    raise AttributeError(f"module 'popxl.dtypes' has no attribute {name!r}")

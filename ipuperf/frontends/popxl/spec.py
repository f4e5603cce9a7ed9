"""``TensorSpec`` and ``TensorByRef``: what a subgraph is told about its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ipuperf import ir as _ir

from .arguments import checked_kinds, wholes
from .dtypes import dtype as _dtype


class TensorByRef:
    """Annotation of a function's parameter: changes made to the tensor inside the subgraph are seen by the caller.

    It stands for a :class:`Tensor` (never instantiated); ``List[TensorByRef]`` and ``Tuple[TensorByRef, ...]`` mark
    every tensor of a sequence.
    """

    shape: tuple[int, ...]
    dtype: _dtype
    meta_shape: tuple[int, ...]


class TensorSpec(Mapping[str, Any]):
    """Shape, dtype and (for RTS shards) unsharded shape of a tensor. A mapping, so ``graph_input(**spec)`` works."""

    @checked_kinds()
    def __init__(self, shape: Sequence[int], dtype: _dtype, meta_shape: Sequence[int] = ()) -> None:
        self.shape = wholes(shape, "shape of a TensorSpec", 0)
        self.dtype = _dtype.as_dtype(dtype)
        self.meta_shape = wholes(() if meta_shape is None else meta_shape, "meta_shape of a TensorSpec", 0)

    @classmethod
    def _from_ir(cls, spec: _ir.TensorSpec) -> TensorSpec:
        return cls(spec.shape, _dtype.as_dtype(spec.dtype), spec.meta_shape)

    @property
    def _ir(self) -> _ir.TensorSpec:
        return _ir.TensorSpec(self.shape, self.dtype._ir, self.meta_shape)

    @property
    def nelms(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def spec(self) -> TensorSpec:
        """Itself, so that specs and tensors can be used alike."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Keyword arguments of :func:`graph_input`."""
        return {"shape": self.shape, "dtype": self.dtype, "meta_shape": self.meta_shape}

    def to_tuple(self) -> tuple[tuple[int, ...], _dtype, tuple[int, ...]]:
        """Shape, dtype, meta shape."""
        return self.shape, self.dtype, self.meta_shape

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self.to_tuple() == other.to_tuple()

    def __hash__(self) -> int:
        return hash(self.to_tuple())

    def __repr__(self) -> str:
        meta = f", meta_shape={self.meta_shape}" if self.meta_shape else ""
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype!r}{meta})"

"""``NamedTensors``: tensors by dotted name; ``NamedTensorData``: their host data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ipuperf.popxl import Tensor

from .dot_tree import DotTree

TensorMap = dict[Tensor, Tensor]


class NamedTensorData(DotTree[np.ndarray]):
    """A tree of host arrays."""


class NamedTensors(DotTree[Tensor]):
    """A tree of tensors."""

    @property
    def named_tensors(self) -> dict[str, Tensor]:
        """Flat dictionary of dotted names and tensors."""
        return self.to_dict()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, sorted by the tensors' own names."""
        return tuple(sorted(self.to_dict().values(), key=lambda t: t.name))

    def remap(self, mapping: Mapping[Tensor, Tensor]) -> NamedTensors:
        """The same names for the images of the tensors in ``mapping``; KeyError when one has none."""
        return self.map(lambda tensor: mapping[tensor])

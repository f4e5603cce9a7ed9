"""``NamedTensors``: tensors by dotted name; ``NamedTensorData``: their host data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ipuperf.frontends.popxl import Tensor, Variable, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

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

    @property
    def named_variables(self) -> dict[str, Variable]:
        """Those of :attr:`named_tensors` that are variables."""
        return {name: t for name, t in self.to_dict().items() if isinstance(t, Variable)}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Those of :attr:`tensors` that are variables."""
        return tuple(t for t in self.tensors if isinstance(t, Variable))

    @checked_arguments
    def remap(self, mapping: Mapping[Tensor, Tensor]) -> NamedTensors:
        """The same names for the images of the tensors in ``mapping``; KeyError when one has none."""
        return self.map(lambda tensor: mapping[tensor])


@checked_arguments
def print_named_tensors(named_tensors: NamedTensors) -> NamedTensors:
    """Tensors that print themselves under their names (:func:`popxl.ops.print_tensor`) when something reads them."""
    return named_tensors.from_dict({name: ops.print_tensor(t, name) for name, t in named_tensors.to_dict().items()})


__all__ = ["NamedTensorData", "NamedTensors", "TensorMap", "print_named_tensors"]

"""What layers share: how weights are drawn, and how they come from a module of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.utils import to_numpy

from ..named_tensors import NamedTensors
from ..utils import WeightsDict

#: Deviation of drawn weights, and after how many deviations they are cut.
SCALE, CUT = 0.02, 2


def drawn(shape: Sequence[int]) -> np.ndarray:
    """Random numbers of NumPy's global state: normal, deviation 0.02, those beyond two deviations drawn again."""
    values = np.random.standard_normal(shape)  # noqa: NPY002  # programs seed the global state
    while (beyond := np.abs(values) > CUT).any():
        values[beyond] = np.random.standard_normal(int(beyond.sum()))  # noqa: NPY002
    return values * SCALE


def mapped(variables: NamedTensors, nn_layer: Any, dtype: popxl.dtype, transposed: bool = False) -> WeightsDict:
    """``weight`` and, where there is one, ``bias`` of a module of PyTorch, in the variables' shapes."""
    weight = to_numpy(nn_layer.weight.data, dtype)
    shape = variables.weight.shape_on_host
    weights = WeightsDict({variables.weight: weight.T if transposed else weight.reshape(shape)})
    if "bias" in variables.to_dict():
        weights[variables.bias] = to_numpy(nn_layer.bias.data, dtype).reshape(variables.bias.shape_on_host)
    return weights

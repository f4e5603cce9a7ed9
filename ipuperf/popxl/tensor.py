"""Tensors of PopXL: handles (:mod:`.handle`), specs (:mod:`.spec`) and creation (:mod:`.data`), under the upstream path."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from .data import (
    constant,
    graph_input,
    graph_output,
    remote_replica_sharded_variable,
    remote_variable,
    replica_sharded_variable,
    variable,
)
from .handle import Constant, Tensor, Variable
from .remote_buffer import replica_sharded_buffer
from .spec import TensorByRef, TensorSpec

ScalarType = Union[int, float, bool]
HostScalarTensor = Union[np.ndarray, list, tuple, ScalarType]
HostTensor = Union[np.ndarray, Any]
TensorLike = Union[Tensor, HostScalarTensor]
host_tensor_types = (np.ndarray, list, tuple)

__all__ = [
    "Constant",
    "HostScalarTensor",
    "HostTensor",
    "ScalarType",
    "Tensor",
    "TensorByRef",
    "TensorLike",
    "TensorSpec",
    "Variable",
    "constant",
    "graph_input",
    "graph_output",
    "host_tensor_types",
    "remote_replica_sharded_variable",
    "remote_variable",
    "replica_sharded_buffer",
    "replica_sharded_variable",
    "variable",
]

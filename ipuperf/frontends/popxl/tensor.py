"""Tensors of PopXL under the upstream path: handles (:mod:`.handle`), specs (:mod:`.spec`), creation (:mod:`.data`)."""

from typing import Any as _Any

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

ScalarType = int | float | bool
HostScalarTensor = np.ndarray | list[_Any] | tuple[_Any, ...] | ScalarType
HostTensor = np.ndarray | _Any
TensorLike = Tensor | HostScalarTensor
host_tensor_types = (np.ndarray, list, tuple)

__all__ = ["Constant", "HostScalarTensor", "HostTensor", "ScalarType", "Tensor", "TensorByRef", "TensorLike"]
__all__ += ["TensorSpec", "Variable", "constant", "graph_input", "graph_output", "host_tensor_types"]
__all__ += ["remote_replica_sharded_variable", "remote_variable", "replica_sharded_buffer"]
__all__ += ["replica_sharded_variable", "variable"]

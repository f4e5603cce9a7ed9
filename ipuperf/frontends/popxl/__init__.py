"""The PopXL front end: the upstream names on ipuperf's intermediate representation.

Programs reach it as ``popxl`` through :mod:`ipuperf.runtime.install`. What is here and what is not is listed in
``docs/reference/popxl-names.md``; an upstream name that is not supported raises an error that says so.
"""

from ipuperf.frontends.popart.locations import (
    ExecutionContext,
    ReplicatedTensorSharding,
    TensorLocation,
    TensorStorage,
    TileSet,
)
from ipuperf.functions.shapes import getitem as _getitem

from . import context, dtypes, errors, fp8_utils, ops, transforms, utils
from .context import (
    gcg,
    get_current_graph,
    get_ir,
    get_main_graph,
    gir,
    gmg,
    in_sequence,
    io_tiles,
    ipu,
    name_scope,
)
from .dtypes import (
    bool,
    double,
    dtype,
    float,
    float8_143,
    float8_152,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .graph import Graph
from .handle import use as _use
from .ir import Ir
from .module import Module
from .ops.lifting import lifted as _lifted
from .ops.operands import ensure_tensor as _ensure_tensor
from .package import refuse as _refuse
from .random_seed import create_seeds
from .remote_buffer import RemoteBuffer, remote_buffer, replica_sharded_buffer
from .replica_grouping import ReplicaGrouping
from .session import Session
from .streams import DeviceToHostStream, HostToDeviceStream, d2h_stream, h2d_stream
from .tensor import (
    Constant,
    Tensor,
    TensorByRef,
    TensorSpec,
    Variable,
    constant,
    graph_input,
    graph_output,
    remote_replica_sharded_variable,
    remote_variable,
    replica_sharded_variable,
    variable,
)

_use({**vars(ops), "getitem": _lifted(_getitem), "ensure_tensor": _ensure_tensor})

__all__ = ["Constant", "DeviceToHostStream", "ExecutionContext", "Graph", "HostToDeviceStream", "Ir", "Module"]
__all__ += ["RemoteBuffer", "ReplicaGrouping", "ReplicatedTensorSharding", "Session", "Tensor", "TensorByRef"]
__all__ += ["TensorLocation", "TensorSpec", "TensorStorage", "TileSet", "Variable", "bool", "constant", "context"]
__all__ += ["create_seeds", "d2h_stream", "double", "dtype", "dtypes", "errors", "float", "float16", "float32"]
__all__ += ["float8_143", "float8_152", "float64", "fp8_utils", "gcg", "get_current_graph", "get_ir"]
__all__ += ["get_main_graph", "gir", "gmg", "graph_input", "graph_output", "h2d_stream", "half", "in_sequence"]
__all__ += ["int8", "int16", "int32", "int64", "io_tiles", "ipu", "name_scope", "ops", "remote_buffer"]
__all__ += ["remote_replica_sharded_variable", "remote_variable", "replica_sharded_buffer"]
__all__ += ["replica_sharded_variable", "transforms", "uint8", "uint16", "uint32", "uint64", "utils", "variable"]
__getattr__ = _refuse(__name__, __all__)

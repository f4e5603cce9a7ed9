"""The PopXL front end: the upstream names on ipuperf's intermediate representation.

Programs reach it as ``popxl`` through :mod:`ipuperf.runtime.install`. What is here and what is not is listed in
``docs/user-guide.md``; an upstream name that is not supported raises an error that says so.
"""

# ruff: noqa: F401  # what is imported is the package's content
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
from .package import offer as _offer
from .remote_buffer import RemoteBuffer, remote_buffer, replica_sharded_buffer
from .replica_grouping import ReplicaGrouping
from .seeds import create_seeds
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

__all__, __getattr__ = _offer(__name__, "context dtypes errors fp8_utils ops transforms utils")

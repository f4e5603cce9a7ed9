"""The popxl.addons front end: modules with state, named tensors, remote variables, transforms.

Programs reach it as ``popxl_addons`` through :mod:`ipuperf.runtime.install`. An upstream name that is not supported
raises an error that says so.
"""

from __future__ import annotations

from ipuperf.frontends.popxl.package import refuse as _refuse

from . import (
    array_munging,
    debugging,
    dot_tree,
    graph,
    graph_cache,
    graph_common,
    input_factory,
    layers,
    module,
    named_replica_grouping,
    named_tensors,
    ops,
    optimizers,
    patterns,
    performance_utils,
    remote,
    route_tensor,
    rts,
    streams,
    task_session,
    testing_utils,
    transforms,
    utils,
    variable_factory,
)
from .array_munging import (
    handle_negative_axis,
    pad_axis,
    repeat,
    repeat_axis,
    repeat_shard,
    shard,
    shard2D,
    split2D,
    squeeze_safe,
    tensor_parallel_input,
    unshard,
    unshard2D,
    unshard_arrays,
)
from .debugging import print_tensor, print_text
from .dot_tree import DotTree
from .graph import BoundGraph, GraphWithNamedArgs
from .graph_cache import GraphCache, function
from .module import Module, create_grad_graph_info
from .named_replica_grouping import NamedReplicaGrouping
from .named_tensors import NamedTensorData, NamedTensors
from .ops import cross_entropy, cross_entropy_with_grad, fp8_amax_scale, host_load, host_store
from .performance_utils import (
    evaluate_FLOPs,
    evaluate_ir_FLOPs,
    format_flops_scientific,
    print_FLOPs,
    total_FLOPs,
)
from .remote import (
    NamedRemoteBuffers,
    create_remote_buffer,
    load_remote,
    load_remote_graph,
    named_buffers,
    named_variable_buffers,
    store_remote,
    store_remote_graph,
)
from .route_tensor import is_subgraph, route_tensor_into_graph
from .rts import (
    all_gather_replica_sharded_graph,
    gather_replica_sharded_tensor,
    reduce_replica_sharded_graph,
    reduce_replica_sharded_tensor,
    replica_sharded_spec,
)
from .seed_variable import seed_variable
from .streams import InputStreams, OutputStreams
from .task_session import TaskSession, write_variables_pb
from .transforms import (
    RemoteHandle,
    autodiff,
    autodiff_with_accumulation,
    batch_serial_buffer,
    batch_serialise,
    batch_serialise_fwd_and_grad,
    disable_fc_pass,
    enable_fc_pass,
    pipelined_execution,
    recompute_graph,
    set_available_memory_proportion_by_ipu,
    set_graph_available_memory_proportion_by_ipu,
)
from .utils import OrderedDict, WeightsDict, null_context, suffix_graph_name, timer
from .variable_factory import (
    NamedVariableFactories,
    VariableFactory,
    add_replica_sharded_variable_input,
    add_variable_input,
)

__all__ = ["BoundGraph", "DotTree", "GraphCache", "GraphWithNamedArgs", "InputStreams", "Module"]
__all__ += ["NamedRemoteBuffers", "NamedReplicaGrouping", "NamedTensorData", "NamedTensors", "NamedVariableFactories"]
__all__ += ["OrderedDict", "OutputStreams", "RemoteHandle", "TaskSession", "VariableFactory", "WeightsDict"]
__all__ += ["add_replica_sharded_variable_input", "add_variable_input", "all_gather_replica_sharded_graph"]
__all__ += ["array_munging", "autodiff", "autodiff_with_accumulation", "batch_serial_buffer", "batch_serialise"]
__all__ += ["batch_serialise_fwd_and_grad", "create_grad_graph_info", "create_remote_buffer", "cross_entropy"]
__all__ += ["cross_entropy_with_grad", "debugging", "disable_fc_pass", "dot_tree", "enable_fc_pass", "evaluate_FLOPs"]
__all__ += ["evaluate_ir_FLOPs", "format_flops_scientific", "fp8_amax_scale", "function"]
__all__ += ["gather_replica_sharded_tensor", "graph", "graph_cache", "graph_common", "handle_negative_axis"]
__all__ += ["host_load", "host_store", "input_factory", "is_subgraph", "layers", "load_remote", "load_remote_graph"]
__all__ += ["module", "named_buffers", "named_replica_grouping", "named_tensors", "named_variable_buffers"]
__all__ += ["null_context", "ops", "optimizers", "pad_axis", "patterns", "performance_utils", "pipelined_execution"]
__all__ += ["print_FLOPs", "print_tensor", "print_text", "recompute_graph", "reduce_replica_sharded_graph"]
__all__ += ["reduce_replica_sharded_tensor", "remote", "repeat", "repeat_axis", "repeat_shard"]
__all__ += ["replica_sharded_spec", "route_tensor", "route_tensor_into_graph", "rts", "seed_variable"]
__all__ += ["set_available_memory_proportion_by_ipu", "set_graph_available_memory_proportion_by_ipu", "shard"]
__all__ += ["shard2D", "split2D", "squeeze_safe", "store_remote", "store_remote_graph", "streams"]
__all__ += ["suffix_graph_name", "task_session", "tensor_parallel_input", "testing_utils", "timer", "total_FLOPs"]
__all__ += ["transforms", "unshard", "unshard2D", "unshard_arrays", "utils", "variable_factory", "write_variables_pb"]
__getattr__ = _refuse(__name__, __all__)

#: Revision of the checked-out upstream package: there is none here, as upstream where it was installed otherwise.
GIT_COMMIT: str | None = None

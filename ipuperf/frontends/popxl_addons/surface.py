"""Every public name of upstream's addons by module, and which of them are not here: the user guide's table.

Source: popxl-addons: popxl_addons (3.4).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import NoReturn

_MUNGING = """
    shard unshard_arrays unshard repeat repeat_axis split2D shard2D unshard2D repeat_shard tensor_parallel_input
    pad_axis squeeze_safe handle_negative_axis
"""
_FLOPS = "total_FLOPs evaluate_FLOPs evaluate_ir_FLOPs print_FLOPs format_flops_scientific"
_FACTORIES = "NamedVariableFactories VariableFactory add_variable_input add_replica_sharded_variable_input"
_BUFFERS = "load_remote_graph store_remote_graph named_buffers named_variable_buffers create_remote_buffer"
_RTS = """
    all_gather_replica_sharded_graph reduce_replica_sharded_graph reduce_replica_sharded_tensor
    gather_replica_sharded_tensor replica_sharded_spec
"""
_TRANSFORMS = """
    autodiff autodiff_with_accumulation batch_serialise batch_serialise_fwd_and_grad batch_serial_buffer RemoteHandle
    pipelined_execution recompute_graph set_available_memory_proportion_by_ipu
    set_graph_available_memory_proportion_by_ipu enable_fc_pass disable_fc_pass
"""
_OPS = "cross_entropy cross_entropy_with_grad host_load host_store fp8_amax_scale"

UPSTREAM = {
    name: names.split()
    for name, names in {
        "popxl_addons": f"""
            Module GraphWithNamedArgs BoundGraph NamedTensors GraphCache function create_grad_graph_info {_FACTORIES}
            {_BUFFERS} route_tensor_into_graph is_subgraph {_RTS} {_OPS} {_TRANSFORMS} seed_variable InputStreams
            OutputStreams timer OrderedDict WeightsDict null_context suffix_graph_name TaskSession write_variables_pb
            {_FLOPS} print_tensor print_text {_MUNGING} GIT_COMMIT
        """,
        "popxl_addons.array_munging": _MUNGING,
        "popxl_addons.debugging": "print_tensor print_text",
        "popxl_addons.dot_tree": "DotTree sanitise to_mapping",
        "popxl_addons.graph": "GraphWithNamedArgs BoundGraph",
        "popxl_addons.graph_cache": "GraphCache function bound_arguments",
        "popxl_addons.graph_common": "GraphLike GradGraphInfoLike CalledGraphsGradInfoLike CalledGraphsGradInfo",
        "popxl_addons.layers": "Conv2D Embedding GroupNorm LayerNorm Linear",
        "popxl_addons.layers.layer_norm_distributed": "LayerNormDistributed",
        "popxl_addons.layers.linear_fp8": "LinearFP8",
        "popxl_addons.layers.linear_gq": "LinearGQ",
        "popxl_addons.module": "Module create_grad_graph_info",
        "popxl_addons.named_replica_grouping": """
            NamedReplicaGrouping fill_none_group get_instance_replica_grouping is_cross_instance
            get_ild_size_from_popdist get_ild_replica_grouping is_cross_ild
        """,
        "popxl_addons.named_tensors": "NamedTensors NamedTensorData print_named_tensors",
        "popxl_addons.ops": _OPS,
        "popxl_addons.ops.cross_entropy_sharded_loss": "cross_entropy_sharded_loss",
        "popxl_addons.ops.cross_entropy_sharded_wr_loss": "cross_entropy_sharded_wr_loss",
        "popxl_addons.ops.fp8_amax_scale": "fp8_amax_scale",
        "popxl_addons.ops.fp8_mse_scale": "fp8_mse_scale",
        "popxl_addons.ops.grad_reduce_square_add": "grad_reduce_square_add",
        "popxl_addons.ops.group_quantize_decompress": """
            group_quantize_decompress group_quantize_decompress_numpy group_quantize_compress_numpy
        """,
        "popxl_addons.ops.layer_norm_distributed": "layer_norm_distributed",
        "popxl_addons.ops.linear_layout": "linear_layout",
        "popxl_addons.ops.replicated_all_reduce_TP": """
            replicated_all_reduce_identical_inputs replicated_all_reduce_identical_grad_inputs replicated_all_reduce
        """,
        "popxl_addons.ops.replicated_strided_collectives": """
            replicated_all_gather_strided replicated_all_reduce_strided replicated_reduce_scatter_strided
        """,
        "popxl_addons.ops.rotary_pos_embed": "rotary_pos_embed trig_table_constants",
        "popxl_addons.ops.static_sparse_ops": "dense_sparse_matmul",
        "popxl_addons.optimizers": "AdamOptimizerStep",
        "popxl_addons.patterns": "apply_pre_alias_patterns",
        "popxl_addons.performance_utils": _FLOPS,
        "popxl_addons.remote": f"NamedRemoteBuffers load_remote store_remote {_BUFFERS}",
        "popxl_addons.route_tensor": "route_tensor_into_graph is_subgraph",
        "popxl_addons.rts": _RTS,
        "popxl_addons.seed_variable": "seed_variable",
        "popxl_addons.streams": "InputStreams OutputStreams",
        "popxl_addons.task_session": "TaskSession write_variables_pb",
        "popxl_addons.testing_utils": "TensorInput run_module ops_of_type",
        "popxl_addons.transforms": _TRANSFORMS,
        "popxl_addons.transforms.repeat_graph": "repeat_graph",
        "popxl_addons.utils": "null_context suffix_graph_name timer OrderedDict WeightsDict overrides duplicate_items",
        "popxl_addons.variable_factory": _FACTORIES,
    }.items()
}

#: Upstream modules that cannot be here, with the reason.
CANNOT = {
    "popxl_addons.ops.cross_entropy_sharded_wr_loss": (
        "one op cannot be on several IPUs of a replica; use cross_entropy_sharded_loss over replicas"
    ),
    "popxl_addons.ops.static_sparse_ops": "products of popsparse, whose plans are not modelled; use popxl.ops.matmul",
}


def refuse(module: str) -> NoReturn:
    """Raise the ImportError of a module that cannot be here; ``module`` is its ``__name__``."""
    name = module.removeprefix("ipuperf.frontends.")
    raise ImportError(f"{name} does not work in ipuperf: {CANNOT[name]}", name=name)


def missing() -> Iterator[tuple[str, str]]:
    """Upstream names that do not work here, qualified, with the reason."""
    for module, names in UPSTREAM.items():
        if module in CANNOT:
            yield from ((f"{module}.{name}", CANNOT[module]) for name in names)
            continue
        package = importlib.import_module(f"ipuperf.frontends.{module}")
        yield from ((f"{module}.{name}", "not supported yet") for name in names if name not in vars(package))

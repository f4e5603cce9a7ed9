"""Every public name of upstream's packages, and which of them are here: what the user guide's table is made of.

Source: popart: python/popxl/python_files/__init__.py and those of ops, ops/collectives, ops/var_updates, transforms.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from .errors import CANNOT
from .ops import UPSTREAM as _OPS

UPSTREAM = {
    "popxl": """
        get_current_graph get_main_graph get_ir gcg gmg gir in_sequence name_scope ipu io_tiles dtype bool int8 int16
        int32 int64 uint8 uint16 uint32 uint64 half float8_143 float8_152 float16 float float32 double float64 complex64
        complex128 Graph Ir Module create_seeds RemoteBuffer remote_buffer ReplicaGrouping HostToDeviceStream
        DeviceToHostStream h2d_stream d2h_stream Tensor variable remote_variable remote_replica_sharded_variable
        replica_sharded_variable constant graph_input graph_output TensorByRef TensorSpec TensorStorage TensorLocation
        ReplicatedTensorSharding TileSet ExecutionContext Session
    """.split(),
    "popxl.ops": _OPS,
    "popxl.ops.collectives": """
        all_reduce all_reduce_identical_inputs all_reduce_identical_grad_inputs CommGroup CommGroupType
        replicated_all_gather replicated_all_reduce replicated_all_reduce_ replicated_reduce_scatter
        replica_sharded_slice replicated_slice
    """.split(),
    "popxl.ops.var_updates": """
        accumulate_ accumulate_square_ accumulate_mean_ accumulate_moving_average_ accumulate_moving_average_square_
        sparse_accumulate_ accumulator_scale_ accumulator_zero_ adam_updater lamb_updater adamax_updater adam_var_update
        copy_var_update_
    """.split(),
    "popxl.transforms": """
        autodiff GradGraphInfo ExpectedConnection ExpectedConnectionType merge_exchange io_tile_exchange decompose_sum
    """.split(),
}


def missing() -> Iterator[tuple[str, str]]:
    """Upstream names that do not work here, qualified, with the reason."""
    for package, names in UPSTREAM.items():
        module = importlib.import_module(f"ipuperf.frontends.{package}")
        for name in names:
            qualified = f"{package}.{name}"
            if name not in vars(module):
                yield qualified, CANNOT.get(qualified, "not supported yet")

"""From TensorFlow's op types to ops of the IR: one table, made of the tables of the families."""

from __future__ import annotations

from . import (
    ops_control,
    ops_convolutions,
    ops_einsum,
    ops_elementwise,
    ops_lists,
    ops_loops,
    ops_networks,
    ops_products,
    ops_program,
    ops_random,
    ops_reductions,
    ops_selection,
    ops_shapes,
    ops_slices,
    ops_updates,
    ops_windows,
)
from .table import Operations

OPERATIONS = Operations(
    [
        ops_program.FAMILY,
        ops_elementwise.FAMILY,
        ops_products.FAMILY,
        ops_einsum.FAMILY,
        ops_convolutions.FAMILY,
        ops_windows.FAMILY,
        ops_networks.FAMILY,
        ops_reductions.FAMILY,
        ops_shapes.FAMILY,
        ops_slices.FAMILY,
        ops_selection.FAMILY,
        ops_random.FAMILY,
        ops_updates.FAMILY,
        ops_control.FAMILY,
        ops_loops.FAMILY,
        ops_lists.FAMILY,
    ]
)

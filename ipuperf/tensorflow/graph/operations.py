"""From TensorFlow's op types to ops of the IR: one table, made of the tables of the families."""

from __future__ import annotations

from . import ops_elementwise, ops_products, ops_program
from .table import Operations

OPERATIONS = Operations(
    [
        ops_program.FAMILY,
        ops_elementwise.FAMILY,
        ops_products.FAMILY,
    ]
)

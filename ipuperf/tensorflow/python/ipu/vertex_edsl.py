"""Vertices in Python."""

from ...refusals import refused

PlaceholderVertexExpr = refused("vertex_edsl.PlaceholderVertexExpr", "write the formula with TensorFlow's operations (custom_ops.codelet_expression_op calls it)")

__all__ = ["PlaceholderVertexExpr"]

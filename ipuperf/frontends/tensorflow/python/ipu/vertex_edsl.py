"""Vertices in Python."""

from ...refusals import refused

_INSTEAD = "write the formula with TensorFlow's operations (custom_ops.codelet_expression_op calls it)"
PlaceholderVertexExpr = refused("vertex_edsl.PlaceholderVertexExpr", _INSTEAD)

__all__ = ["PlaceholderVertexExpr"]

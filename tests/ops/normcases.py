"""Norms as PyTorch has them, written with the op of ``ipuperf.ops``: operands of the tests beside this file."""

import math
from collections.abc import Sequence

import numpy as np

from ipuperf.ir import DType, Graph, Tensor
from ipuperf.ops import shape
from ipuperf.ops.norms.group import GroupNormalization


def _parameter(graph: Graph, given: Tensor | None, value: float, channels: int, dtype: DType, name: str) -> Tensor:
    """A parameter as ``[channels]``; without one a constant, as PopTorch makes it."""
    if given is None:
        return graph.constant(np.full((channels,), value), dtype, name)
    if given.shape == (channels,):
        return given
    return graph.create(shape.Reshape, [given], [name], shape=(channels,)).outputs[0]


def group_norm(
    graph: Graph,
    x: Tensor,
    num_groups: int,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "group_norm",
) -> Tensor:
    """``torch.nn.functional.group_norm``: y of :class:`GroupNormalization` on ``x [N, C, ...]``."""
    channels = x.shape[1] if len(x.shape) > 1 else 0
    weight = _parameter(graph, scale, 1, channels, x.dtype, f"{name}_scale")
    offset = _parameter(graph, bias, 0, channels, x.dtype, f"{name}_bias")
    names = [name, f"{name}_mean", f"{name}_inv_std_dev"]
    attributes = {"num_groups": num_groups, "epsilon": epsilon}
    return graph.create(GroupNormalization, [x, weight, offset], names, **attributes).outputs[0]


def instance_norm(
    graph: Graph,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "instance_norm",
) -> Tensor:
    """``torch.nn.functional.instance_norm`` with statistics of the input: one group per channel."""
    channels = x.shape[1] if len(x.shape) > 1 else 0
    return group_norm(graph, x, channels, scale, bias, epsilon, name)


def layer_norm(
    graph: Graph,
    x: Tensor,
    normalized_shape: Sequence[int],
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "layer_norm",
) -> Tensor:
    """``torch.nn.functional.layer_norm``: x as ``[rows, elements of normalized_shape]`` in one group.

    ``scale`` and ``bias`` have ``normalized_shape``.
    """
    wanted = tuple(normalized_shape)
    flat = (math.prod(x.shape[: -len(wanted)]), math.prod(wanted))
    if x.shape != flat:
        rows = graph.create(shape.Reshape, [x], [f"{name}_rows"], shape=flat).outputs[0]
        y = group_norm(graph, rows, 1, scale, bias, epsilon, name)
        return graph.create(shape.Reshape, [y], [f"{name}_shaped"], shape=x.shape).outputs[0]
    return group_norm(graph, x, 1, scale, bias, epsilon, name)

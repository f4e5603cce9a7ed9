"""``pyg::radius`` on the host where ``pyg-lib`` is not installed, which is C++ and on no package index.

PyTorch Geometric's ``radius``, ``radius_graph`` and the models that use them call this operation (from 2.8 on;
``pyg-lib: pyg_lib/csrc/ops/cpu/radius_kernel.cpp``). A model on the device cannot: how many edges there are depends
on data.
"""

from __future__ import annotations

from typing import NoReturn

import torch
import torch_geometric.typing
from torch import Tensor

from ipuperf.frontends.poptorch.errors import UnsupportedError

_SCHEMA = (
    "radius(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, float r=1.0, int max_num_neighbors=32, "
    "int num_workers=1, bool ignore_same_index=False) -> Tensor"
)
_LIBRARY = torch.library.Library("pyg", "FRAGMENT")


def define() -> None:
    """Define the operation if PyTorch Geometric looked for it in vain."""
    if not getattr(torch_geometric.typing, "WITH_RADIUS", True):
        _LIBRARY.define(_SCHEMA)
        _LIBRARY.impl("radius", near, "CPU")
        _LIBRARY.impl("radius", _refused, "Meta")  # that of exports
        torch_geometric.typing.WITH_RADIUS = True


def near(
    x: Tensor,
    y: Tensor,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    r: float = 1.0,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    """Which points of ``x`` are nearer than ``r`` to each point of ``y``, graph by graph.

    Args:
        x, y: points, ``[N, features]`` and ``[M, features]``.
        ptr_x, ptr_y: where the points of each graph begin, and their end; None: all are of one graph.
        r: the radius. The square of a distance is compared with its square, as in ``pyg-lib``.
        max_num_neighbors: so many points of ``x`` at most. Those with the lowest numbers are taken, where ``pyg-lib``
            takes those that its tree finds first.
        num_workers: need not be given: there are no workers.
        ignore_same_index: without the point of the same number.

    Returns:
        int64 ``[2, edges]``: points of ``y``, and of ``x``.
    """
    of_x = [0, len(x)] if ptr_x is None else ptr_x.tolist()
    of_y = [0, len(y)] if ptr_y is None else ptr_y.tolist()
    edges = []
    for first_x, last_x, first_y, last_y in zip(of_x, of_x[1:], of_y, of_y[1:], strict=False):
        squares = ((y[first_y:last_y, None] - x[None, first_x:last_x]) ** 2).sum(-1)
        inside = squares < r * r
        if ignore_same_index:
            inside &= torch.arange(first_y, last_y)[:, None] != torch.arange(first_x, last_x)
        inside &= inside.cumsum(1) <= max_num_neighbors
        edges.append(inside.nonzero().T + torch.tensor([[first_y], [first_x]]))
    return torch.cat(edges, 1) if edges else torch.empty(2, 0, dtype=torch.int64)


def _refused(*args: object, **kwargs: object) -> NoReturn:
    raise UnsupportedError(
        "radius_graph: how many edges it has depends on data, and the program of an IPU is static; compute the edges "
        "on the host, or take knn_graph"
    )

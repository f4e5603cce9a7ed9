"""Radius graphs on the host are those of all distances; models on the device cannot have them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric import nn  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch_geometric import radius  # noqa: E402

if not hasattr(torch.ops.pyg, "radius"):
    pytest.skip("PyTorch Geometric before 2.8 asks for torch-cluster", allow_module_level=True)


def edges(x: Any, y: Any, r: float, of_x: Any, of_y: Any, most: int, loop: bool = True) -> set[tuple[int, int]]:
    """By two loops: points of ``y`` with points of ``x``."""
    return {
        (row, column)
        for row in range(len(y))
        for column in [
            column
            for column in range(len(x))
            if of_x[column] == of_y[row] and (x[column] - y[row]).norm() < r and (loop or column != row)
        ][:most]
    }


@pytest.mark.parametrize("most", [32, 2])
@pytest.mark.parametrize("sizes", [(7, 5), (7, 0, 5), (12,)])
def test_points_nearer_than_the_radius(most: int, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(sum(sizes), 3), torch.randn(2 * len(sizes), 3)
    of_x, of_y = (
        torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(each)) for each in (sizes, [2] * len(sizes))
    )
    for got, expected in (
        (nn.radius(x, y, 1.5, of_x, of_y, most), edges(x, y, 1.5, of_x, of_y, most)),
        (nn.radius_graph(x, 1.5, of_x, max_num_neighbors=most).flip(0), edges(x, x, 1.5, of_x, of_x, most, False)),
        (nn.radius_graph(x, 1.5, of_x, True, most, "target_to_source"), edges(x, x, 1.5, of_x, of_x, most)),
    ):
        assert got.dtype == torch.int64
        assert set(zip(*got.tolist(), strict=True)) == expected
        assert got.shape[1] == len(expected)


def test_graphs_without_a_batch_and_without_points() -> None:
    x = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    assert nn.radius_graph(x, r=2.0).tolist() == [[], []]  # the distance itself is not nearer
    assert nn.radius_graph(x, r=2.1).shape == (2, 8)
    empty = torch.tensor([0])
    assert radius.near(x[:0], x[:0], empty, empty).shape == (2, 0)


class Edges(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return nn.radius_graph(x, 1.0)


class Graphs(torch.nn.Module):
    def forward(self, x: Any, batch: Any) -> Any:
        return nn.radius_graph(x, 1.0, batch)


def test_a_model_on_the_device_is_refused() -> None:
    with pytest.raises(poptorch.Error, match="take knn_graph"):
        poptorch.inferenceModel(Edges())(torch.randn(4, 3))
    with pytest.raises(poptorch.Error, match="the program of an IPU is static"):
        poptorch.inferenceModel(Graphs())(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))

"""Layers of PyTorch Geometric train with the values of PyTorch, and those that need data for a shape are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import geometriccases  # noqa: E402
from torch_geometric import nn as g  # noqa: E402
from torch_geometric.nn.conv import MessagePassing  # noqa: E402

from ipuperf import poptorch, poptorch_geometric  # noqa: E402
from ipuperf.poptorch_geometric.ops import knn, nearest  # noqa: E402


class Fitted(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Any) -> Any:
        result = self.layer(*given)
        return result, torch.nn.functional.mse_loss(result, torch.ones_like(result))


#: One of each kind; the others are alike.
ALWAYS = {
    *("GCNConv", "SAGEConv", "GATConv", "GINConv", "PNAConv", "MFConv", "ClusterGCNConv", "SchNet", "HeteroLinear"),
    *("SoftmaxAggregation", "SortAggregation", "global_mean_pool", "GraphNorm", "MemPooling"),
}
NAMES = [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in geometriccases.CASES]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_trains_as_in_pytorch(name: str) -> None:
    torch.manual_seed(5)
    layer, given = geometriccases.CASES[name]()
    model = Fitted(layer)
    reference = copy.deepcopy(model)
    native = torch.optim.SGD(reference.parameters(), lr=0.05)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, use_combined_accum=False)
    trained = poptorch.trainingModel(model, optimizer=optimizer)
    for _ in range(2):
        native.zero_grad()
        wanted, loss = reference(*given)
        loss.backward()
        native.step()
        found, found_loss = trained(*given)
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(found_loss.reshape(()), loss.detach(), rtol=1e-4, atol=1e-5)


def refused(layer: Any, *given: Any) -> str:
    with pytest.raises(poptorch.Error) as found:
        poptorch.inferenceModel(layer)(*given)
    return str(found.value)


def test_what_depends_on_data_is_refused_with_its_line() -> None:
    x, edges = geometriccases.nodes(), geometriccases.edges()
    text = refused(g.RGCNConv(geometriccases.WIDTH, 4, 3), x, edges, geometriccases.kinds()[0])
    assert "rgcn_conv.py" in text
    assert "the program of an IPU is static" in text
    assert "static" in refused(g.TopKPooling(geometriccases.WIDTH), x, edges)
    with pytest.raises(ValueError, match="'dim_size' needs to be set"):  # the library's
        poptorch.inferenceModel(geometriccases.Reduced(g.SumAggregation()))(x, geometriccases.graphs())


def test_replaced_layers_are_pytorch_geometrics_own_outside_of_exports() -> None:
    before = g.MFConv.forward
    layer, given = geometriccases.CASES["MFConv"]()
    poptorch.inferenceModel(layer)(*given)
    assert g.MFConv.forward is before


def test_sparse_edges_of_a_replaced_layer_are_refused() -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = g.MFConv(geometriccases.WIDTH, 4)
            self.edges = torch.sparse_coo_tensor(geometriccases.edges(), torch.ones(geometriccases.EDGES), (20, 20))

        def forward(self, x: Any) -> Any:
            return self.layer(x, self.edges)

    assert "edge_index" in refused(Sparse(), geometriccases.nodes())


class Near(torch.nn.Module):
    def __init__(self, k: int, **options: Any) -> None:
        super().__init__()
        self.k, self.options = k, options

    def forward(self, x: Any, batch: Any) -> Any:
        return g.knn_graph(x, self.k, batch, **self.options)


@pytest.mark.parametrize("loop", [False, True])
def test_nearest_neighbours_are_those_of_all_distances(loop: bool) -> None:
    torch.manual_seed(2)
    points, graphs = torch.randn(12, 3), torch.arange(12) // 6
    found = poptorch.inferenceModel(Near(2, loop=loop))(points, graphs)
    far = torch.cdist(points, points) + 1e9 * (graphs[:, None] != graphs[None, :])
    wanted = (far if loop else far + 1e9 * torch.eye(12)).argsort(1)[:, :2].reshape(-1)
    torch.testing.assert_close(found[0], wanted, check_dtype=False)
    torch.testing.assert_close(found[1], torch.arange(12).repeat_interleave(2), check_dtype=False)


class Nearest(torch.nn.Module):
    def forward(self, x: Any, y: Any, of_x: Any, of_y: Any) -> Any:
        return nearest(x, y, of_x, of_y)


def test_the_nearest_point_of_the_same_graph() -> None:
    torch.manual_seed(3)
    x, y, of_x, of_y = torch.randn(10, 3), torch.randn(6, 3), torch.arange(10) // 5, torch.arange(6) // 3
    found = poptorch.inferenceModel(Nearest())(x, y, of_x, of_y)
    far = torch.cdist(x, y) + 1e9 * (of_x[:, None] != of_y[None, :])
    torch.testing.assert_close(found, far.argmin(1), check_dtype=False)
    torch.testing.assert_close(nearest(x, y), torch.cdist(x, y).argmin(1))


def test_neighbours_that_cannot_be_had_are_refused() -> None:
    points = torch.randn(4, 3)
    with pytest.raises(ValueError, match="k is 4, but there are 3 points"):
        poptorch.inferenceModel(Near(4))(points, torch.zeros(4, dtype=torch.int32))
    with pytest.raises(poptorch.UnsupportedError, match="cosine=True"):
        knn(points, points, 2, cosine=True)
    with pytest.raises(ValueError, match="target_to_source"):
        poptorch.inferenceModel(Near(1, flow="up"))(points, torch.zeros(4, dtype=torch.int32))


def test_aggregation_gets_the_size_that_was_set() -> None:
    layer = g.SimpleConv()
    poptorch_geometric.set_aggregation_dim_size(layer, 30)
    assert isinstance(layer, MessagePassing)
    found = poptorch.inferenceModel(layer)(geometriccases.nodes(), geometriccases.edges())
    assert found.shape == (30, geometriccases.WIDTH)

"""Layers of PyTorch Geometric with a batch of inputs: ``CASES`` maps a name to a function that makes both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric import nn as g
from torch_geometric.loader import ClusterData
from torch_geometric.sampler import BaseSampler, SamplerOutput

NODES, EDGES, WIDTH, GRAPHS = 20, 60, 6, 4
Case = tuple[nn.Module, tuple[Any, ...]]
CASES: dict[str, Callable[[], Case]] = {}


def edges() -> torch.Tensor:
    """Random edges, none twice and no self-loop: of equal messages each has the gradient of a maximum, as upstream,
    where PyTorch divides it."""
    chosen = torch.randperm(NODES * (NODES - 1))[:EDGES]
    sources = chosen // (NODES - 1)
    return torch.stack([sources, (sources + 1 + chosen % (NODES - 1)) % NODES])


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, outputs))


def nodes(*shape: int) -> torch.Tensor:
    return torch.randn(NODES, *(shape or (WIDTH,)))


def graphs() -> torch.Tensor:
    """The graph of each node; sorted."""
    return torch.arange(NODES) * GRAPHS // NODES


def conv(name: str, *args: Any, more: Callable[[], tuple[Any, ...]] = tuple, **kwargs: Any) -> None:
    CASES[name] = lambda: (getattr(g, name)(*args, **kwargs), (nodes(), edges(), *more()))


def features() -> tuple[Any, ...]:
    return (torch.randn(EDGES, 3),)


def kinds() -> tuple[Any, ...]:
    return (torch.randint(0, 3, (EDGES,)),)


conv("GCNConv", WIDTH, 4, add_self_loops=False)
conv("SAGEConv", WIDTH, 4, aggr="max")
conv("GraphConv", WIDTH, 4)
conv("GATConv", WIDTH, 4, heads=2, add_self_loops=False)
conv("GATv2Conv", WIDTH, 4, edge_dim=3, add_self_loops=False, more=features)
conv("TransformerConv", WIDTH, 4, heads=2, beta=True)
conv("GINConv", mlp(WIDTH, 4))
conv("GINEConv", mlp(WIDTH, 4), edge_dim=3, more=features)
conv("NNConv", WIDTH, 4, nn.Linear(3, 4 * WIDTH), more=features)
conv("CGConv", WIDTH, dim=3, more=features)
conv("EdgeConv", mlp(2 * WIDTH, 4))
conv("TAGConv", WIDTH, 4, K=2)
conv("ResGatedGraphConv", WIDTH, 4)
conv("GENConv", WIDTH, 4, aggr="softmax", learn_t=True)
conv("RGATConv", WIDTH, 4, 3, num_bases=2, attention_mechanism="across-relation", more=kinds)
conv("FastRGCNConv", WIDTH, 4, 3, more=kinds)
conv("PNAConv", WIDTH, 4, ["mean", "min", "max", "std"], ["identity", "amplification"], torch.tensor([1, 5, 9, 5]))
conv("MFConv", WIDTH, 4, max_degree=4)
conv("ClusterGCNConv", WIDTH, 4, diag_lambda=0.3)


class Reduced(nn.Module):
    """Projects the nodes, then combines those of each graph by ``function(x, graph of each node)``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.project, self.function = nn.Linear(WIDTH, 4), function

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> Any:
        return self.function(self.project(x), batch)


def reduced(name: str, make: Callable[[], Callable[..., Any]]) -> None:
    CASES[name] = lambda: (Reduced(make()), (nodes(), graphs()))


def aggregated(name: str, *args: Any, **sizes: int) -> None:
    def make() -> Callable[..., Any]:
        layer = getattr(g, name)(*args)
        return Sized(layer, {"dim_size": GRAPHS, **sizes})

    reduced(name, make)


class Sized(nn.Module):
    def __init__(self, layer: nn.Module, sizes: dict[str, int]) -> None:
        super().__init__()
        self.layer, self.sizes = layer, sizes

    def forward(self, x: torch.Tensor, batch: torch.Tensor, dim: int = 0) -> torch.Tensor:
        result = self.layer(x, batch, dim=dim, **self.sizes)
        return result[0] if isinstance(result, tuple) else result


for aggregation in ("Sum", "Mean", "Max", "Mul", "Var", "Median"):
    aggregated(f"{aggregation}Aggregation")
aggregated("SoftmaxAggregation", 1.0, True)
aggregated("QuantileAggregation", [0.25, 0.75])
aggregated("SortAggregation", 3, max_num_elements=8)
aggregated("GRUAggregation", 4, 4, max_num_elements=8)
for pool in ("global_add_pool", "global_mean_pool", "global_max_pool"):
    reduced(pool, lambda pool=pool: lambda x, batch: getattr(g, pool)(x, batch, GRAPHS))
for norm in ("GraphNorm", "InstanceNorm", "LayerNorm"):
    reduced(norm, lambda norm=norm: Numbered(getattr(g, norm)(4)))
reduced("max_pool_x", lambda: lambda x, batch: g.max_pool_x(clusters(), x, batch, batch_size=GRAPHS, size=3)[0])


class Numbered(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(x, batch, GRAPHS)


def clusters() -> torch.Tensor:
    return torch.arange(NODES) * GRAPHS * 3 // NODES


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = g.MemPooling(WIDTH, 4, heads=2, num_clusters=2)

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(x, batch, max_num_nodes=8, batch_size=GRAPHS)[0]


CASES["MemPooling"] = lambda: (Pooled(), (nodes(), graphs()))
CASES["HeteroLinear"] = lambda: (g.HeteroLinear(WIDTH, 4, 3), (nodes(), torch.randint(0, 3, (NODES,))))
CASES["PPFConv"] = lambda: (
    g.PPFConv(mlp(WIDTH + 4, 4), add_self_loops=False),
    (nodes(), nodes(3), nn.functional.normalize(nodes(3), dim=1), edges()),
)


class Energy(nn.Module):
    """SchNet on the edges between each atom and its nearest ones of its molecule."""

    def __init__(self) -> None:
        super().__init__()

        def near(pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            from ipuperf.poptorch_geometric.ops import knn_graph

            found = knn_graph(pos, 3, batch)
            return found, (pos[found[0]] - pos[found[1]]).norm(dim=-1)

        self.net = g.SchNet(8, 8, 1, 5, cutoff=4.0, interaction_graph=near)
        self.net.readout = Sized(g.SumAggregation(), {"dim_size": GRAPHS})

    def forward(self, z: torch.Tensor, pos: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.net(z, pos, batch)


CASES["SchNet"] = lambda: (Energy(), (torch.randint(1, 9, (NODES,)), 2 * nodes(3), graphs()))


class Clusters(ClusterData):
    """Clusters without METIS: every n-th node."""

    def _metis(self, edge_index: Any, num_nodes: int) -> Any:
        return torch.arange(num_nodes) % self.num_parts


class Successors(BaseSampler):
    """Samples nodes and the ones behind them, of ``count`` in a ring, without a native library."""

    def __init__(self, count: int) -> None:
        self.count = count

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> SamplerOutput:
        seeds, places = index.node, torch.arange(len(index.node))
        node = torch.cat([seeds, (seeds + 1) % self.count])
        return SamplerOutput(node=node, row=places + len(seeds), col=places, edge=places, metadata=(seeds, None))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError

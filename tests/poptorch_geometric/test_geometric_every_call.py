"""Calls about graphs of known numbers: batches, sizes, samplers, neighbours and refusals, each as a row."""

from __future__ import annotations

import re
from typing import Any

import pytest
from outcomes import by_subject, outcome
from rows import Golden

torch = pytest.importorskip("torch")
geometric = pytest.importorskip("torch_geometric")

from geometriccases import Clusters, Successors  # noqa: E402
from torch.utils.data import RandomSampler  # noqa: E402, F401  # what is not used here, calls use
from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402, F401

from ipuperf import poptorch, poptorch_geometric  # noqa: E402
from ipuperf.poptorch.export import substitutes as export_substitutes  # noqa: E402
from ipuperf.poptorch_geometric import collate, counts, fixed_size_options, ops, padding, substitutes, trimming, types  # noqa: E402, F401


def graph(nodes: int, edges: int, **more: Any) -> Data:
    """A ring of nodes, of which there may be more edges; features count from 1."""
    sources = torch.arange(edges) % max(nodes, 1)
    return Data(
        x=torch.arange(1.0, nodes + 1).reshape(-1, 1),
        edge_index=torch.stack([sources, (sources + 1) % max(nodes, 1)]),
        edge_attr=torch.arange(1.0, edges + 1),
        y=torch.tensor([nodes]),
        **more,
    )


def typed(users: int, items: int, edges: int) -> HeteroData:
    """Users who buy items."""
    made = HeteroData()
    made["user"].x, made["item"].x = torch.arange(1.0, users + 1), torch.arange(1.0, items + 1)
    made["user", "buys", "item"].edge_index = torch.stack([torch.arange(edges) % users, torch.arange(edges) % items])
    made.y = torch.tensor([users])
    return made


def shown(value: Any) -> str:
    """Numbers of tensors and graphs."""
    if isinstance(value, torch.Tensor):
        return str([round(v, 4) for v in value.flatten().tolist()]) + f" {tuple(value.shape)}"
    if isinstance(value, (Data, HeteroData)):
        stores = value.stores if isinstance(value, HeteroData) else [value]
        return "; ".join(f"{key}={shown(store[key])}" for store in stores for key in sorted(store.keys()))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    return re.sub(r" at 0x\w+", "", repr(value))


def seeded(seed: int, function: Any) -> Any:
    """What a function that draws gives."""
    torch.manual_seed(seed)
    return function()


def stepped(**named: Any) -> Any:
    """Whether a model here and on the CPU agree over two steps."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return y, poptorch.identity_loss((y - 1).square(), "mean")

    torch.manual_seed(0)
    stepper = poptorch_geometric.TrainingStepper(Model(), rtol=1e-4, atol=1e-5, **named)
    stepper.run(2, (torch.arange(6.0).reshape(3, 2),))
    raised = stepper.options._Popart.options.get("enableFloatingPointChecks")
    return stepper.cpu_model.layer.bias.detach(), stepper.optimizer.defaults["lr"], raised, stepper


def timed(devices: Any) -> Any:
    """The times that a comparison tells."""
    found = stepped()[-1].benchmark(1, (torch.ones(3, 2),), devices)
    return sorted(found), all(value > 0 for value in found.values())


def bar(count: int, **named: Any) -> Any:
    """Whether a progress bar is shown for a data set of so many graphs, and for how many of them."""
    seen: list[Any] = []

    class Same(list[Data]):
        def __len__(self) -> int:
            return count

    def told(graphs: Any, total: int, disable: bool) -> Any:
        seen.extend((not disable, total))
        return [next(iter(graphs))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_size_options, "tqdm", told)
        poptorch_geometric.FixedSizeOptions.from_dataset(Same([graph(2, 1)]), 2, **named)
    return seen


def rebuilt(batch: Any) -> Any:
    """What a batch keeps besides tensors when it is made anew."""
    parser = types.PyGArgsParser()
    again = parser.reconstruct(batch, iter([tensor + 1 for tensor in parser.yieldTensors(batch)]))
    stores = [each._global_store if isinstance(each, HeteroData) else each._store for each in (batch, again)]
    within = [[name in vars(store) for name in ("_slice_dict", "_inc_dict", "_num_graphs")] for store in stores]
    return within, again, batch, len(batch.to_data_list()), "Error: " in outcome(again.to_data_list)


def clusters(sizes: Any, **named: Any) -> Any:
    """A loader of three clusters of a graph."""
    whole = Data(x=torch.arange(1.0, 10).reshape(-1, 1), edge_index=torch.arange(18).reshape(2, 9) % 9)
    return poptorch_geometric.FixedSizeClusterLoader(Clusters(whole, num_parts=3, log=False), sizes, **named)


def sampled(**named: Any) -> Any:
    """A loader of neighbourhoods in a ring of six nodes."""
    return poptorch_geometric.FixedSizeNeighborLoader(graph(6, 6), [1], neighbor_sampler=Successors(6), **named)


def sized(*sizes: int) -> Any:
    """What layers aggregate to after each of these sizes."""
    layer = geometric.nn.GraphConv(1, 1, bias=False)
    model = torch.nn.Sequential(layer, torch.nn.ReLU())
    found = []
    for size in sizes:
        poptorch_geometric.set_aggregation_dim_size(model, size)
        shape = tuple(layer.aggregate(torch.ones(2, 1), torch.tensor([0, 1])).shape)
        found.append((type(layer).__name__, len(type(layer).__mro__), shape))
    return found


def drifted() -> str:
    """What a step says after which the weights here are others."""
    stepper = stepped()[-1]
    step = stepper.ipu_step

    def other(batch: Any) -> Any:
        result = step(batch)
        with torch.no_grad():
            stepper.ipu_model.layer.bias.add_(1)
        return result

    stepper.ipu_step = other
    return outcome(lambda: stepper.run(1, (torch.ones(3, 2),)))[:45]


CALLS = """
    o(5)
    o(5, 7, 3, 1.0, 2.0, 3.0, {'name': 'x'})
    o({'a': 2, 'b': 3})
    o({'a': 2, 'b': 3}, {'e': 4}).is_hetero()
    o(5, {'e': 4}).is_hetero()
    o({'a': 2}, 4).is_hetero()
    o(1, 0)
    o(0)
    o({'a': 0})
    o(2, -1)
    o(2, {'e': -1})
    o(2, num_graphs=1)
    o(2, num_graphs=0)
    o(5, 6).to_hetero(['a'], ['e', 'f'])
    o({'a': 2, 'b': 3}, {'e': 4, 'f': 5}).total_num_nodes
    o({'a': 2, 'b': 3}, {'e': 4, 'f': 5}).total_num_edges
    o.from_dataset([graph(3, 6), graph(7, 2)], 3)
    o.from_dataset([graph(3, 6), graph(7, 2)], 2, sample_limit=1)
    o.from_dataset([graph(3, 6)], 2, sample_limit=9, progress_bar=False)
    o.from_dataset([typed(3, 2, 6), typed(1, 4, 2)], 3)
    o.from_dataset([], 3)
    o.from_dataset([graph(1, 1)], 1)
    o.from_loader([Batch.from_data_list([graph(3, 6), graph(7, 2)]), Batch.from_data_list([graph(1, 9)])])
    o.from_loader([Batch.from_data_list([graph(3, 6)])] * 2 + [Batch.from_data_list([graph(9, 9)])], sample_limit=2)
    o.from_loader([graph(3, 6)], 5)
    o.from_loader([])
    o(9, 9).limits(graph(1, 1))
    o({'user': 3, 'item': 4}, 5).limits(typed(1, 1, 1))
    o({'user': 3}, 5).limits(typed(1, 1, 1))
    o(3, {}).limits(typed(1, 1, 1))
    padding.shares(7, 3)
    padding.shares(2, 3)
    padding.shares(6, 3)
    list(padding.shared_out(counts.Counts({'': 5}), counts.Counts({'': 3}), 2))
    c(o(9, 12, 4), True)([graph(3, 4), graph(2, 5)])
    c(o(9, 12, 4, 7.0, 8.0, 9.0))([graph(3, 4), graph(2, 5)])
    c(o(9, 12, 3, pad_graph_defaults={'name': 'none'}), True, follow_batch=['x'])([graph(3, 4, name='a')])
    c(o(9, 12, 3), exclude_keys=['edge_attr'])([graph(3, 4), graph(2, 5)])
    c(o(5, 9, 2), True)([graph(3, 4), graph(2, 5)])
    c(o(6, 9, 2))([graph(3, 4), graph(2, 5)])
    c(o(5, 10, 3))([graph(3, 4), graph(2, 5)])
    c(o(6, 10, 3))([graph(3, 4), graph(2, 5)])
    c(o(4, 10, 3))([graph(3, 4), graph(2, 5)])
    c(o(6, 8, 3))([graph(3, 4), graph(2, 5)])
    c(o(9, 9, 2))([graph(3, 4), graph(2, 5), graph(1, 1)])
    c(o(9, 9, 2))(graph(3, 4))
    c(o(9, 9, 2))([])
    c(o(9, 9, 3))([graph(3, 4), typed(1, 1, 1)])
    c(o(9, 9, 3))([Data(x=torch.ones(2, 1), y=torch.ones(3))])
    c(o(9, 9, 3))([Data(x=torch.ones(2, 1), y=torch.ones(2), train_mask=torch.tensor([True, False]))])
    c(o(9, 9, 3))([Data(x=torch.ones(1, 1), y=torch.ones(1))])
    c(o(4, 3, 3))([Data(num_nodes=2, scale=2, edge_index=torch.tensor([[0], [1]]))])
    c(o({'user': 5, 'item': 6}, 7, 4), True)([typed(2, 3, 4), typed(1, 2, 2)])
    c(o({'user': 3, 'item': 6}, 7, 4))([typed(2, 3, 4), typed(1, 2, 2)])
    c(o({'user': 2, 'item': 6}, 7, 4))([typed(2, 3, 4), typed(1, 2, 2)])
    c(o(9, 5, 4))([typed(2, 3, 4), typed(1, 2, 2)])
    seeded(1, lambda: c(o(5, 20, 3), True, trim_nodes=True)([graph(4, 4), graph(3, 3)]))
    seeded(1, lambda: c(o(8, 4, 3), True, trim_edges=True)([graph(4, 4), graph(3, 3)]))
    seeded(1, lambda: c(o(5, 4, 2), True, True, True)([graph(4, 4), graph(3, 3)]))
    c(o(2, 20, 3), trim_nodes=True)([graph(4, 4), graph(3, 3)])
    c(o(9, 1, 3), trim_edges=True)([graph(4, 4), graph(3, 3)])
    seeded(2, lambda: c(o(4, 20, 4), True, trim_nodes=True)([typed(3, 4, 4), typed(2, 1, 2)]))
    seeded(3, lambda: trimming.trim_edges([graph(3, 0), graph(3, 4)], counts.Counts({'': 2})))
    trimming.trim_nodes([graph(1, 1), graph(4, 4)], counts.Counts({'': 1}))
    seeded(1, lambda: trimming.trim_nodes([graph(1, 1), graph(4, 4)], counts.Counts({'': 2})))
    collate.make_exclude_keys(['x'], graph(2, 2))
    joined(c(o(7, 9, 3)), 2)([graph(2, 3), graph(1, 2), graph(3, 1), graph(2, 2)])
    joined(c(o(7, 9, 3)))([graph(2, 3), graph(1, 2)])
    joined(c(o(7, 9, 3)), 2)([graph(2, 3)])
    list(s([graph(n, n) for n in (4, 3, 5, 1, 1, 1, 2)], 3, 9, 9))
    list(s([graph(n, 9 - n) for n in (4, 3, 5, 1, 8)], 2))
    list(s([graph(4, 4), graph(9, 1), graph(1, 1)], 2, 6, 6, allow_skip_data=True))
    list(s([graph(4, 4), graph(9, 1)], 2, 6, 6))
    list(s([graph(1, 9)], 1, 6, 6))
    list(s([graph(2, 2), graph(3, 3)], 1, base_sampler=[1, 0, 1]))
    len(s([graph(2, 2), graph(3, 3)], 1))
    len(s([graph(2, 2)] * 3, 2, base_sampler=RandomSampler([1, 2, 3])))
    s([graph(2, 2)], 0)
    s([graph(2, 2)], None)
    s([graph(2, 2)], 2, 1)
    s([graph(2, 2)], 2, 2, 1)
    s([graph(2, 2)], 1, base_sampler=[])
    ops.knn(points, points[:2] + 0.1, 2)
    ops.knn(points[:, 0], points[:3, 0], 1)
    ops.knn(points, points, 1, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 1, 1, 0, 0]))
    ops.knn(points, points[:2], 1, torch.tensor([0, 1, 1, 1, 1]))
    ops.knn(points, points[:2], 1, None, torch.tensor([0, 0]))
    ops.knn(points, points, 6)
    ops.knn(points, points, 5)
    ops.knn(points, points, 2, cosine=True)
    ops.knn(points, points, 2, num_workers=0)
    ops.knn(points, points, 2, batch_size=0)
    ops.knn(points, points, 2, batch_size=1, num_workers=2)
    ops.knn_graph(points, 2)
    ops.knn_graph(points, 2, loop=True)
    ops.knn_graph(points, 1, torch.tensor([0, 0, 0, 1, 1]), flow='target_to_source')
    ops.knn_graph(points, 5)
    ops.knn_graph(points, 4)
    ops.knn_graph(points, 2, flow='both')
    ops.nearest(points, points[1:3])
    ops.nearest(points, points[1:4], [0, 0, 0, 1, 1], torch.tensor([0, 0, 1]))
    poptorch_geometric.Pad
    poptorch_geometric.noSuchName
    list(types.PyGArgsParser().yieldTensors(graph(2, 1)))
    list(types.PyGArgsParser().yieldTensors(typed(2, 1, 1)))
    list(types.PyGArgsParser().yieldTensors([1]))
    types.PyGArgsParser().reconstruct([1], iter([]))
    types.PyGArgsParser().reconstruct(graph(2, 1), iter(torch.arange(8.0).reshape(4, 2)))
    stepped()[:3]
    stepped(lr=0.1, optimizer=poptorch.optim.SGD, enable_fp_exception=False)[:3]
    timed('ipu')
    timed(['cpu', 'ipu'])
    timed('gpu')
    list(loader([graph(2, 3), graph(1, 2), graph(3, 1), graph(2, 2)], 2))
    list(loader([graph(2, 3), graph(1, 2)], collate_fn=list))
    list(fixed([graph(2, 3), graph(1, 2), graph(3, 1), graph(2, 2)], 3))
    list(fixed([graph(2, 3), graph(1, 2)], 3, add_pad_masks=False, fixed_size_options=o(9, 9, 3)))
    list(fixed([typed(2, 3, 4), typed(1, 2, 2)], 2))
    list(fixed([typed(2, 3, 4), typed(1, 2, 2)], 2, fixed_size_options=o(7, 8)))
    list(padding.shared_out(counts.Counts({'': 1}), counts.Counts({'': 3}), 3))
    fixed([graph(2, 3), graph(1, 2)], 3, fixed_size_options=o(9, 9, 2))
    list(fixed([graph(2, 3), graph(1, 2), graph(3, 1), graph(9, 9)], 3, False, o(7, 7, 3), pack, skip))
    fixed([graph(2, 3), graph(1, 2)], 2, fixed_size_strategy=pack, batch_sampler=[[0]])
    fixed([graph(2, 3), graph(1, 2)], 2, over_size_strategy=skip)
    fixed([graph(2, 3), graph(1, 2)], 2, collate_fn=list)
    [(each.name, each.value, each.trims_nodes, each.trims_edges) for each in poptorch_geometric.OverSizeStrategy]
    [(each.name, each.value) for each in poptorch_geometric.FixedSizeStrategy]
    [bar(10_000), bar(10_001), bar(20_000, sample_limit=10_000), bar(3, progress_bar=True)]
    bar(20_000, progress_bar=False)
    rebuilt(Batch.from_data_list([graph(2, 1), graph(1, 1)]))
    rebuilt(Batch.from_data_list([typed(2, 1, 1)]))
    list(loader([graph(2, 3), graph(1, 2)], 2, False, ['x'], ['y', 'edge_attr']))
    list(fixed([graph(2, 3), graph(1, 2)], 2, follow_batch=['x'], exclude_keys=['edge_attr']))
    list(fixed([graph(2, 3), graph(1, 2)]))
    fixed([graph(2, 3), graph(5, 4)], 3).fixed_size_options
    seeded(4, lambda: list(fixed([graph(n, 2) for n in (1, 2, 3)], 2, True)))
    seeded(4, lambda: list(fixed([graph(n, 2) for n in (1, 2, 3)], 4, True, o(7, 9, 4), pack)))
    list(fixed([graph(n, 2) for n in (1, 2, 3)], 4, False, o(7, 7, 4), pack))
    [batch.graphs_mask.tolist() for batch in fixed([graph(n, 2) for n in (1, 2, 3)], 4, False, o(6, 7, 4), pack)]
    [batch.graphs_mask.tolist() for batch in fixed([graph(n, 2) for n in (1, 2, 3)], 4, False, o(7, 6, 4), pack)]
    [batch.graphs_mask.tolist() for batch in fixed([graph(1, 1)] * 4, 4, False, o(9, 9, 4), pack)]
    list(fixed([typed(2, 3, 4)], 2, fixed_size_options=o(7, 8)))
    c(o({'user': 5, 'item': 6}, 7, 2), True)([typed(2, 3, 4)])
    drifted()
    list(clusters(o(4, 5)))
    list(clusters(o(7, 7), batch_size=2, add_pad_masks=False))
    seeded(1, lambda: list(clusters(o(3, 1))))
    list(clusters(o(3, 9), over_size_strategy=poptorch_geometric.OverSizeStrategy.Error))
    clusters(o(9, 9, 3))
    clusters(o(9, 9), collate_fn=list, batch_sampler=[[0]])
    clusters(o(9, 9), shuffle=False)
    clusters(o(9, 9), exclude_keys=['x'])
    clusters(o(9, 9)).cluster_data
    list(sampled(fixed_size_options=o(5, 4)))
    list(sampled(fixed_size_options=o(7, 5), add_pad_masks=False, batch_size=3, exclude_keys=['y'], follow_batch=['x']))
    list(sampled(input_nodes=torch.tensor([4, 1]), fixed_size_options=o(5, 4)))
    seeded(1, lambda: list(sampled(fixed_size_options=o(2, 1))))
    sampled(collate_fn=list)
    next(iter(sampled(batch_size=4)))
    sized(2, 3)
"""
NAMES = {
    **globals(),
    "o": poptorch_geometric.FixedSizeOptions,
    "c": poptorch_geometric.FixedSizeCollater,
    "s": poptorch_geometric.StreamPackingSampler,
    "joined": collate.CombinedBatchingCollater,
    "loader": poptorch_geometric.DataLoader,
    "fixed": poptorch_geometric.FixedSizeDataLoader,
    "pack": poptorch_geometric.FixedSizeStrategy.StreamPack,
    "skip": poptorch_geometric.OverSizeStrategy.Skip,
    "points": torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [3.0, 2.0], [7.0, 2.5]]),
}


SUBJECTS = by_subject(line.strip() for line in CALLS.strip().splitlines())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_calls_give(subject: str, golden: Golden) -> None:
    found = [(call, "", outcome(lambda call=call: eval(call, NAMES), shown)) for call in SUBJECTS[subject]]
    golden([" ".join(each) for each in found])


LAYERS: dict[str, Any] = {
    "MFConv": lambda: (geometric.nn.MFConv(1, 2, max_degree=2), (graph(4, 6).x, graph(4, 6).edge_index)),
    "MFConv of two": lambda: (
        geometric.nn.MFConv((1, 1), 2, max_degree=1), ((graph(4, 6).x, graph(4, 6).x + 1), graph(4, 6).edge_index)
    ),
    "MFConv of one, with a size": lambda: (
        geometric.nn.MFConv((1, 1), 2, max_degree=1), ((graph(4, 6).x, None), graph(4, 6).edge_index, (4, 4))
    ),
    "MFConv of one, with fewer targets": lambda: (
        geometric.nn.MFConv((1, 1), 2, max_degree=1), ((graph(4, 6).x, None), EACH[:, :2] - EACH[:, :1], (4, 3))
    ),
    "MFConv of one": lambda: (
        geometric.nn.MFConv((1, 1), 2, max_degree=1), ((graph(4, 6).x, None), graph(4, 6).edge_index)
    ),
    "MFConv from targets": lambda: (
        geometric.nn.MFConv(1, 2, max_degree=9, flow="target_to_source"), (graph(4, 6).x, graph(4, 6).edge_index)
    ),
    "ClusterGCNConv": lambda: (geometric.nn.ClusterGCNConv(1, 2, diag_lambda=0.5), (graph(4, 6).x, LOOPS)),
    "ClusterGCNConv without loops": lambda: (
        geometric.nn.ClusterGCNConv(1, 2, diag_lambda=0.5, add_self_loops=False), (graph(4, 6).x, EACH)
    ),
    "HeteroLinear": lambda: (
        geometric.nn.HeteroLinear(1, 2, 3, is_sorted=True), (graph(4, 6).x, torch.tensor([0, 0, 1, 2]))
    ),
    "HeteroLinear without bias": lambda: (
        geometric.nn.HeteroLinear(1, 2, 3, bias=False), (graph(4, 6).x, torch.tensor([2, 0, 1, 2]))
    ),
}  # fmt: skip
EACH = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [1, 2, 3, 0, 1, 2, 3]])
LOOPS = torch.tensor([[0, 1, 2, 2, 3, 1], [1, 1, 3, 2, 0, 0]])


@pytest.mark.parametrize("name", LAYERS)
def test_what_stands_for_a_layer_gives_what_the_layer_gives(name: str) -> None:
    torch.manual_seed(0)
    layer, operands = LAYERS[name]()
    stand_in = export_substitutes._REPLACED[type(layer), "forward"]
    torch.testing.assert_close(stand_in(layer, *operands), layer(*operands))


def test_what_is_replaced_during_exports() -> None:
    before = dict(export_substitutes._REPLACED)
    export_substitutes._REPLACED.clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export_substitutes, "_AROUND", [])
            substitutes.offer()
            with export_substitutes.front_ends_in_force():
                assert geometric.is_experimental_mode_enabled("disable_dynamic_shapes")
        assert not geometric.is_experimental_mode_enabled("disable_dynamic_shapes")
        names = {(place.__name__.rpartition(".")[2], name) for place, name in export_substitutes._REPLACED}
    finally:
        export_substitutes._REPLACED.update(before)
    knn = {(place, name) for place in ("nn", "pool") for name in ("knn", "knn_graph")}
    layers = {(name, "forward") for name in ("HeteroLinear", "ClusterGCNConv", "MFConv")}
    assert names == {*knn, *layers, ("Aggregation", "assert_sorted_index"), ("knn_interpolate", "knn")}

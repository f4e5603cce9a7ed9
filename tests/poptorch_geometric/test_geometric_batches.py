"""Graphs are padded, trimmed and packed to batches of one size: what is real stays, what is padding reaches nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch_geometric import (  # noqa: E402
    FixedSizeCollater,
    FixedSizeOptions,
    PyGArgsParser,
    StreamPackingSampler,
    make_exclude_keys,
)
from ipuperf.poptorch_geometric.collate import CombinedBatchingCollater  # noqa: E402


def graph(nodes: int, edges: int, **more: Any) -> Data:
    return Data(
        x=torch.rand(nodes, 3) + 1,
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.rand(edges, 2) + 1,
        y=torch.tensor([nodes]),
        **more,
    )


def typed(users: int, items: int, edges: int) -> HeteroData:
    made = HeteroData()
    made["user"].x, made["item"].x = torch.rand(users, 2), torch.rand(items, 4)
    ends = torch.stack([torch.randint(0, users, (edges,)), torch.randint(0, items, (edges,))])
    made["user", "buys", "item"].edge_index = ends
    made["item", "of", "user"].edge_index = ends.flip(0)
    made.y = torch.tensor([users])
    return made


def test_padding_is_behind_what_is_real_and_joined_to_itself() -> None:
    graphs = [graph(3, 4), graph(2, 5)]
    options = FixedSizeOptions(9, 16, 4, node_pad_value=7.0, edge_pad_value=8.0, graph_pad_value=9.0)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (4, 9, 16)
    torch.testing.assert_close(batch.x[:5], torch.cat([g.x for g in graphs]))
    torch.testing.assert_close(batch.edge_index[:, :4], graphs[0].edge_index)
    torch.testing.assert_close(batch.edge_index[:, 4:9], graphs[1].edge_index + 3)
    assert bool((batch.x[5:] == 7).all())
    assert bool((batch.edge_attr[9:] == 8).all())
    assert batch.y.tolist() == [3, 2, 9, 9]
    assert batch.batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert bool((batch.edge_index[0, 9:] == batch.edge_index[1, 9:]).all())
    assert set(batch.edge_index[0, 9:].tolist()) == {5, 7}
    for mask, real in ((batch.nodes_mask, 5), (batch.edges_mask, 9), (batch.graphs_mask, 2)):
        assert mask.tolist() == [place < real for place in range(len(mask))]


def test_attributes_of_nodes_edges_and_graphs_are_padded_as_such() -> None:
    graphs = [
        Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 6, dtype=torch.long), y=torch.arange(n), name="a", scale=2,
             train_mask=torch.ones(n, dtype=torch.bool), kind=torch.ones(6, dtype=torch.int32))
        for n in (3, 5)
    ]  # fmt: skip
    options = FixedSizeOptions(12, 20, 3, node_pad_value=4.0, pad_graph_defaults={"name": "padding"})
    batch = FixedSizeCollater(options)(graphs)
    assert batch.y.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 4, 4, 4, 4]
    assert batch.train_mask.tolist() == [True] * 8 + [False] * 4
    assert batch.kind.tolist() == [1] * 12 + [0] * 8
    assert batch.name == ["a", "a", "padding"]
    assert batch.scale.tolist() == [2, 2, 2]
    excluded = FixedSizeCollater(options, exclude_keys=make_exclude_keys(("x", "edge_index"), graphs[0]))(graphs)
    assert set(excluded.keys()) == {"x", "edge_index", "batch", "ptr"}


def test_graphs_without_features_are_padded_by_their_number_of_nodes() -> None:
    graphs = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)]
    batch = FixedSizeCollater(FixedSizeOptions(6, 5))(graphs)
    assert (batch.num_nodes, batch.batch.tolist()) == (6, [0, 0, 1, 1, 1, 1])


def test_types_of_nodes_and_edges_are_padded_each() -> None:
    graphs = [typed(2, 3, 4), typed(1, 2, 2)]
    sizes = {"user": 6, "item": 7}
    batch = FixedSizeCollater(FixedSizeOptions(sizes, 10, 4, node_pad_value=5.0), add_masks_to_batch=True)(graphs)
    assert (batch["user"].x.shape, batch["item"].x.shape) == ((6, 2), (7, 4))
    assert batch["item"].nodes_mask.tolist() == [True] * 5 + [False] * 2
    ends = batch["user", "buys", "item"].edge_index
    assert ends.shape == (2, 10)
    assert bool((ends[0, 6:] >= 3).all() and (ends[1, 6:] >= 5).all())
    assert int(batch["user", "buys", "item"].edges_mask.sum()) == 6
    with pytest.raises(AssertionError, match="num_nodes has no size for node type item"):
        FixedSizeCollater(FixedSizeOptions({"user": 6}, 10, 4))(graphs)


@pytest.mark.parametrize(
    "make", [lambda: [graph(8, 20) for _ in range(3)], lambda: [typed(8, 8, 20) for _ in range(3)]]
)
def test_trimming_leaves_something_of_each_graph(make: Any) -> None:
    torch.manual_seed(0)
    graphs = make()
    batch = FixedSizeCollater(FixedSizeOptions(10, 12, 4), True, trim_nodes=True, trim_edges=True)(graphs)
    stores = [batch] if isinstance(batch, Data) else batch.node_stores
    for store in stores:
        assert store.x.shape[0] == 10
        assert int(store.nodes_mask.sum()) == 9  # one node is kept for edges of padding
        assert set(store.batch.tolist()) == {0, 1, 2, 3}
    assert all(
        edges.edge_index.shape == (2, 12) for edges in (batch.edge_stores if stores[0] is not batch else [batch])
    )
    with pytest.raises(RuntimeError, match="each graph keeps at least one"):
        FixedSizeCollater(FixedSizeOptions(3, 12, 4), trim_nodes=True)(graphs)


def test_what_does_not_fit_says_so() -> None:
    graphs = [graph(4, 6), graph(4, 6)]
    for options, message in (
        (FixedSizeOptions(7, 20, 3), "2 graphs do not fit into the batch: 7 nodes are allowed, 1 more"),
        (FixedSizeOptions(9, 11, 3), "11 edges are allowed, 1 more are needed"),
        (FixedSizeOptions(9, 20, 2), "cannot create additional graphs to pad"),
        (FixedSizeOptions(8, 20, 3), "increase num_nodes of the fixed size options by at least 1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            FixedSizeCollater(options)(graphs)
    with pytest.raises(RuntimeError, match="2 graphs are allowed"):
        FixedSizeCollater(FixedSizeOptions(90, 90, 2))([*graphs, *graphs])
    with pytest.raises(TypeError, match="Expected list, got tuple"):
        FixedSizeCollater(FixedSizeOptions(9, 20, 3))(tuple(graphs))
    with pytest.raises(ValueError, match="a batch of no graphs"):
        FixedSizeCollater(FixedSizeOptions(9, 20, 3))([])
    with pytest.raises(TypeError, match="all Data or all HeteroData"):
        FixedSizeCollater(FixedSizeOptions(9, 20, 3))([graphs[0], typed(1, 1, 1)])
    with pytest.raises(AssertionError, match=r"labels `y` must be either.*\[2, 3\]"):
        FixedSizeCollater(FixedSizeOptions(9, 20, 3))([Data(x=torch.ones(4, 1), y=torch.ones(n)) for n in (2, 3)])
    with pytest.raises(ValueError, match="at least 2"):
        FixedSizeOptions(4, num_graphs=1)
    with pytest.raises(ValueError, match="num_nodes is 0"):
        FixedSizeOptions(0, 1)


def test_a_full_batch_needs_no_padding() -> None:
    batch = FixedSizeCollater(FixedSizeOptions(5, 6, 2), True)([graph(3, 4), graph(2, 2)])
    assert bool(batch.nodes_mask.all() and batch.edges_mask.all() and batch.graphs_mask.all())


def test_sizes_come_from_a_data_set_or_a_loader() -> None:
    graphs = [graph(n, 2 * n) for n in (3, 7, 5)]
    found = FixedSizeOptions.from_dataset(graphs, 4)
    assert (found.num_nodes, found.num_edges, found.num_graphs) == (22, 43, 4)
    assert FixedSizeOptions.from_dataset(graphs, 4, sample_limit=1).num_nodes == 10
    batches = [Batch.from_data_list(graphs[:2]), Batch.from_data_list(graphs[2:])]
    found = FixedSizeOptions.from_loader(batches, sample_limit=3)
    assert (found.num_nodes, found.num_edges, found.num_graphs) == (11, 21, 3)
    many = FixedSizeOptions.from_dataset([typed(2, 3, 4), typed(1, 5, 2)], 3)
    assert many.is_hetero()
    assert many.num_nodes == {"user": 5, "item": 11}
    assert (many.total_num_nodes, many.total_num_edges) == (16, 18)
    assert "num_graphs=3 (At least one graph reserved for padding)" in repr(many)
    with pytest.raises(ValueError, match="gives no batch"):
        FixedSizeOptions.from_loader([])


def test_micro_batches_are_joined_along_the_first_axis() -> None:
    graphs = [graph(2, 3) for _ in range(6)]
    combined = CombinedBatchingCollater(FixedSizeCollater(FixedSizeOptions(7, 9, 3)), 2)
    batch = combined(graphs)
    assert (batch.x.shape, batch.edge_index.shape, batch.ptr.shape) == ((21, 3), (6, 9), (12,))
    with pytest.raises(AssertionError, match="Invalid batch size. Got 5 graphs"):
        combined(graphs[:5])


def test_packing_takes_what_fits_and_leaves_room() -> None:
    graphs = [graph(n, n) for n in (4, 3, 5, 1, 1, 1, 2)]
    sampler = StreamPackingSampler(graphs, 3, max_num_nodes=9, max_num_edges=9)
    assert list(sampler) == [[0, 1], [2, 3, 4], [5, 6]]
    assert len(sampler) == 3
    assert list(StreamPackingSampler(graphs, 2, 4, 4, allow_skip_data=True)) == [[1], [3, 4], [5, 6]]
    with pytest.raises(RuntimeError, match="sample 0 with 4 nodes and 4 edges fits into no batch of 2 graphs, 4 nodes"):
        list(StreamPackingSampler(graphs, 2, 4, 4))
    with pytest.raises(ValueError, match="`max_num_nodes`: 1, expected at least 2"):
        StreamPackingSampler(graphs, 2, 1)
    with pytest.raises(ValueError, match="its length is 0"):
        StreamPackingSampler(graphs, 2, base_sampler=[])
    with pytest.raises(NotImplementedError, match="RandomSampler"):
        len(StreamPackingSampler(graphs, 2, base_sampler=torch.utils.data.RandomSampler(graphs)))


@pytest.mark.parametrize(
    "make", [lambda: graph(3, 4), lambda: typed(2, 3, 4), lambda: Batch.from_data_list([graph(2, 1)])]
)
def test_graphs_are_taken_apart_and_made_anew(make: Any) -> None:
    structure, parser = make(), PyGArgsParser()
    tensors = list(parser.yieldTensors(structure))
    again = parser.reconstruct(copy.copy(structure), iter(tensors))
    assert type(again) is type(structure)
    assert all(a is b for a, b in zip(parser.yieldTensors(again), tensors, strict=True))
    assert getattr(again, "num_graphs", 1) == getattr(structure, "num_graphs", 1)
    with pytest.raises(ValueError, match="Unsupported data type"):
        list(parser.yieldTensors("graph"))


def test_graphs_go_into_models_and_come_out() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            batch.x = batch.x * 2
            return batch

    given = Batch.from_data_list([graph(3, 4), graph(2, 5)])
    found = poptorch.inferenceModel(Doubled())(given)
    torch.testing.assert_close(found.x, 2 * given.x)
    torch.testing.assert_close(found.edge_index, given.edge_index, check_dtype=False)
    assert found.num_graphs == 2

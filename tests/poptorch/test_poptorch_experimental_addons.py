"""Collectives and functions of ``poptorch_experimental_addons`` against PyTorch."""

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.experimental_addons import autograd_proxy, collectives, distance_matrix  # noqa: E402

REPLICAS = 4
FIRST = torch.arange(REPLICAS * REPLICAS * 3, dtype=torch.float32).reshape(REPLICAS, REPLICAS, 3) / 10
PLACES = torch.arange(1, REPLICAS + 1, dtype=torch.float32)


class Shards(torch.nn.Module):
    """Each replica has its own rows, which one collective moves; the loss weighs what arrives by the replica."""

    def __init__(self, exchange):
        super().__init__()
        self.rows, self.exchange = torch.nn.Parameter(FIRST.clone()), exchange

    def forward(self, place):
        moved = self.exchange(self.rows, REPLICAS)
        return moved, poptorch.identity_loss(place * moved.pow(2).sum(), reduction="sum")


def on_ipus(exchange):
    model = Shards(exchange)
    options = poptorch.Options().replicationFactor(REPLICAS).outputMode(poptorch.OutputMode.All)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    trained = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    mode = poptorch.VariableRetrievalMode.OnePerGroup
    trained.rows.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, mode)
    moved, _ = trained(PLACES)
    return moved, trained.rows.detach()


def by_pytorch(exchange):
    """All replicas at once, ``exchange`` from and to ``(replicas, ...)``."""
    rows = FIRST.clone().requires_grad_()
    moved = exchange(rows)
    (PLACES.view(-1, *[1] * (moved.dim() - 1)) * moved.pow(2)).sum().backward()
    return moved.detach(), rows.detach() - 0.01 * rows.grad


CASES = {
    "all_gather": (collectives.all_gather_cross_replica, lambda rows: rows.expand(REPLICAS, *rows.shape)),
    "all_to_all": (collectives.all_to_all_single_cross_replica, lambda rows: rows.transpose(0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_moved_and_its_gradient(name):
    exchange, reference = CASES[name]
    found, rows = on_ipus(exchange)
    wanted, trained = by_pytorch(reference)
    torch.testing.assert_close(found.reshape(wanted.shape), wanted)
    torch.testing.assert_close(rows, trained)


def test_sums_forwards_and_backwards():
    scale = 2 * PLACES.view(-1, 1, 1)
    found, rows = on_ipus(collectives.all_reduce_cross_replica_sum)
    total = FIRST.sum(0, keepdim=True).expand_as(FIRST)
    torch.testing.assert_close(found.reshape(FIRST.shape), total)
    torch.testing.assert_close(rows, FIRST - 0.01 * scale * total)
    found, rows = on_ipus(lambda rows, number: collectives.all_reduce_cross_replica_sum(rows, number, True))
    torch.testing.assert_close(found.reshape(FIRST.shape), FIRST)
    torch.testing.assert_close(rows, FIRST - 0.01 * (scale * FIRST).sum(0, keepdim=True))


def test_groups():
    info = collectives.ReplicaGroupingInfo(REPLICAS, 2, 2)
    found, _ = on_ipus(lambda rows, number: collectives.all_gather_cross_replica(rows, info))
    torch.testing.assert_close(found.reshape(REPLICAS, 2, REPLICAS, 3)[1], FIRST[1::2])
    with pytest.raises(NotImplementedError, match="2 groups"):
        collectives.all_to_all_single_cross_replica(FIRST, info)


class Rounded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[0.4, 1.2], [2.6, -0.7]]))

    def forward(self, points):
        weight = autograd_proxy(torch.round(self.weight), self.weight)
        return poptorch.identity_loss(distance_matrix(points, weight, 2).sum(), reduction="sum")


def test_rounding_with_a_straight_gradient_and_distances():
    points = torch.tensor([[3.3, 1.1], [0.2, 5.0], [1.0, 1.5]])
    model, reference = Rounded(), Rounded()
    native = torch.optim.SGD(reference.parameters(), lr=0.1)
    trained = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        native.zero_grad()
        loss = reference(points)
        loss.backward()
        native.step()
        torch.testing.assert_close(trained(points).reshape(()), loss.detach())
    torch.testing.assert_close(model.weight, reference.weight)
    with pytest.raises(ValueError, match=r"needs tensors \(M, K\) and \(N, K\)"):
        distance_matrix(points, points[:, :1], 2)
    with pytest.raises(NotImplementedError, match="p is 3"):
        distance_matrix(points, points, 3)


def test_outside_a_program_there_are_no_replicas():
    with pytest.raises(poptorch.UnsupportedError, match="runs in a program only"):
        collectives.all_gather_cross_replica(FIRST, 4)


def test_attributes_of_another_op_are_refused() -> None:
    gather = poptorch.inferenceModel(Gathering(), poptorch.Options().replicationFactor(2))
    with pytest.raises(poptorch.Error, match="ReplicatedAllGather: attributes axis are not those of this op"):
        gather(torch.ones(2, 3))


class Gathering(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        example = [x.expand(2, *x.shape)]
        (y,) = poptorch.custom_op([x], "ReplicatedAllGather", "ai.graphcore", 1, example, attributes={"axis": 0})
        return y

"""Sharded optimiser state with several instances of ``poprun``: shards lie within an instance, as upstream."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from executorcases import Network, batch, compare, options  # noqa: E402

LIMIT = 0.05


def sharded(opts: Any, instances: int = 2) -> None:
    """State of tensors from eight elements on in shards; ``instances`` of poprun."""
    place = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    opts.TensorLocations.setOptimizerLocation(place.minElementsForReplicatedTensorSharding(8))
    opts._host_processes = instances


def clipping_adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW of PyTorch that clips first."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=0.01, eps=1e-3, weight_decay=0.1)
    step = optimizer.step

    def clip_and_step() -> None:
        assert torch.nn.utils.clip_grad_norm_(parameters, LIMIT) > LIMIT
        step()

    optimizer.step = clip_and_step
    return optimizer


def groups(model: Any, kind: str) -> set[tuple[int, int]]:
    """Stride and size of the groups of replicas of the collectives of a kind."""
    ops = [op for graph in model.compiled_model.exported.ir.graphs.values() for op in graph.ops if op.type == kind]
    return {(op.attributes["group"].stride, op.attributes["group"].group_size) for op in ops}


def test_gradients_are_reduced_within_an_instance_then_between_instances() -> None:
    """The values are PyTorch's; norms of shards are summed in an instance, gradients that are not sharded over all."""
    model = compare(
        lambda p: poptorch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1, max_grad_norm=LIMIT),
        clipping_adamw,
        replicas=4,
        change=sharded,
        calls=1,
    )
    assert groups(model, "ReplicatedReduceScatter") == {(1, 2)} == groups(model, "ReplicatedAllGather")
    assert groups(model, "ReplicatedAllReduceInplace") == {(1, 2), (2, 2), (1, 4)}


def test_lamb_has_the_norms_of_whole_tensors() -> None:
    """Shards over an instance, over all replicas and no shards give the same weights."""
    found = []
    for instances in (0, 1, 2):
        torch.manual_seed(0)
        network, opts = Network(), options(iterations=2, replicas=4)
        if instances:
            sharded(opts, instances)
        optimizer = poptorch.optim.LAMB(network.parameters(), lr=0.05)
        poptorch.trainingModel(network, opts, optimizer)(*batch(48))
        found.append(torch.cat([p.detach().reshape(-1) for p in network.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0], found[2], rtol=1e-5, atol=1e-6)


def test_instances_have_to_divide_the_replicas() -> None:
    network, opts = Network(), options(replicas=4)
    sharded(opts, 3)
    model = poptorch.trainingModel(network, opts, poptorch.optim.SGD(network.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="3 instances do not divide 4 replicas"):
        model.compile(*batch(24))

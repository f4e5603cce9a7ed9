"""``max_grad_norm`` against ``torch.nn.utils.clip_grad_norm_``."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import BLOCKS, compare  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

LIMIT = 0.05


def clipped(make: Any) -> Any:
    """An optimiser of PyTorch that clips first."""

    def made(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        optimizer = make(parameters)
        step = optimizer.step

        def clip_and_step() -> None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, LIMIT)
            assert norm > LIMIT, "nothing to clip"
            step()

        optimizer.step = clip_and_step
        return optimizer

    return made


def sgd(module: Any, **more: Any) -> Any:
    return lambda p: module.SGD(p, lr=0.5, momentum=0.9, **more)


def sharded_state(options: Any) -> None:
    place = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(place.minElementsForReplicatedTensorSharding(8))


def offloaded(options: Any) -> None:
    place = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
    options.TensorLocations.setAccumulatorLocation(place).setWeightLocation(place)


@pytest.mark.parametrize(
    ("strategy", "more", "change"),
    [
        (None, {}, lambda options: None),
        (lambda: poptorch.ShardedExecution(*BLOCKS), {"replicas": 2}, sharded_state),
        (lambda: poptorch.ShardedExecution(*BLOCKS), {"accumulation": 1}, lambda options: None),
        (None, {"replicas": 2, "reduction": "sum"}, offloaded),
    ],
    ids=["pipelined", "sharded state", "one micro-batch", "off chip"],
)
def test_all_gradients_are_clipped_together(strategy: Any, more: dict[str, Any], change: Any) -> None:
    ours = sgd(poptorch.optim, max_grad_norm=LIMIT, loss_scaling=8.0)
    compare(ours, clipped(sgd(torch.optim)), strategy=strategy and strategy(), change=change, calls=1, **more)


def test_adam() -> None:
    compare(
        lambda p: poptorch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1, max_grad_norm=LIMIT),
        clipped(lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1)),
        calls=1,
    )


def test_a_norm_below_the_limit_changes_nothing() -> None:
    model = compare(sgd(poptorch.optim, max_grad_norm=1e4), sgd(torch.optim), calls=1)
    main = model.compiled_model.exported.ir.graphs
    ops = [op for graph in main.values() for op in graph.ops]
    summed = [op for op in ops if op.type == "ReduceSumSquare"]
    assert len(summed) == len(list(model.model.parameters()))
    by_ipu = Counter(op.ipu for op in summed)
    copied = [op for op in ops if op.type == "IpuCopy" and op.inputs[0].producer in summed]
    assert len(copied) == len(summed) - max(by_ipu.values()) > 1, "each sum is copied to the IPU that has the most"


def test_each_sharded_gradient_has_an_all_reduce_of_its_own() -> None:
    """As many scalars are summed over the replicas for the norm as there are gradients with at least eight elements."""
    strategy = poptorch.ShardedExecution(*BLOCKS)
    ours, theirs = sgd(poptorch.optim, max_grad_norm=LIMIT), clipped(sgd(torch.optim))
    model = compare(ours, theirs, strategy=strategy, change=sharded_state, calls=1, replicas=2)
    sharded = [p for p in model.model.parameters() if p.numel() >= 8]
    ops = [op for graph in model.compiled_model.exported.ir.graphs.values() for op in graph.ops]
    reduced = [op for op in ops if op.type == "ReplicatedAllReduceInplace" and op.inputs[0].producer is not None]
    summed = [op for op in reduced if op.inputs[0].producer.type == "ReduceSumSquare"]
    assert len(summed) == len(sharded) > 1

"""``max_grad_norm`` against ``torch.nn.utils.clip_grad_norm_``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from executorcases import BLOCKS, compare  # noqa: E402

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
    kinds = [op.type for graph in main.values() for op in graph.ops]
    assert kinds.count("ReduceSumSquare") == len(list(model.model.parameters()))

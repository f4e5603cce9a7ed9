"""``use_combined_accum``: one tensor is gradient accumulator and velocity, and the numbers stay."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import BLOCKS, PARAMETERS, compare  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

NUMBERS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}


def trained(combined: bool, **more: Any) -> Any:
    """Against PyTorch's SGD over two calls of two weight updates."""
    extra = {"velocity_scaling": 4.0} if combined else {}
    return compare(
        lambda p: poptorch.optim.SGD(p, **NUMBERS, use_combined_accum=combined, loss_scaling=16.0, **extra),
        lambda p: torch.optim.SGD(p, **NUMBERS),
        **more,
    )


def buffers(model: Any) -> tuple[int, int]:
    """How many accumulators and how many velocities there are."""
    names = model.compiled_model.exported.ir.main_graph.tensors
    return sum("accumulator_" in name for name in names), sum("___momentum" in name for name in names)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_tensor_and_the_same_numbers(reduction: str) -> None:
    model = trained(True, replicas=2, reduction=reduction)
    assert buffers(model) == (0, PARAMETERS)  # of each parameter one


def test_the_separate_variant_has_two() -> None:
    assert buffers(trained(False, calls=1)) == (PARAMETERS, PARAMETERS)


def test_one_micro_batch_needs_no_accumulator_anyway() -> None:
    model = trained(True, accumulation=1, strategy=poptorch.ShardedExecution(*BLOCKS), calls=1)
    assert buffers(model) == (0, PARAMETERS)


def test_off_chip_they_are_two_tensors() -> None:
    def change(options: Any) -> None:
        place = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
        options.TensorLocations.setOptimizerLocation(place)

    assert buffers(trained(True, change=change, calls=1)) == (PARAMETERS, PARAMETERS)

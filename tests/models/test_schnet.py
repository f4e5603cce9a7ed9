"""SchNet: its mathematics against PyTorch, the ops of its edges, and what its cases say."""

import copy
import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch import inferenceModel, trainingModel  # noqa: E402

SIZES = {"micro_batch": 2, "pack_atoms": 6, "pack_molecules": 2, "neighbours": 3, "hidden": 8, "interactions": 1}
SIZES |= {"gaussians": 5, "gradient_accumulation": 2, "merge_collectives": False}


@pytest.fixture(scope="module")
def models(installed_front_ends: Callable[[], Any]) -> Iterator[SimpleNamespace]:
    with installed_front_ends():
        names = ("ipu_run", "schnet")
        yield SimpleNamespace(**{name: importlib.import_module(f"ipuperf.models.{name}") for name in names})


@pytest.mark.heavy
def test_energies_are_those_of_pytorch(models: SimpleNamespace) -> None:
    options = models.schnet.SchNetOptions(**SIZES, training=False, device_iterations=2)
    numbers, places, starts = models.schnet.batch(options)
    model = models.schnet.model(options).eval()
    found = inferenceModel(model, models.schnet.poptorch_options(options))(numbers, places, starts)
    atoms = options.atoms
    expected = [model(numbers[i : i + atoms], places[i : i + atoms], starts[: options.molecules]) for i in (0, atoms)]
    torch.testing.assert_close(found, torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)


def test_a_weight_update_is_that_of_pytorch(models: SimpleNamespace) -> None:
    options = models.schnet.SchNetOptions(**SIZES)
    operands = models.schnet.batch(options)
    module = models.schnet.model(options)
    reference = copy.deepcopy(module)
    trained = trainingModel(module, models.schnet.poptorch_options(options), torch.optim.SGD(module.parameters(), 0.1))
    _, loss = trained(*operands)
    trained.copyWeightsToHost()
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    for part in range(2):
        cut = [t.chunk(2)[part] for t in operands]
        _, last = reference(*cut)
        (last / 2).backward()
    optimizer.step()
    torch.testing.assert_close(loss.reshape(()), last.detach(), rtol=1e-4, atol=1e-5)
    for (name, mine), wanted in zip(module.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_edges_are_looked_up_and_summed_as_slices(models: SimpleNamespace) -> None:
    options = models.schnet.SchNetOptions(**SIZES, training=False)
    program = models.ipu_run.compiled_of(
        lambda: models.schnet.model(options), options, models.schnet.batch(options, "meta"), "bow-1"
    ).executable.ir
    found = [op for graph in program.all_graphs() for op in graph.ops]
    edges = options.atoms * options.neighbours
    (lookup,) = [op.work()[0] for op in found if op.type == "Gather" and op.inputs[1].shape == (edges,)]
    assert (lookup.entries, lookup.width, lookup.indices) == (options.atoms, 8, edges)
    updates = [op.work()[0] for op in found if op.type == "ScatterReduce" and op.reduction == "sum"]
    assert (options.atoms, 8, edges) in [(u.entries, u.width, u.indices) for u in updates]


@pytest.mark.heavy
def test_times_of_a_case_are_an_epochs(models: SimpleNamespace) -> None:
    from ipuperf.validation import BUILT_IN, figures, problem, read_cases

    (case,) = [c for c in read_cases(BUILT_IN, known=problem).cases if c.id == "HYD-QM9-syn-r1-EPOCH"]
    assert figures(case).predicted(case) == pytest.approx(3.55, rel=0.05)

"""Models give the same bits on one thread and on several, with every step that can be cut in pieces."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipuperf.ops import crew

Run = Callable[[], list[np.ndarray]]


def cnn() -> Run:
    """Two training steps of convolutions, batch norm, pooling, a linear layer and SGD with momentum."""
    torch = pytest.importorskip("torch")
    from torch import nn

    from ipuperf import poptorch

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 10),
            )  # fmt: skip

        def forward(self, x: Any, labels: Any) -> Any:
            scores = self.layers(x)
            return scores, nn.functional.cross_entropy(scores, labels)

    torch.manual_seed(0)
    model = Model()
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options, optimizer=optimiser)
    x, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))

    def run() -> list[np.ndarray]:
        scores = [training(x, labels)[0].detach().numpy() for _ in range(2)]
        training.copyWeightsToHost()
        return [*scores, *(p.detach().numpy() for p in model.parameters())]

    return run


def bert(precision: str, replicas: int = 1) -> Run:
    """Two steps of a BERT of one layer with AdamW."""
    torch = pytest.importorskip("torch")
    from ipuperf.models import bert as model
    from ipuperf.models.ipu_run import cast, optimiser_of, poptorch_options
    from ipuperf.poptorch import trainingModel

    options = model.base(
        layers=1, hidden=64, heads=2, feed_forward=128, vocabulary=512, layers_per_ipu=(1,), micro_batch=2,
        gradient_accumulation=1, optimiser="adamw", precision=precision, recompute=False, replicas=replicas,
    )  # fmt: skip
    torch.manual_seed(0)
    module = cast(model.model(options), options)
    training = trainingModel(module, poptorch_options(options), optimizer=optimiser_of(module, options))
    batch = model.batch(options)

    def run() -> list[np.ndarray]:
        results = [training(*batch) for _ in range(2)]
        training.copyWeightsToHost()
        leaves = [value for result in results for value in (result if isinstance(result, tuple) else (result,))]
        return [value.detach().numpy() for value in (*leaves, *module.parameters())]

    return run


MODELS = {
    "CNN": cnn,
    "BERT, float32": lambda: bert("32.32"),
    "BERT, float16": lambda: bert("16.16"),
    "BERT, replicas": lambda: bert("16.16", replicas=2),
}


@pytest.mark.heavy
@pytest.mark.usefixtures("upstream_names")
@pytest.mark.parametrize("name", MODELS)
def test_same_bits_on_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = SimpleNamespace(count=0)
    together = crew.together

    def counting(pieces: Any) -> Any:
        cut.count += len(pieces) > 1
        return together(pieces)

    monkeypatch.setattr(crew, "FEWEST", 256)
    monkeypatch.setattr(crew, "FEWEST_PRODUCTS", 1 << 12)
    for module in ("crew", "binding", "blocks", "half"):
        monkeypatch.setattr(f"ipuperf.ops.{module}.together", counting)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setenv("IPUPERF_THREADS", str(threads))
        before = cut.count
        results.append(MODELS[name]()())
        assert cut.count > before + 20 * (threads > 1)
    for others in results[1:]:
        for value, other in zip(results[0], others, strict=True):
            assert np.isfinite(value.astype(np.float32)).all()
            np.testing.assert_array_equal(other, value)

"""Speed of the numeric half against PyTorch, and of half precision against single precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from bounds import Row, in_turns

BATCH = 8
HIDDEN = (512, 512, 512)
HALF, ADAM = "tiny BERT step, float16", "Adam step, batch 8"
BOUNDS = {ADAM: 1.5, HALF: 1.3}


def tiny_bert(precision: str) -> Callable[[], object]:
    """A training step (AdamW, 8 sequences of 128 tokens) of a BERT of 4 layers, hidden size 256."""
    import torch

    from ipuperf.models import bert
    from ipuperf.models.ipu_run import cast, optimiser_of, poptorch_options
    from ipuperf.poptorch import trainingModel

    options = bert.base(
        layers=4, hidden=256, heads=4, feed_forward=1024, vocabulary=8192, layers_per_ipu=(4,), micro_batch=BATCH,
        gradient_accumulation=1, optimiser="adamw", precision=precision, recompute=False,
    )  # fmt: skip
    torch.manual_seed(0)
    module = cast(bert.model(options), options)
    model = trainingModel(module, poptorch_options(options), optimizer=optimiser_of(module, options))
    batch = bert.batch(options)
    return lambda: model(*batch)


def half_precision(repeats: int) -> Row:
    """The float16 step of tiny BERT against its float32 step."""
    half, single = in_turns(tiny_bert("16.16"), tiny_bert("32.32"), repeats)
    return Row(HALF, half, "its float32 step", single)


def _batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(BATCH, 28, 28)).astype(np.float32), rng.integers(0, 10, BATCH).astype(np.int32)


def _popxl_adam() -> Callable[[], object]:
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    options = TrainingOptions(BATCH, gradient_accumulation=1, replicas=1, threshold=None, hidden=HIDDEN)
    training = training_session(options)
    images, labels = _batch()
    feeds = {training.images: images, training.labels: labels}
    training.session.__enter__()
    return lambda: training.session.run(feeds)


def _torch_adam() -> Callable[[], object]:
    import torch
    from torch import nn

    sizes = (784, *HIDDEN, 10)
    layers = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.GELU(approximate="tanh"))][:-1]
    network = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(network.parameters())
    images, labels = _batch()
    x, y = torch.from_numpy(images).reshape(BATCH, -1), torch.from_numpy(labels).long()

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()

    return step


def adam(repeats: int, steps: int = 20) -> Row:
    """Steps of the custom Adam of PopXL's tutorials (first moment in float16, batch 8) against PyTorch's Adam."""
    ours, theirs = _popxl_adam(), _torch_adam()

    def many(step: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                step()

        return run

    seconds, reference = in_turns(many(ours), many(theirs), repeats)
    return Row(ADAM, seconds / steps, "PyTorch's step", reference / steps)


def rows(repeats: int) -> list[Row]:
    """Both rows."""
    import torch

    import ipuperf

    ipuperf.install()
    torch.set_num_threads(1)
    return [adam(repeats), half_precision(min(repeats, 5))]

"""``ipuperf demo``: what it trains and tests on, counted with made-up sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipuperf.cli import demo

from .test_cli_run_kept import Bar


class Session:
    """A session that keeps what it is fed and answers the losses 1, 2, 3 ..., or as scores the corner of each image."""

    def __init__(self, scores: bool) -> None:
        self.scores, self.fed, self.written = scores, [], {}
        self.session, self.images, self.labels, self.loss, self.logits = self, "images", "labels", "loss", "logits"
        self.variables = SimpleNamespace(tensors=["w", "b"], to_mapping=lambda _: {"w": "w2", "b": "b2"})

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.fed.append(inputs)
        if self.scores:
            return {"logits": np.eye(10)[inputs["images"][:, 0, 0].astype(int)]}
        return {"loss": np.full(8, len(self.fed)) + np.arange(8) / 8}

    def get_tensors_data(self, tensors: list[str]) -> dict[str, np.ndarray]:
        return {name: np.full(2, ord(name)) for name in tensors}

    def write_variables_data(self, data: dict[str, np.ndarray]) -> None:
        self.written = {name: values.tolist() for name, values in data.items()}


@pytest.fixture
def sessions(upstream_names: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The training session, the inference session, and the batch of the latter."""
    from ipuperf.models import mnist_mlp

    made = [Session(False), Session(True), 0]
    monkeypatch.setattr(mnist_mlp, "training_session", lambda options: made[0])
    monkeypatch.setattr(mnist_mlp, "inference_session", lambda batch, options: made.__setitem__(2, batch) or made[1])
    return made


@pytest.mark.parametrize(("images", "batches"), [(80, 1), (159, 1), (160, 2), (250, 3)])
@pytest.mark.parametrize("terminal", [False, True])
def test_whole_batches_are_counted(
    images: int,
    batches: int,
    terminal: bool,
    sessions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every image of a whole batch is tested once; a last partial batch is left out."""
    Bar.told = []
    monkeypatch.setattr("tqdm.tqdm", Bar)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    generator = np.random.default_rng(7)
    train = generator.random((300, 28, 28)), generator.integers(0, 10, 300)
    corners, labels = np.arange(images) % 10, generator.integers(0, 10, images)
    corners[0] = labels[0]
    accuracy = demo._train(train, (np.tile(corners[:, None, None], (1, 28, 28)), labels), 3, np.random.default_rng(5))

    assert accuracy == (corners == labels)[: 80 * batches].sum() / (80 * batches)
    training, inference, batch = sessions
    assert (batch, inference.written) == (80, {"w2": [ord("w")] * 2, "b2": [ord("b")] * 2})
    fed = np.concatenate([inputs["images"][:, 0, 0] for inputs in inference.fed])
    assert (len(inference.fed), fed.tolist()) == (batches, corners[: 80 * batches].tolist())
    expected = np.random.default_rng(5)
    for inputs in training.fed:
        chosen = expected.integers(0, 300, 256)
        assert (inputs["images"].shape, inputs["labels"].shape) == ((8, 4, 8, 28, 28), (8, 4, 8))
        assert np.array_equal(inputs["images"].reshape(256, 28, 28), train[0][chosen])
        assert np.array_equal(inputs["labels"].ravel(), train[1][chosen])
    assert capsys.readouterr().out == "final training loss 3.4375\n"
    options = {"total": 3, "desc": "training", "leave": False, "disable": not terminal}
    assert Bar.told == [str(options), *(f"loss {step}.4375 False" for step in (1, 2, 3)), "3 of 3"]


def test_weights_and_samples_follow_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine that is too small for four IPUs is refused before any training."""
    installed: list[str] = []
    monkeypatch.setattr("ipuperf.install", lambda: installed.append("front ends"))
    monkeypatch.setattr(demo, "_data", lambda: ("nowhere", ([0],), ([0],)))
    drawn: list[float] = []
    monkeypatch.setattr(
        demo,
        "_train",
        lambda train, test, steps, generator: drawn.extend((np.random.random(), generator.random())) or 1.0,  # noqa: NPY002
    )
    monkeypatch.setattr(demo, "_tables", lambda machine: None)
    demo.demo.callback(1, "pod4", 9)
    assert drawn == [np.random.RandomState(9).random(), np.random.default_rng(9).random()]
    assert installed == ["front ends"]
    with pytest.raises(ValueError, match="IPU"):
        demo.demo.callback(1, "gc200-1", 9)
    assert len(drawn) == 2

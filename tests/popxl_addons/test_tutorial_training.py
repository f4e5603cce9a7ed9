"""The MNIST programs of the tutorials on random data, against PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

BATCH, CLASSES = 8, 10


class Reference(torch.nn.Module):
    """The tutorials' network with weights taken from a session."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.named = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in weights.items()}

    def forward(self, x: Any) -> Any:
        x = x.reshape(-1, 784)
        for layer in ("fc1", "fc2", "fc3", "fc4"):
            x = x @ self.named[f"{layer}.weight"] + self.named[f"{layer}.bias"]
            if layer != "fc4":
                x = torch.nn.functional.gelu(x, approximate="tanh")
        return x

    def gradients(self, image: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients of one batch."""
        loss = torch.nn.functional.cross_entropy(self(torch.tensor(image)), torch.tensor(labels).long())
        grads = torch.autograd.grad(loss, list(self.named.values()))
        return float(loss.detach()), {k: g.numpy() for k, g in zip(self.named, grads)}


def _weights(session: Any, variables: Any) -> dict[str, np.ndarray]:
    data = session.get_tensors_data(variables.tensors)
    return {name: data[t].copy() for name, t in variables.named_tensors.items()}


def _batches(count: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(count, *shape, 28, 28)).astype(np.float32)
    return images, rng.integers(0, CLASSES, (count, *shape)).astype(np.int32)


def test_sgd_steps_equal_pytorch(tutorial: Callable, run_cells: Callable) -> None:
    document = tutorial("003")
    cells = [document.cells[0], document.cell("class Linear"), document.cell("class Net(addons.Module)")]
    program, _ = run_cells(*cells, document.cell("def train_program"), document.cell("def test_program"))
    session, streams, variables, loss_stream = program["train_program"](BATCH, "ipu_hw", 0.05)
    reference = Reference(_weights(session, variables))
    images, labels = _batches(3, BATCH)
    with session:
        for image, label in zip(images, labels):
            loss = session.run(dict(zip(streams, [torch.tensor(image), torch.tensor(label)])))[loss_stream]
            expected, grads = reference.gradients(image, label)
            assert loss.shape == ()
            assert f"{loss:0.4f}" == f"{float(loss):0.4f}"
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
            with torch.no_grad():
                for name, grad in grads.items():
                    reference.named[name] -= 0.05 * torch.tensor(grad)
    for name, value in _weights(session, variables).items():
        np.testing.assert_allclose(value, reference.named[name].detach().numpy(), rtol=1e-4, atol=2e-6)


def test_trained_weights_move_to_the_inference_session(tutorial: Callable, run_cells: Callable) -> None:
    document = tutorial("003")
    cells = [document.cells[0], document.cell("class Linear"), document.cell("class Net(addons.Module)")]
    program, _ = run_cells(*cells, document.cell("def train_program"), document.cell("def test_program"))
    session, _, variables, _ = program["train_program"](BATCH, "ipu_hw", 0.05)
    inference, (stream,), other, out = program["test_program"](16, "ipu_hw")
    data = session.get_tensors_data(variables.tensors)
    inference.write_variables_data({b: data[a].copy() for a, b in variables.to_mapping(other).items()})
    for b, array in inference.get_tensors_data(other.tensors).items():
        np.testing.assert_array_equal(array, data[{v: k for k, v in variables.to_mapping(other).items()}[b]])
    image = _batches(1, 16)[0][0]
    with inference:
        logits = inference.run({stream: image})[out]
    expected = Reference(_weights(session, variables))(torch.tensor(image)).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


Named = dict[str, np.ndarray]


def _adam(weights: Named, grads: list[Named], lr: float) -> tuple[Named, Named]:
    """Adam as the tutorial states it (fp16 first moment, fp32 second, eps 1e-5), from gradients per step.

    Returns:
        Weights, and how far another rounding of the fp16 moment and updater by one unit may move each element.
    """
    result = {k: v.astype(np.float64) for k, v in weights.items()}
    slack = {k: np.full(v.shape, 2e-6) for k, v in weights.items()}
    first = {k: np.zeros_like(v, np.float16) for k, v in weights.items()}
    second = {k: np.zeros_like(v, np.float32) for k, v in weights.items()}
    for step, by_name in enumerate(grads, start=1):
        for name, g in by_name.items():
            first[name] = (0.9 * first[name].astype(np.float32) + 0.1 * g).astype(np.float16)
            second[name] = 0.999 * second[name] + 0.001 * g * g
            scale = 1 / ((1 - 0.9**step) * (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-5))
            updater = (first[name].astype(np.float64) * scale).astype(np.float16)
            result[name] -= lr * updater
            moment = np.spacing(np.abs(first[name])).astype(np.float64) * step * scale
            slack[name] += lr * (moment + np.spacing(np.abs(updater)))
    return result, slack


def _assert_within(actual: Named, expected: Named, slack: Named) -> None:
    for name, value in expected.items():
        difference = np.abs(actual[name] - value)
        assert (difference <= slack[name]).all(), (name, difference.max())
        assert np.median(difference) < 2e-6, name  # the slack is for single elements


@pytest.mark.heavy
@pytest.mark.parametrize(("replicas", "accumulation", "threshold"), [(4, 2, 512), (4, 2, 10**10), (2, 2, 1024)])
def test_adam_with_remote_state_equals_a_reference(
    tutorial: Callable, run_cells: Callable, replicas: int, accumulation: int, threshold: int
) -> None:
    document = tutorial("000")
    named = ("import argparse", "import tqdm", "class Net(addons", "class Train", "class Adam(", "def train_program")
    program, _ = run_cells(*(document.cell(text) for text in named))
    opts = program["opts"]
    opts.train.data_parallel, opts.train.gradient_accumulation = replicas, accumulation
    opts.train.sharded_threshold = threshold
    np.random.seed(7)  # noqa: NPY002 - the tutorial draws its weights from the global generator
    session, streams, variables, loss_stream = program["train_program"](opts)
    start = _weights(session, variables)
    images, labels = _batches(2, accumulation, replicas, BATCH)
    with session:
        first = session.run(dict(zip(streams, (images[0], labels[0]))))[loss_stream]
        after_one = _weights(session, variables)
        session.run(dict(zip(streams, (images[1], labels[1]))))
    after_two = _weights(session, variables)
    assert first.shape == (accumulation, replicas)
    grads = []
    for weights, image, label in ((start, images[0], labels[0]), (after_one, images[1], labels[1])):
        _, grad = Reference(weights).gradients(image.reshape(-1, 28, 28), label.reshape(-1))
        grads.append(grad)
    _assert_within(after_one, *_adam(start, grads[:1], 1e-3))
    _assert_within(after_two, *_adam(start, grads, 1e-3))


def test_gradient_accumulation_needs_no_replicas(tutorial: Callable, run_cells: Callable) -> None:
    document = tutorial("000")
    named = ("import argparse", "import tqdm", "class Net(addons", "class Train", "class Adam(", "def train_program")
    program, _ = run_cells(*(document.cell(text) for text in named))
    opts = program["opts"]
    opts.train.data_parallel, opts.train.gradient_accumulation, opts.train.sharded_threshold = 1, 3, 512
    session, streams, _, loss_stream = program["train_program"](opts)
    images, labels = _batches(1, 3, BATCH)
    with session:
        losses = [session.run(dict(zip(streams, (images[0], labels[0]))))[loss_stream].mean() for _ in range(4)]
    assert losses[-1] < losses[0]

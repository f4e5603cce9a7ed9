"""``ipuperf demo``: the remote-variables tutorial in one command, on embedded data."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ipuperf.cli.parameters import MACHINE_OR_FILE
from ipuperf.cli.terminal import echo

TEST_BATCH = 80
MEAN, DEVIATION = 0.1307, 0.3081


@click.command()
@click.option("--steps", default=120, show_default=True, type=click.IntRange(1), help="Training steps of 256 samples.")
@click.option(
    "--machine",
    default="pod4",
    show_default=True,
    metavar="NAME|FILE",
    type=MACHINE_OR_FILE,
    help="Machine preset or TOML file.",
)
@click.option(
    "--seed",
    default=42,
    show_default=True,
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of weights and of the order of the samples.",
)
def demo(steps: int, machine: str, seed: int) -> None:
    """Train the tutorial's MNIST network on four simulated IPUs, Adam's state in Streaming Memory, then print what five
    placements of that state cost beside what was measured."""
    import numpy as np

    import ipuperf
    from ipuperf.machine import load_machine

    load_machine(machine).place(4, 1)  # before the training, not after it
    ipuperf.install()
    np.random.seed(seed)  # noqa: NPY002 - the factories of the model draw their weights from NumPy's global generator
    source, train, test = _data()
    echo(f"data: {source}")
    accuracy = _train(train, test, steps, np.random.default_rng(seed))
    echo(f"accuracy on {len(test[0])} test images: {accuracy:.2%}\n")
    _tables(machine)


def _data() -> tuple[str, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Name of the data set, training and test (images normalised float32, labels int32)."""
    import numpy as np

    from ipuperf.tools.datasets import find_mnist, load_digits_28x28, load_mnist

    def prepare(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        return ((images.astype(np.float32) / 255 - MEAN) / DEVIATION).astype(np.float32), labels.astype(np.int32)

    folder = find_mnist()
    if folder is not None:
        return f"MNIST from {folder}", prepare(*load_mnist(True)), prepare(*load_mnist(False))
    train, test = prepare(*load_digits_28x28(True)), prepare(*load_digits_28x28(False))
    missing = "MNIST was not found; IPUPERF_DATA names the folder that holds mnist/"
    return f"scikit-learn's digits scaled to 28x28 ({missing})", train, test


def _train(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    steps: int,
    generator: np.random.Generator,
) -> float:
    """Train for ``steps`` steps and return the accuracy on the test set."""
    import numpy as np
    from tqdm import tqdm

    from ipuperf.base.progress import shows_progress
    from ipuperf.models.mnist_mlp import TrainingOptions, inference_session, training_session

    options = TrainingOptions()
    program = training_session(options)
    shape = (options.gradient_accumulation, options.replicas, options.micro_batch_size)
    hidden = not shows_progress()  # a bar is no line of a log file
    with program.session as session, tqdm(total=steps, desc="training", leave=False, disable=hidden) as bar:
        for _ in range(steps):
            chosen = generator.integers(0, len(train[0]), options.global_batch_size)
            images = train[0][chosen].reshape(*shape, 28, 28)
            labels = train[1][chosen].reshape(shape)
            losses = session.run({program.images: images, program.labels: labels})[program.loss]
            bar.set_postfix(loss=f"{float(np.mean(losses)):.4f}", refresh=False)
            bar.update()
    echo(f"final training loss {float(np.mean(losses)):.4f}")
    trained = program.session.get_tensors_data(program.variables.tensors)
    inference = inference_session(TEST_BATCH, options)
    mapping = program.variables.to_mapping(inference.variables)
    inference.session.write_variables_data(
        {
            inference_variable: trained[training_variable].copy()
            for training_variable, inference_variable in mapping.items()
        }
    )
    correct = count = 0
    with inference.session as session:
        # The inference program has a fixed batch, so a last partial batch is left out.
        for start in range(0, len(test[0]) - TEST_BATCH + 1, TEST_BATCH):
            logits = session.run({inference.images: test[0][start : start + TEST_BATCH]})[inference.logits]
            correct += int(np.sum(np.argmax(logits, axis=-1) == test[1][start : start + TEST_BATCH]))
            count += TEST_BATCH
    return correct / count


def _tables(machine: str) -> None:
    """Print the table of placements and the memory of each."""
    from ipuperf.scenarios import rts_mnist

    rows, traces = rts_mnist.run(machine)
    echo(rts_mnist.table(rows))
    echo("\nmemory per IPU in MB, not always live as PopVision counts it (weights and optimiser state included):")
    echo(f"{'placement':34}{'between bumps':>15}{'peak':>8}{'always live':>13}")
    for name, trace in traces.items():
        live = rts_mnist.liveness(trace)
        echo(f"{name:34}{live['baseline'] / 1e6:15.2f}{live['peak'] / 1e6:8.2f}{live['always_live'] / 1e6:13.2f}")

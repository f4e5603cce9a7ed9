"""Speed of ipuperf itself, each figure as a ratio to a stated reference measured in the same run.

    python benchmarks/run.py [--json FILE] [--repeats N]

Rows: ``{"name", "seconds", "reference", "reference_seconds", "ratio"}``;
a ratio below one is better than the reference.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One BLAS thread for both sides: with more, a machine shared with other work measures the threads' busy waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))
import building
import numerics
import numpy_mlp
import pipelines
import pods

BATCH = 8
LEARNING_RATE = 0.05


def row(name: str, seconds: float, reference: str, reference_seconds: float) -> dict[str, Any]:
    """One result."""
    return {
        "name": name,
        "seconds": seconds,
        "reference": reference,
        "reference_seconds": reference_seconds,
        "ratio": seconds / reference_seconds,
    }


def interleaved(first: Callable[[], None], second: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Median seconds of two functions measured in turns, so that a slow phase of the machine hits both."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, found in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def training_session() -> tuple[Any, Any, Any, Any]:
    """Tutorial 003's training program: session, image stream, label stream, variables."""
    import ipuperf

    ipuperf.install()
    import popxl
    import popxl_addons as addons
    from popxl import ops

    from ipuperf.models.mnist_mlp import Classifier

    ir = popxl.Ir(replication=1)
    with ir.main_graph:
        images = popxl.h2d_stream((BATCH, 28, 28), popxl.float32, "image")
        labels = popxl.h2d_stream((BATCH,), popxl.int32, "labels")
        image, label = ops.host_load(images), ops.host_load(labels, "labels")
        factories, forward = Classifier((512, 512, 512), 10).create_graph(image)
        backward = addons.autodiff(forward)
        variables = factories.init()
        info = forward.bind(variables).call_with_info(image)
        loss, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], label)
        ops.host_store(popxl.d2h_stream(loss.shape, loss.dtype, "loss"), loss)
        grads = backward.call_with_info(gradient, args=backward.grad_graph_info.inputs_dict(info))
        by_variable = backward.grad_graph_info.fwd_parent_ins_to_grad_parent_outs(info, grads)
        for variable in variables.tensors:
            ops.scaled_add_(variable, by_variable[variable], b=-LEARNING_RATE)
    return popxl.Session(ir, "ipu_hw"), images, labels, variables


def training(repeats: int, steps: int = 100) -> dict[str, Any]:
    """``session.run`` of tutorial 003's training step against the NumPy loop of the same mathematics."""
    session, images, labels, _ = training_session()
    generator = np.random.default_rng(0)
    batches = [
        (generator.normal(size=(BATCH, 28, 28)).astype(np.float32), generator.integers(0, 10, BATCH).astype(np.int32))
        for _ in range(steps)
    ]
    parameters = numpy_mlp.initial_weights()
    with session:

        def ours() -> None:
            for image, label in batches:
                session.run({images: image, labels: label})

        def reference() -> None:
            for image, label in batches:
                numpy_mlp.step(parameters, image, label, LEARNING_RATE)

        seconds, reference_seconds = interleaved(ours, reference, repeats)
    return row("tutorial 003 training step", seconds / steps, "hand-written NumPy loop", reference_seconds / steps)


def simulation() -> list[dict[str, Any]]:
    """CPU seconds of lowering and simulating the table's step, per placement, against the budget of 2 s; the largest
    resident memory of the process against 300 MB (as MB in the seconds columns)."""
    import ipuperf

    ipuperf.install()
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session
    from ipuperf.scenarios.rts_mnist import PLACEMENTS

    rows = []
    for placement in PLACEMENTS:
        session = training_session(TrainingOptions(threshold=placement.threshold)).session
        start = time.process_time()
        ipuperf.simulate_session(session, machine="pod4")
        rows.append(row(f"lower + simulate: {placement.name}", time.process_time() - start, "2 s of CPU", 2.0))
    return rows


def simulation_memory() -> dict[str, Any]:
    """Peak resident MB of a fresh process that lowers and simulates one placement, against 300 MB."""
    program = (
        "import ipuperf, resource; ipuperf.install()\n"
        "from ipuperf.models.mnist_mlp import TrainingOptions, training_session\n"
        "ipuperf.simulate_session(training_session(TrainingOptions(threshold=512)).session, machine='pod4')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    peak = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    return row("lower + simulate: peak memory (MB)", peak, "300 MB", 300.0)


def fresh_import(module: str, repeats: int) -> float:
    """Median seconds a fresh interpreter takes to import ``module``, less an interpreter that imports nothing."""

    def once(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    bare = statistics.median(once("pass") for _ in range(repeats))
    return max(1e-4, statistics.median(once(f"import {module}") for _ in range(repeats)) - bare)


def imports(repeats: int) -> dict[str, Any]:
    """``import ipuperf`` against the budget of 0.4 s."""
    return row("import ipuperf", fresh_import("ipuperf", repeats), "0.4 s", 0.4)


def torch_models(repeats: int) -> list[dict[str, Any]]:
    """Steps and compilations of PopTorch programs, where PyTorch is installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch_models as models

    models.prepare()
    return [*models.steps(repeats), *models.compiling()]


def keras_fit(repeats: int) -> list[dict[str, Any]]:
    """``fit`` of ``keras_fit.py`` in a process of its own, where TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tf_keras") is None:
        return []
    code = f"import keras_fit; print(*keras_fit.measure({repeats}))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, reference = (float(number) for number in found.stdout.split()[-2:])
    return [row("fit, MNIST CNN, a step (CPU)", seconds, "TensorFlow on one thread", reference)]


@click.command(help="Measure the speed of ipuperf against stated references.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1))
def main(json_path: Path | None, repeats: int) -> None:
    """Run all benchmarks and print them."""
    rows: list[dict[str, Any]] = []
    jobs: list[Callable[[], Any]] = [
        lambda: training(repeats),
        simulation,
        simulation_memory,
        lambda: imports(min(repeats, 5)),
        lambda: building.building(repeats),
        pipelines.pipelines,
        pods.pods,
        lambda: numerics.numerics(repeats),
        lambda: torch_models(min(repeats, 5)),
        lambda: keras_fit(min(repeats, 5)),
    ]
    for job in tqdm(jobs, desc="benchmarks", leave=False):
        result = job()
        rows += result if isinstance(result, list) else [result]
    width = max(len(r["name"]) for r in rows)
    for r in rows:
        click.echo(f"{r['name']:{width}}  {r['seconds']:10.6f}  {r['ratio']:6.2f} x {r['reference']}")
    click.echo(
        f"peak resident memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )
    if json_path is not None:
        from ipuperf.trace import replacing

        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

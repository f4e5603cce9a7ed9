"""What does the PopTorch pipelining tutorial's network cost: pipelined or sharded, optimiser state on chip or off?

Question: two convolutions and two linear layers in four stages on four IPUs, batch 40, gradient accumulation 10, AdamW
(``models/mnist_cnn.py``). What takes the time of a weight update, and what do the tutorial's alternatives change?

Expected answer (measured: read off the tutorial's execution trace): 1,211,970 cycles per weight update in 16 pipeline
cycles; a steady one takes about 100 k cycles, of which all IPUs stand 39 k for the host, because the default
``SyncPattern.Full`` does not overlap host I/O, and the second convolution on IPU 1 sets the pace of the rest. Sharded
execution is slower, but not four times: the host takes its share either way, and it recomputes nothing. AdamW's
moments off chip cost far more than their 0.7 MB take: each of the 32 loads and stores of a weight update has its
latency, and under ``SyncPattern.Full`` all IPUs of the replica meet before each, so that they come one after the other.

The measured trace shows IPU 3 sending 320 bytes to the host per update, far less than the 16 kB of scores that
``OutputMode.All`` returns; so it is compared with ``--output-mode final``. The tutorial's 15 calls of 4,000 images per
second are wall-clock time with ``OutputMode.All`` and a data loader, which no simulation of the device contains.

    python scenarios/pipeline_mnist.py [--strategy pipelined|sharded|all] [--offload-optimiser] [--json FILE]
                                       [--output-mode final|all] [--epochs N] [--machine NAME]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import ipuperf
from ipuperf.base.requirements import pip_install
from ipuperf.report import pipeline_split, weight_update_windows

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.machine import Machine
    from ipuperf.models.mnist_cnn import PipelineOptions
    from ipuperf.trace import Trace

MEASURED: dict[str, Any] = {
    "cycles": 1_211_970,
    "cycle": {"cycles": 100_150, "host": 39_000, "compute": 42_500, "links": 7_500},
    "compute_cycles": {0: 534_000, 1: 474_000, 2: 162_000, 3: 203_000},
    "link_bytes_sent": {2: 1_474_560, 3: 655_360},
}
"""The tutorial's profile (pipelined, optimiser state on chip), within 700 cycles per reading: a weight update, a steady
pipeline cycle (99.5 to 100.8 k; IPU 1 computes 41 to 44 k; ``links`` is inter-IPU exchange with its syncs; 11 k are
left for internal exchange and sync), and per update the compute cycles and the bytes of the IPUs."""

CYCLE_PARTS: dict[str, tuple[str, ...]] = {
    "host": ("host_begin", "host_mid", "host_end", "host_run"),
    "compute": ("compute",),
    "exchange": ("exchange", "sync"),
    "links": ("link",),
    "ddr": ("remote_load", "remote_store"),
    "waiting": ("sync_external", "idle"),
}
"""Kinds of steps in the split of a pipeline cycle: internal syncs count as exchange, external ones as waiting, but
those of copies between IPUs as links (:func:`split_of`)."""


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    strategy: str
    offload_optimiser: bool

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.strategy}, optimiser {'off' if self.offload_optimiser else 'on'} chip"


VARIANTS = tuple(Variant(strategy, away) for strategy in ("pipelined", "sharded") for away in (False, True))


def simulate(options: PipelineOptions, machine: str = "auto") -> tuple[Trace, Machine]:
    """The trace of one call of the training model, and the machine; nothing is computed."""
    from ipuperf.models.mnist_cnn import compile_training
    from ipuperf.runtime.settings import RunSettings, use_settings

    with use_settings(RunSettings(machine=machine)) as settings:
        compile_training(options)
    executable = settings.executables[-1]
    return executable.trace, executable.machine


def longest_stage(trace: Trace) -> int:
    """IPU that computes longest in a weight update."""
    split = pipeline_split(trace)
    return max(split, key=lambda ipu: (sum(split[ipu][part] for part in ("fwd", "recompute", "bwd")), -ipu))


def cycle_window(trace: Trace, options: PipelineOptions, ipu: int) -> tuple[tuple[int, int], int]:
    """Steady pipeline cycles (begin and end in cycles) and how many they are, as ``ipu`` sees them.

    A cycle ends with its last exchange between stages, and those from the first in which all stages run to the last
    that brings a new micro-batch are steady. Sharded execution has no such cycles: a weight update, and its number of
    micro-batches.
    """
    windows = weight_update_windows(trace)
    window = windows[min(1, len(windows) - 1)]
    stages, micro_batches = len(options.split), options.gradient_accumulation
    if options.strategy == "sharded" or stages == 1:
        return window, micro_batches
    steps = trace.expand(window)
    links = steps[(steps["ipu"] == ipu) & (steps["kind"] == "link") & (steps["start"] >= window[0])]
    ends = (links["start"] + links["dur"]).to_numpy()
    total, ramp = micro_batches + 2 * stages - 2, 2 * stages - 2
    if len(ends) % total:
        raise ValueError(f"{len(ends)} exchanges of IPU {ipu} in a weight update do not make {total} pipeline cycles")
    ends = ends.reshape(total, -1)[:, -1]
    return (int(ends[ramp - 1]), int(ends[micro_batches - 1])), micro_batches - ramp


def split_of(steps: pd.DataFrame, window: tuple[int, int], count: int) -> dict[str, float]:
    """Cycles by :data:`CYCLE_PARTS` per cycle; the syncs of copies between IPUs count as links, as in the measured
    profile, and time without a step as waiting."""
    begin, end = window
    inside = np.clip(steps["start"] + steps["dur"], begin, end) - np.clip(steps["start"], begin, end)
    parts = {part: float(inside[steps["kind"].isin(list(kinds))].sum()) for part, kinds in CYCLE_PARTS.items()}
    copies = steps["program"].astype(str).str.startswith("IpuCopy") & (steps["kind"] == "sync_external")
    parts["links"] += float(inside[copies].sum())
    parts["waiting"] -= float(inside[copies].sum())
    parts["waiting"] += end - begin - sum(parts.values())
    return {part: cycles / count for part, cycles in parts.items()}


def memory_of(trace: Trace) -> list[dict[str, int]]:
    """Per IPU: bytes of stashes, of optimiser state that stays on chip, peak of what is not always live, and always
    live."""
    variables = trace.table("variables")
    variables = variables[variables["location"] == "tile"]
    stash = variables["name"].str.contains("_stash_")
    state = variables["name"].str.contains("___(?!ipu)") & (variables["category"] == "variable")
    rows = []
    for summary in trace.summary()["memory"]["ipus"]:
        here = variables["ipu"] == summary["ipu"]
        rows.append(
            {
                "stash": int(variables["bytes"][here & stash].sum()),
                "optimiser_state": int(variables["bytes"][here & state].sum()),
                "not_always_live_peak": summary["not_always_live_peak"],
                "always_live": summary["always_live"],
            }
        )
    return rows


def _sums(steps: pd.DataFrame, column: str) -> dict[int, int]:
    """Sum of a column by IPU."""
    return {int(ipu): int(total) for ipu, total in steps.groupby("ipu")[column].sum().items()}


def row_of(name: str, options: PipelineOptions, trace: Trace) -> dict[str, Any]:
    """The figures of one variant; cycles are those of a steady weight update (the second of the call)."""
    windows = weight_update_windows(trace)
    window = windows[min(1, len(windows) - 1)]
    length = window[1] - window[0]
    ipu = longest_stage(trace)
    cycles, count = cycle_window(trace, options, ipu)
    steps = trace.expand((min(window[0], cycles[0]), max(window[1], cycles[1])))
    inside = steps[(steps["start"] >= window[0]) & (steps["start"] < window[1])]
    links = inside[inside["kind"] == "link"]
    steady = split_of(steps[steps["ipu"] == ipu], cycles, count)
    return {
        "name": name,
        "strategy": options.strategy,
        "offload_optimiser": options.offload_optimiser,
        "output_mode": "all" if options.return_all else "final",
        "cycles": length,
        "images_per_s": options.images_per_update / trace.seconds(length),
        "longest_ipu": ipu,
        "cycle": {"cycles": (cycles[1] - cycles[0]) / count, **steady},
        "compute_cycles": _sums(inside[inside["kind"] == "compute"], "dur"),
        "link_bytes_sent": _sums(links, "bytes_out"),
        "link_bytes_received": _sums(links, "bytes_in"),
        "memory": memory_of(trace),
        "measured": None,
    }


def run(
    variants: tuple[Variant, ...] = VARIANTS, *, machine: str = "auto", return_all: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Trace]]:
    """All rows, and the traces by name."""
    ipuperf.install()
    from ipuperf.models.mnist_cnn import PipelineOptions

    rows, traces = [], {}
    for variant in variants:
        options = PipelineOptions(
            strategy=variant.strategy, offload_optimiser=variant.offload_optimiser, return_all=return_all
        )
        trace, _ = simulate(options, machine)
        row = row_of(variant.name, options, trace)
        if variant == VARIANTS[0]:
            clock = float(trace.meta["clock_hz"])
            row["measured"] = {**MEASURED, "images_per_s": options.images_per_update * clock / MEASURED["cycles"]}
        rows.append(row)
        traces[variant.name] = trace
    return rows, traces


def _memory_text(row: dict[str, Any]) -> str:
    lists = {key: " ".join(f"{ipu[key] / 1e3:,.0f}" for ipu in row["memory"]) for key in row["memory"][0]}
    return f"stash {lists['stash']}; optimiser state {lists['optimiser_state']}; peak {lists['not_always_live_peak']}"


def _bytes_text(sent: dict[int, int]) -> str:
    return " ".join(f"{ipu}: {count / 1e3:,.0f}" for ipu, count in sent.items())


def table_of(rows: list[dict[str, Any]]) -> str:
    """The rows as text, measured figures below their row."""
    parts = list(CYCLE_PARTS)
    head = f"{'variant':34}{'cycles':>11}{'images/s':>10} |{'IPU':>4}{'cycle':>9}" + "".join(f"{p:>9}" for p in parts)
    lines = [head, "-" * len(head)]
    for row in rows:
        cycle = row["cycle"]
        lines.append(
            f"{row['name']:34}{row['cycles']:11,}{row['images_per_s']:10,.0f} |{row['longest_ipu']:4}"
            f"{cycle['cycles']:9,.0f}" + "".join(f"{cycle[part]:9,.0f}" for part in parts)
        )
        if row["measured"]:
            seen = row["measured"]
            lines.append(
                f"{'  measured':34}{seen['cycles']:11,}{seen['images_per_s']:10,.0f} |{row['longest_ipu']:4}"
                f"{seen['cycle']['cycles']:9,}{seen['cycle']['host']:9,}{seen['cycle']['compute']:9,}{'':9}"
                f"{seen['cycle']['links']:9,}"
            )
    lines.append("on the right a steady pipeline cycle (sharded: a micro-batch) of the longest stage, in cycles;")
    lines.append("links with their syncs; measured: read off a figure")
    lines.append("")
    lines.append("kB sent to other IPUs per weight update, and kB of memory, by IPU")
    for row in rows:
        lines.append(f"{row['name']:34}{_bytes_text(row['link_bytes_sent'])}")
        if row["measured"]:
            lines.append(f"{'  measured':34}{_bytes_text(row['measured']['link_bytes_sent'])}")
        lines.append(f"{'':34}{_memory_text(row)}")
    return "\n".join(lines)


def _mnist(train: bool) -> tuple[Any, Any]:
    """Normalised images and labels as tensors."""
    import torch

    from ipuperf.datasets import load_mnist

    images, labels = load_mnist(train=train)
    scaled = (images.astype(np.float32) / 255 - 0.1307) / 0.3081
    return torch.from_numpy(scaled[:, None]), torch.from_numpy(labels.astype(np.int64))


def train(variant: Variant, epochs: int, machine: str = "auto", seed: int = 0) -> float:
    """Train on MNIST, print the mean loss of each epoch, and return the accuracy on the test images.

    Raises:
        DatasetError: MNIST is nowhere to be found.
    """
    ipuperf.install()
    from ipuperf.models.mnist_cnn import PipelineOptions, inference_model, training_model
    from ipuperf.runtime.settings import RunSettings, use_settings

    options = PipelineOptions(strategy=variant.strategy, offload_optimiser=variant.offload_optimiser)
    images, labels = _mnist(train=True)
    tests, expected = _mnist(train=False)
    order, count = np.random.default_rng(seed), options.images_per_call
    with use_settings(RunSettings(machine=machine)):
        model = training_model(options, seed)
        for epoch in range(epochs):
            losses = []
            shuffled = order.permutation(len(images))
            for first in range(0, len(images) - count + 1, count):
                chosen = shuffled[first : first + count]
                losses.append(float(model(images[chosen], labels[chosen])[1].mean()))
            click.echo(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}")
        iterations = 100
        each = len(tests) // iterations
        found = inference_model(model, options, iterations)(tests[: each * iterations]).argmax(1)
    return float((found == expected[: each * iterations]).float().mean())


@click.command(help=__doc__.splitlines()[0])
@click.option(
    "--strategy", type=click.Choice(["pipelined", "sharded", "all"]), default="all", show_default=True, help="Which."
)
@click.option("--offload-optimiser", is_flag=True, help="Only the variants with AdamW's moments in Streaming Memory.")
@click.option(
    "--output-mode",
    type=click.Choice(["final", "all"]),
    default="final",
    show_default=True,
    help="Results of the last micro-batch, as in the measured profile, or of all.",
)
@click.option("--epochs", type=click.IntRange(min=0), default=0, show_default=True, help="Really train on MNIST.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--machine", default="auto", show_default=True, help="Machine preset or TOML file.")
def main(
    strategy: str, offload_optimiser: bool, output_mode: str, epochs: int, json_path: Path | None, machine: str
) -> None:
    """Simulate the variants, print the table, train if asked to."""
    from ipuperf.datasets import DatasetError
    from ipuperf.machine import MachineError

    try:
        import torch  # noqa: F401
    except ImportError:
        raise click.ClickException(f"this scenario needs PyTorch: {pip_install('torch')}") from None
    chosen = tuple(
        v for v in VARIANTS if strategy in (v.strategy, "all") and (v.offload_optimiser or not offload_optimiser)
    )
    try:
        rows, _ = run(chosen, machine=machine, return_all=output_mode == "all")
        click.echo(table_of(rows))
        if epochs:
            click.echo(f"\ntraining, {chosen[0].name}")
            click.echo(f"accuracy on the test images: {train(chosen[0], epochs, machine):.2%}")
    except (MachineError, DatasetError) as error:
        raise click.ClickException(str(error)) from error
    if json_path is not None:
        from ipuperf.trace import replacing

        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Where should Adam's state live: on chip, in Streaming Memory, or in Streaming Memory sharded over the replicas?

Question: an MNIST classifier (784-512-512-512-10) trains on four IPUs of one IPU-M2000, data-parallel, with gradient
accumulation 8 and micro-batches of 8. What does a training step cost for five placements of Adam's moments?

The tutorial times five calls of ``session.run``, the first after loading included, and so does this.

Expected answer (the published table of the PopXL tutorial on remote variables and RTS): on chip is fastest (2.4 ms);
moving the state off chip unsharded takes 5.9 ms, because every replica moves all of it through the DDR of the one
IPU-Machine; sharding it brings that down to 3.5 ms, because each replica moves a quarter and the IPU-Links do the rest.

    python scenarios/rts_mnist.py [--json FILE] [--machine pod4]
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

import ipuperf
from ipuperf.base.progress import shows_progress
from ipuperf.machine import Machine, load_machine


@dataclass(frozen=True)
class Placement:
    """One row of the table: the tutorial's name of it, the threshold in elements and the measured samples/s."""

    name: str
    threshold: float | None
    measured: float


#: Measured on four IPUs; rows POPXL-MNIST-* of the published measurements (PopXL tutorial 5).
PLACEMENTS = (
    Placement("no sharding", math.inf, 43418.9),
    Placement("only state related to fc1.weight", 262145, 50909.2),
    Placement("all state related to weights", 1024, 67403.4),
    Placement("all state", 512, 72570.0),
    Placement("on-chip optimizer", None, 107418.9),
)


#: Calls of session.run that the tutorial averages.
CALLS = 5


def simulate_placement(placement: Placement, machine: str | Machine = "pod4") -> tuple[dict[str, Any], Any]:
    """The row of the table (means of :data:`CALLS` calls) and the trace of one training step for one placement."""
    ipuperf.install()
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session
    from ipuperf.report import breakdown

    options = TrainingOptions(threshold=placement.threshold)
    target = machine if isinstance(machine, Machine) else load_machine(machine)
    trace = ipuperf.simulate_session(training_session(options).session, machine=target)
    split = breakdown(trace)
    split["host"] += target.host.first_run_seconds / CALLS
    seconds = sum(split.values())
    row = {
        "name": placement.name,
        "threshold": "on chip" if placement.threshold is None else _json_number(placement.threshold),
        "predicted": options.global_batch_size / seconds,
        "measured": placement.measured,
        "unit": "samples/s",
        "step_seconds": seconds,
        "breakdown": split,
    }
    return row, trace


def _json_number(value: float) -> float | int | str:
    return "inf" if math.isinf(value) else int(value)


def run(machine: str = "pod4") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows, and the traces by placement name."""
    rows, traces = [], {}
    for placement in tqdm(PLACEMENTS, desc="placements", leave=False, disable=not shows_progress()):
        row, traces[placement.name] = simulate_placement(placement, machine)
        rows.append(row)
    return rows, traces


def liveness(trace: Any) -> dict[str, int]:
    """Bytes of IPU 0: ``peak`` and ``baseline`` of what is not always live, and ``always_live``.

    The baseline is the level between the bumps of gradient accumulation: the least that is live at any load of images.
    """
    live = trace.table("liveness")
    live = live[live["ipu"] == 0]
    loads = live[live["program"].astype(str).str.contains("image")]
    return {
        "baseline": int(loads["not_always_live"].min()),
        "peak": int(live["not_always_live"].max()),
        "always_live": int(live["always_live"].iloc[0]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text: predicted beside measured, and where the time goes in milliseconds."""
    parts = list(rows[0]["breakdown"])
    head = f"{'placement':34}{'predicted':>11}{'measured':>11}{'error':>8}{'step ms':>9}"
    lines = [f"{head} |" + "".join(f"{part:>10}" for part in parts), ""]
    lines[1] = "-" * len(lines[0])
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        left = f"{row['name']:34}{row['predicted']:11.1f}{row['measured']:11.1f}{error:+8.1%}"
        left += f"{row['step_seconds'] * 1e3:9.3f}"
        lines.append(f"{left} |" + "".join(f"{row['breakdown'][part] * 1e3:10.3f}" for part in parts))
    lines.append("predicted and measured in samples/s; the columns on the right split the step, in ms")
    return "\n".join(lines)


@click.command(help=__doc__.splitlines()[0])
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--machine", default="pod4", show_default=True, help="Machine preset or TOML file.")
def main(json_path: Path | None, machine: str) -> None:
    """Simulate the five placements and print the table."""
    rows, _ = run(machine)
    click.echo(table(rows))
    if json_path is not None:
        from ipuperf.trace import replacing

        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

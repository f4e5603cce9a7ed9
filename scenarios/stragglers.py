"""What does one IPU that is 5 % slower cost: grouped, interleaved and data-parallel training, from 4 to 256 IPUs?

Question: a transformer encoder of four layers is trained on 4 to 256 IPUs, as replicated pipelines of four stages under
TensorFlow's Grouped and Interleaved, and as replicas of one IPU. One IPU of the first replica works at 0.95 of its
speed: the one with the most work of the pipeline, or the one with the least. How much longer is a weight update?

Expected answer: at most ``1 / 0.95 - 1`` = 5.3 %, and nearly that on four IPUs where the slow IPU sets the pace. A step
of a pipeline lasts as long as its longest cell. So the busiest stage passes its whole delay on under Grouped. Under
Interleaved it passes on about half, as its forwards hide behind a backward of another stage. A stage with slack hides
nearly all of it. In data-parallel training the slow IPU delays each of its micro-batches, and the others wait for it
once, at the all-reduce. The delay in cycles hardly depends on the number of IPUs, as all wait for the slowest one. Its
share falls where the all-reduce and the host take more of the update. What is lost grows all the same, as more IPUs
wait.

    python scenarios/stragglers.py --rate 0.95 --ipus 4,16,64,256 [--micro-batches 64] [--json FILE]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ipuperf.lowering import lower
from ipuperf.lowering.program import DeviceProgram
from ipuperf.machine import Machine, MachineError
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.runtime.executable import choose_machine
from ipuperf.schedules import timetable_of
from ipuperf.simulation import sampled, simulate

STAGES = 4
WAYS = {"grouped": ("grouped", STAGES), "interleaved": ("interleaved", STAGES), "data-parallel": ("sequential", 1)}
"""The schedule of each way to train, and its stages."""


def program_of(way: str, ipus: int, micro_batches: int) -> tuple[DeviceProgram, Machine]:
    """A weight update of the encoder, lowered for the smallest machine with as many IPUs.

    A replica takes ``micro_batches`` as a pipeline, and a fourth of them on one IPU, so that each way takes as many
    samples.
    """
    schedule, stages = WAYS[way]
    replicas = ipus // stages
    options = EncoderOptions(
        layers=STAGES,
        stages=stages,
        hidden=256,
        heads=4,
        sequence=64,
        batch=2,
        feed_forward=1024,
        replicas=replicas,
        host_inputs=False,
    )
    table = timetable_of(schedule, stages, micro_batches * stages // STAGES)
    model = encoder(options, seed=None, ipus=[group[0] for group in table.devices])
    build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
    machine = choose_machine(None, replicas, stages)
    return lower(model.ir, machine, name=way), machine


def busy_cycles(program: DeviceProgram, machine: Machine) -> list[int]:
    """Cycles in which each IPU of the first replica computes, exchanges and syncs by itself."""
    ipus = {row["ipu"]: row["kinds"] for row in simulate(program, machine).summary()["ipus"]}
    return [sum(ipus[ipu][kind] for kind in ("compute", "exchange", "sync")) for ipu in program.placement[0]]


def rows_of(way: str, ipus: int, rate: float, micro_batches: int) -> list[dict[str, Any]]:
    """A row with the busiest IPU slow, and for pipelines one with the idlest."""
    program, machine = program_of(way, ipus, micro_batches)
    busy = busy_cycles(program, machine)
    choices = {"busiest": busy.index(max(busy)), "idlest": busy.index(min(busy))}
    rows = []
    for which, ipu in choices.items() if len(busy) > 1 else (("any", 0),):
        found = sampled(program, machine.with_faults(f"ipu {ipu} at {rate}"))
        rows.append(
            {
                "training": way,
                "ipus": ipus,
                "slow_ipu": ipu,
                "which": which,
                "plain_cycles": found["plain"],
                "slow_cycles": found["cycles"][0],
                "cost": found["cycles"][0] / found["plain"] - 1,
                "own_cycles": busy[ipu],
            }
        )
    return rows


def table_of(rows: list[dict[str, Any]], rate: float) -> str:
    """The rows as text."""
    head = f"{'training':15}{'IPUs':>5}  {'slow IPU':12}{'cycles':>12}{'slow':>12}{'longer':>9}{'lost IPUs':>11}"
    lines = [head, "-" * len(head)]
    for row in rows:
        slow = f"{row['slow_ipu']} ({row['which']})"
        lost = row["ipus"] * (1 - row["plain_cycles"] / row["slow_cycles"])
        lines.append(
            f"{row['training']:15}{row['ipus']:5}  {slow:12}{row['plain_cycles']:12,}{row['slow_cycles']:12,}"
            f"{row['cost']:9.2%}{lost:11.2f}"
        )
    lines.append(
        f"cycles of a weight update; one IPU at {rate:g} of its speed, so its own work is {1 / rate - 1:.2%} longer"
    )
    lines.append("lost IPUs: how many IPUs' work the wait for the slow one takes")
    return "\n".join(lines)


def _counts(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    numbers = [int(word) if word.isdigit() else 0 for word in text.split(",")]
    if not all(number >= STAGES and number % STAGES == 0 for number in numbers):
        raise click.BadParameter(f"{text!r}: allowed are multiples of {STAGES}, with commas between them")
    return numbers


@click.command(help=__doc__.splitlines()[0])
@click.option("--rate", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True, help="Speed left.")
@click.option("--ipus", callback=_counts, default="4,16,64,256", show_default=True, help="Numbers of IPUs.")
@click.option("--micro-batches", type=int, default=64, show_default=True, help="Of a pipeline; multiples of 8.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
def main(rate: float, ipus: list[int], micro_batches: int, json_path: Path | None) -> None:
    """Simulate each way on each number of IPUs, and print the table."""
    if micro_batches < 8 or micro_batches % 8:
        raise click.BadParameter(f"--micro-batches {micro_batches}: allowed are multiples of 8")
    try:
        rows = [row for way in WAYS for count in ipus for row in rows_of(way, count, rate, micro_batches)]
    except MachineError as error:
        raise click.ClickException(str(error)) from error
    click.echo(table_of(rows, rate))
    if json_path is not None:
        from ipuperf.trace import replacing

        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

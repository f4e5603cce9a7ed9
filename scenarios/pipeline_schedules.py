"""Which schedule for a pipeline: how long is a weight update, how large the bubble, how much waits in stashes?

Question: one transformer encoder layer per stage, one stage per IPU. What do TensorFlow's Grouped, Interleaved and
Sequential, PopART's pipeline (PopTorch) and sharded execution, 1F1B, ZB-H1 and every other schedule that is registered
(``docs/how-to/adding-a-schedule.md``), make of the same network? Interleaved 1F1B puts two stages on each IPU.

Expected answer: with N stages and M micro-batches, PopART takes ``M + 2N - 2`` steps and Grouped ``M + 2N - 1``, each
as long as a forward and a backward (a bubble of ``(N - 1) / (M + N - 1)`` for equal stages); Interleaved takes
``2(M + N - 1)`` shorter steps, but each as long as a backward, so its bubble is larger while its stash is half;
Sequential and sharded leave N - 1 of N IPUs idle, and keep no stash. 1F1B is as long as Interleaved and keeps as much:
each step waits for a backward. ZB-H1 cuts backwards into steps that are about as long as a forward, and so waits less.

The input lies on chip (``host_inputs=False`` of the network), so that nothing but the schedule makes anyone wait; the
first stage therefore need not stash its input. The cycles of an IPU in one weight update are split into

- ``stages``: forward, backward and recomputation, stash and gradient accumulation included;
- ``copies``: what the exchanges between stages cost every IPU that takes part: the external sync, its own bytes, and
  the wait for the IPU that has more bytes in the same exchange;
- ``bubble``: all other waiting (kinds ``sync_external`` and ``idle`` of the trace);
- ``rest``: the weight update and the zeroing of buffers.

A bubble is always a part of ``stages + bubble``, so that copies and update, which the schedules do not know, are left
out on both sides: ``bubble_simulated`` is ``bubble / (stages + bubble)`` of the split above, over all IPUs;
``bubble_stages`` adds up, from the timetable, the busiest IPU of each step with the cycles that each stage has in the
lowered program; ``bubble_equal`` does so with the mean of all stages, which is the textbook's figure. The first two
agree within a hundredth, but a step in which nothing is copied ends for each IPU by itself (interleaved 1F1B waits
less); the third differs by the imbalance of the stages (the last one has the loss, and no stash).
``bubble_waiting`` counts all waiting, also that for copies.

    python scenarios/pipeline_schedules.py --stages 4 --micro-batches 16 [--recompute] [--json FILE] [--machine NAME]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from ipuperf.lowering.program import DeviceProgram
from ipuperf.lowering.steps import Call, Phase, Repeat, Sequence, Step, Sync
from ipuperf.machine import Machine, MachineError
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import Pipeline, PipelineError, build_pipeline
from ipuperf.report import pipeline_split
from ipuperf.runtime.executable import Executable, choose_machine
from ipuperf.schedules import SCHEDULES, ScheduleError, Timetable, bubble_fraction, timetable_of
from ipuperf.trace import Trace, slices


def network(stages: int) -> EncoderOptions:
    """One encoder layer per stage, large enough to be worth a step and small enough to be lowered at once."""
    return EncoderOptions(
        layers=stages, stages=stages, hidden=256, heads=4, sequence=64, batch=2, feed_forward=1024, host_inputs=False
    )


def built(table: Timetable, machine: str | Machine | None = None) -> tuple[Pipeline, Executable]:
    """The network under a timetable as a pipeline and as a program on a machine."""
    model = encoder(network(table.stages), seed=None, ipus=[group[0] for group in table.devices])
    pipeline = build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
    return pipeline, Executable(model.ir, machine, name=table.name)


def _cycles(program: DeviceProgram, step: Step) -> int:
    """Cycles of the phases and syncs in a step and in what it calls."""
    if isinstance(step, Sequence):
        return sum(_cycles(program, inner) for inner in step.steps)
    if isinstance(step, Repeat):
        return step.count * _cycles(program, step.body)
    if isinstance(step, Call):
        return _cycles(program, program.functions[step.function])
    return step.cost.cycles if isinstance(step, (Phase, Sync)) else 0


def stage_cycles(pipeline: Pipeline, program: DeviceProgram) -> dict[tuple[str, int], int]:
    """Cycles of each stage's cells in the lowered program, by kind and stage."""
    found = {}
    for stage in pipeline.stages:
        ipu = stage.description.ipu
        routines = {"F": stage.forward, "R": stage.recompute, "B": stage.backward, "W": stage.weights}
        for kind, routine in routines.items():
            if routine is not None:
                function = program.functions[f"{routine.graph.name}@{ipu}"]
                found[kind, stage.description.stage] = _cycles(program, function)
    return found


def bubble_of_stages(table: Timetable, cycles: Mapping[tuple[str, int], int]) -> float:
    """Idle part of all IPUs when every step lasts as long as its busiest IPU and stages take these cycles."""
    busy = [[sum(cycles[cell.kind, cell.stage] for cell in cells) for cells in step] for step in table.steps]
    total = len(table.ipus) * sum(max(step) for step in busy)
    return 1 - sum(map(sum, busy)) / total


def exchange_overhead(trace: Trace, external_sync: int) -> int:
    """Cycles, summed over IPUs, of external syncs and of waiting for those with more bytes in the same exchange."""
    kind, found = trace.columns("steps")["kind"], slices(trace)
    syncs = int((kind[found.step] == "sync_external").sum()) * external_sync
    links = found.take(kind[found.step] == "link")
    _, exchange = np.unique(links.start, return_inverse=True)
    longest = np.zeros(len(links), dtype=np.int64)
    np.maximum.at(longest, exchange, links.dur)
    return syncs + int((longest[exchange] - links.dur).sum())


def simulate(
    name: str, stages: int, micro_batches: int, *, recompute: bool = False, machine: str | Machine | None = None
) -> tuple[dict[str, Any], Trace]:
    """The row of one schedule and the trace of one weight update.

    Raises:
        ScheduleError: numbers that the schedule cannot run; the message says which it can.
    """
    table = timetable_of(name, stages, micro_batches, recompute=recompute)
    pipeline, executable = built(table, machine)
    trace, program = executable.trace, executable.device_program
    cycles = stage_cycles(pipeline, program)
    parts = pipeline_split(trace)
    total = {part: sum(split[part] for split in parts.values()) for part in next(iter(parts.values()))}
    work = total["fwd"] + total["recompute"] + total["bwd"]
    overhead = exchange_overhead(trace, executable.machine.chip.external_sync_cycles)
    bubble = total["waiting"] - overhead
    length = sum(next(iter(parts.values())).values())
    mean = {kind: sum(c for (k, _), c in cycles.items() if k == kind) / stages for kind in "FBW"}
    ipus = len(table.ipus)
    memory = trace.summary()["memory"]
    stash = pipeline.stash_bytes()
    row = {
        "schedule": name,
        "stages": stages,
        "ipus": ipus,
        "micro_batches": micro_batches,
        "recompute": any(kind == "R" for kind, _ in cycles),
        "steps": len(table.steps),
        "cycles": length,
        "seconds": trace.seconds(length),
        "stage_cycles": {kind: [cycles.get((kind, stage), 0) for stage in range(stages)] for kind in "FRBW"},
        "split": {
            "stages": work / ipus,
            "bubble": bubble / ipus,
            "copies": (total["link"] + overhead) / ipus,
            "rest": (total["update"] + total["io"] + total["other"]) / ipus,
        },
        "bubble_equal": bubble_fraction(table, mean["F"], mean["B"] + mean["W"], mean["W"]),
        "bubble_stages": bubble_of_stages(table, cycles),
        "bubble_simulated": bubble / (work + bubble),
        "bubble_waiting": total["waiting"] / (work + total["waiting"]),
        "stash_bytes": [stash.get(ipu, 0) for ipu in table.ipus],
        "peak_tile_bytes": memory["max_tile"]["bytes"],
        "bytes_per_tile": memory["bytes_per_tile"],
    }
    return row, trace


def run(
    stages: int = 4, micro_batches: int = 16, *, recompute: bool = False, machine: str | Machine | None = None
) -> tuple[list[dict[str, Any]], dict[str, Trace]]:
    """All rows, and the traces by schedule. A schedule that cannot run these numbers has a row with its ``error``."""
    rows, traces = [], {}
    target = choose_machine(machine, 1, stages)
    for name in SCHEDULES:
        try:
            row, traces[name] = simulate(name, stages, micro_batches, recompute=recompute, machine=target)
        except (ScheduleError, PipelineError) as error:
            row = {"schedule": name, "stages": stages, "micro_batches": micro_batches, "error": str(error)}
        rows.append(row)
    return rows, traces


def table_of(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    head = (
        f"{'schedule':17}{'IPUs':>5}{'steps':>6}{'cycles':>12}{'ms':>8} |{'equal':>8}{'stages':>8}{'simulated':>11} |"
    )
    head += f"{'copies':>8} |{'peak tile kB':>13}  stash kB by IPU"
    lines = [f"{'':48} |{'bubble: theory and simulation':^27} |", head, "-" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['schedule']:17}{row['error']}")
            continue
        stash = " ".join(f"{size / 1e3:,.0f}" for size in row["stash_bytes"])
        copies = row["split"]["copies"] / row["cycles"]
        name = row["schedule"] + ("+R" if row["recompute"] else "")
        lines.append(
            f"{name:17}{row['ipus']:5}{row['steps']:6}{row['cycles']:12,}{row['seconds'] * 1e3:8.3f} |"
            f"{row['bubble_equal']:8.1%}{row['bubble_stages']:8.1%}{row['bubble_simulated']:11.1%} |{copies:8.1%} |"
            f"{row['peak_tile_bytes'] / 1e3:13.1f}  {stash}"
        )
    lines.append("cycles and ms of one weight update; bubble: part of stages + bubble, copies: part of all cycles")
    if any(row.get("recompute") for row in rows):
        lines.append("+R: with recomputation")
    return "\n".join(lines)


@click.command(help=__doc__.splitlines()[0])
@click.option("--stages", type=click.IntRange(min=1), default=4, show_default=True, help="Stages.")
@click.option("--micro-batches", type=click.IntRange(min=1), default=16, show_default=True, help="Per weight update.")
@click.option("--recompute", is_flag=True, help="Recompute forwards (sharded execution never does).")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--machine", default="auto", show_default=True, help="Machine preset or TOML file.")
def main(stages: int, micro_batches: int, recompute: bool, json_path: Path | None, machine: str) -> None:
    """Simulate the schedules and print the table."""
    try:
        rows, _ = run(stages, micro_batches, recompute=recompute, machine=machine)
    except MachineError as error:
        raise click.ClickException(str(error)) from error
    if all("error" in row for row in rows):
        raise click.ClickException("\n".join(row["error"] for row in rows))
    click.echo(table_of(rows))
    if json_path is not None:
        from ipuperf.trace import replacing

        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Which part of the machine is worth improving: what would twice the exchange bandwidth buy for BERT-Large?

Question: BERT-Large is pre-trained (phase 1: sequences of 128 tokens, micro-batches of 8, global batch 65,536, LAMB
with its state sharded in Streaming Memory) on a Bow Pod16, four replicas of a pipeline of four IPUs. One figure of the
machine after the other is halved and doubled, everything else stays. How does the throughput change?

Expected answer: twice the exchange rate of the tiles buys 15 %, half of it costs 20 %: exchange is 28 % of the step,
and what each exchange takes to set up stays. Twice the tiles (with as much memory each) buy 63 %, as vertices do not
become smaller without end; twice the clock buys 93 %, all but links, DDR and global syncs. IPU-Links and DDR are 3 % of
the step together, and twice their bandwidth buys 1 % and less. With half the tiles or half of their memory the program
does not fit.

Figures of the chip have the program planned anew for each machine; those of links, DDR and host leave the lowered
program as it is. A machine that the program does not fit is simulated all the same, and says so.

    python scenarios/design_space.py [--machine NAME] [--figure KEY ...] [--factor NUMBER ...] [--json FILE]
        [--plot FILE]

``--figure`` is any figure of the machine (``ipuperf machines NAME`` lists them). The same for other programs, and more
than one figure at a time: factors ``machine.KEY`` of ``ipuperf sweep``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from ipuperf.base.progress import shows_progress
from ipuperf.machine import Machine, MachineError, load_machine, load_scaled
from ipuperf.report import PARTS, breakdown
from ipuperf.tools.errors import CaseError, NotAvailable
from ipuperf.trace import replacing
from ipuperf.validation.cases import unmeasured_case
from ipuperf.validation.programs import Program, program_of
from ipuperf.validation.sensitivity import only_simulated

#: The configuration of graphcore/examples (nlp/bert/popart, pretrain_large_128) for 16 IPUs.
BERT_LARGE = {
    "model": "bert",
    "mode": "training",
    "precision": "f16.16",
    "optimiser": "lamb",
    "recompute": "checkpoints",
    "io": "streams",
    "micro_batch": 8,
    "accumulation": 2048,
    "replicas": 4,
    "pipeline": [3, 7, 7, 7],
    "offload": ["optimiser"],
    "sharding": 8192,
    "config": {
        "preset": "large",
        "vocabulary": 30400,
        "embedding_parts": 5,
        "split_qkv": True,
        "memory_proportions": [0.15, 0.25],
    },
}

#: Figures that are changed, and what they are called here.
FIGURES = {
    "chip.exchange_rate": "exchange rate of a tile",
    "chip.clock": "clock",
    "chip.tiles": "tiles",
    "chip.bytes_per_tile": "memory of a tile",
    "ipu_machine.link_bandwidth": "IPU-Link bandwidth",
    "ipu_machine.ddr_bandwidth": "DDR bandwidth",
    "host.pcie_bandwidth": "host bandwidth of an IPU",
}
FACTORS = (0.5, 2.0)


def row_of(program: Program, machine: Machine, figure: str = "", factor: float = 1.0) -> dict[str, Any]:
    """The row of one machine: throughput, memory of the fullest tile, and where the time of a step goes (seconds).

    Args:
        program: lowered anew, unless only links, DDR or host differ from its machine.
        figure, factor: what is changed in ``machine``; as it is without.
    """
    executable = program.executable.on(machine, lowered_alike=not figure or only_simulated(figure))
    trace, memory = executable.trace, executable.device_program.memory
    seconds = executable.simulated_run_seconds
    return {
        "figure": figure,
        "factor": factor,
        "seconds": seconds,
        "samples_per_second": program.samples / seconds,
        "fits": not executable.memory_problems(),
        "fullest_tile_bytes": max(int(series.max(initial=0)) for series in memory.max_tile.values()),
        "bytes_per_tile": memory.bytes_per_tile,
        "breakdown": breakdown(trace),
    }


def rows(
    case: Mapping[str, Any], machine: str, figures: Sequence[str] = tuple(FIGURES), factors: Sequence[float] = FACTORS
) -> Iterator[dict[str, Any]]:
    """The row of the machine as it is, then one for each figure and factor with its ``speedup``, or the ``error`` that
    such a machine or the program on it is.

    Args:
        case: keys of a case of ``ipuperf validate`` that say which program it is.

    Raises:
        MachineError: no such machine, or it has no such figure. CaseError: ``case`` is none.
    """
    known = load_machine(machine).figures
    for figure in figures:
        if figure not in known or figure.startswith("system."):
            allowed = ", ".join(key for key in known if not key.startswith("system."))
            raise MachineError(f"{machine}: unknown figure {figure!r}, allowed: {allowed}")
    program = program_of(unmeasured_case({**case, "machine": machine}, "design space", Path("design_space")))
    before = row_of(program, program.executable.machine)
    yield {**before, "speedup": 1.0}
    for figure in figures:
        for factor in factors:
            try:
                found = row_of(program, load_scaled(machine, {figure: factor}), figure, factor)
            except ValueError as error:
                yield {"figure": figure, "factor": factor, "error": str(error)}
            else:
                yield {**found, "speedup": before["seconds"] / found["seconds"]}


def name_of(row: Mapping[str, Any]) -> str:
    """A row's machine in words."""
    return f"{FIGURES.get(row['figure'], row['figure'])} x {row['factor']:g}" if row["figure"] else "as it is"


def table_of(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text."""
    head = f"{'machine':32}{'samples/s':>11}{'speedup':>9}{'fullest tile':>14} |"
    lines = [head + "".join(f"{part:>10}" for part in PARTS)]
    lines.append("-" * len(lines[0]))
    for row in found:
        if "error" in row:
            lines.append(f"{name_of(row):32}{row['error']}")
            continue
        full = f"{row['fullest_tile_bytes'] / row['bytes_per_tile']:.0%}" + ("" if row["fits"] else " !")
        left = f"{name_of(row):32}{row['samples_per_second']:11,.1f}{row['speedup'] - 1:+9.1%}{full:>14} |"
        lines.append(left + "".join(f"{row['breakdown'][part]:10.4f}" for part in PARTS))
    lines.append("the columns on the right split the seconds of a step; !: does not fit the tiles")
    return "\n".join(lines)


def draw(found: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the speedups, and where the time of a step goes, into a file (``.png``, ``.svg``, ``.pdf``)."""
    from matplotlib.figure import Figure

    shown = [row for row in found if "error" not in row][::-1]
    names = [name_of(row) + ("" if row["fits"] else "\n(does not fit)") for row in shown]
    figure = Figure(figsize=(13, 1.4 + 0.42 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    change = [100 * (row["speedup"] - 1) for row in shown]
    bars = left.barh(names, change, color=["tab:green" if value >= 0 else "tab:red" for value in change])
    for bar, row in zip(bars, shown, strict=True):
        bar.set_alpha(1.0 if row["fits"] else 0.35)
    left.bar_label(bars, [f"{value:+.1f} %" for value in change], padding=3)
    left.axvline(0, color="black", linewidth=0.8)
    left.margins(x=0.18)
    left.set(xlabel="throughput against the machine as it is (%)", title=title)
    begin = [0.0] * len(shown)
    for part in PARTS:
        seconds = [row["breakdown"][part] for row in shown]
        right.barh(names, seconds, left=begin, label=part)
        begin = [a + b for a, b in zip(begin, seconds, strict=True)]
    right.set(xlabel="seconds of a step", title="where the time goes (busiest IPU)")
    right.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.09), frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


@click.command(help=__doc__.splitlines()[0])
@click.option("--machine", default="bow-pod16", show_default=True, help="Machine preset or TOML file.")
@click.option("--figure", "figures", multiple=True, metavar="KEY", help="A figure to change.  [default: seven]")
@click.option("--factor", "factors", multiple=True, type=click.FloatRange(0, min_open=True), metavar="NUMBER",
              help="What it is multiplied by.  [default: 0.5 and 2]")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a figure to FILE.")
def main(
    machine: str, figures: tuple[str, ...], factors: tuple[float, ...], json_path: Path | None, plot: Path | None
) -> None:
    """Simulate the machines and print the table."""
    wanted, by = figures or tuple(FIGURES), factors or FACTORS
    total = 1 + len(wanted) * len(by)
    try:
        made = rows(BERT_LARGE, machine, wanted, by)
        found = list(tqdm(made, total=total, desc="machines", leave=False, disable=not shows_progress()))
    except (MachineError, CaseError, NotAvailable) as error:
        raise click.ClickException(str(error)) from error
    click.echo(table_of(found))
    if json_path is not None:
        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps(found, indent=2) + "\n")
    if plot is not None:
        draw(found, plot, f"BERT-Large on {machine}")


if __name__ == "__main__":
    main()

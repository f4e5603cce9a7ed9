"""The pictures of ``docs/concepts``, drawn from traces of small programs.

    python docs/pictures.py [--into FOLDER] [NAME ...]

Takes half a minute. Look at each picture that changed before you commit it.
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import ipuperf
from ipuperf import report
from ipuperf.lowering import lower
from ipuperf.lowering.steps import ExternalSync, Phase, Sync
from ipuperf.machine import load_machine
from ipuperf.report.palette import KIND_COLOURS
from ipuperf.trace import Trace

DOCS = Path(__file__).parent
COMPUTE, EXCHANGE, SYNC = (KIND_COLOURS[kind] for kind in ("compute", "exchange", "sync"))
WAIT = "#e9e9e9"
COLUMNS = 46
"""Tiles in a row of the grid: 32 rows of 46 are the 1,472 tiles of an IPU."""


@cache
def session(threshold: int | None = None, **options: Any) -> Any:
    """The MNIST network of the tutorials on four replicas; ``threshold``: where Adam's state goes off chip."""
    ipuperf.install()
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    return training_session(TrainingOptions(threshold=threshold, **options)).session


@cache
def trace(threshold: int | None = None) -> Trace:
    """One call of it on a POD4."""
    return ipuperf.simulate_session(session(threshold), machine="pod4")


@cache
def schedules() -> dict[str, Trace]:
    """One weight update of eight micro-batches on four stages, by schedule."""
    from ipuperf.scenarios import pipeline_schedules

    names = ("sequential", "interleaved", "grouped")
    return {name: pipeline_schedules.simulate(name, 4, 8)[1] for name in names}


def plain(title: str, size: tuple[float, float] = (8, 3.4)) -> tuple[Figure, Axes]:
    """A figure with one pair of axes and a title on the left."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def tiles() -> Figure:
    """Every tile of an IPU with the bytes that it holds."""
    table = trace().table("tile_memory").query("ipu == 0")
    in_use = table.groupby("tile")["bytes"].sum().reindex(range(1472), fill_value=0).to_numpy() / 1000
    figure, axes = plain("One IPU: 1,472 tiles, each with its own memory (kB in use by a small program)", (8, 4.6))
    image = axes.imshow(in_use.reshape(-1, COLUMNS), cmap="viridis", aspect="equal")
    axes.set_xticks(np.arange(-0.5, COLUMNS), labels=[])
    axes.set_yticks(np.arange(-0.5, 1472 // COLUMNS), labels=[])
    axes.grid(color="white", linewidth=0.6)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="kB of 639 kB")
    return figure


def supersteps() -> Figure:
    """Some supersteps of one IPU, tile by tile."""
    program = lower(session().executable.ir, load_machine("pod4"))
    steps = [step for step in program.walk(0) if isinstance(step, (Phase, Sync)) and not isinstance(step, ExternalSync)]
    first = next(i for i, step in enumerate(steps) if isinstance(step, Phase) and step.kind == "compute" and step.flops)
    figure, axes = plain("Supersteps: tiles compute, wait for the slowest, and exchange (every 23rd tile)", (8, 4))
    shown, now = np.arange(0, 1472, 23), 0
    for step in steps[max(first - 2, 0) : first + 15]:
        length = step.duration
        if isinstance(step, Sync):
            axes.axvspan(now, now + length, color=SYNC, linewidth=0)
        else:
            busy = step.cycles.dense()[shown]
            axes.barh(
                range(len(shown)), busy, left=now, height=1.0, color=COMPUTE if step.kind == "compute" else EXCHANGE
            )
        now += length
    axes.set_xlim(0, now)
    axes.set_ylim(-0.5, len(shown) - 0.5)
    axes.set_facecolor(WAIT)
    axes.set_xlabel("cycles of the tile clock")
    axes.set_ylabel("tiles")
    axes.set_yticks([])
    legend = [
        (COMPUTE, "compute"),
        (EXCHANGE, "exchange"),
        (SYNC, "sync of the tiles"),
        (WAIT, "waiting for the slowest tile"),
    ]
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in legend], loc="outside lower center", ncols=4
    )
    return figure


def memory() -> Figure:
    """Live bytes of one IPU over the program steps of a training step."""
    live = trace().table("liveness").query("ipu == 0 and step > 0")
    figure, axes = plain("In-Processor-Memory over the steps of a program, eight micro-batches and a weight update")
    always, other = live["always_live"] / 1e6, live["not_always_live"] / 1e6
    variables = other.min()
    axes.fill_between(live["step"], always, color="#8f8f8f", step="post", label="code, vertex state, constants")
    axes.fill_between(
        live["step"], always, always + variables, color="#7fa8de", step="post", label="weights and optimiser state"
    )
    axes.fill_between(
        live["step"],
        always + variables,
        always + other,
        color=COMPUTE,
        step="post",
        label="activations, temporary memory",
    )
    axes.set(xlabel="program step", ylabel="MB of one IPU", xlim=(0, live["step"].max()), ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def call() -> Figure:
    """What host and IPU do in one call of a small program."""
    one = trace()
    cycle = one.seconds(1) * 1e6
    figure, axes = plain("One call: the host prepares data, the IPU waits for it and computes", (8, 2.6))
    end = 1_300_000
    rows = one.expand(window=(0, end), clip=True).query("ipu == 0")
    for row in rows.itertuples():
        axes.barh(0, row.dur * cycle, left=row.start * cycle, color=KIND_COLOURS[str(row.kind)], height=0.8)
    for event in one.table("host_events").itertuples():
        if event.start < end:
            colour = KIND_COLOURS["host_run"] if event.label == "session.run" else "#9ecae1"
            length = min(event.dur, end - event.start)
            axes.barh(1, length * cycle, left=event.start * cycle, color=colour, edgecolor="white", height=0.8)
    axes.set_yticks([0, 1], labels=["IPU 0", "host"])
    axes.set_xlabel("microseconds")
    axes.set_xlim(500, end * cycle)
    legend = {
        "starting a run (begins at 0)": KIND_COLOURS["host_run"],
        "preparing a slice of data": "#9ecae1",
        "waiting for the host": KIND_COLOURS["host_begin"],
        "transfer": KIND_COLOURS["host_mid"],
        "compute": COMPUTE,
    }
    figure.legend(
        handles=[Patch(color=c, label=label) for label, c in legend.items()],
        loc="outside lower center",
        ncols=5,
        fontsize=8,
    )
    return figure


PLACES = {"ipu0": (1, 2), "ipu1": (3, 2), "ipu2": (1, 0), "ipu3": (3, 0), "gateway0": (5.2, 1.6), "ddr0": (8.2, 1.6),
          "nic0": (-1.2, 1), "host0": (-3.6, 1)}  # fmt: skip
NAMES = {"gateway0": "IPU-Gateway", "ddr0": "Streaming\nMemory", "nic0": "network\ncard", "host0": "host"}


def pod() -> Figure:
    """The links of a POD4 with what a training step moves over each."""
    links, moved = trace(512).table("links"), trace(512).table("transfers").groupby("link_id")["bytes"].sum()
    figure, axes = plain(
        "A POD4 (one IPU-Machine): links, their bandwidth one way, and the MB that one call moved", (8, 4)
    )
    both: Counter[tuple[str, str]] = Counter()
    speed = {}
    for link in links.itertuples():
        ends = tuple(sorted((link.source, link.destination)))
        both[ends] += moved.get(link.link_id, 0)
        speed[ends] = link.bandwidth_bytes_per_s / 1e9
    for (a, b), size in both.items():
        axes.plot(*zip(PLACES[a], PLACES[b]), color="#95a595", linewidth=1 + speed[a, b] / 8, zorder=1)
        middle = np.add(PLACES[a], np.multiply(0.5, np.subtract(PLACES[b], PLACES[a])))
        if "gateway0" not in (a, b) or "ddr0" in (a, b):
            label = f"{speed[a, b]:.3g} GB/s\n{size / 1e6:.2f} MB"
            axes.text(*middle, label, ha="center", va="center", fontsize=7, zorder=3,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # fmt: skip
    for name, (x, y) in PLACES.items():
        colour = "#f6b0b6" if name.startswith("ipu") else "#dfe7f3"
        axes.text(x, y, NAMES.get(name, name.upper().replace("U", "U ", 1)), ha="center", va="center", zorder=4,
                  bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "#666666"})  # fmt: skip
    axes.set(xlim=(-4.4, 9.2), ylim=(-0.7, 2.7))
    axes.axis("off")
    return figure


def sharding() -> Figure:
    """Bytes over links and time, by placement of Adam's state."""
    from ipuperf.scenarios.rts_mnist import PLACEMENTS, simulate_placement

    traces = {place.name: simulate_placement(place)[1] for place in (PLACEMENTS[0], PLACEMENTS[3], PLACEMENTS[4])}
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    figure.suptitle(
        "Where Adam's state lives: bytes moved in a training step, and its time", x=0.01, ha="left", fontsize=11
    )
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for number, (kind, colour, label) in enumerate(
        (("ddr", "#8f7ac6", "Streaming Memory"), ("ipu_link", "#95a595", "IPU-Links"))
    ):
        sizes = []
        for one in traces.values():
            kinds = one.table("links").set_index("link_id")["kind"]
            rows = one.table("transfers")
            sizes.append(rows[rows["link_id"].map(kinds) == kind]["bytes"].sum() / 1e6)
        left.barh(np.arange(3) + 0.2 - 0.4 * number, sizes, height=0.38, color=colour, label=label)
    left.set_yticks(range(3), labels=list(traces))
    left.invert_yaxis()
    left.set_xlabel("MB over all links of the kind")
    left.legend(fontsize=8)
    times = [one.seconds(one.summary()["total_cycles"]) * 1e3 for one in traces.values()]
    right.barh(range(3), times, color=COMPUTE)
    right.invert_yaxis()
    right.set_yticks([])
    right.set_xlabel("ms")
    return figure


def three_schedules() -> bytes:
    """One weight update under each schedule of TensorFlow, on one scale."""
    from matplotlib import image

    parts = []
    for name, one in schedules().items():
        figure = report.pipeline_timeline_figure(one)
        figure.suptitle(name, x=0.01, ha="left", fontsize=11)
        parts.append(image.imread(io.BytesIO(png(figure))))
    return _stacked(parts)


def _stacked(parts: list[np.ndarray]) -> bytes:
    from matplotlib import image

    width = max(part.shape[1] for part in parts)
    rows = [np.pad(p, ((0, 0), (0, width - p.shape[1]), (0, 0)), constant_values=1.0) for p in parts]
    out = io.BytesIO()
    image.imsave(out, np.concatenate(rows), format="png")
    return out.getvalue()


def bubbles() -> Figure:
    """The bubble over the number of micro-batches."""
    from ipuperf.scenarios import pipeline_schedules

    counts = (8, 16, 32, 64)
    figure, axes = plain("The bubble shrinks as a weight update has more micro-batches (four stages)")
    for name, colour in (("sequential", "#757575"), ("interleaved", "#e3b75e"), ("grouped", "#7fa8de")):
        shares = [100 * pipeline_schedules.simulate(name, 4, count)[0]["bubble_simulated"] for count in counts]
        axes.plot(counts, shares, marker="o", color=colour, label=name)
    axes.set(
        xlabel="micro-batches of a weight update", ylabel="% of IPU time", ylim=(0, 80), xscale="log", xticks=counts
    )
    axes.set_xticklabels([str(count) for count in counts])
    axes.minorticks_off()
    axes.legend()
    return figure


def predicted() -> Figure:
    """Predicted over measured time of the published rows."""
    rows = json.loads((DOCS / "validation" / "rows.json").read_text(encoding="utf-8"))
    figure, axes = plain("Published rows: how far predictions were off (positive: predicted too slow)", (8, 3))
    classes = [name for name in dict.fromkeys(row["class"] for row in rows) if name != "bound by the host"]
    for at, name in enumerate(classes):
        errors = [100 * row["slower"] for row in rows if row["class"] == name and row["slower"] is not None]
        spread = np.random.default_rng(0).uniform(-0.25, 0.25, len(errors))
        axes.scatter(errors, at + spread, s=14, alpha=0.7)
    axes.axvspan(-10, 10, color="#eef5ee", zorder=0)
    axes.axvline(0, color="#757575", linewidth=0.8)
    axes.set_yticks(range(len(classes)), labels=classes)
    axes.invert_yaxis()
    axes.set_xlabel("% of the measured time (memory: of bytes); the band is 10 %")
    return figure


PICTURES: dict[str, Callable[[], Figure | bytes]] = {
    "tiles": tiles,
    "supersteps": supersteps,
    "memory": memory,
    "call": call,
    "pod": pod,
    "sharding": sharding,
    "schedules": three_schedules,
    "bubbles": bubbles,
    "predicted": predicted,
}


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)} (default: all)")
    parser.add_argument("--into", type=Path, default=DOCS / "images" / "concepts")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        if name not in PICTURES:
            parser.error(f"no picture {name!r}; there are {', '.join(PICTURES)}")
        drawn = PICTURES[name]()
        (options.into / f"{name}.png").write_bytes(drawn if isinstance(drawn, bytes) else png(drawn))
        print(options.into / f"{name}.png")


if __name__ == "__main__":
    main()

"""Golden tables: what ipuperf says about fixed programs and products, one folder per machine.

    python tests/golden/regenerate.py [--check]

writes ``tests/golden/<machine>/<table>.csv`` and prints the rows that moved; ``--check`` only prints. The test beside
it compares with the fixture ``cycle_baseline`` of ipuperf's own pytest plug-in (``ipuperf.testing``), and
``pytest tests/golden --update-baselines`` writes the same files. These are not truths but what was true when they were
written: a change that moves rows is right or wrong by its own reasons, and the diff of these files shows what it did.

Tables: ``steps`` (cycles of a step, by kind of work, and by part; bytes by category of memory, by kind of transfer, and
over time), ``operations`` (cycles of each op) and ``matmul_plans``. The tables beside the folders have a test for each
case: ``test_casewise.py``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
COMMAND = "python tests/golden/regenerate.py"
MACHINES = ("gc200-1", "pod4", "bow-pod4")
SHOWN = 40
"""Rows of a table that a report names at most."""

#: Columns that name a row; the others are values.
KEYS = {
    "steps": ("program", "group", "name"),
    "operations": ("program", "graph", "op"),
    "matmul_plans": ("groups", "m", "k", "n", "types"),
}
Row = dict[str, str]
Rows = list[Row]

#: ``[groups, m, k] x [groups, k, n]``: products of the MNIST network, forward and backward, then larger and odd ones.
PRODUCTS = (
    (1, 8, 784, 512),
    (1, 8, 512, 512),
    (1, 8, 512, 10),
    (1, 8, 10, 512),
    (1, 784, 8, 512),
    (1, 512, 8, 512),
    (1, 512, 8, 10),
    (1, 80, 784, 512),
    (1, 512, 512, 512),
    (1, 1024, 1024, 1024),
    (1, 384, 1024, 4096),
    (16, 384, 64, 384),
    (3, 7, 13, 29),
    (1, 1, 1, 1),
    (1, 1, 4096, 1),
)
#: Types of the operands (and the result) and of the partial sums.
TYPES = {"half,half,half": ("f16", "f16"), "half,float,half": ("f16", "f32"), "float,float,float": ("f32", "f32")}


# -- programs ----------------------------------------------------------------------------------------------------------


def sessions(machine: str) -> Iterator[tuple[str, Any]]:
    """Programs simulated on a machine: the five placements on four replicas, what fits one IPU there."""
    from ipuperf.models.mnist_mlp import TrainingOptions, inference_session, training_session
    from ipuperf.scenarios.rts_mnist import PLACEMENTS

    if machine == "gc200-1":
        for name, threshold in (("on chip", None), ("off chip", math.inf)):
            yield f"training, {name}", training_session(TrainingOptions(replicas=1, threshold=threshold)).session
        yield "inference, batch 80", inference_session(80, TrainingOptions()).session
        return
    for placement in PLACEMENTS:
        yield placement.name, training_session(TrainingOptions(threshold=placement.threshold)).session


def step_rows(program: str, trace: Any) -> Rows:
    """Cycles and bytes of one step."""
    from ipuperf.report.breakdown import breakdown_cycles

    columns, totals = trace.columns, trace.totals()
    found: list[tuple[str, str, int]] = [("step", "cycles", int(columns("runs")["dur"][0]))]
    found += [("cycles of all IPUs", kind, int(totals[kind].sum())) for kind in totals.columns[2:-1]]
    found += [("cycles by part", part, cycles) for part, cycles in breakdown_cycles(trace).items()]
    memory = trace.table("tile_memory")
    own = memory[memory["ipu"] == 0].groupby("category")["bytes"]
    for category, values in own:
        found.append(("bytes of IPU 0", category, int(values.sum())))
        found.append(("bytes of its fullest tile", category, int(values.max())))
    live = trace.table("liveness")
    live = live[live["ipu"] == 0]
    found.append(("live bytes of IPU 0", "program steps", len(live)))
    found.append(("live bytes of IPU 0", "always", int(live["always_live"].iloc[0])))
    for name, value in (("least", "min"), ("most", "max")):
        found.append(("live bytes of IPU 0", f"not always, {name}", int(live["not_always_live"][1:].agg(value))))
    transfers = trace.table("transfers")
    links = trace.table("links").set_index("link_id")["kind"]
    grouped = transfers.assign(link=transfers["link_id"].map(links)).groupby(["kind", "link"])["bytes"]
    found += [
        ("bytes over links", f"{kind} over {link}", int(bytes_)) for (kind, link), bytes_ in grouped.sum().items()
    ]
    return [{"program": program, "group": group, "name": name, "value": str(value)} for group, name, value in found]


def operation_rows(program: str, trace: Any) -> Rows:
    """Cycles of each op on all IPUs together, and how often it ran. Ops are numbered by type within their graph."""
    from ipuperf.testing.record import operation_figures

    rows = []
    for op in operation_figures(trace):
        row = {"program": program, "graph": op.scope, "op": op.name, "calls": op.calls, "cycles": op.cycles}
        rows.append({key: str(value) for key, value in row.items()})
    return rows


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_rows(chip: Any) -> Rows:
    """The plan of every product in every combination of types."""
    from ipuperf.lowering import plan_matmul

    rows = []
    for groups, m, k, n in PRODUCTS:
        for types, names in TYPES.items():
            plan = plan_matmul(chip, groups, m, k, n, *names).values()
            splits = {f"split_{key}" if key == "groups" else key: value for key, value in plan.items()}
            row = {"groups": groups, "m": m, "k": k, "n": n, "types": types, **splits}
            rows.append({key: str(value) for key, value in row.items()})
    return rows


# -- files -------------------------------------------------------------------------------------------------------------


def tables(machine: str) -> dict[str, Rows]:
    """All tables of a machine, computed now."""
    import ipuperf
    from ipuperf.machine import load_machine
    from ipuperf.runtime.install import installed_names, uninstall

    loaded = load_machine(machine)
    steps: Rows = []
    operations: Rows = []
    before = set(installed_names())
    ipuperf.install()
    try:
        for name, session in sessions(machine):
            trace = ipuperf.simulate_session(session, machine=loaded)
            steps += step_rows(name, trace)
            operations += operation_rows(name, trace)
    finally:
        uninstall(set(installed_names()) - before)
    return {
        "steps": steps,
        "operations": operations,
        "matmul_plans": plan_rows(loaded.chip),
    }


def path_of(machine: str, table: str) -> Path:
    """The file of a golden table."""
    return FOLDER / machine / f"{table}.csv"


def moved(machine: str, table: str, rows: Rows) -> list[str]:
    """One line for each row that is not as in the file; all rows are new when there is no file yet."""
    from ipuperf.testing import tables as kept

    path = path_of(machine, table)
    before = kept.read(path, KEYS[table]) if path.is_file() else []
    return kept.moved(before, kept.normalised(rows, KEYS[table]), KEYS[table])


def report(machine: str, table: str, lines: list[str]) -> str:
    """The lines as text, at most :data:`SHOWN` of them, and what to do."""
    from ipuperf.testing import tables as kept

    text = kept.report(f"{machine}/{table}.csv", lines, SHOWN)
    return f"{text}\nIf that is meant, run `{COMMAND}` and look at the diff."


def write(machine: str, table: str, rows: Rows) -> None:
    """Write a golden table, all or nothing."""
    from ipuperf.testing import tables as kept
    from ipuperf.testing.files import write_text

    write_text(path_of(machine, table), kept.text_of(kept.normalised(rows, KEYS[table])))


def main(arguments: list[str]) -> int:
    """Compare, print, and write unless ``--check`` is given; with it, 1 when anything moved."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    anything = False
    for machine in MACHINES:
        for table, rows in tables(machine).items():
            lines = moved(machine, table, rows)
            if lines:
                anything = True
                print(report(machine, table, lines))
            if lines and not arguments:
                write(machine, table, rows)
    print("golden tables: " + ("some rows moved" if anything else "nothing moved"))
    return int(anything and bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

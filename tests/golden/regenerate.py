"""Golden tables: what ipuperf says about fixed programs, products and vertices, one folder per machine.

    python tests/golden/regenerate.py [--check]

writes ``tests/golden/<machine>/<table>.csv`` and prints the rows that moved; ``--check`` only prints. These are not
truths but what was true when they were written: a change that moves rows is right or wrong by its own reasons, and the
diff of these files shows what it did.

Tables: ``steps`` (cycles of a step, by kind of work, and by part; bytes by category of memory, by kind of transfer, and
over time), ``operations`` (cycles of each op), ``matmul_plans`` and ``vertex_cycles``.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
COMMAND = "python tests/golden/regenerate.py"
MACHINES = ("gc200-1", "pod4", "bow-pod4")

#: Columns that name a row; the others are values.
KEYS = {
    "steps": ("program", "group", "name"),
    "operations": ("program", "graph", "op"),
    "matmul_plans": ("groups", "m", "k", "n", "types"),
    "vertex_cycles": ("vertex", "elements"),
}
Row = dict[str, str]
Rows = list[Row]
Key = tuple[str, ...]

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
#: Bytes of an element of the operands, the partial sums and the result.
TYPES = {"half,half,half": (2, 2, 2), "half,float,half": (2, 4, 2), "float,float,float": (4, 4, 4)}
ELEMENTS = (1, 6, 7, 64, 512, 4096)


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
    numbers: Counter[tuple[str, str]] = Counter()
    rows = []
    table = trace.operations()
    order = table["op"].map(lambda name: int("0" + name.rpartition(".")[2]))
    for op in table.assign(order=order).sort_values("order", kind="stable").itertuples():
        graph = re.sub(r"\(\d+\)", "", str(op.op).rpartition("/")[0])
        numbers[graph, op.type] += 1
        name = f"{op.type} {numbers[graph, op.type]}" if op.type else "(no op)"
        row = {"program": program, "graph": graph, "op": name, "calls": op.calls, "cycles": op.cycles}
        rows.append({key: str(value) for key, value in row.items()})
    return rows


# -- plans and vertices ------------------------------------------------------------------------------------------------


def plan_rows(chip: Any) -> Rows:
    """The plan of every product in every combination of types."""
    from ipuperf.lowering import plan_matmul

    rows = []
    for groups, m, k, n in PRODUCTS:
        for types, sizes in TYPES.items():
            plan = dataclasses.asdict(plan_matmul(chip, groups, m, k, n, *sizes))
            splits = {f"split_{key}" if key == "groups" else key: value for key, value in plan.items()}
            row = {"groups": groups, "m": m, "k": k, "n": n, "types": types, **splits}
            rows.append({key: str(value) for key, value in row.items()})
    return rows


def vertices() -> dict[str, Callable[..., Any]]:
    """Name of a vertex -> its cycles for elements on a tile and a chip."""
    from ipuperf.ir import FLOAT16, FLOAT32, INT32
    from ipuperf.ops import vertices as v
    from ipuperf.ops.update_vertices import fused_cycles, scaled_add_cycles

    found = []
    for dtype in (FLOAT16, FLOAT32):
        for name in ("ADD", "MULTIPLY", "DIVIDE", "MAXIMUM"):
            found += [v.binary(name, dtype, 1), v.binary(name, dtype, 1, in_place=True)]
            found.append(v.broadcast_scalar(name, dtype, 1))
        found += [v.unary(name, dtype, 1) for name in ("EXPONENT", "SQRT", "TANH", "RELU", "NEGATE", "LOGARITHM")]
        found += [v.broadcast_outer("SUBTRACT", dtype, 1, 16), v.broadcast_inner("ADD", dtype, 1, 512)]
        found += [v.non_linearity("GELU", dtype, 1, 1), v.non_linearity_grad("GELU", dtype, 1, 1)]
        found += [v.fill(dtype, 1), v.one_hot(dtype, 1, 10), v.select(dtype, 1), v.clamp(dtype, 1)]
        found += [v.reduction(name, dtype, 1, 1) for name in ("ADD", "MAX", "SQUARE_ADD")]
    found += [v.cast(FLOAT32, FLOAT16, 1), v.cast(FLOAT16, FLOAT32, 1), v.cast(INT32, FLOAT32, 1)]
    named = {each.vertex: each.cycles for each in found}
    for a, b in ((FLOAT16, FLOAT16), (FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (FLOAT32, FLOAT16)):
        named[f"scaled add {a.name} {b.name}"] = scaled_add_cycles(a, b, False)
        named[f"scaled add {a.name} {b.name}, both scaled, tensor factors"] = scaled_add_cycles(a, b, True, True)
    named["fused float16, 3 tensors, 2 scalars, 5 operations"] = fused_cycles(FLOAT16, 3, 2, 5)
    named["fused float32, 3 tensors, 2 scalars, 5 operations"] = fused_cycles(FLOAT32, 3, 2, 5)
    return named


def vertex_rows(chip: Any) -> Rows:
    """Tile cycles of every vertex for numbers of elements on a tile."""
    import numpy as np

    return [
        {"vertex": name, "elements": str(elements), "cycles": str(cycles)}
        for name, formula in vertices().items()
        for elements, cycles in zip(ELEMENTS, np.asarray(formula(np.array(ELEMENTS), chip)).tolist(), strict=True)
    ]


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
        "vertex_cycles": vertex_rows(loaded.chip),
    }


def read(machine: str, table: str) -> Rows:
    """A golden table; empty when there is no file yet."""
    path = FOLDER / machine / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write(machine: str, table: str, rows: Rows) -> None:
    """Write a golden table, under a temporary name first."""
    from ipuperf.trace import replacing

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (FOLDER / machine).mkdir(exist_ok=True)
    with replacing(FOLDER / machine / f"{table}.csv") as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


# -- comparing ---------------------------------------------------------------------------------------------------------


def _keyed(table: str, rows: Rows) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for row in rows:
        key = tuple(row[name] for name in KEYS[table])
        if key in found:
            raise ValueError(f"golden table {table!r}: two rows of {key}")
        found[key] = {name: value for name, value in row.items() if name not in KEYS[table]}
    return found


def _change(before: str, after: str) -> str:
    try:
        return f"{before} -> {after} ({int(after) / int(before) - 1:+.2%})"
    except (ValueError, ZeroDivisionError):
        return f"{before} -> {after}"


def moved(table: str, golden: Rows, now: Rows) -> list[str]:
    """One line for each row that is new (``+``), gone (``-``) or has other values (``~``)."""
    old, new = _keyed(table, golden), _keyed(table, now)
    lines = [f"- {' | '.join(key)}" for key in old if key not in new]
    for key, row in new.items():
        if key not in old:
            lines.append(f"+ {' | '.join(key)}: {', '.join(f'{n} {v}' for n, v in row.items())}")
        elif row != old[key]:
            names = [name for name in {**old[key], **row} if old[key].get(name) != row.get(name)]
            changes = ", ".join(f"{n} {_change(old[key].get(n, 'none'), row.get(n, 'none'))}" for n in names)
            lines.append(f"~ {' | '.join(key)}: {changes}")
    return lines


def report(machine: str, table: str, lines: list[str], most: int = 40) -> str:
    """The lines as text, at most so many of them, and what to do."""
    shown = [f"{machine}/{table}.csv: {len(lines)} rows moved", *(f"  {line}" for line in lines[:most])]
    if len(lines) > most:
        shown.append(f"  ... and {len(lines) - most} more")
    return "\n".join([*shown, f"If that is meant, run `{COMMAND}` and look at the diff."])


def main(arguments: list[str]) -> int:
    """Compare, print, and write unless ``--check`` is given; with it, 1 when anything moved."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    anything = False
    for machine in MACHINES:
        for table, rows in tables(machine).items():
            lines = moved(table, read(machine, table), rows)
            if lines:
                anything = True
                print(report(machine, table, lines))
            if lines and not arguments:
                write(machine, table, rows)
    print("golden tables: " + ("some rows moved" if anything else "nothing moved"))
    return int(anything and bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

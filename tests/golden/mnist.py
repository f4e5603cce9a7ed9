"""What ipuperf says about the MNIST network on preset machines, and the plans of matrix products.

Tables: ``steps`` (cycles of a step, by kind of work, and by part; bytes by category of memory, by kind of transfer, and
over time), ``operations`` (cycles of each op) and ``matmul_plans``.
"""

import math
from collections.abc import Iterator
from typing import Any

MACHINES = ("gc200-1", "pod4", "bow-pod4")
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


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(machine: str) -> dict[str, Rows]:
    """The tables of the programs on a machine. The front ends have to be installed."""
    import ipuperf
    from ipuperf.machine import load_machine

    loaded = load_machine(machine)
    traces = {name: ipuperf.simulate_session(session, machine=loaded) for name, session in sessions(machine)}
    return {
        "steps": [row for name, trace in traces.items() for row in step_rows(name, trace)],
        "operations": [row for name, trace in traces.items() for row in operation_rows(name, trace)],
    }

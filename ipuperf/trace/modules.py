"""The tree of the user's modules: what each costs in time, FLOP and memory, alone and with the modules inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace.code import code_rows
from ipuperf.trace.columns import lookup
from ipuperf.trace.operations import NO_OP_NAME, operation_costs
from ipuperf.trace.schema import PHASES
from ipuperf.trace.tables import TraceTables
from ipuperf.trace.variables import variable_rows

if TYPE_CHECKING:
    import pandas as pd


_Sums = dict[str, int]


def modules(trace: TraceTables) -> pd.DataFrame:
    """A row for each module, parents before their modules and the costliest of a parent first.

    Times are cycles over all stored IPUs and replicas, as in :func:`~.operations.operations`, whose totals the modules
    without a parent add up to.

    Columns: module (path; :data:`NO_OP_NAME` for steps of no op); parent ("" for none); level (0 without a parent);
    cycles and waiting_cycles with all modules inside; own_cycles without them; fwd, recompute, bwd, update, io, other:
    the cycles by phase; flops; bytes of its variables in tile memory, whenever they are live, and of
    its code and constants; own_bytes; line, where the module itself spends most cycles, or if it has no ops of its own
    those inside it ("" for steps of no op).
    """
    import pandas as pd

    own, lines = _own_costs(trace)
    whole: dict[str, _Sums] = {}
    for path, sums in own.items():
        for ancestor in _ancestors(path):
            total = whole.setdefault(ancestor, {})
            for name, value in sums.items():
                total[name] = total.get(name, 0) + value
    children: dict[str, list[str]] = {}
    for path in whole:
        children.setdefault(parent_of(path), []).append(path)
    rows = [
        {
            "module": path,
            "parent": parent_of(path),
            "level": level,
            **{name: whole[path].get(name, 0) for name in ("cycles", "waiting_cycles")},
            "own_cycles": own.get(path, {}).get("cycles", 0),
            **{name: whole[path].get(name, 0) for name in (*PHASES, "flops", "bytes")},
            "own_bytes": own.get(path, {}).get("bytes", 0),
            "line": lines.get(path, ""),
        }
        for path, level in _in_order(children, whole)
    ]
    names = ["module", "parent", "level", "cycles", "waiting_cycles", "own_cycles", *PHASES, "flops", "bytes"]
    return pd.DataFrame(rows, columns=[*names, "own_bytes", "line"])


def _own_costs(trace: TraceTables) -> tuple[dict[str, _Sums], dict[str, str]]:
    """The sums of each module without those inside it, and the line where it (or else those inside) spends most."""
    table = operation_costs(trace)
    own: dict[str, _Sums] = {}
    cycles_of_line: dict[str, dict[str, int]] = {}
    columns = ("op", "module", "graph", "phase", "line", "cycles", "waiting_cycles", "flops")
    # pandas makes a string at each step over a column of strings, so that lists are taken first.
    rows = zip(*(table[name].to_numpy().tolist() for name in columns), strict=True)
    for op, module, graph, phase, line, cycles, waiting, flops in rows:
        path = NO_OP_NAME if op == NO_OP_NAME else module or graph
        sums = own.setdefault(path, {})
        for name, value in (("cycles", cycles), ("waiting_cycles", waiting), ("flops", flops), (phase, cycles)):
            sums[name] = sums.get(name, 0) + int(value)
        if line:
            of_path = cycles_of_line.setdefault(path, {})
            of_path[line] = of_path.get(line, 0) + int(cycles)
    variables, always, ops = variable_rows(trace).columns, code_rows(trace), trace.columns("ops")
    on_tiles = variables["location"] == "tile"
    # Ops are far fewer than variables, so that paths are looked up for sums.
    ids, row = np.unique(np.concatenate([variables["op_id"][on_tiles], always["op_id"]]), return_inverse=True)
    size = np.zeros(len(ids), dtype=np.int64)
    np.add.at(size, row.reshape(-1), np.concatenate([variables["bytes"][on_tiles], always["bytes"]]))
    paths = lookup(ids, ops["op_id"], ops["module"], NO_OP_NAME)
    for path, count in zip(paths.tolist(), size.tolist(), strict=True):
        sums = own.setdefault(path, {})
        sums["bytes"] = sums.get("bytes", 0) + count
    inside: dict[str, dict[str, int]] = {}
    for path, costs in cycles_of_line.items():
        for ancestor in _ancestors(parent_of(path)):
            of_path = inside.setdefault(ancestor, {})
            for line, cycles in costs.items():
                of_path[line] = of_path.get(line, 0) + cycles
    # Of lines with equal cycles the first by name, so that the order of rows does not matter.
    lines = {
        path: min(costs, key=lambda line: (-costs[line], line)) for path, costs in {**inside, **cycles_of_line}.items()
    }
    return own, lines


def parent_of(path: str) -> str:
    """The path of the module in which another one lies; empty at the top."""
    return path.rpartition(".")[0]


def _ancestors(path: str) -> Iterator[str]:
    """A path and all paths around it."""
    while path:
        yield path
        path = parent_of(path)


def _in_order(children: dict[str, list[str]], whole: dict[str, _Sums]) -> Iterator[tuple[str, int]]:
    """Each path with its level, parents first, siblings by their cycles."""
    pending = [("", -1)]
    while pending:
        path, level = pending.pop()
        if path:
            yield path, level
        # The last one that is added comes first.
        siblings = sorted(children.get(path, ()), key=lambda child: (-whole[child].get("cycles", 0), child))
        pending += [(child, level + 1) for child in reversed(siblings)]

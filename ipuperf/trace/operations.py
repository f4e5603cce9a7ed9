"""The costs of ops: cycles by kind, on each IPU, with waiting for others counted separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace import fold
from ipuperf.trace.columns import lookup
from ipuperf.trace.loops import product
from ipuperf.trace.schema import HOST_WAITING_KINDS, KINDS, NO_OP, WAITING_KINDS
from ipuperf.trace.shortened import InstanceRows, instance_rows
from ipuperf.trace.tables import TraceTables

if TYPE_CHECKING:
    import pandas as pd


_WAITING = np.isin(KINDS, (*WAITING_KINDS, *HOST_WAITING_KINDS))
"""For each kind, whether it is waiting (for other IPUs or for the host)."""

NO_OP_NAME = "(no op)"
"""The name for steps that belong to no op: the syncs of the program itself, and the host's cost of a run."""


def operations(trace: TraceTables) -> pd.DataFrame:
    """The cost of each op over the whole trace, for all stored IPUs and replicas together, the costliest op first.

    Columns: those of :func:`op_facts`; calls; cycles (steps in which the op does something); waiting_cycles (steps in
    which its IPUs wait for other IPUs or for the host before it can go on); compute_cycles; share (of all cycles that
    are not waiting); flops.

    A call is a stretch of successive steps with the same op, if at least one of them does not wait for other IPUs. (An
    IPU only waits at the sync of a collective in which it takes no part.) A call may continue in the next segment,
    because a collective has a segment of its own between segments of local steps. It does not continue in the next trip
    of a loop inside a segment.
    """
    frame = operation_costs(trace)
    calls = _calls(trace, frame.pop("op_id").to_numpy())
    frame.insert(int(frame.columns.get_loc("cycles")), "calls", calls)
    return frame.sort_values(["cycles", "waiting_cycles", "op"], ascending=[False, False, True], ignore_index=True)


def operation_costs(trace: TraceTables) -> pd.DataFrame:
    """One row per op, by the number of the op (op_id), with the columns of :func:`operations` except for calls."""
    if operation_costs not in trace.derived:
        trace.derived[operation_costs] = _operation_costs(trace)
    return trace.derived[operation_costs].copy()


def _operation_costs(trace: TraceTables) -> pd.DataFrame:
    # IPUs that do the same are counted, not listed: a Pod has thousands of them.
    costs, instances = _all_costs(trace)
    number = _alike(costs, instances)
    ids, row = np.unique(costs.op_id, return_inverse=True)
    of_kinds = product(costs.cycles.reshape(-1), np.repeat(number, len(KINDS))).reshape(-1, len(KINDS))
    cycles = np.zeros((len(ids), len(KINDS)), dtype=of_kinds.dtype)
    np.add.at(cycles, row.reshape(-1), of_kinds)
    flops = _sums(row, product(costs.flops, number), len(ids))
    frame = op_facts(trace, ids)
    frame["op_id"] = ids
    _put(frame, cycles, np.ones(len(cycles), dtype=np.int64))
    frame["compute_cycles"] = cycles[:, KINDS.index("compute")]
    frame["flops"] = flops
    return frame


def operations_by_ipu(
    trace: TraceTables, rows: np.ndarray | None = None, *, of_each_class: bool = False
) -> pd.DataFrame:
    """The cost of each op on each stored IPU (replicas together), the costliest first.

    The costs are those of the whole trace, or of the given rows of table ``instances``. ``of_each_class``: only one IPU
    of those that do the same has rows, with how many they are in column ipus; shares are those of all of them.

    Columns: those of :func:`op_facts`; ipu; kind, the kind of step with the most cycles; cycles, waiting_cycles, share
    and flops as in :func:`operations`; imbalance_cycles, the part of its compute in which the average tile waits for
    the slowest; bytes that its tiles receive and send; exchange_bytes that they receive in exchanges between tiles of
    the IPU; and the cycles of each kind under its name. The cycles of a kind add up to those of :meth:`Trace.totals`.
    """
    if rows is None and of_each_class:
        # Several views ask for this table.
        if operations_by_ipu not in trace.derived:
            costs, instances = _all_costs(trace)
            trace.derived[operations_by_ipu] = _by_ipu(trace, costs, _alike(costs, instances), of_each_class=True)
        return trace.derived[operations_by_ipu].copy()
    costs = _on_all(*_all_costs(trace)) if rows is None else _followed_costs(trace, rows)[0]
    return _by_ipu(trace, costs, np.ones(len(costs.ipu), dtype=np.int64), of_each_class=of_each_class)


def _by_ipu(trace: TraceTables, costs: _Costs, number: np.ndarray, *, of_each_class: bool) -> pd.DataFrame:
    frame = op_facts(trace, costs.op_id)
    frame["ipu"] = costs.ipu
    frame["kind"] = _main_kind(costs.cycles)
    _put(frame, costs.cycles, number)
    frame["flops"] = costs.flops
    frame["imbalance_cycles"], frame["bytes"] = np.rint(costs.imbalance).astype(np.int64), costs.bytes
    frame["exchange_bytes"] = costs.exchanged
    for code, kind in enumerate(KINDS):
        # Means over tiles are floats, so the imbalance is rounded once, after all sums.
        frame[kind] = costs.cycles[:, code]
    if of_each_class:
        frame["ipus"] = number
    keys = ["cycles", "waiting_cycles", "op", "ipu"]
    return frame.sort_values(keys, ascending=[False, False, True, True], ignore_index=True)


def op_facts(trace: TraceTables, op_ids: np.ndarray) -> pd.DataFrame:
    """Facts about ops, one row each.

    Columns: op (name; :data:`NO_OP_NAME` for none), type, phase, graph, module (path of the user's module that it
    belongs to) and line (of the user's program).
    """
    import pandas as pd

    ops = trace.columns("ops")

    def fact(column: str, default: str) -> np.ndarray:
        return lookup(op_ids, ops["op_id"], ops[column], default)

    return pd.DataFrame(
        {
            "op": np.where(op_ids == NO_OP, NO_OP_NAME, fact("name", "")),
            "type": fact("type", ""),
            "phase": fact("phase", "other"),
            "graph": fact("graph", ""),
            "module": fact("module", ""),
            "line": fact("line", ""),
        }
    )


def op_kind_cycles(trace: TraceTables) -> dict[tuple[str, str], int]:
    """Cycles by op name and kind, over all stored IPUs. Ops with the same name are added; :data:`NO_OP_NAME`: no op."""
    costs = _on_all(*_all_costs(trace))
    result: dict[tuple[str, str], int] = {}
    for name, row in zip(op_facts(trace, costs.op_id)["op"], costs.cycles.tolist(), strict=True):
        for kind, cycles in zip(KINDS, row, strict=True):
            if cycles:
                result[name, kind] = result.get((name, kind), 0) + cycles
    return result


def _put(frame: pd.DataFrame, cycles: np.ndarray, number: np.ndarray) -> None:
    """Add the columns cycles, waiting_cycles and share to ``frame``; ``number``: how many IPUs each row stands for."""
    working_cycles = cycles[:, ~_WAITING].sum(axis=1)
    on_all = product(working_cycles, number)
    total = on_all.sum()
    frame["cycles"], frame["waiting_cycles"] = working_cycles, cycles[:, _WAITING].sum(axis=1)
    frame["share"] = on_all.astype(float) / float(total) if total else np.zeros(len(working_cycles))


def _main_kind(cycles: np.ndarray) -> np.ndarray:
    """The kind with the most cycles in each row; a kind of waiting only if there is no other."""
    busy = np.where(_WAITING, 0, cycles)
    chosen = np.where(busy.any(axis=1), busy.argmax(axis=1), cycles.argmax(axis=1))
    kinds: np.ndarray = np.array(KINDS, dtype=object)[chosen]
    return kinds


@dataclass(frozen=True)
class _Costs:
    """A row for each pair of op and IPU with executed steps.

    ``cycles`` has a column for each kind. ``imbalance`` is the cycles of compute beyond those of the average tile.
    ``bytes`` are those received and sent, ``exchanged`` those received in exchanges between tiles of the IPU.
    """

    op_id: np.ndarray
    ipu: np.ndarray
    cycles: np.ndarray
    flops: np.ndarray
    imbalance: np.ndarray
    bytes: np.ndarray
    exchanged: np.ndarray


def _all_costs(trace: TraceTables) -> tuple[_Costs, InstanceRows]:
    """:func:`_followed_costs` of the whole trace, which all readers share."""
    if _all_costs not in trace.derived:
        trace.derived[_all_costs] = _followed_costs(trace)
    costs: tuple[_Costs, InstanceRows] = trace.derived[_all_costs]
    return costs


def _followed_costs(trace: TraceTables, rows: np.ndarray | None = None) -> tuple[_Costs, InstanceRows]:
    """The costs of every op, without slices, and the instances that say how many IPUs each one stands for.

    With ``rows`` of table ``instances`` they are those of these rows, and every IPU stands for itself.
    """
    steps, template = trace.columns("steps"), trace.template
    instances = instance_rows(trace)
    ipu, segment, times = instances.ipu, instances.segment, instances.times
    if rows is not None:
        ipu, segment = (trace.columns("instances")[key][rows] for key in ("ipu", "segment"))
        times = np.ones(len(rows), dtype=np.int64)
    place = template.place(segment)
    known = place >= 0
    if not known.any():
        nothing = np.empty(0, dtype=np.int64)
        return _Costs(nothing, nothing, np.empty((0, len(KINDS)), dtype=np.int64), *[nothing] * 4), instances
    # IPU and segment make one key, which sorts faster than two.
    pair, index = np.unique(ipu[known].astype(np.int64) << 32 | place[known], return_inverse=True)
    times = _sums(index, times[known], len(pair))
    pair_ipu, segment = pair >> 32, pair & 0xFFFFFFFF
    counts = template.count[segment]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    step = template.order[np.repeat(template.first[segment], counts) + within]
    runs = product(np.repeat(times, counts), template.trips[step])
    # Each pair of IPU and segment stands for all its instances, which `runs` counts.
    key, row = np.unique(
        (steps["op_id"][step].astype(np.int64) << 32) + np.repeat(pair_ipu, counts), return_inverse=True
    )
    row, spent, done = row.reshape(-1), product(steps["dur"][step], runs), product(steps["flops"][step], runs)
    # Products may be Python's integers where int64 could overflow, so the sums take their type.
    cycles = np.zeros((len(key), len(KINDS)), dtype=spent.dtype)
    np.add.at(cycles, (row, fold.kind_codes(trace)[step]), spent)
    computes = fold.kind_codes(trace)[step] == KINDS.index("compute")
    wide = np.where(computes, np.maximum(steps["dur"][step] - steps["dur_mean"][step], 0.0), 0.0)
    imbalance = np.bincount(row, weights=wide * runs.astype(np.float64), minlength=len(key))
    moved = product(steps["bytes_in"][step] + steps["bytes_out"][step], runs)
    exchanges = fold.kind_codes(trace)[step] == KINDS.index("exchange")
    exchanged = product(np.where(exchanges, steps["bytes_in"][step], 0), runs)
    sums = (_sums(row, done, len(key)), imbalance, _sums(row, moved, len(key)), _sums(row, exchanged, len(key)))
    costs = _Costs(key >> 32, key & 0xFFFFFFFF, cycles, *sums)
    return costs, instances


def _sums(row: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """The sum of the values of each row, in the type of the values."""
    result = np.zeros(rows, dtype=values.dtype)
    np.add.at(result, row.reshape(-1), values)
    return result


def _alike(costs: _Costs, instances: InstanceRows) -> np.ndarray:
    """How many IPUs do the same as the IPU of each row, itself included."""
    replica_of = dict(zip(instances.ipu.tolist(), instances.replica.tolist(), strict=True))
    number = {ipu: len(instances.twins.get((replica, ipu), (ipu,))) for ipu, replica in replica_of.items()}
    return np.array([number[ipu] for ipu in costs.ipu.tolist()], dtype=np.int64)


def _on_all(costs: _Costs, instances: InstanceRows) -> _Costs:
    """The costs on all IPUs, those of replicas that do the same included."""
    replica_of = dict(zip(instances.ipu.tolist(), instances.replica.tolist(), strict=True))
    replica = np.array([replica_of[ipu] for ipu in costs.ipu.tolist()], dtype=np.int64)
    row, _, ipu = instances.repeated(replica, costs.ipu)
    order = np.lexsort((ipu, costs.op_id[row]))
    row = row[order]
    amounts = (costs.cycles, costs.flops, costs.imbalance, costs.bytes, costs.exchanged)
    return _Costs(costs.op_id[row], ipu[order], *(amount[row] for amount in amounts))


def _calls(trace: TraceTables, op_ids: np.ndarray) -> np.ndarray:
    """How often each of the ops (sorted) is called; IPUs that only wait for others take no part in a call."""
    steps, template = trace.columns("steps"), trace.template
    order = template.order
    begins = np.ones(len(order), dtype=bool)
    if len(order):
        same_op = steps["op_id"][order][1:] == steps["op_id"][order][:-1]
        again = steps["program_id"][order][1:] <= steps["program_id"][order][:-1]
        same_op &= ~(again & (template.loop[order][1:] >= 0))  # a graph that is called again
        begins[1:] = ~(same_op & (steps["segment"][order][1:] == steps["segment"][order][:-1]))
    stretch = np.cumsum(begins) - 1
    # Waiting for the host is part of a call. Only waiting for other IPUs is not.
    busy = ~np.isin(KINDS, WAITING_KINDS)[fold.kind_codes(trace)[order]]
    works = np.bincount(stretch, weights=busy, minlength=1)[stretch] > 0
    calls = np.where(works, fold.step_begins(trace, begins), 0)
    # A call that goes on from the segment before it was counted there.
    calls[template.first] -= _continued(trace, stretch, works)
    result = np.zeros(len(op_ids), dtype=calls.dtype)
    executed = np.isin(steps["op_id"][order], op_ids)
    np.add.at(result, np.searchsorted(op_ids, steps["op_id"][order][executed]), calls[executed])
    return result


def _continued(trace: TraceTables, stretch: np.ndarray, works: np.ndarray) -> np.ndarray:
    """How often each segment (as in ``trace.template``) goes on working in a call in which another segment worked just
    before it on the same lane of the same IPU; if it stands before the other in the program, it is executed again
    instead. ``stretch`` (its number) and ``works`` by step, in the template's order."""
    template, instances = trace.template, trace.columns("instances")
    ops, programs = (trace.columns("steps")[name] for name in ("op_id", "program_id"))
    place = template.place(instances["segment"])
    rows = np.flatnonzero(place >= 0)
    lane = trace.columns("steps")["lane"][template.order[template.first]][place] if len(rows) else place
    # The last key counts first: neighbours follow each other in time on one lane of one IPU.
    keys = (rows, instances["start"][rows], lane[rows], *(instances[key][rows] for key in ("ipu", "replica")))
    rows = rows[np.lexsort(keys)]
    place, lane = place[rows], lane[rows]
    begin, end = template.first, template.first + template.count - 1
    first_steps, last_steps = template.order[begin], template.order[end]
    earlier, later = place[:-1], place[1:]
    same_op = (ops[last_steps[earlier]] == ops[first_steps[later]]) & (ops[first_steps[later]] != NO_OP)
    same_op &= (programs[last_steps[earlier]] < programs[first_steps[later]]) & (lane[:-1] == lane[1:])
    for key in ("ipu", "replica"):
        same_op &= instances[key][rows][1:] == instances[key][rows][:-1]
    whole = (stretch[begin] == stretch[end])[place]
    worked = _worked_before(np.concatenate(([False], same_op)), whole, works[end][place])
    return np.bincount(later[same_op & works[begin][later] & worked[1:]], minlength=len(template.segments))


def _worked_before(same: np.ndarray, whole: np.ndarray, works: np.ndarray) -> np.ndarray:
    """For successive segments: whether anything works in the call with which the segment before each one ends.

    Args:
        same: whether the segment continues the call before it.
        whole: whether the segment is a single call.
        works: whether anything works in its last call.
    """
    index = np.arange(len(same))
    since = np.maximum.accumulate(np.where(same & whole, 0, index))  # where the call that ends here began
    sums = np.concatenate(([0], np.cumsum(works)))
    return np.concatenate(([False], (sums[1:] > sums[since])[:-1]))[: len(same)]

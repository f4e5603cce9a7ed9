"""Conservation: checks whether the figures of a trace agree with each other.

Each rule is a function that returns sentences about faults; an empty list means that the rule holds. Every trace must
obey the rules, whatever the model: nothing is busier than time allows, nothing is negative, parts fit into wholes, a
peak is not below any of its steps, a link does not move more than its bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ipuperf.trace.folded import REPEATS
from ipuperf.trace.loops import common_depth
from ipuperf.trace.schema import BELOW, NO_OP, TABLES
from ipuperf.trace.summary import union_length
from ipuperf.trace.tables import TraceTables, tile_totals


def _rows(bad: np.ndarray) -> str:
    rows = np.flatnonzero(bad)
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"row {', '.join(str(row) for row in rows[:3])}{more}"


def _stored_numbers(trace: TraceTables, table: str, column: str) -> np.ndarray | None:
    """The numbers of a column as stored, without making the rows of a folded table.

    None for strings, and for columns that a folded table does not store.
    """
    folded = trace.folded(table)
    if (table, column) == ("instances", "parent") and folded is not None:
        return np.zeros(min(folded.rows, 1), dtype=np.int64)  # all folded instances belong to run 0
    if folded is not None:
        return None if column in REPEATS else folded.arrays.get(column)
    values = trace.stored(table)[column]
    return values if isinstance(values, np.ndarray) and values.dtype.kind in "if" else None


def ranges(trace: TraceTables) -> list[str]:
    """Faults of numbers that are negative or too large."""
    sentences = []
    for table in TABLES.values():
        for column in table.columns:
            values = _stored_numbers(trace, table.name, column.name)
            if values is None or column.least is None:
                continue
            for bad, text in ((values < column.least, "negative"), (values >= BELOW, "too large")):
                if bad.any():
                    sentences.append(f"{table.name}.{column.name}: {text}, {values[bad][0]} ({_rows(bad)})")
    return sentences


def counts(trace: TraceTables) -> list[str]:
    """Faults of places (IPUs, tiles, steps) that the machine or the program of the trace does not have."""
    meta, steps = trace.meta, _stored_numbers(trace, "liveness", "step")
    # Counts and half-open ends may equal the number of tiles, so their bound is one higher.
    limits = {"ipu": meta["num_ipus"], "replica": meta["replicas"], "active_tiles": meta["tiles_per_ipu"] + 1}
    limits.update(dict.fromkeys(("tile", "argmax_tile", "tile_from"), meta["tiles_per_ipu"]))
    limits["tile_to"] = meta["tiles_per_ipu"] + 1
    if steps is not None and len(steps):
        # Intervals are half open, so one may end a step behind the last step of the curve.
        limits["step_from"] = limits["step_to"] = int(steps.max()) + 2
    sentences = []
    for table in TABLES.values():
        for column in sorted({column.name for column in table.columns} & limits.keys()):
            values = _stored_numbers(trace, table.name, column)
            if values is not None and (bad := values >= limits[column]).any():
                least = limits[column]
                sentences.append(f"{table.name}.{column}: {values[bad][0]}, allowed: below {least:,} ({_rows(bad)})")
    return sentences


def references(trace: TraceTables) -> list[str]:
    """Faults of identifiers whose rows do not exist."""
    sentences = []
    for table, column, target_table, key, none_allowed in (
        ("steps", "op_id", "ops", "op_id", True),
        ("steps", "program_id", "programs", "program_id", True),
        ("programs", "op_id", "ops", "op_id", True),
        ("programs", "parent", "programs", "program_id", True),
        ("variables", "op_id", "ops", "op_id", True),
        ("code", "op_id", "ops", "op_id", True),
        ("transfers", "op_id", "ops", "op_id", True),
        ("transfers", "link_id", "links", "link_id", False),
        ("plans", "op_id", "ops", "op_id", False),
        ("instances", "segment", "steps", "segment", False),
        ("instances", "parent", "runs", "run", False),
        ("tile_runs", "segment", "steps", "segment", False),
        ("steps", "loop", "loops", "loop", True),
        ("live_intervals", "class_id", "variables", "class_id", False),
    ):
        values, keys = _stored_numbers(trace, table, column), _stored_numbers(trace, target_table, key)
        if values is None or keys is None or not (len(keys) or none_allowed):  # the target table may be left out
            continue
        bad = ~np.isin(values, keys)
        if none_allowed:
            bad &= values != NO_OP
        if bad.any():
            sentences.append(f"{table}.{column}: {values[bad][0]} is not in {target_table}.{key} ({_rows(bad)})")
    return sentences


def _steps(trace: TraceTables) -> list[str]:
    steps = trace.columns("steps")
    # The mean is a float, so it may exceed the maximum by rounding.
    bad = steps["dur_mean"] > steps["dur"] * (1 + 1e-9)
    sentences = [f"steps: the mean over tiles exceeds the slowest tile ({_rows(bad)})"] if bad.any() else []
    order = np.lexsort((steps["rel_start"], steps["lane"], steps["segment"]))
    same_lane = (steps["segment"][order][1:] == steps["segment"][order][:-1]) & (
        steps["lane"][order][1:] == steps["lane"][order][:-1]
    )
    # In order of start, it is enough to compare each step with the next one on its lane.
    overlap = same_lane & (_left(trace, order) > steps["rel_start"][order][1:])
    for place in np.flatnonzero(overlap)[:3]:
        step, next_step = order[place], order[place + 1]
        sentences.append(
            f"steps: segment {steps['segment'][step]} lane {steps['lane'][step]}: seq {steps['seq'][step]} is still "
            f"busy when seq {steps['seq'][next_step]} starts"
        )
    return sentences


def _left(trace: TraceTables, order: np.ndarray) -> np.ndarray:
    """The last end of each step (in ``order``, but the last one) in one trip of the loops it shares with the next."""
    steps, loops, loop = trace.columns("steps"), trace.loops, trace.template.loop[order]
    # Steps share the trips of common loops. Only the loops inside those delay the earlier step's last end.
    shared = common_depth(loops, loop[:-1], loop[1:])
    ends: np.ndarray = (steps["rel_start"] + steps["dur"])[order][:-1] + loops.rest[loop[:-1], shared]
    return ends


def _loops(trace: TraceTables) -> list[str]:
    """Faults of loops whose trip has not ended when the next one begins."""
    steps, loops, loop = trace.columns("steps"), trace.loops, trace.template.loop
    sentences = []
    for row, number in enumerate(loops.ids.tolist()):
        level = int((loops.chain[row] >= 0).sum()) - 1
        inside = loops.chain[loop, level] == row
        ends = (steps["rel_start"] + steps["dur"] + loops.rest[loop, level + 1])[inside]
        length = int(ends.max() - steps["rel_start"][inside].min()) if len(ends) else 0
        period, count = int(loops.period[row, level]), int(loops.count[row, level])
        # A loop of one trip has no next trip, so its period says nothing.
        if count > 1 and length > period:
            sentences.append(f"loops: a trip of loop {number} lasts {length} cycles, the next begins after {period}")
    return sentences


def _lane_extents(trace: TraceTables) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Segment, lane, first start and last end of each lane of each segment, sorted by segment."""
    steps = trace.columns("steps")
    # Segment and lane in one number, so that they are a single key.
    key = steps["segment"].astype(np.int64) << 32 | steps["lane"].astype(np.int64)
    keys, row = np.unique(key, return_inverse=True)
    low = np.full(len(keys), np.iinfo(np.int64).max)
    high = np.full(len(keys), np.iinfo(np.int64).min)
    np.minimum.at(low, row, steps["rel_start"])
    np.maximum.at(high, row, trace.template.reach)
    return keys >> 32, keys & 0xFFFFFFFF, low, high


def _instances(trace: TraceTables) -> list[str]:
    instances = trace.columns("instances")
    segment, lane, low, high = _lane_extents(trace)
    # Each instance is expanded to the lanes of its segment, without a Python loop over instances.
    first_lane = np.searchsorted(segment, instances["segment"], "left")
    count = np.searchsorted(segment, instances["segment"], "right") - first_lane
    instance = np.repeat(np.arange(len(count)), count)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    part = np.repeat(first_lane, count) + within
    sentences = []
    too_long = high[part] > instances["dur"][instance]
    if too_long.any():
        place = int(np.argmax(too_long))
        row = instance[place]
        sentences.append(
            f"instances: instance {instances['instance'][row]} lasts {instances['dur'][row]} cycles, its segment "
            f"{instances['segment'][row]} needs {high[part][place]}"
        )
    start, end = instances["start"][instance] + low[part], instances["start"][instance] + high[part]
    keys = (start, lane[part], instances["ipu"][instance], instances["replica"][instance])
    order = np.lexsort(keys)
    same_lane = np.ones(max(len(order) - 1, 0), dtype=bool)
    for values in keys[1:]:
        same_lane &= values[order][1:] == values[order][:-1]
    for place in np.flatnonzero(same_lane & (end[order][:-1] > start[order][1:]))[:3]:
        busy, second = instance[order[place]], instance[order[place + 1]]
        sentences.append(
            f"instances: busy more than elapsed: replica {instances['replica'][busy]} IPU {instances['ipu'][busy]} "
            f"lane {lane[part][order[place]]} runs instances {instances['instance'][busy]} and "
            f"{instances['instance'][second]} at once"
        )
    return sentences


def _runs(trace: TraceTables) -> list[str]:
    runs, instances = trace.columns("runs"), trace.columns("instances")
    sentences = []
    for run, start, dur in zip(runs["run"], runs["start"], runs["dur"], strict=True):
        rows = instances["parent"] == run
        outside = rows & ((instances["start"] < start) | (instances["start"] + instances["dur"] > start + dur))
        if outside.any():
            sentences.append(f"runs: run {run} [{start}, {start + dur}) does not hold its instances ({_rows(outside)})")
    if trace.meta["num_ipus"] % trace.meta["replicas"]:
        sentences.append(f"meta: {trace.meta['num_ipus']} IPUs cannot be shared by {trace.meta['replicas']} replicas")
    return sentences


def _memory(trace: TraceTables) -> list[str]:
    memory, liveness = trace.columns("tile_memory"), trace.columns("liveness")
    tiles, limit = trace.meta["tiles_per_ipu"], trace.meta["bytes_per_tile"]
    sentences = []
    total = liveness["always_live"] + liveness["not_always_live"]
    for bad, text in (
        (liveness["max_tile"] > total, "the fullest tile holds more than the IPU"),
        (liveness["max_tile"] * tiles < total, "the fullest tile is below the mean over tiles"),
    ):
        if bad.any():
            sentences.append(f"liveness: {text} ({_rows(bad)})")
    ipu, _, tile_bytes = tile_totals(memory)
    for name in np.unique(liveness["ipu"]).tolist():
        rows, on_ipu = liveness["ipu"] == name, memory["ipu"] == name
        if not on_ipu.any():
            continue
        peak, fullest = int(liveness["max_tile"][rows].max()), int(tile_bytes[ipu == name].max())
        # Tile memory includes gaps and has the fullest tile of the whole run, so it may only be above liveness.
        if fullest < peak:
            sentences.append(
                f"tile_memory: the fullest tile of IPU {name} holds {fullest} bytes, liveness reaches {peak}"
            )
        varying = int(memory["bytes"][on_ipu & (memory["category"] == "variableNotAlwaysLive")].sum())
        highest = int(liveness["not_always_live"][rows].max())
        if varying < highest:
            sentences.append(
                f"tile_memory: variableNotAlwaysLive of IPU {name} is {varying} bytes at its peak, "
                f"liveness reaches {highest}"
            )
    if len(tile_bytes) and bool((tile_bytes > limit).any()) != trace.meta["oom"]:
        sentences.append(f"meta.oom is {trace.meta['oom']}, the fullest tile holds {tile_bytes.max()} of {limit} bytes")
    intervals = trace.columns("live_intervals")
    if (intervals["step_from"] >= intervals["step_to"]).any():
        sentences.append(f"live_intervals: empty ({_rows(intervals['step_from'] >= intervals['step_to'])})")
    sentences += _code(trace)
    for table in ("variables", "code", "tile_runs"):
        columns = trace.columns(table)
        bad = columns["tile_to"] < columns["tile_from"]
        if bad.any():
            sentences.append(f"{table}: tiles are not a range ({_rows(bad)})")
    return sentences


def _code(trace: TraceTables) -> list[str]:
    """Tiles where the code of the ops is not that of the tile."""
    code, memory = trace.columns("code"), trace.columns("tile_memory")
    if not len(code["bytes"]):
        return []
    sentences, tiles = [], trace.meta["tiles_per_ipu"]
    for ipu in np.unique(code["ipu"]).tolist():
        for category in sorted(set(code["category"][code["ipu"] == ipu].tolist())):
            rows, held = ((table["ipu"] == ipu) & (table["category"] == category) for table in (code, memory))
            begin, end = code["tile_from"][rows], code["tile_to"][rows]
            share = code["bytes"][rows] // np.maximum(end - begin, 1)
            # The bytes of a tile are added at its begin and taken away at its end.
            change = np.zeros(tiles + 1, dtype=np.int64)
            np.add.at(change, begin, share)
            np.add.at(change, end, -share)
            np.add.at(change, memory["tile"][held], -memory["bytes"][held])
            np.add.at(change, memory["tile"][held] + 1, memory["bytes"][held])
            if (wrong := np.flatnonzero(np.cumsum(change))).size:
                sentences.append(f"code: {category} of IPU {ipu} is not that of tile_memory (tile {wrong[0]})")
    return sentences


def _links(trace: TraceTables) -> list[str]:
    links, transfers = trace.columns("links"), trace.columns("transfers")
    sentences = []
    for link_id, name, rate in zip(links["link_id"], links["name"], links["bandwidth_bytes_per_s"], strict=True):
        rows = np.flatnonzero(transfers["link_id"] == link_id)
        # `union_length` needs intervals in order of start.
        rows = rows[np.argsort(transfers["start"][rows], kind="stable")]
        busy = union_length(transfers["start"][rows], transfers["start"][rows] + transfers["dur"][rows])
        moved = int(transfers["bytes"][rows].sum())
        capacity = rate * trace.seconds(busy + len(rows))  # a transfer ends at a whole cycle
        # Bandwidths are floats, so the bound leaves room for rounding.
        if moved > capacity * (1 + 1e-6):
            sentences.append(
                f"links: {name} moves {moved} bytes in {busy} busy cycles, its bandwidth allows {capacity:.0f}"
            )
    return sentences


_RULES: tuple[Callable[[TraceTables], list[str]], ...] = (
    _steps,
    _loops,
    _instances,
    _runs,
    _memory,
    _links,
)


def check(trace: TraceTables) -> list[str]:
    """The faults of a trace, a sentence for each; empty if there are none.

    Rules: nothing negative, too large or out of place; references lead somewhere; mean <= slowest tile; the steps of
    one lane of a segment do not overlap, trips of a loop do not, and both fit into every instance; one lane of an IPU
    runs one instance at a time (busy <= elapsed); instances lie within their run; the fullest tile lies between the
    mean and the total; peaks are not below any step; no link moves more than its bandwidth allows.
    """
    sentences = damages(trace)
    # The rules expand rows and compute with them, so they run only on tables without damage.
    return sentences if sentences else [text for rule in _RULES for text in rule(trace)]


def damages(trace: TraceTables) -> list[str]:
    """Faults that no trace may have: numbers out of range, places that do not exist, identifiers without a row.

    They are found without making the rows of folded tables.
    """
    return [text for rule in (ranges, counts, references) for text in rule(trace)]

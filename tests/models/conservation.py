"""Laws of conservation that hold in every trace, each a function that asserts it.

The sums are made here, with pandas and NumPy, from the tables of the trace, and not by ``ipuperf.trace.check``.
"""

import numpy as np
import pandas as pd
import pytest

from ipuperf.trace import Trace


def _flows(trace: Trace) -> pd.DataFrame:
    """One row per transfer: where it begins and ends, followed along the links that it crosses."""
    rows = trace.table("transfers").merge(trace.table("links")[["link_id", "source", "destination"]], on="link_id")
    ends = pd.concat(
        [
            rows[["transfer", "source"]].rename(columns={"source": "node"}).assign(balance=1),
            rows[["transfer", "destination"]].rename(columns={"destination": "node"}).assign(balance=-1),
        ]
    )
    balance = ends.groupby(["transfer", "node"])["balance"].sum()
    assert set(balance.unique()) <= {-1, 0, 1}, "a transfer branches"
    first, last = (balance[balance == side].reset_index().set_index("transfer")["node"] for side in (1, -1))
    assert first.index.is_unique
    assert last.index.is_unique
    same = rows.groupby("transfer").agg(
        {key: ["min", "max"] for key in ("bytes", "start", "dur", "op_id")} | {"kind": ["first", "nunique"]}
    )
    for key in ("bytes", "start", "dur", "op_id"):
        assert (same[key, "min"] == same[key, "max"]).all(), f"links of one transfer have different {key}"
    flows = same.xs("max", axis=1, level=1).assign(kind=same["kind", "first"], source=first, destination=last)
    assert flows.notna().all().all(), "a transfer goes round in a circle"
    return flows


def everything_sent_arrives(trace: Trace, slices: pd.DataFrame) -> None:
    """Bytes of every exchange: the tiles of an IPU, the IPUs of an exchange, each op, each end of the links."""
    exchange = slices[slices["kind"] == "exchange"]  # a copy between tile sets is one exchange of both lanes
    moved = exchange.groupby(["ipu", "op_id", "start"])[["bytes_in", "bytes_out"]].sum()
    assert (moved["bytes_in"] == moved["bytes_out"]).all(), moved[moved["bytes_in"] != moved["bytes_out"]]
    links = slices[slices["kind"] == "link"]
    for keys in (["op_id"], ["op_id", "start"]):  # IPUs of all replicas begin a round of a collective together
        sums = links.groupby(keys)[["bytes_in", "bytes_out"]].sum()
        assert (sums["bytes_in"] == sums["bytes_out"]).all(), sums[sums["bytes_in"] != sums["bytes_out"]]
    flows = _flows(trace)
    for kinds, column, end in (
        (("link",), "bytes_out", "source"),
        (("link",), "bytes_in", "destination"),
        (("host_mid",), "bytes_in", "destination"),
        (("host_mid",), "bytes_out", "source"),
    ):
        table = flows[flows["kind"].eq("stream") == (kinds == ("host_mid",))]
        table = table[~table["kind"].isin(["remote_load", "remote_store"])]
        there = table[table[end].str.startswith("ipu")]
        by_link = there.groupby(["op_id", there[end].str.removeprefix("ipu").astype(int)])["bytes"].sum()
        by_ipu = slices[slices["kind"].isin(kinds)].groupby(["op_id", "ipu"])[column].sum()
        left = by_ipu[by_ipu > 0].sub(by_link, fill_value=0)
        assert (left == 0).all(), (kinds, column, left[left != 0])
    for kind, column, end in (("remote_load", "bytes_in", "destination"), ("remote_store", "bytes_out", "source")):
        table = flows[flows["kind"] == kind]
        by_link = table.groupby(["op_id", table[end].str.removeprefix("ipu").astype(int)])["bytes"].sum()
        by_ipu = slices[slices["kind"] == kind].groupby(["op_id", "ipu"])[column].sum()
        by_ipu = by_ipu[by_ipu > 0]
        assert set(by_ipu.index) == set(by_link.index)
        assert (by_link >= by_ipu).all(), "small accesses are rounded up, never down"


def nobody_is_busier_than_time(trace: Trace, slices: pd.DataFrame) -> None:
    """Each IPU does one thing at a time; each link moves no more than its rate, between its first and last moment."""
    run = trace.table("runs")["dur"].iloc[0]
    for _, own in slices.groupby(["replica", "ipu", "lane"]):
        starts, ends = own["start"].to_numpy(), (own["start"] + own["dur"]).to_numpy()
        assert (starts[1:] >= ends[:-1]).all()
        assert own["dur"].sum() <= run
        assert starts[0] >= 0
        assert ends.max() <= run
    moved, links = trace.table("transfers"), trace.table("links").set_index("link_id")
    for link, own in moved.groupby("link_id"):
        busy, until = 0, 0
        for start, end in zip(own["start"], own["start"] + own["dur"], strict=True):  # by start
            busy += max(0, end - max(start, until))
            until = max(until, end)
        assert busy <= until <= run
        room = (busy + len(own)) * links.loc[link, "bandwidth_bytes_per_s"] / trace.meta["clock_hz"]
        assert own["bytes"].sum() <= room
    totals = trace.totals()
    assert (totals["elapsed"] <= run).all()


def phases_add_up(trace: Trace, slices: pd.DataFrame) -> None:
    """Cycles by kind, by what an op is for, and by op: each adds up to the run on every IPU."""
    run = trace.table("runs")["dur"].iloc[0]
    ops = trace.table("ops").set_index("op_id")["phase"]
    main = slices[slices["lane"] == 0].assign(phase=lambda s: s["op_id"].map(ops).fillna("other"))
    for key in ("kind", "phase", "op_id"):
        sums = main.groupby(["ipu", key], observed=True)["dur"].sum()
        assert (sums >= 0).all()
        assert (sums.groupby("ipu").sum() == run).all()
    whole = trace.totals()
    kinds = slices.groupby(["ipu", "kind"], observed=False)["dur"].sum().unstack()
    assert len(whole) == len(kinds)
    for _, row in whole.iterrows():
        assert (row[kinds.columns] == kinds.loc[row["ipu"]]).all()


def memory_adds_up(trace: Trace) -> None:
    """Live bytes of each step, and of its fullest tile, from the variables and their intervals."""
    variables, memory, liveness = (trace.table(name) for name in ("variables", "tile_memory", "liveness"))
    assert (variables["bytes"] >= 0).all()
    assert (variables["tile_to"] > variables["tile_from"]).all()
    variables = variables[variables["location"] == "tile"]
    for ipu, steps in liveness.groupby("ipu"):
        count = len(steps)
        own = variables[variables["ipu"] == ipu].merge(trace.table("live_intervals"), on="class_id")
        assert ((own["step_from"] >= 0) & (own["step_to"] <= count)).all()
        change = np.zeros(count + 1, dtype=np.int64)
        np.add.at(change, own["step_from"], own["bytes"])
        np.add.at(change, own["step_to"], -own["bytes"])
        live = np.cumsum(change)[:-1]
        np.testing.assert_array_equal(live, steps["not_always_live"])
        assert (live >= 0).all()
        held = memory[memory["ipu"] == ipu].pivot_table(
            index="tile", columns="category", values="bytes", aggfunc="sum", fill_value=0
        )
        varying = held.pop("variableNotAlwaysLive") if "variableNotAlwaysLive" in held else 0 * held.sum(axis=1)
        fixed = held.sum(axis=1).reindex(range(trace.meta["tiles_per_ipu"]), fill_value=0).to_numpy()
        assert (steps["always_live"] == fixed.sum()).all()
        code = trace.table("code").query("ipu == @ipu")
        assert set(code["category"]) == set(held.columns)
        for category, pieces in code.groupby("category"):
            tiles = np.zeros(len(fixed), dtype=np.int64)
            for first, last, size in zip(pieces["tile_from"], pieces["tile_to"], pieces["bytes"], strict=True):
                assert size % (last - first) == 0
                tiles[first:last] += size // (last - first)
            np.testing.assert_array_equal(tiles, held[category].reindex(range(len(fixed)), fill_value=0))
        assert varying.sum() >= live.max()
        assert (fixed + varying.reindex(range(len(fixed)), fill_value=0)).max() >= steps["max_tile"].max()
        assert (steps["max_tile"] * len(fixed) >= live + fixed.sum()).all()
        for step in {0, count // 2, count - 1, int(np.argmax(live)), int(np.argmax(steps["max_tile"]))}:
            tiles = fixed.astype(np.float64)
            now = own[(own["step_from"] <= step) & (step < own["step_to"])]
            for first, last, size in zip(now["tile_from"], now["tile_to"], now["bytes"], strict=True):
                tiles[first:last] += size / (last - first)
            row = steps.iloc[step]
            assert tiles.max() == pytest.approx(row["max_tile"], abs=1e-3)
            assert tiles[row["argmax_tile"]] == pytest.approx(tiles.max(), abs=1e-3)


def flops_add_up(trace: Trace, slices: pd.DataFrame) -> None:
    """Each call of an op does what the op says: whole calls, as many on each replica, as many as are counted."""
    each = trace.table("ops").set_index("op_id")
    done = slices.assign(flops=_flops_of(trace, slices))
    sums = done[done["op_id"] >= 0].groupby(["op_id", "replica"])["flops"].sum()
    flops = each["flops"].reindex(sums.index.get_level_values("op_id")).to_numpy()
    assert (sums[flops == 0] == 0).all()
    sums, flops = sums[flops > 0], flops[flops > 0]
    assert (sums % flops == 0).all()
    calls = (sums // flops).unstack()
    assert (calls.nunique(axis=1) == 1).all()
    counted = trace.operations().groupby("op")["calls"].sum()
    names = calls.index.map(each["name"])
    assert (calls.sum(axis=1).groupby(names).sum() == counted.reindex(sorted(set(names)))).all()


def _flops_of(trace: Trace, slices: pd.DataFrame) -> np.ndarray:
    """Flops of each slice: those of the step of its segment that stands for it (a loop's steps stand once)."""
    keys = ["segment", "op_id", "program_id", "kind"]
    steps = trace.table("steps").astype({"kind": str})[[*keys, "flops"]].drop_duplicates()
    assert not steps.duplicated(keys).any(), "one step of a program does different work"
    segments = trace.table("instances").set_index("instance")["segment"]
    rows = slices.assign(segment=slices["instance"].map(segments), kind=slices["kind"].astype(str))[keys]
    return rows.merge(steps, on=keys, how="left", validate="many_to_one")["flops"].to_numpy()


def conserves(trace: Trace) -> None:
    """All laws."""
    slices = trace.expand()
    everything_sent_arrives(trace, slices)
    nobody_is_busier_than_time(trace, slices)
    phases_add_up(trace, slices)
    memory_adds_up(trace)
    flops_add_up(trace, slices)

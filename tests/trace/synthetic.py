"""A made-up pipelined program as a trace, written by hand so that tests know every figure.

Each IPU owns a forward, a backward and an update segment (a few layers each); micro-batches walk through the IPUs and
back; IPU 0 has host I/O, the last step of a run is an update with remote loads and stores. Every template is stored
once and instanced for each micro-batch and run.
"""

from __future__ import annotations

import numpy as np

from ipuperf.trace import TABLES, Trace

CLOCK = 1_850_000_000
TILES = 1472
TILE_BYTES = 638_976


class Builder:
    """Rows of every table, appended by name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple]] = {name: [] for name in TABLES}

    def add(self, table: str, *values: object) -> int:
        assert len(values) == len(TABLES[table].columns), (table, values)
        self.rows[table].append(values)
        return len(self.rows[table]) - 1

    def trace(self, **meta: object) -> Trace:
        tables = {}
        for name, rows in self.rows.items():
            names = TABLES[name].column_names
            tables[name] = {key: [row[place] for row in rows] for place, key in enumerate(names)} if rows else {}
        given = {"machine": "synthetic", "clock_hz": CLOCK, "tiles_per_ipu": TILES, "bytes_per_tile": TILE_BYTES}
        return Trace({**given, "num_ipus": 1, **meta}, tables)


def add_segment(build: Builder, segment: int, ipu: int, phase: str, steps: list[tuple[str, str, int]]) -> int:
    """One segment of (op name, kind, cycles) steps in lane 0, exchange moving 8 bytes a cycle. Returns its extent."""
    at = 0
    types = {"exchange": "DoExchange", "compute": "OnTileExecute", "link": "GlobalExchange", "sync": "Sync"}
    for seq, (name, kind, dur) in enumerate(steps):
        op_names = {row[1]: row[0] for row in build.rows["ops"]}
        op_id = op_names.get(name, -1)
        if name and op_id < 0:
            op_id = len(op_names)
            kind_of = name.rsplit("/", 1)[-1]
            build.add("ops", op_id, name, kind_of, "main", phase, 1000 * dur, f"model.py:{op_id + 1}", "float16")
        program = len(build.rows["programs"])
        build.add("programs", program, -1, program, types.get(kind, "StreamCopyMid"), f"{name}/{kind}", op_id, ipu)
        moved = 0 if kind in ("compute", "sync", "sync_external", "idle") else 8 * dur
        mean = dur * 0.75 if kind == "compute" else float(dur)
        flops = 1000 * dur if kind == "compute" else 0
        row = (segment, seq, program, op_id, kind, at, dur, mean, TILES, 7, moved, moved, flops, 0, -1)
        build.add("steps", *row)
        at += dur
    return at


def layer_steps(name: str, cycles: int) -> list[tuple[str, str, int]]:
    """Exchange, sync, compute, sync of one layer."""
    return [
        (f"{name}/MatMul", "exchange", cycles // 3),
        (f"{name}/MatMul", "sync", 60),
        (f"{name}/MatMul", "compute", cycles),
        (f"{name}/Gelu", "sync", 60),
        (f"{name}/Gelu", "compute", cycles // 4),
    ]


def add_memory(build: Builder, ipus: int, scale: float, tiles: int = TILES) -> None:
    """Tile memory with a ragged edge, and 8 bumps of liveness, for each IPU."""
    tile = np.arange(tiles)
    for ipu in range(ipus):
        fixed = {
            "variableAlwaysLive": 180_000 + 20_000 * ipu + (tile < 1000) * 30_000,
            "variableNotAlwaysLive": 120_000 + (40_000 * np.sin(tile / 90) ** 2).astype(int),
            "vertexCode": 24_000 + 0 * tile,
            "vertexInstanceState": 9_000 + (tile % 7) * 300,
            "controlCode": 16_000 + 0 * tile,
            "internalExchangeCode": 30_000 + (tile % 64) * 100,
            "constant": 2_000 + 0 * tile,
            "stack": 3_000 + 0 * tile,
            "gaps": (tile % 5) * 800,
        }
        for category, values in fixed.items():
            for number, value in zip(tile, np.asarray(values * scale).astype(int)):
                build.add("tile_memory", ipu, int(number), category, int(value))
        always = int(180_000 * tiles * scale)
        for step in range(200):
            bump = abs(np.sin(np.pi * step / 25)) if step < 190 else 0.1
            varying = int((20_000 + 80_000 * bump) * tiles * scale * (1 - 0.1 * min(ipu, 5)))
            fullest = int((always + varying) / tiles * 1.2)
            build.add("liveness", ipu, step, f"step{step % 25}", always, varying, fullest, 7)
        build.add(
            "variables", ipu, f"w{ipu}", -1, "weight", "float16", ipu, 0, tiles, 180_000 * tiles, True, "tile", ipu
        )
        build.add("live_intervals", ipu, 0, 200)


def add_links(build: Builder, ipus: int) -> None:
    """A link each way between neighbours."""
    for ipu in range(ipus - 1):
        for source, target in ((ipu, ipu + 1), (ipu + 1, ipu)):
            number = len(build.rows["links"])
            name = f"ipu{source}->ipu{target}"
            build.add("links", number, name, "ipu_link", f"ipu{source}", f"ipu{target}", 64e9, 500)


def pipeline_trace(
    ipus: int = 4,
    micro_batches: int = 8,
    runs: int = 2,
    layers: int = 3,
    scale: float = 1.0,
    speed: float = 1.0,
    memory: bool = True,
) -> Trace:
    """The whole made-up program; ``scale`` multiplies memory, ``speed`` divides compute."""
    build = Builder()
    work = int(9000 / speed)
    extents = []
    for ipu in range(ipus):
        load = [("x", "host_begin", 800), ("x", "host_mid", 2500), ("x", "host_end", 100)] if ipu == 0 else []
        send = [("send", "link", 1500)] if ipu < ipus - 1 else [("loss/Nll", "compute", 2000)]
        forward = load + [s for k in range(layers) for s in layer_steps(f"fwd{ipu}.{k}", work)] + send
        back = [s for k in range(layers) for s in layer_steps(f"bwd{ipu}.{k}", 2 * work)]
        back += [("send_grad", "link", 1500)] if ipu else []
        update = [
            ("", "sync_external", 400),
            (f"adam{ipu}/Load", "remote_load", 9000),
            (f"adam{ipu}/Adam", "compute", 7000),
        ]
        update += [(f"adam{ipu}/Store", "remote_store", 6000)]
        lists = (("fwd", forward), ("bwd", back), ("update", update))
        extents.append([add_segment(build, 3 * ipu + k, ipu, phase, steps) for k, (phase, steps) in enumerate(lists)])
    add_links(build, ipus)
    start = 0
    for run in range(runs):
        end = add_run(build, run, start, extents, micro_batches)
        build.add("runs", run, f"session.run #{run}", start, end - start)
        build.add("host_events", "session.run", "popxl", start, end - start)
        build.add("host_events", "load batch", "data loader", start, (end - start) // 3)
        start = end + 20_000
    if memory:
        add_memory(build, ipus, scale)
    return build.trace(num_ipus=ipus, assumptions=["made up for tests"])


def add_run(build: Builder, run: int, start: int, extents: list[list[int]], micro_batches: int) -> int:
    """All instances of one run: forward of every micro-batch, then backward, then updates. Returns its end."""
    ipus = len(extents)
    free = [start + 5_000] * ipus

    def instance(segment: int, ipu: int, micro_batch: int, begin: int, dur: int) -> int:
        row = (len(build.rows["instances"]), segment, ipu, 0, micro_batch, run, begin, dur, run)
        build.add("instances", *row)
        free[ipu] = begin + dur
        return begin + dur

    for phase, order in ((0, range(ipus)), (1, range(ipus - 1, -1, -1))):
        for micro_batch in range(micro_batches):
            ready = start
            for ipu in order:
                begin = max(ready, free[ipu])
                ready = instance(3 * ipu + phase, ipu, micro_batch, begin, extents[ipu][phase])
                other = ipu + 1 if phase == 0 else ipu - 1
                if 0 <= other < ipus:
                    number = len(build.rows["transfers"])
                    link = 2 * min(ipu, other) + (other < ipu)
                    build.add("transfers", number, link, ready - 1500, 1500, 50_000, -1, "p2p", ipu)
    latest = max(free)
    for ipu in range(ipus):
        instance(3 * ipu + 2, ipu, -1, latest, extents[ipu][2])
    return max(free) + 1_000

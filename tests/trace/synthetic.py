"""A made-up pipelined program as a trace, written by hand so that tests know every figure.

Each IPU owns a forward, a backward and an update segment (a few layers each); micro-batches walk through the IPUs and
back; IPU 0 has host I/O, the last step of a run is an update with remote loads and stores. Every template is stored
once and instanced for each micro-batch and run.
"""

import numpy as np

from ipuperf.trace import TABLES, FoldedHostEvents, FoldedInstances, FoldedTransfers, Trace
from ipuperf.trace.folded import FoldedTable

CLOCK = 1_850_000_000
TILES = 1472
TILE_BYTES = 638_976


class Builder:
    """Rows of every table, appended by name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple]] = {name: [] for name in TABLES}

    def add(self, table: str, *values: object) -> int:
        if table == "ops":  # the module of a synthetic op: the scopes of its name
            name, graph = str(values[1]), values[3]
            values = (*values, name.removeprefix(f"{graph}/").rpartition("/")[0].replace("/", ".") or graph)
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


RICH = {
    "tiles_per_ipu": 6,
    "bytes_per_tile": 1000,
    "num_ipus": 6,
    "replicas": 3,
    "clock_hz": 10**9,
    "program": "<rich>",
}


def rich_trace() -> Trace:
    """Folded tables and loops inside segments: a pipeline of two IPUs on three replicas, two of which do the same. All
    phases and most kinds of steps, transfers and memory; rows in no order, parts that are empty or take no time."""
    build = Builder()
    for op in (
        (9, "net/a/MatMul", "MatMul", "net", "fwd", 64, "m.py:3", "float16"),
        (2, "net/b/Gelu", "Gelu", "net", "recompute", 7, "m.py:4", "float32"),
        (5, "net/recompute/c/Add", "Add", "net", "bwd", 3, "", "float16"),
        (7, "net/sgd/Update", "Sgd", "net", "update", 0, "m.py:9", ""),
        (0, "in/Load", "HostLoad", "in", "io", 0, "m.py:1", "int32"),
        (4, "out/Reduce", "AllReduce", "", "other", 0, "m.py:12", "float16"),
    ):
        build.add("ops", *op)
    for loop in ((3, -1, 3, 16), (8, 3, 2, 4), (6, -1, 1, 9)):
        build.add("loops", *loop)
    rows = ((11, "host_run", -1, 0, 50, 0.0, 0, 0, -1), (11, "host_begin", 0, 50, 7, 0.0, 0, 0, -1))
    rows += ((11, "host_mid", 0, 57, 20, 12.125, 40, 0, -1), (11, "host_end", 0, 77, 3, 0.0, 0, 0, -1))
    rows += ((10, "exchange", 9, 0, 6, 5.5, 48, 0, -1), (10, "sync", 9, 6, 2, 2.0, 0, 0, -1))
    rows += ((10, "compute", 9, 8, 30, 21.375, 0, 0, -1), (10, "exchange", 2, 40, 5, 4.25, 12, 0, 3))
    rows += ((10, "compute", 2, 46, 4, 3.125, 0, 0, 8), (10, "sync", 2, 87, 0, 0.0, 0, 0, -1))
    rows += ((10, "compute", 5, 88, 9, 8.9, 0, 0, 6), (10, "link", 4, 97, 9, 9.0, 90, 0, -1))
    rows += ((10, "remote_load", 7, 3, 25, 25.0, 500, 1, -1), (20, "sync_external", -1, 0, 40, 40.0, 0, 0, -1))
    rows += ((20, "compute", 5, 40, 33, 30.0, 0, 0, -1), (20, "compute", 2, 73, 12, 1.0, 0, 0, -1))
    rows += ((20, "link", 4, 85, 10, 10.0, 90, 0, -1), (21, "remote_load", 7, 0, 11, 11.0, 300, 0, -1))
    rows += ((21, "compute", 7, 11, 14, 14.0, 0, 0, -1), (21, "remote_store", 7, 25, 8, 8.0, 200, 0, -1))
    rows += ((21, "idle", -1, 33, 5, 0.0, 0, 0, -1),)
    for number, (segment, kind, op, start, dur, mean, moved, lane, loop) in enumerate(reversed(rows)):
        flops = 8 * dur if kind == "compute" else 0
        tiles = 0 if kind == "idle" else 6 if kind != "compute" else 5
        program = number if op >= 0 else -1
        if op >= 0:
            kinds = {"compute": "OnTileExecute", "exchange": "DoExchange", "link": "GlobalExchange", "sync": "Sync"}
            build.add("programs", program, -1, number, kinds.get(kind, "StreamCopyMid"), f"{kind}.{op}", op, -1)
        slowest = start % 6 if kind == "compute" else -1
        build.add(
            "steps",
            segment,
            len(rows) - number,
            program,
            op,
            kind,
            start,
            dur,
            mean,
            tiles,
            slowest,
            moved,
            moved // 2,
            flops,
            lane,
            loop,
        )
    for plan in (
        (9, 0, 1, 40, 6, 80, "Conv", "1 x 2"),
        (9, 0, 0, 30, 5, 64, "Conv", "2 x 1"),
        (9, 1, 0, 30, 5, 64, "Conv", "2 x 1"),
        (5, 0, 0, 7, 1, 0, "Mac", "1"),
    ):
        build.add("plans", *plan)
    _rich_memory(build)
    for link in (
        (1, "a->b", "ipu_link", "ipu0", "ipu1", 64e9, 5),
        (0, "b->a", "ipu_link", "ipu1", "ipu0", 64e9, 5),
        (4, "c->d", "ipu_link", "ipu2", "ipu3", 32e9, 5),
        (5, "e->f", "gw_link", "ipu4", "ipu5", 16e9, 9),
        (7, "unused", "ddr", "gw0", "ddr0", 20e9, 0),
        (8, "host", "host_pcie", "host", "ipu0", 8e9, 3),
    ):
        build.add("links", *link)
    for counter in (("queue", 0, 1.5), ("queue", 90, 0.25), ("depth", 30, 4.0)):
        build.add("counters", *counter)
    build.add("runs", 0, "session.run", 0, 1000)
    peaks = {"float16": 64, "float32": 16}
    notes = {"warnings": ["low confidence: v"], "assumptions": ["made up"], "peak_flops_per_cycle": peaks}
    plain = build.trace(**RICH, **notes)
    tables = {name: plain.columns(name) for name in TABLES}
    return Trace(plain.meta, {**tables, **_rich_folded()})


def _rich_memory(build: Builder) -> None:
    fixed = {"variableAlwaysLive": 300, "variableNotAlwaysLive": 250, "vertexCode": 90, "constant": 20, "gaps": 11}
    for ipu in (1, 0):
        for tile in (4, 0, 1, 2):
            for place, (category, size) in enumerate(fixed.items()):
                build.add("tile_memory", ipu, tile, category, size + tile * place + 40 * ipu)
        build.add("tile_memory", ipu, 4, "vertexCode", 5)
        always, step = 1200 + 160 * ipu, 0
        for step in (2, 0, 1, 3):
            name = ("compute.9", "exchange.9", "compute.5", "compute.2")[step]
            varying = (0, 640, 910, 400)[step]
            build.add("liveness", ipu, step, name, always, varying, (400, 530, 560, 470)[step], step)
    for variable in (
        (3, "w", 7, "weight", "float16", 0, 0, 3, 600, True, "tile", 0),
        (3, "w", 7, "weight", "float16", 0, 4, 5, 200, True, "tile", 0),
        (0, "y", 9, "output", "float16", 0, 0, 2, 300, False, "tile", 2),
        (0, "y", 9, "output", "float16", 0, 2, 3, 90, False, "tile", 2),
        (1, "t", 9, "temporary", "float32", 0, 4, 5, 250, False, "tile", 1),
        (2, "z", 5, "output", "float16", 0, 0, 1, 640, False, "tile", 4),
        (5, "v", 5, "output", "float16", 1, 0, 4, 910, False, "tile", 2),
        (6, "r", -1, "weight", "float16", 0, 0, 0, 5000, True, "remote", 0),
        (7, "u", -1, "constant", "int32", 1, 1, 2, 33, True, "tile", 0),
    ):
        build.add("variables", *variable)
    for interval in ((2, 1, 3), (1, 3, 4), (4, 1, 2), (1, 2, 3), (0, 0, 4)):
        build.add("live_intervals", *interval)


def _rich_folded() -> dict[str, FoldedTable]:
    """Four trips of both IPUs between a beginning and an end; the third replica is later and slower."""

    def whole(**columns: list) -> dict[str, np.ndarray]:
        return {name: np.array(values, dtype=np.int64) for name, values in columns.items()}

    instances = whole(
        parent=[-1, -1], count=[4, 4], period=[150, 160], repeat=[-1, 0, 0, -1, -1, -1, 1, 1, -1, -1],
        start=[0, 80, 186, 700, 790, 0, 90, 200, 745, 850], dur=[80, 110, 96, 38, 38, 80, 106, 95, 38, 38],
        segment=[11, 10, 20, 21, 21, 11, 10, 20, 21, 21],
        process=[0, 0, 1, 0, 1, 2, 2, 3, 2, 3], number=list(range(10)),
        micro_batch=[-1, 0, 0, -1, -1, -1, 0, 0, -1, -1], iteration=[-1, 0, 0, -1, -1, -1, 0, 0, -1, -1],
        of=[0, 1, 0, 1, 2, 3], own=[0, 1, 2, 3, 4, 5], replica=[0, 0, 1, 1, 2, 2], ipu=[0, 1, 2, 3, 4, 5],
        micro_batch_steps=[[0], [1], [1], [0], [0], [0], [1], [1], [0], [0]],
        iteration_steps=[[0], [1], [1], [0], [0], [0], [1], [1], [0], [0]],
    )  # fmt: skip
    transfers = whole(
        parent=[-1], count=[4], period=[150], start=[57, 177, 271, 830, 900, 184, 905], dur=[20, 9, 10, 60, 0, 6, 0],
        repeat=[-1, 0, 0, -1, -1, -1, -1],
        template=[0, 1, 2, 3, 4, 1, 5], bytes=[40, 90, 90, 200, 10, 12], op_id=[0, 4, 4, 4, -1, -1],
        kind=[1, 0, 0, 2, 0, 1], owner=[0] * 6, number=[0] * 6,
        first=[0, 1, 4, 5, 7, 8], sends=[1, 3, 1, 2, 1, 1], rank=[0, 0, 1, 2, 0, 0, 1, 0, 3],
        ipu=[0, 0, 2, 4, 1, 0, 1, 0, 2],
        link_first=[0, 1, 2, 3, 4, 5, 7, 8, 9], links=[1, 1, 1, 1, 1, 2, 1, 1, 1],
        link_id=[8, 1, 4, 5, 0, 1, 0, 0, 1, 7],
    )  # fmt: skip
    events = whole(
        parent=[-1], count=[4], period=[150], start=[0, 5, 60, 60], dur=[1000, 40, 30, 0], repeat=[-1, -1, 0, 0],
        line=[0, 1, 2, 1], order=[0, 2, 1],
    )  # fmt: skip
    return {
        "instances": FoldedInstances(instances),
        "transfers": FoldedTransfers(transfers, {"kinds": ("p2p", "stream", "all_reduce")}),
        "host_events": FoldedHostEvents(events, {"labels": ("session.run", "prepare", "handle")}),
    }

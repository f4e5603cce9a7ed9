"""Hand-made device programs for the tests of the simulation room."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from ipuperf.lowering.program import DeviceProgram, MemoryReport, OpInfo
from ipuperf.lowering.steps import (
    Call,
    Collective,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IpuTransfer,
    Phase,
    RemoteTransfer,
    Repeat,
    Sequence,
    StreamCopy,
    Sync,
)
from ipuperf.lowering.tilevector import TileVector
from ipuperf.machine import Topology, load_machine


def phase(cycles, kind="compute", name="p"):
    vector = TileVector.of(np.array(cycles if isinstance(cycles, list) else [cycles, 0]))
    return Phase(0, name, kind, vector, flops=7 if kind == "compute" else 0)


def sync(cycles=118):
    return Sync(0, "sync", cycles)


def load(nbytes, wire=None, name="load"):
    return RemoteTransfer(0, name, "load", nbytes, nbytes if wire is None else wire, 0)


def store(nbytes, name="store"):
    return RemoteTransfer(0, name, "store", nbytes, nbytes, 0)


def h2d(nbytes, stream="image"):
    return StreamCopy(0, f"h2d {stream}", "h2d", nbytes, stream)


def d2h(nbytes, stream="loss"):
    return StreamCopy(0, f"d2h {stream}", "d2h", nbytes, stream)


def collective(kind, nbytes, groups, reduce_cycles=0, name="collective", method="auto"):
    return Collective(0, name, kind, nbytes, groups, reduce_cycles, method)


def copy(source, destination, nbytes, name="copy"):
    return merged((source, destination, nbytes), name=name)


def merged(*copies, name="copy"):
    """One exchange of (source, destination, bytes)."""
    return InterIpuCopy(0, name, tuple(IpuTransfer(*copy) for copy in copies))


def host(*copies, ipus=(0, 1), name="io"):
    """One host exchange of (ipu, direction, bytes, stream)."""
    return HostExchange(0, name, tuple(HostCopy(*copy) for copy in copies), tuple(ipus))


def seq(*steps, name="main"):
    return Sequence(-1, name, tuple(steps))


def function(*steps):
    """The graph ``f`` with an op of its own: an op stands in one graph, so no step elsewhere is of the same op."""
    return seq(*(dataclasses.replace(step, op_id=1) for step in steps), name="f")


def repeat(count, *steps):
    return Repeat(-1, "loop", count, seq(*steps, name="body"))


def no_memory(ipus):
    empty = {i: np.zeros(0, dtype=np.int64) for i in range(ipus)}
    return MemoryReport(
        {i: {} for i in range(ipus)}, (), dict.fromkeys(range(ipus), ()), empty, empty, empty, empty, 638976
    )


OPS = (OpInfo(0, "op", "Op", "main", "fwd", 7), OpInfo(1, "inner", "Op", "f", "fwd", 7))


def program(*ipus, replicas=1, placement=None, functions=None, streams=None, memory=None):
    """A program of one sequence per IPU of a replica."""
    if placement is None:
        placement = tuple(tuple(r * len(ipus) + i for i in range(len(ipus))) for r in range(replicas))
    streams = streams or {"image": ("h2d", 0), "label": ("h2d", 0), "loss": ("d2h", 0)}
    return DeviceProgram(
        "test", "pod4", replicas, placement, ipus, functions or {}, OPS,
        memory or no_memory(len(ipus)), streams,
    )  # fmt: skip


#: bytes/s pinned here, so that calibrating the presets does not touch the hand-computed cycles
DDR, GATEWAY, PCIE, LINK = 16_000_000_000, 32_000_000_000, 5_500_000_000, 13_600_000_000


def machine(
    name="pod4", *, run=0.0, call=0.0, spread=0.0, host_sync=0.0, callback=0.0, answer=0.0, stream=0.0, remote=0.0,
    sync=0, latency=0, ddr=DDR, gateway_link=0,
):  # fmt: skip
    """A preset with pinned bandwidths and a clock of 1.325 GHz; fixed costs (seconds, cycles) are zero unless given."""
    made = load_machine(name)
    rates = {"ddr": lambda link: ddr, "ipu_link": lambda link: LINK * link.count}
    rates["gw_link"] = lambda link: gateway_link
    rates["pcie"] = lambda link: GATEWAY if "ipu" in link.source + link.destination else PCIE
    links = tuple(
        dataclasses.replace(
            link,
            bandwidth_bytes_per_s=rates[link.kind](link),
            latency_cycles={"ipu_link": latency, "gw_link": 7}.get(link.kind, 0),
        )
        for link in made.topology.links
    )
    host = dataclasses.replace(
        made.host,
        run_seconds=run,
        call_seconds=call,
        process_spread_seconds=spread,
        sync_seconds=host_sync,
        callback_seconds=callback,
        answer_seconds=answer,
        stream_latency_seconds=stream,
    )
    memory = dataclasses.replace(made.ipu_machine.streaming_memory, remote_transfer_seconds=remote)
    return dataclasses.replace(
        made,
        host=host,
        chip=dataclasses.replace(made.chip, external_sync_cycles=sync, clock_hz=1_325_000_000),
        ipu_machine=dataclasses.replace(made.ipu_machine, streaming_memory=memory, global_sync_cycles=sync),
        topology=Topology(links, made.topology.ipus),
    )


def random_step(rng):
    """Any step that needs no partner on another IPU of the replica."""
    nine = [rng.randint(0, 30) for _ in range(3)]
    choices = [
        lambda: phase(nine, rng.choice(["compute", "exchange"])),
        lambda: sync(rng.randint(0, 5)),
        lambda: load(rng.randint(0, 3000)),
        lambda: store(rng.randint(0, 3000)),
        lambda: h2d(rng.randint(0, 900), rng.choice(["image", "label"])),
        lambda: d2h(rng.randint(0, 900)),
        lambda: collective(
            rng.choice(["all_reduce", "reduce_scatter", "all_gather"]),
            rng.randint(0, 5000),
            rng.choice([((0, 1),), ((0,), (1,))]),
            rng.randint(0, 9),
        ),
        lambda: Call(-1, "call", "f"),
    ]
    return rng.choice([choices[0], *choices])()


def meeting(what, ipu, one, two):
    """A step for both IPUs of a replica: a copy, an exchange both ways, or a host exchange."""
    if what == 0:
        return copy(ipu, 1 - ipu, one)
    if what == 1:
        return merged((ipu, 1 - ipu, one), (1 - ipu, ipu, two))
    return host((ipu, "h2d", one, "image"), (ipu, "h2d", two, "label"), (one % 2, "d2h", two, "loss"))


def random_bodies(rng, depth):
    """Matching steps for the two IPUs of a replica, with nested loops on one or both of them."""
    both = ([], [])
    for _ in range(rng.randint(1, 4)):
        what, ipu = rng.randint(0, 6), rng.randint(0, 1)
        if what <= 2:
            both[ipu].append(random_step(rng))
        elif what == 3:
            step = meeting(rng.randint(0, 2), ipu, rng.randint(0, 5000), rng.randint(0, 900))
            both[0].append(step)
            both[1].append(step)
        elif what == 4 and depth:
            steps = [random_step(rng) for _ in range(rng.randint(1, 3))]
            both[ipu].append(repeat(rng.randint(1, 25), *steps))
        elif depth:
            count, inner = rng.randint(1, 20), random_bodies(rng, depth - 1)
            for steps, own in zip(both, inner):
                steps.append(repeat(count, *own))
    return both


def random_program(seed):
    """Two replicas of two IPUs that loop, copy, reduce and talk to host and DDR; the same for the same seed."""
    rng = random.Random(seed)
    one, two = random_bodies(rng, rng.choice([1, 2, 2, 3]))
    called = function(*(phase([rng.randint(0, 30)] * 2) for _ in range(rng.randint(0, 3))))
    return program(seq(*one), seq(*two), replicas=2, functions={"f": called})


def slices(trace, **where):
    """(ipu, kind, start, dur) of every slice, sorted by IPU and start."""
    found = trace.expand()
    for name, value in where.items():
        found = found[found[name] == value]
    return [(int(r.ipu), str(r.kind), int(r.start), int(r.dur)) for r in found.itertuples()]


def end(trace):
    """Cycles of the run."""
    return int(trace.columns("runs")["dur"][0])

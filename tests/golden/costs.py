"""Cases of costs: what they run, and the figures of it.

``ops``: each public function of PopXL and popxl.addons as the fuzz draws its calls, two small and two large ones, in a
graph that is called, with its gradient, where the function has one. ``programs``: small programs of several ops.
``schedules``: device programs that the simulation alone runs, by hand and at random.
"""

import itertools
import math
import random
from collections.abc import Iterator
from functools import partial
from unittest import mock

import numpy as np
import simprograms
from executables import Figures, figures, times
from fuzzing.ops import CASES, Device, Program, arrays
from fuzzing.ops.cases.base import shape_of
from fuzzing.ops.cases.special import REPLICAS
from programs import GROWING, PROGRAMS, QUICK, Build, drawn, encoder, ladder, reduced

from ipuperf.lowering.steps.collective import BROADCAST, METHODS
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate

Rows = Iterator[Figures]

# -- ops ---------------------------------------------------------------------------------------------------------------

LONGEST = (5, 5, 40, 40)
"""Of each draw, the longest axis of shapes."""


def op_rows(name: str) -> Rows:
    """The figures of some calls of a function."""
    for number in range(len(LONGEST)):
        program = op_program(name, number)
        device = Device(program, CASES[name], [arrays(program, i) for i in range(program.replicas)])
        shapes = [f"{role} {dtype}{shape}".replace(" any", "") for role, shape, dtype, *_ in program.operands]
        given = ", ".join([*shapes, *(f"{key}={value}" for key, value in program.arguments.items())])
        built = device.built(np.random.default_rng(number)).executable
        yield {"dtype": program.dtype, "call": given[:80], **figures(built)}


def op_program(name: str, number: int) -> Program:
    """A call of a function, the same each time: of four that are drawn, that with the most elements."""
    case, r = CASES[name], random.Random(f"{name} {number}")
    with mock.patch.object(shape_of, "__defaults__", (0, 3, LONGEST[number])):
        calls = [call for _ in range(40) if (call := case.draw(r)) is not None][:4]
    call = max(calls, key=lambda call: sum(math.prod(operand[1]) for operand in call[0]))
    around = "call" if "call" in case.around else case.around[0]
    dtypes = list(dict.fromkeys(case.dtypes))
    program = Program(number, name, dtypes[number % len(dtypes)], *call, around)
    program.replicas = REPLICAS if case.across else 1
    return program


OPS = {name: partial(op_rows, name) for name, case in CASES.items() if case.around != ("host",)}

# -- programs ----------------------------------------------------------------------------------------------------------

SEEDS = 42
"""Random PopXL programs: remote buffers, sharded variables, loops, calls, branches, streams, several replicas."""

PROGRAMS_BUILT = {
    **{name: PROGRAMS[name] for name in sorted(QUICK)},
    **{f"addons seed {seed}": partial(drawn, "addons", seed) for seed in range(8)},
    **{f"{schedule} of 3 stages": partial(encoder, schedule, 3)
       for schedule in ("grouped", "interleaved", "sequential", "sharded", "popart_pipeline")},
    **{f"{name}, {counts[0]}": partial(build, counts[0]) for name, (build, counts) in GROWING.items()},
    **{f"stages {order}, {replicas} replicas": ladder(order, replicas)
       for replicas in (1, 2) for order in ((0, 1, 2, 3), (2, 3, 0, 1))},
    **{f"sum over {replicas} replicas, {how}": reduced(replicas, how)
       for replicas in (2, 4, 8, 16) for how in ("whole", "steps")},
}  # fmt: skip


def program_rows(*builds: Build) -> Rows:
    """The figures of some programs."""
    for build in builds:
        yield figures(build())


RANDOM = {
    f"popxl seeds {seed} to {seed + 2}": [partial(drawn, "popxl", seed + n) for n in range(3)]
    for seed in range(0, SEEDS, 3)
}
"""Three at a time: a case that shows more is worth more than several that show little."""


# -- the simulation alone ----------------------------------------------------------------------------------------------

KINDS = ("all_reduce", "reduce_scatter", "all_gather")
MEMBERS = {
    "pod4": ((0, 1), (0, 2), (0, 1, 2, 3)),
    "pod16": (tuple(range(16)), tuple(range(0, 16, 2)), (1, 5, 9, 13), (0, 3, 4)),
    "pod64": (tuple(range(64)), tuple(range(0, 64, 4)), (0, 17, 34)),
}
"""IPUs of a collective, by machine."""


def collective_rows(machine: str, kind: str, method: str) -> Rows:
    """A small and a large collective among each group of IPUs."""
    for members in MEMBERS[machine]:
        if method == BROADCAST and len(members) > 16:
            continue  # each sends to each: 4,000 sends
        for size in (100, 3_000_001):
            step = simprograms.collective(kind, size, (tuple(range(len(members))),), 7, method=method)
            placement = tuple((ipu,) for ipu in members)
            main = simprograms.seq(simprograms.phase([9, 4]), step, simprograms.phase(3))
            program = simprograms.program(main, replicas=len(members), placement=placement)
            yield times(simulate(program, load_machine(machine)))


def scheduled_rows(*seeds: int) -> Rows:
    """Random device programs, with fixed costs and without, with each depth of prefetching."""
    slow = simprograms.machine(run=2e-6, call=1e-6, spread=3e-7, host_sync=5e-7, callback=4e-7, answer=6e-7,
                               stream=2e-7, remote=8e-7, sync=600, latency=50)  # fmt: skip
    for seed, machine, depth in itertools.product(seeds, (simprograms.machine(), slow), (1, 2)):
        yield times(simulate(simprograms.random_program(seed), machine, prefetch_depth=depth))


COLLECTIVES = {
    f"{kind} by {method} on {machine}": partial(collective_rows, machine, kind, method)
    for machine in MEMBERS
    for kind in KINDS
    for method in METHODS
}
SCHEDULES = {
    f"seeds {seed} to {seed + 2}": partial(scheduled_rows, seed, seed + 1, seed + 2) for seed in range(0, SEEDS, 3)
}

"""Configurations of a sweep on one core: machines, schedules, stages, accumulation and recomputation of an encoder."""

from __future__ import annotations

import statistics

from bounds import LOOP, Row, cpu_seconds, loop_seconds

CONFIGURATIONS = 96
NAME = "a configuration of a sweep"
BOUNDS = {NAME: 0.7}
FACTORS = {
    "machine": ("pod4", "pod16", "bow-pod4", "bow-pod16"),
    "config.schedule": ("popart_pipeline", "sequential"),
    "config.stages": (2, 4),
    "accumulation": (8, 16, 32),
    "recompute": ("none", "standard"),
    "precision": ("f16.16",),
    "optimiser": ("sgd",),
    "io": ("streams",),
    "micro_batch": (1,),
    "config.layers": (4,),
    "config.hidden": (128,),
    "config.heads": (2,),
    "config.sequence": (64,),
    "config.feed_forward": (512,),
}


def rows(repeats: int) -> list[Row]:
    """One row: the mean of :data:`CONFIGURATIONS`, by what a worker of a sweep does."""
    from ipuperf.lowering import Again
    from ipuperf.runtime.run_context import RUN
    from ipuperf.sweep import Sweep, work

    sweep = Sweep(FACTORS, model="encoder")
    configurations = sorted(sweep.configurations(), key=sweep.program_key)  # those of one program stand together
    assert len(configurations) == CONFIGURATIONS

    def ours() -> None:
        with RUN.fresh(Again):
            for row in work.rows(sweep, configurations):
                assert not row.get("failure"), row

    pairs = [(cpu_seconds(ours), loop_seconds()) for _ in range(min(repeats, 2))]
    seconds, reference = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [Row(NAME, seconds / CONFIGURATIONS, LOOP, reference)]

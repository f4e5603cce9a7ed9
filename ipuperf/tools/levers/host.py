"""Levers on how a program uses the host. They change options, not ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .rerun import Rerun
from .trial import Lever, Trial, Untried, changed


def _loads(run: Rerun) -> bool:
    """Whether the program loads anything from the host."""
    return any(direction == "h2d" for direction, _ in run.device_program.streams.values())


class PrefetchDepth(Lever):
    """The host prepares twice as many slices in advance."""

    change = "prefetch depth"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        depth = run.executable.host.prefetch_depth
        if _loads(run):
            # A depth of 0 becomes 1.
            more = 2 * depth or 1
            trace = changed(run.executable, prefetch_depth=more).trace
            yield Trial(f"raise the prefetch depth from {depth} to {more}", trace)


class HostProcesses(Lever):
    """Twice or half as many processes of the host serve the replicas.

    With more processes each has fewer callbacks, but a run waits longer for the last of them.
    """

    change = "host processes"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        processes, replicas = run.executable.host.host_processes, run.device_program.replicas
        if replicas == 1:
            yield self.untried("every replica has one already")
        # The number of processes must divide the replicas; the nearest possible numbers are tried.
        divisors = [count for count in range(1, replicas + 1) if replicas % count == 0]
        doubled = min((count for count in divisors if count >= 2 * processes), default=replicas)
        for count in (doubled, max(count for count in divisors if count <= max(processes // 2, 1))):
            if count != processes:
                advice = f"start {count} host process{'es' if count > 1 else ''} instead of {processes}"
                trace = changed(run.executable, host_processes=count).trace
                yield Trial(f"{advice} (poprun --num-instances {count})", trace)


class CallbackThreads(Lever):
    """The host runs callbacks in as many threads as there are replicas."""

    change = "callback threads"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.host.callback_threads == 1 and run.device_program.replicas > 1:
            # None stands for one thread for each replica.
            trace = changed(run.executable, callback_threads=None).trace
            options = "streamCallbacks.multiThreadMode 'dedicated'"
            yield Trial(f"run the host's callbacks in a thread per replica (engine option {options})", trace)


class SyncPatterns(Lever):
    """IPUs without host I/O go on while another IPU has host I/O."""

    change = "sync pattern"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.lowering.sync_pattern != "full" or len(run.device_program.ipus) == 1:
            return
        for pattern, option in (("single_pipeline", "SinglePipeline"), ("replica_and_ladder", "ReplicaAndLadder")):
            # The sync pattern decides which syncs are written, so this program is lowered anew.
            lowering = replace(run.executable.lowering, sync_pattern=pattern)
            executable = run.executable.on(run.executable.machine, lowering=lowering)
            yield Trial(
                f"let IPUs go on while another is at the host (poptorch.SyncPattern.{option})", executable.trace
            )

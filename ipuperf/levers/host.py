"""Levers on how a program makes use of the host: its options, not its ops."""

from __future__ import annotations

from collections.abc import Iterator

from .rerun import Rerun
from .trial import Lever, Trial, Untried, changed


def _loads(run: Rerun) -> bool:
    """Whether the program takes anything from the host."""
    return any(direction == "h2d" for direction, _ in run.device_program.streams.values())


class PrefetchDepth(Lever):
    """The host prepares twice as many slices ahead."""

    what = "prefetch depth"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        depth = run.executable.prefetch_depth
        if _loads(run):
            more = 2 * depth or 1
            trace = changed(run.executable, prefetch_depth=more).trace
            yield Trial(f"raise the prefetch depth from {depth} to {more}", trace)


class HostProcesses(Lever):
    """Twice or half as many processes of the host serve the replicas, or as near to that as divides the replicas: each
    has fewer callbacks, and a run waits longer for the last of them, or the other way round."""

    what = "host processes"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        now, replicas = run.executable.host_processes, run.device_program.replicas
        if replicas == 1:
            yield self.untried("every replica has one already")
        shared = [count for count in range(1, replicas + 1) if replicas % count == 0]
        more = min((count for count in shared if count >= 2 * now), default=replicas)
        for other in (more, max(count for count in shared if count <= max(now // 2, 1))):
            if other != now:
                what = f"start {other} host process{'es' if other > 1 else ''} instead of {now}"
                trace = changed(run.executable, host_processes=other).trace
                yield Trial(f"{what} (poprun --num-instances {other})", trace)


class CallbackThreads(Lever):
    """As many threads of the host run callbacks as there are replicas."""

    what = "callback threads"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.callback_threads == 1 and run.device_program.replicas > 1:
            trace = changed(run.executable, callback_threads=None).trace
            options = "streamCallbacks.multiThreadMode 'dedicated'"
            yield Trial(f"run the host's callbacks in a thread per replica (engine option {options})", trace)


class SyncPatterns(Lever):
    """IPUs without host I/O do not stand while another has it."""

    what = "sync pattern"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.sync_pattern != "full" or len(run.device_program.ipus) == 1:
            return
        for pattern, option in (("single_pipeline", "SinglePipeline"), ("replica_and_ladder", "ReplicaAndLadder")):
            other = run.executable.on(run.executable.machine)
            other.sync_pattern = pattern
            yield Trial(f"let IPUs go on while another is at the host (poptorch.SyncPattern.{option})", other.trace)

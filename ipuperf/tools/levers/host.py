"""Levers on how a program uses the host. They change options, not ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ipuperf.runtime.executable import Executable

from .change import ProgramChange
from .rerun import Rerun
from .trial import Lever, Trial, Untried, simulated


def _loads(run: Rerun) -> bool:
    """Whether the program loads anything from the host."""
    return any(direction == "h2d" for direction, _ in run.device_program.streams.values())


def with_host_options(executable: Executable, **options: Any) -> Executable:
    """The same lowered program with other host options (:class:`~ipuperf.runtime.executable.HostOptions`)."""
    # Host options do not change what lowering does, so the lowered program is shared and not made again.
    return executable.on(executable.machine, lowered_alike=True, host=replace(executable.host, **options))


def _host_trial(run: Rerun, what: str, diff: tuple[str, ...] = (), **options: Any) -> Trial:
    return simulated(run, ProgramChange(what, diff=diff, of_executable=partial(with_host_options, **options)))


class PrefetchDepth(Lever):
    """The host prepares twice as many slices in advance."""

    change = "prefetch depth"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        depth = run.executable.host.prefetch_depth
        if _loads(run):
            # A depth of 0 becomes 1.
            more = 2 * depth or 1
            diff = run.option("_Popart.set", f"'defaultBufferingDepth', {more}")
            yield _host_trial(run, f"raise the prefetch depth from {depth} to {more}", diff, prefetch_depth=more)


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
                yield _host_trial(run, f"{advice} (poprun --num-instances {count})", host_processes=count)


class CallbackThreads(Lever):
    """The host runs callbacks in as many threads as there are replicas."""

    change = "callback threads"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.host.callback_threads == 1 and run.device_program.replicas > 1:
            # None stands for one thread for each replica.
            options = "streamCallbacks.multiThreadMode 'dedicated'"
            what = f"run the host's callbacks in a thread per replica (engine option {options})"
            engine_options = "'engineOptions', {'streamCallbacks.multiThreadMode': 'dedicated'}"
            yield _host_trial(run, what, run.option("_Popart.set", engine_options), callback_threads=None)


class SyncPatterns(Lever):
    """IPUs without host I/O go on while another IPU has host I/O."""

    change = "sync pattern"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.executable.lowering.sync_pattern != "full" or len(run.device_program.ipus) == 1:
            return
        for pattern, option in (("single_pipeline", "SinglePipeline"), ("replica_and_ladder", "ReplicaAndLadder")):
            # The sync pattern decides which syncs are written, so this program is lowered anew.
            def with_pattern(executable: Executable, pattern: str = pattern) -> Executable:
                return executable.on(executable.machine, lowering=replace(executable.lowering, sync_pattern=pattern))

            what = f"let IPUs go on while another is at the host (poptorch.SyncPattern.{option})"
            diff = run.option("syncPattern", f"poptorch.SyncPattern.{option}")
            yield simulated(run, ProgramChange(what, diff=diff, of_executable=with_pattern))

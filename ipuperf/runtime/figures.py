"""The main figures of a program's run, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuperf.report import Throughput, duration, interval, step_time
from ipuperf.report.faults import fault_sentences
from ipuperf.trace import TraceError

if TYPE_CHECKING:
    from .executable import Executable


def figures_of(executable: Executable) -> list[str]:
    """Return a line each for the time of a run, the throughput, what bounds it, and the fullest tile."""
    executable = executable.as_called()
    trace, seconds = executable.trace, executable.simulated_run_seconds
    meta, samples = trace.meta, executable.options.samples_per_run
    used, all_ipus = int(meta["num_ipus"]), executable.machine.num_ipus
    where = f"{used} IPU{'s' if used > 1 else ''}" if used == all_ipus else f"{used} of {all_ipus} IPUs"
    where = f"{where} of {meta['machine']}"
    lines = [f"{duration(seconds)} a run ({executable.simulated_run_cycles:,} cycles), simulated on {where}"]
    lines += fault_sentences(meta)
    bounds = interval(trace)
    lines.append(Throughput.from_run(samples or 0, seconds, bounds).sentence())
    lines.append(f"measured time {bounds.sentence()}")
    try:
        lines.append(step_time(trace).sentence())
    except TraceError as error:
        lines.append(f"bound by: not worked out, {error}")
    memory = trace.summary()["memory"]
    fullest, limit = memory["max_tile"], memory["bytes_per_tile"]
    if fullest is not None:
        share = f"{100 * fullest['bytes'] / limit:.1f} % of its {limit:,} B"
        lines.append(f"peak memory {fullest['bytes']:,} B on tile {fullest['tile']} of IPU {fullest['ipu']}, {share}")
    return lines

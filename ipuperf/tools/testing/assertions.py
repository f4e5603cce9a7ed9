"""Assertions on programs: plain functions whose messages give the value, the bound and the largest contributors.

``subject`` is anything that :func:`ipuperf.testing.trace_of` accepts: a trace, an Executable, a PopXL session, a
compiled PopTorch executor. The functions do not need pytest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ipuperf.tools.testing import measures
from ipuperf.tools.testing.subject import trace_of
from ipuperf.tools.testing.text import columns, counted
from ipuperf.trace import Trace

SHOWN = 5
"""Most contributors that a message names."""


def assert_peak_tile_bytes(subject: Any, at_most: int) -> None:
    """Assert that the fullest tile of all IPUs holds at most ``at_most`` bytes, gaps included, at the program's peak.

    Raises:
        AssertionError: it holds more; the message has its categories and largest variables.
        ValueError: the bound is no number of at least 0, or the trace has no memory.
    """
    # pytest then shows the line of the test and not this function.
    __tracebackhide__ = True
    bound = _bound("at_most", at_most)
    trace = trace_of(subject)
    fullest = _memory(trace)["max_tile"]
    if fullest["bytes"] > bound:
        raise AssertionError(
            f"fullest tile {fullest['tile']} of IPU {fullest['ipu']} holds {fullest['bytes']:,} bytes, allowed are "
            f"{bound:,.0f}: {fullest['bytes'] - bound:,.0f} over\n{_on_tile(trace, fullest['ipu'], fullest['tile'])}"
        )


def assert_fits(subject: Any) -> None:
    """Assert that every tile holds at most its In-Processor-Memory.

    Raises:
        AssertionError: a tile holds more; the message has the worst tile, its categories and largest variables.
        ValueError: the trace has no memory.
    """
    __tracebackhide__ = True
    trace = trace_of(subject)
    memory = _memory(trace)
    if not memory["fits"]:
        fullest = memory["max_tile"]
        raise AssertionError(
            f"the program does not fit: {counted(max(memory['tiles_over'], 1), 'tile')} with more than the "
            f"{memory['bytes_per_tile']:,} bytes it has, the worst is tile {fullest['tile']} of IPU {fullest['ipu']}: "
            f"{fullest['bytes']:,} bytes, {memory['over_bytes']:,} over\n"
            f"{_on_tile(trace, fullest['ipu'], fullest['tile'])}"
        )


def assert_throughput(subject: Any, at_least: float, samples_per_run: float) -> None:
    """Assert that a run of ``samples_per_run`` samples makes at least ``at_least`` samples per second.

    See :func:`ipuperf.testing.throughput`: the host's part of a run counts.

    Raises:
        AssertionError: it makes fewer; the message has the parts of a run and the costliest ops.
        ValueError: a number is invalid, or the trace has no run.
    """
    __tracebackhide__ = True
    bound = _bound("at_least", at_least)
    trace = trace_of(subject)
    value = measures.throughput(trace, samples_per_run)
    if value < bound:
        mean = float(trace.columns("runs")["dur"].mean())
        raise AssertionError(
            f"throughput is {value:,.1f} samples/s, wanted are at least {bound:,.1f} "
            f"({100 * value / bound:.1f}%): a run of {samples_per_run:,} samples takes {mean:,.0f} cycles, allowed are "
            f"{samples_per_run / bound * trace.meta['clock_hz']:,.0f}\n{_of_run(trace)}"
        )


def assert_bubble(subject: Any, at_most: float, *, waiting_for_host: bool = False) -> None:
    """Assert that at most the share ``at_most`` (0 to 1) of IPU time is spent waiting.

    IPU time is the duration of the runs minus the host's fixed cost, for each IPU. An IPU waits while all its lanes are
    idle or in external sync (and, with ``waiting_for_host``, at the begin or end of host transfers). For the exact
    definition see :func:`ipuperf.testing.measures.bubble`.

    Raises:
        AssertionError: more is; the message names the ops at which IPUs wait longest.
        ValueError: the bound is outside 0 to 1, or the trace has no time.
    """
    __tracebackhide__ = True
    bound = _share("at_most", at_most)
    share = measures.bubble(trace_of(subject), waiting_for_host)
    if share.value > bound:
        raise AssertionError(
            f"IPUs wait {100 * share.value:.2f}% of their time, allowed are {100 * bound:.2f}%: {share.part:,} of "
            f"{share.whole:,} IPU cycles\n{_listed('longest waits, cycles', share.contributors)}"
        )


def assert_overlap(subject: Any, between: Sequence[str | Collection[str]], at_least: float) -> None:
    """Assert that at least the share ``at_least`` (0 to 1) of the time of one kind of steps is hidden behind another.

    ``between=("links", "compute")`` asks: while an IPU of a replica is in link transfers, how much of the time is
    another of its IPUs, or another lane, in compute? For the exact definition and the names of kinds see
    :func:`ipuperf.testing.measures.overlap`.

    Raises:
        AssertionError: less is; the message names the ops with the most time that is not hidden.
        ValueError: the bound is outside 0 to 1, ``between`` is no pair of kinds, or the first kinds take no time.
    """
    __tracebackhide__ = True
    bound = _share("at_least", at_least)
    share = measures.overlap(trace_of(subject), between)
    if share.value < bound:
        hidden, behind = (part if isinstance(part, str) else " + ".join(part) for part in between)
        raise AssertionError(
            f"{100 * share.value:.2f}% of the time of {hidden} is hidden behind {behind}, wanted are at least "
            f"{100 * bound:.2f}%: {share.part:,} of {share.whole:,} cycles\n"
            f"{_listed('not hidden, cycles', share.contributors)}"
        )


# -- bounds ------------------------------------------------------------------------------------------------------------


def _bound(name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: {value!r}, expected a number of at least 0")
    return float(value)


def _share(name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"{name}: {value!r}, expected a share from 0 to 1")
    return float(value)


# -- contributors ------------------------------------------------------------------------------------------------------


def _listed(title: str, contributors: Iterable[tuple[str, int]]) -> str:
    rows = list(contributors)
    if not rows:
        return f"{title}: none"
    cells = [[name, f"{amount:,}"] for name, amount in rows[:SHOWN]]
    lines = [f"{title}:", *columns(cells, [0], "  ")]
    if len(rows) > SHOWN:
        lines.append(f"  ... and {len(rows) - SHOWN:,} more")
    return "\n".join(lines)


def _memory(trace: Trace) -> dict[str, Any]:
    memory: dict[str, Any] = trace.summary()["memory"]
    if memory["max_tile"] is None:
        raise ValueError("the trace says nothing about memory")
    return memory


def _on_tile(trace: Trace, ipu: int, tile: int) -> str:
    """List the categories and variables of a tile, the largest first; variables need not be live together."""
    memory, variables = trace.columns("tile_memory"), trace.columns("variables")
    rows = np.flatnonzero((memory["ipu"] == ipu) & (memory["tile"] == tile))
    categories = [(str(memory["category"][row]), int(memory["bytes"][row])) for row in rows]
    on_tile = (variables["ipu"] == ipu) & (variables["tile_from"] <= tile) & (tile < variables["tile_to"])
    rows = np.flatnonzero(on_tile & (variables["location"] == "tile"))
    variable_bytes = []
    for row in rows.tolist():
        # A row has the bytes of all its tiles, in equal parts.
        tiles = max(int(variables["tile_to"][row] - variables["tile_from"][row]), 1)
        variable_bytes.append((str(variables["name"][row]), int(variables["bytes"][row]) // tiles))
    parts = [_listed("bytes of this tile by category", _largest(categories))]
    if variable_bytes:
        parts.append(_listed("largest variables on it, bytes", _largest(variable_bytes)))
    return "\n".join(parts)


def _of_run(trace: Trace) -> str:
    """List the parts of the last run on its critical IPU, and the ops with the most cycles."""
    from ipuperf.report.breakdown import breakdown_cycles

    operations = trace.operations()
    costly = zip(operations["op"], operations["cycles"].astype(int).tolist(), strict=True)
    return "\n".join(
        [
            _listed("last run on its critical IPU, cycles", _largest(breakdown_cycles(trace).items())),
            _listed("costliest ops on all IPUs, cycles", list(costly)),
        ]
    )


def _largest(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(((name, amount) for name, amount in rows if amount), key=lambda row: (-row[1], row[0]))

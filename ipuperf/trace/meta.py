"""The ``meta`` of a trace: what was simulated, on what, in which units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipuperf.trace.errors import TraceError
from ipuperf.trace.schema import SCHEMA_VERSION

META_KEYS: dict[str, str] = {
    "schema_version": "version of the tables, filled in",
    "ipuperf_version": "version of the package that wrote the trace, filled in",
    "machine": "name of the machine (required)",
    "program": "name of the program",
    "clock_hz": "tile clock in Hz, the unit of every time (required)",
    "tiles_per_ipu": "tiles of one IPU (required)",
    "bytes_per_tile": "In-Processor-Memory of one tile in bytes (required)",
    "peak_flops_per_cycle": "floating-point operations of an IPU per cycle at most, by type; none unless given",
    "peak_exchange_bytes_per_cycle": "bytes that all tiles of an IPU receive per cycle in an exchange, each on a "
    "bus of its own; 0 (not known) unless given",
    "num_ipus": "IPUs of the whole system, all replicas together (required)",
    "replicas": "number of replicas, 1 unless given",
    "prefetch_depth": "batches that the host fetches ahead",
    "fidelity": "what the simulation goes down to",
    "memory_of": "whose memory the tables of memory are",
    "warnings": "list of strings a reader must see",
    "assumptions": "list of strings: what the figures rest on",
    "oom": "whether a tile holds more than it has; derived from tile_memory unless given",
}
"""Keys with a fixed meaning. Others are allowed if JSON can hold them."""

_COUNTS = {
    "tiles_per_ipu": (1, 2**20),
    "bytes_per_tile": (1, 2**40),
    "num_ipus": (1, 2**16),
    "replicas": (1, 2**16),
    "peak_exchange_bytes_per_cycle": (0, 2**40),
    "prefetch_depth": (0, 2**31),
}
"""Whole numbers, and the least and the most that each may be: readers make rows for tiles and IPUs."""
_TEXTS = ("machine", "program", "fidelity", "memory_of")


def plain(value: Any, where: str) -> Any:
    """``value`` as what JSON can hold: NumPy scalars, arrays, tuples and mappings become plain Python."""
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has neither NaN nor infinity.
    if isinstance(value, float) and not np.isfinite(value):
        raise TraceError(f"trace meta {where}: {value!r} is not a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(member, f"{where}.{key}") for key, member in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(member, f"{where}[{index}]") for index, member in enumerate(value)]
    raise TraceError(f"trace meta {where}: {type(value).__name__} cannot be written as JSON")


def complete_meta(meta: Mapping[str, Any], oom: bool) -> dict[str, Any]:
    """A checked copy of ``meta`` with defaults filled in; ``oom`` is used unless ``meta`` says so itself.

    Raises :class:`TraceError` for a missing key, a value of the wrong sort or another schema version.
    """
    from ipuperf.base.version import __version__

    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "ipuperf_version": __version__,
        "replicas": 1,
        "warnings": [],
        "assumptions": [],
        "peak_flops_per_cycle": {},
        "peak_exchange_bytes_per_cycle": 0,
        "oom": oom,
    }
    result.update({str(key): plain(value, str(key)) for key, value in meta.items()})
    if result["schema_version"] != SCHEMA_VERSION:
        raise TraceError(
            f"trace meta schema_version: {result['schema_version']!r}, this ipuperf reads {SCHEMA_VERSION}; "
            f"the trace was written by ipuperf {result['ipuperf_version']}"
        )
    for key in ("machine", "clock_hz", "tiles_per_ipu", "bytes_per_tile", "num_ipus"):
        if key not in result:
            raise TraceError(f"trace meta: missing key {key!r} ({META_KEYS[key]})")
    for key in _TEXTS:
        if not isinstance(result.get(key, ""), str):
            raise TraceError(f"trace meta {key}: {result[key]!r}, expected a text: {META_KEYS[key]}")
    clock = result["clock_hz"]
    # A bool is an int in Python, so True would pass as a clock of 1 Hz.
    if isinstance(clock, bool) or not isinstance(clock, int | float) or clock <= 0:
        raise TraceError(f"trace meta clock_hz: {clock!r}, expected a positive number of Hz")
    for key, (least, most) in _COUNTS.items():
        # A key that is left out passes as its least value.
        count = result.get(key, least)
        if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
            raise TraceError(f"trace meta {key}: {count!r}, expected a whole number from {least} to {most:,}")
    for key in ("warnings", "assumptions"):
        if not isinstance(result[key], list) or not all(isinstance(text, str) for text in result[key]):
            raise TraceError(f"trace meta {key}: {result[key]!r}, expected a list of strings")
    peak = result["peak_flops_per_cycle"]
    if not isinstance(peak, dict) or not all(type(flops) is int and flops > 0 for flops in peak.values()):
        raise TraceError(f"trace meta peak_flops_per_cycle: {peak!r}, expected positive whole numbers by type")
    if not isinstance(result["oom"], bool):
        raise TraceError(f"trace meta oom: {result['oom']!r}, expected true or false")
    return result

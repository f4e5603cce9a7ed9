"""The page with the last figures of the benchmarks, the machine they were measured on and the date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_PACKAGES = ("numpy", "simpy", "pandas", "torch", "tensorflow-cpu", "tensorflow")


def processor() -> str:
    """The name of the processor."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine() -> str:
    """Processor, cores, memory, and the versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{processor()}, {cores} cores, {memory:.0f} GiB; {', '.join(versions)}"


def figure(value: float, unit: str) -> str:
    """A figure with its unit; seconds in the unit that suits them."""
    if unit != "s":
        return f"{value:,.0f} {unit}"
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1e6:.3g} µs"


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """The page in Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python benchmarks/run.py --write`. The speed of ipuperf itself: each figure stands beside a",
        "reference that was measured in the same run, so that the ratio says the same on another machine; less is",
        "better. Times are CPU seconds of one thread. `cores` takes the wall's or the calling thread's.",
        "`python benchmarks/run.py --check` measures again and fails where a ratio is above its bound.",
        "",
        f"Measured on {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}: {machine()}.",
    ]
    module = None
    for row in rows:
        if row["module"] != module:
            module = row["module"]
            lines += ["", f"## {module}", "", "| row | figure | reference | ratio | bound |", "|---|---|---|---|---|"]
        found, against = (figure(row[name], row["unit"]) for name in ("value", "reference_value"))
        lines.append(
            f"| {row['name']} | {found} | {row['reference']}: {against} | {row['ratio']:.2f} | {row['bound']:g} |"
        )
    return "\n".join(lines) + "\n"

"""The reports of the gallery: pages of small programs, made when the site is built.

python docs/gallery.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import ipuperf
from ipuperf import report
from ipuperf.trace import Trace


def adam(threshold: float | None) -> Trace:
    """A training step for MNIST; ``threshold``: from how many elements on Adam's state is sharded off chip."""
    ipuperf.install()
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    return ipuperf.simulate_session(training_session(TrainingOptions(threshold=threshold)).session, machine="pod4")


def pipeline(schedule: str) -> Trace:
    """A weight update of eight micro-batches on four stages."""
    ipuperf.install()
    from ipuperf.scenarios.pipeline_schedules import simulate

    return simulate(schedule, 4, 8)[1]


PAGES: dict[str, Callable[[], str]] = {
    "on-chip.html": lambda: report.report_page(adam(None)),
    "off-chip.html": lambda: report.report_page(adam(float("inf"))),
    "pipeline.html": lambda: report.report_page(pipeline("grouped")),
    "comparison.html": lambda: report.comparison_page(
        report.compare({"sequential": pipeline("sequential"), "grouped": pipeline("grouped")})
    ),
}


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))

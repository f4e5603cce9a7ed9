"""The report as one HTML file, which contains everything it shows, opens offline, and makes no requests.

The scripts draw the facts that :mod:`~ipuperf.report.page.facts` takes from the trace. They are plain JavaScript with
type comments, without a build step, and the facts are in a compressed block of the page. Without JavaScript the page
shows the summary as text.
"""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ipuperf.base.collector import collector_paused
from ipuperf.report.arguments import checked
from ipuperf.report.page.encoding import packed
from ipuperf.report.page.facts import page_facts
from ipuperf.report.page.figures import Figures
from ipuperf.report.page.run_facts import advice_facts
from ipuperf.report.page.time_facts import timeline
from ipuperf.report.text import summary_of
from ipuperf.trace import Trace

MOST_BYTES = 5_000_000
"""The largest size of a page. For a longer trace it has less of the time line, and says so."""

_MOST_SLICES = 3_000_000
"""The number of executions of segments and transfers on the time line that is tried first."""

_SCRIPTS = (
    "elements",
    "address",
    "folded",
    "gathering",
    "lanes",
    "waits",
    "picture",
    "slices",
    "selection",
    "timeline",
    "bsp",
    "summary",
    "memory",
    "modules",
    "roofline",
    "operations",
    "links",
    "path",
    "page",
)
"""The scripts in their order on the page: what views have in common, the views, and what shows them."""


@checked
@collector_paused()
def report_page(trace: Trace, title: str | None = None, advice: dict[str, Any] | None = None) -> str:
    """The page as text. ``title`` is by default the name of the program; ``advice``: :mod:`ipuperf.report.advice`.

    The time line shows a window from the start that is short enough to keep the page below :data:`MOST_BYTES`. All
    other views show the whole trace.

    Raises:
        ValueError: the other views alone take more than that.
    """
    slices, figures = _MOST_SLICES, Figures(trace)
    facts = {**page_facts(trace, slices, figures), "advice": advice_facts(advice)}
    while True:
        text = _page(figures, facts, title)
        if len(text.encode("utf-8")) <= MOST_BYTES:
            return text
        if slices < 1_000:
            raise ValueError(
                f"the page would take {len(text):,} bytes, at most {MOST_BYTES:,} are allowed: the trace has too many "
                "ops, variables or IPUs for one page; use the tables of the report folder"
            )
        # Only the time line can be shortened, so try again with a third of it.
        slices //= 3
        if figures.executed:
            facts["timeline"] = timeline(trace, figures.summary["links"], slices)


def _page(figures: Figures, facts: Mapping[str, Any], title: str | None) -> str:
    trace, time = figures.trace, figures.time if figures.followed else None
    # Piece by piece, so that there is no second copy of all facts.
    compressor = zlib.compressobj(6)
    compressed = b"".join([*map(compressor.compress, packed(facts)), compressor.flush()])
    block = base64.b64encode(compressed).decode("ascii")
    name = title or str(trace.meta.get("program") or f"a program on {trace.meta['machine']}")
    parts = {
        "title": html.escape(name),
        "summary": html.escape(summary_of(trace, figures.summary, time)),
        "style": _asset("page.css"),
        "script": "".join(_asset(f"{name}.js") for name in _SCRIPTS),
        "facts": block,
    }
    page = _asset("page.html")
    for key, value in parts.items():
        page = page.replace("{{" + key + "}}", value)
    return page


def _asset(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")

"""A comparison of runs as one HTML file.

It has the views of the page of a run, each of all runs on one scale: parts of time side by side, aligned timelines,
overlaid memory, and tables with the differences. Everything is static HTML and SVG; a few lines of JavaScript filter
the tables and change the theme.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise

import numpy as np

from ipuperf.report import compared
from ipuperf.report.aligned import Bar, aligned
from ipuperf.report.arguments import checked
from ipuperf.report.compared import ComparedFigure
from ipuperf.report.comparison import COMPARED, ComparedRun, Comparison
from ipuperf.report.comparison_text import label, number
from ipuperf.report.palette import COMPARE_ALWAYS, COMPARE_NOT_ALWAYS, KIND_COLOURS, KIND_LABELS
from ipuperf.report.step_time import TIME_PARTS
from ipuperf.report.text import duration

SHOWN_ROWS = 2_000
"""The largest number of rows of a table, the first ones. The page says how many there are."""

MARKED = 0.1
"""Figures that change by a larger share are marked."""

_NEAR = 2
"""The limit of a tile is drawn if it is at most so many times what the fullest tile holds."""

_WIDTH, _HEIGHT, _LEFT = 1200, 300, 70
_BAR, _PITCH, _BETWEEN = 13, 16, 8
_SPAN = _WIDTH - _LEFT - 10
_POINTS = 2_000
_SIXTEEN = 16


@checked
def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
    title = "Comparison of " + ", ".join(run.name for run in comparison.runs)
    parts = [_lead(comparison), _cards(comparison), _contents()]
    parts += [_section(view, blocks(comparison)) for view, blocks in _VIEWS.items()]
    page = (files(__package__ or "") / "comparison.html").read_text(encoding="utf-8")
    values = {"title": html.escape(title), "style": _style(), "body": "\n".join(parts)}
    # `str.format` would trip over the braces of the style sheet.
    for key, value in values.items():
        page = page.replace("{{" + key + "}}", value)
    return page


def _contents() -> str:
    links = "".join(f'<a href="#{_anchor(view)}" title="key {n}">{view}</a>' for n, view in enumerate(_VIEWS, start=1))
    return f'<nav aria-label="views">{links}</nav>'


def _section(view: str, blocks: Sequence[str]) -> str:
    """A view of the page of a run, of all runs."""
    content = "\n".join(block for block in blocks if block)
    return f'<section id="{_anchor(view)}" aria-label="{view}">\n<h2>{view}</h2>\n{content}\n</section>'


def _anchor(view: str) -> str:
    return view.lower().replace(" ", "-")


def _style() -> str:
    return (files(__package__ or "") / "page.css").read_text(encoding="utf-8")


def _colour(place: int) -> str:
    return COMPARE_NOT_ALWAYS[place % len(COMPARE_NOT_ALWAYS)]


def _lead(comparison: Comparison) -> str:
    notes = [f'<p class="lead bad">{html.escape(note)}.</p>' for note in comparison.notes]
    return "\n".join([*notes, *(f'<p class="lead">{html.escape(line)}</p>' for line in comparison.sentences())])


def _cards(comparison: Comparison) -> str:
    cards = []
    for place, run in enumerate(comparison.runs):
        meta, peak = run.trace.meta, run.peak
        memory = "memory not recorded" if peak is None else f"{peak:,} B on the fullest tile"
        text = f"{run.time.total:,} cycles, {meta['num_ipus']} IPUs of {meta['machine']}, {memory}"
        cards.append(
            f'<div class="card" style="border-left:5px solid {_colour(place)}"><b>{duration(run.seconds)}</b>'
            f"<span>{html.escape(run.name)}: {html.escape(text)}; {run.throughput.sentence()}</span></div>"
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _bars(comparison: Comparison) -> str:
    """A bar of each run for each part of the time, all on one scale of seconds."""
    runs = comparison.runs
    most = max((run.trace.seconds(cycles) for run in runs for cycles in run.time.parts.values()), default=0.0)
    blocks = []
    for part, words in TIME_PARTS.items():
        if not any(run.time.parts[part] for run in runs):
            continue
        bars = "".join(_bar(run, place, part, most) for place, run in enumerate(runs))
        blocks.append(f'<div class="pair"><span>{words}</span><div>{bars}</div></div>')
    pace = ", ".join(f"IPU {run.time.ipu} of {run.name}" for run in runs)
    return f"<h3>Where the time goes, on the IPU that sets the pace ({html.escape(pace)})</h3>\n" + "\n".join(blocks)


def _limits(comparison: Comparison) -> str:
    """A bar of each run for each limit of the machine, all on one scale: the limit."""
    blocks = []
    for figure in compared.used_limits(comparison):
        bars = "".join(
            f'<div class="bar" data-run="{place}" data-share="{share:.12g}"><div class="track">'
            f'<i style="left:0;width:{min(100 * share, 100):.3f}%;background:{_colour(place)}"></i></div>'
            f'<span class="value">{share:.1%}</span></div>'
            for place, share in enumerate(figure.values)
        )
        blocks.append(f'<div class="pair" data-limit="{figure.name}"><span>{figure.name}</span><div>{bars}</div></div>')
    return "<h3>How much of the machine is used, over the whole trace</h3>\n" + "\n".join(blocks) if blocks else ""


def _bar(run: ComparedRun, place: int, part: str, most: float) -> str:
    cycles = run.time.parts[part]
    seconds = float(run.trace.seconds(cycles))
    share = 100 * seconds / most if most else 0.0
    return (
        f'<div class="bar" data-run="{place}" data-part="{part}" data-cycles="{cycles}"><div class="track">'
        f'<i style="left:0;width:{share:.3f}%;background:{_colour(place)}"></i></div>'
        f'<span class="value">{cycles:,} ({duration(seconds)})</span></div>'
    )


def _timelines(comparison: Comparison) -> str:
    """The kinds of steps on the compute tiles of each IPU, from the start of each run, on one scale of seconds."""
    runs_aligned = aligned({run.name: run.trace for run in comparison.runs})
    drawn, y, previous = [], 4.0, None
    for bar in runs_aligned.bars:
        y += _BETWEEN if previous not in (None, bar.ipu) else 0
        previous = bar.ipu
        drawn.append(_timeline(bar, runs_aligned.names[bar.run], y))
        y += _PITCH
    axis = "".join(
        f'<text x="{_LEFT + _SPAN * tick / 4:.0f}" y="{y + 12:.0f}" text-anchor="{anchor}">'
        f"{duration(runs_aligned.seconds * tick / 4)}</text>"
        for tick, anchor in enumerate(("start", "middle", "middle", "middle", "end"))
    )
    entries = {KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in runs_aligned.kinds}
    names = [f'<span><i style="background:{colour}"></i>{text}</span>' for text, colour in entries.items()]
    hidden = [
        f"{count} of {name}" for name, count in zip(runs_aligned.names, runs_aligned.left_out, strict=True) if count
    ]
    remark = f"; IPUs not shown: {', '.join(hidden)}" if hidden else ""
    return (
        f"<h3>Aligned at the start of each run{html.escape(remark)}</h3>\n"
        f'<svg viewBox="0 0 {_WIDTH} {y + 18:.0f}" role="img" aria-label="timelines of the runs; the table below '
        f'has the time of each kind">{"".join(drawn)}{axis}</svg>\n<div class="legend">{"".join(names)}</div>\n'
        + _table(
            comparison, "timeline", "The timelines in figures: time of each IPU by kind of step", _told(comparison)
        )
    )


def _told(comparison: Comparison) -> list[ComparedFigure]:
    """The time of each IPU that has a timeline, by kind of step, of each run."""
    runs = comparison.runs
    seconds: dict[tuple[int, str], list[float]] = {}
    for bar in aligned({run.name: run.trace for run in runs}).bars:
        for kind, cycles in bar.cycles.items():
            times = seconds.setdefault((bar.ipu, kind), [0.0] * len(runs))
            times[bar.run] += float(runs[bar.run].trace.seconds(cycles))
    return [
        ComparedFigure(f"IPU {ipu}, {KIND_LABELS[kind]}", "us", tuple(round(1e6 * time, 3) for time in times))
        for (ipu, kind), times in seconds.items()
    ]


def _timeline(bar: Bar, name: str, y: float) -> str:
    """One IPU of a run, each pixel in the colour of the kind that fills most of it, after a mark for the run."""
    cycles = ", ".join(f"{KIND_LABELS[kind]} {count:,}" for kind, count in bar.cycles.items())
    title = html.escape(f"IPU {bar.ipu} of {name}, cycles: {cycles}")
    facts = "".join(f' data-{kind.replace("_", "-")}="{count}"' for kind, count in bar.cycles.items())
    # The additional row is time without a step, which stays white.
    filled = np.vstack([bar.cover, np.maximum(1.0 - bar.cover.sum(axis=0), 0.0)]).argmax(axis=0)
    # Neighbouring pixels of one kind become one rectangle, which keeps the page small.
    edges = np.concatenate([[0], np.flatnonzero(np.diff(filled)) + 1, [len(filled)]])
    scale, paths = _SPAN / len(filled), dict.fromkeys(KIND_COLOURS, "")
    for kind, left, right in zip(filled[edges[:-1]].tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if kind < len(KIND_COLOURS):
            width = (right - left) * scale
            paths[list(KIND_COLOURS)[kind]] += f"M{_LEFT + left * scale:.1f} {y:.0f}h{width:.1f}v{_BAR}h-{width:.1f}z"
    shown = "".join(f'<path class="kind" fill="{KIND_COLOURS[kind]}" d="{d}"/>' for kind, d in paths.items() if d)
    return (
        f'<g class="timeline" data-run="{bar.run}" data-ipu="{bar.ipu}" data-seconds="{bar.seconds!r}"{facts}>'
        f'<title>{title}</title><text x="4" y="{y + _BAR - 3:.0f}">IPU {bar.ipu}</text>'
        f'<rect x="{_LEFT - 9}" y="{y:.0f}" width="5" height="{_BAR}" fill="{_colour(bar.run)}"/>{shown}</g>'
    )


def _liveness(comparison: Comparison) -> str:
    """Live bytes by program step, not always live and always live, of each run's IPU with the highest peak."""
    curves = [(place, run, _curve(run)) for place, run in enumerate(comparison.runs)]
    known = [(place, run, curve) for place, run, curve in curves if curve is not None]
    if not known:
        return ""
    most = max(int(max(always.max(), not_always.max())) for _, _, (_, always, not_always) in known) or 1
    steps = max(len(always) for _, _, (_, always, _) in known)
    drawn, names = [], []
    for place, run, (ipu, always, not_always) in known:
        dashed = COMPARE_ALWAYS[place % len(COMPARE_ALWAYS)]
        drawn.append(_path(not_always, most, steps, _colour(place), ""))
        drawn.append(_path(always, most, steps, dashed, "6 4"))
        for colour, description, value in (
            (_colour(place), "not always live, peak", int(not_always.max())),
            (dashed, "always live (dashed)", int(always.max())),
        ):
            text = f"{run.name} (IPU {ipu}, {len(not_always):,} steps), {description} {value:,} B"
            names.append(f'<span><i style="background:{colour}"></i>{html.escape(text)}</span>')
    return (
        f"<h3>Live bytes by program step, 0 to {steps:,}</h3>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="live bytes by program step; the table '
        f'below has them by tenths of the program">{_heights(most)}{"".join(drawn)}</svg>\n'
        f'<div class="legend">{"".join(names)}</div>\n'
        + _table(comparison, "liveness", "The curves in figures: most bytes in each tenth", _live_tenths(comparison))
    )


def _live_tenths(comparison: Comparison) -> list[ComparedFigure]:
    """The most live bytes in each tenth of the program steps, not always live and always live, of each run."""
    nothing = np.zeros(1, dtype=np.int64)
    # A run without liveness has zeros.
    curves = [(_curve(run) or (0, nothing, nothing))[1:] for run in comparison.runs]
    figures = []
    for place, name in ((1, "not always live"), (0, "always live")):
        tenths = [_most(curve[place], 10) for curve in curves]
        figures += [
            ComparedFigure(f"{name}, {10 * part} to {10 * part + 10} % of the steps", "bytes", values)
            for part, values in enumerate(zip(*tenths, strict=True))
        ]
    return figures


def _most(values: np.ndarray, parts: int) -> list[int]:
    """The largest value of each of so many equal parts; where there are fewer values, parts share them."""
    edges = [len(values) * part // parts for part in range(parts + 1)]
    return [int(values[begin : max(end, begin + 1)].max()) for begin, end in pairwise(edges)]


def _tiles(comparison: Comparison) -> str:
    """Bytes of every tile, of each run's IPU with the fullest tile, and the limit where it is near."""
    curves = [(place, run, run.fullest_ipu) for place, run in enumerate(comparison.runs) if run.peak is not None]
    if not curves:
        return ""
    most = max(int(tiles.max()) for _, _, (_, tiles) in curves) or 1
    limit = min(int(run.trace.meta["bytes_per_tile"]) for run in comparison.runs)
    near = limit <= _NEAR * most
    top, width = max(most, limit) if near else most, max(len(tiles) for _, _, (_, tiles) in curves)
    drawn = "".join(_path(tiles, top, width, _colour(place), "") for place, _, (_, tiles) in curves)
    if near:
        line = f"{_y(limit, top):.1f}"
        drawn += f'<path class="limit" d="M{_LEFT} {line}H{_LEFT + _SPAN}"/>'
    names = "".join(
        f'<span><i style="background:{_colour(place)}"></i>{html.escape(run.name)} (IPU {ipu}), fullest '
        f"{int(tiles.max()):,} B of {int(run.trace.meta['bytes_per_tile']):,} B</span>"
        for place, run, (ipu, tiles) in curves
    )
    return (
        f"<h3>Bytes of every tile, 0 to {width:,}{', with the limit' if near else ''}</h3>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="bytes of every tile; the table below has the '
        f'fullest of each stretch">{_heights(top)}{drawn}</svg>\n<div class="legend">{names}</div>\n'
        + _table(comparison, "tiles", "The tiles in figures: the fullest of each stretch", _stretches(comparison))
    )


def _stretches(comparison: Comparison) -> list[ComparedFigure]:
    """The bytes of the fullest tile in each sixteenth of the tiles, of each run's IPU with the fullest tile."""
    nothing = np.zeros(_SIXTEEN, dtype=np.int64)
    tiles = [nothing if run.peak is None else run.fullest_ipu[1] for run in comparison.runs]
    width = max(map(len, tiles))
    # Tiles that a run does not have, or that hold nothing, hold no bytes.
    most = [_most(np.pad(values, (0, width - len(values))), _SIXTEEN) for values in tiles]
    edges = [width * part // _SIXTEEN for part in range(_SIXTEEN + 1)]
    return [
        ComparedFigure(f"tiles {edges[part]:,} to {max(edges[part + 1] - 1, edges[part]):,}", "bytes", values)
        for part, values in enumerate(zip(*most, strict=True))
    ]


def _heights(most: int) -> str:
    """Five heights of a picture, in units of what is drawn."""
    unit, name = (1e6, "MB") if most >= 4_000_000 else (1e3, "kB")
    return "".join(
        f'<text x="4" y="{_y(most * tick / 4, most):.1f}">{most * tick / 4 / unit:,.3g} {name}</text>'
        for tick in range(5)
    )


def _curve(run: ComparedRun) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The IPU with the highest peak, and its always and not always live bytes by step; None without liveness."""
    table = run.trace.columns("liveness")
    if not len(table["ipu"]):
        return None
    ipu = int(table["ipu"][np.argmax(table["always_live"] + table["not_always_live"])])
    rows = np.flatnonzero(table["ipu"] == ipu)
    rows = rows[np.argsort(table["step"][rows], kind="stable")]
    return ipu, table["always_live"][rows], table["not_always_live"][rows]


def _y(value: float, most: float) -> float:
    return _HEIGHT - 10 - (_HEIGHT - 30) * value / most


def _path(values: np.ndarray, most: int, steps: int, colour: str, dashes: str) -> str:
    """A curve over its share of the width, which stands for ``steps``. Long curves show the maximum of each stretch."""
    span = _SPAN * len(values) / steps
    if len(values) > _POINTS:
        edges = np.linspace(0, len(values), _POINTS + 1).astype(np.int64)[:-1]
        values = np.maximum.reduceat(values, edges)
    x = _LEFT + span * np.arange(len(values) + 1) / len(values)
    begin, *further = (f"H{right:.1f}V{_y(value, most):.1f}" for right, value in zip(x, values.tolist(), strict=False))
    line = f"M{x[0]:.1f} {begin.rpartition('V')[2]}{''.join(further)}H{x[-1]:.1f}"
    return f'<path class="curve" d="{line}" style="stroke:{colour}" stroke-dasharray="{dashes}"/>'


def _changes(comparison: Comparison, group: str) -> str:
    """The figures of a group of the comparison that differ."""
    rows = comparison.changed(group).to_dict("records")
    figures = [
        ComparedFigure(label(group, row["key"]), row["unit"], tuple(row[run.name] for run in comparison.runs))
        for row in rows
    ]
    return _table(comparison, group.replace(" ", "-"), COMPARED[group], figures)


def _table(comparison: Comparison, name: str, title: str, figures: Sequence[ComparedFigure]) -> str:
    """A table of figures with their differences; those that change by more than :data:`MARKED` are marked."""
    if not figures:
        return f"<details><summary>{title}: no difference</summary></details>"
    heads = ["", "unit", *(run.name for run in comparison.runs), "last - first", "change"]
    head = "".join(f"<th{'' if n < 2 else ' class=n'}>{html.escape(name)}</th>" for n, name in enumerate(heads))
    body = "".join(_row(figure) for figure in figures[:SHOWN_ROWS])
    count = sum(1 for figure in figures if figure.spread)
    limited = f", the first {SHOWN_ROWS:,} are shown" if len(figures) > SHOWN_ROWS else ""
    opened = " open" if name in _OPENED else ""
    return (
        f'<details{opened} id="group-{name}"><summary>{title}: {count:,} differ{limited}</summary><div class="scroll" '
        f'tabindex="0" role="region" aria-label="{html.escape(title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _row(figure: ComparedFigure) -> str:
    first, last = figure.values[0], figure.values[-1]
    change = f"{last / first - 1:+.2%}" if first and last != first else ""
    numbers = [*(number(value) for value in figure.values), number(last - first), change]
    marked = ' class="marked"' if figure.spread > MARKED * max(abs(first), 1) else ""
    cells = f'<td style="padding-left:{9 + 18 * figure.level}px">{html.escape(figure.name)}</td><td>{figure.unit}</td>'
    return f"<tr{marked}>{cells}" + "".join(f'<td class="n">{text}</td>' for text in numbers) + "</tr>"


_VIEWS: dict[str, Callable[[Comparison], list[str]]] = {
    "Summary": lambda c: [
        *(_changes(c, group) for group in ("run", "time")),
        _bars(c),
        _limits(c),
        _table(c, "waiting", "Waiting of each IPU, by owner", compared.waiting(c)),
    ],
    "Timeline": lambda c: [_timelines(c), _changes(c, "phase")],
    "Liveness": lambda c: [_liveness(c)],
    "Memory": lambda c: [_tiles(c), _changes(c, "memory"), _changes(c, "fullest tile")],
    "BSP": lambda c: [
        _table(c, "slowest", "Slowest tile over the average in compute, by op, all IPUs", compared.slowest_tiles(c))
    ],
    "Modules": lambda c: [
        _table(c, "tree", "Modules, each with those inside it, all IPUs", compared.modules(c)),
        _changes(c, "module"),
    ],
    "Operations": lambda c: [_changes(c, "op")],
    "Links": lambda c: [_table(c, "links", "Links, over the whole trace", compared.links(c))],
    "Critical path": lambda c: [_table(c, "path", "The critical path by op and kind of step", compared.path_parts(c))],
    "Machine": lambda c: [_changes(c, "machine")],
}
"""The views of the page of a run, and what this page has of them."""

_OPENED = ("run", "phase", "tree", "links", "path", "machine")
"""The tables that are open at first."""

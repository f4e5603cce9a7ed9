"""What a value says, as lines of text for a golden row: reports, tables, figures, files for viewers."""

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure


def lines(value: Any) -> list[str]:
    """What a value says."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = "\n".join(value)
    return value.splitlines() if isinstance(value, str) else list(_lines(value, ""))


def _lines(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Figure):
        yield from _figure(value, name)
    elif isinstance(value, str):
        yield from (f"{name}{': ' if name else ''}{line}" for line in (value.splitlines() or [""]))
    elif isinstance(value, pd.DataFrame):
        yield from _table(value, name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _lines({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, name)
    elif isinstance(value, Mapping):
        yield from (line for key, part in value.items() for line in _lines(part, f"{name}.{key}".lstrip(".")))
    elif isinstance(value, list | tuple | np.ndarray | pd.Series):
        yield from _column(value, name)
    else:
        yield f"{name}: {_one(value)}"


def _one(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.6g}"
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _column(values: Any, name: str) -> Iterator[str]:
    values = list(values)
    if any(
        isinstance(v, list | tuple | Mapping | np.ndarray | pd.DataFrame) or dataclasses.is_dataclass(v) for v in values
    ):
        for number, value in enumerate(values):
            yield from _lines(value, f"{name}.{number}")
        return
    yield f"{name}: [{', '.join(map(_one, values))}]"


def _table(table: pd.DataFrame, name: str) -> Iterator[str]:
    yield f"{name}: {' | '.join(map(str, table.columns))}"
    for row in table.itertuples(index=False):
        yield f"{name}  {' | '.join(_one(value) for value in row)}"


# -- figures -----------------------------------------------------------------------------------------------------------


def _figure(figure: Figure, name: str) -> Iterator[str]:
    start = f"{name} " if name else ""
    yield f"{start}figure {_inches(figure)}, {figure.get_facecolor()}, dpi {figure.dpi:.6g}"
    for text in figure.texts:
        yield start + _text(text)
    if figure._suptitle is not None:
        yield f"{start}title {_text(figure._suptitle)}"
    for legend in figure.legends:
        yield from (start + line for line in _legend(legend))
    for number, axes in enumerate(figure.axes):
        yield from (f"{start}axes {number}: {line}" for line in _axes(axes))


def _inches(figure: Figure) -> str:
    return " x ".join(f"{size:.4g}" for size in figure.get_size_inches())


def _axes(axes: Any) -> Iterator[str]:
    yield f"title {axes.get_title()!r} {axes.get_title('left')!r} {axes.title.get_fontsize():.4g}"
    for way in "xy":
        one = getattr(axes, f"{way}axis")
        label = one.get_label()
        limits = ", ".join(_one(float(limit)) for limit in getattr(axes, f"get_{way}lim")())
        yield f"{way} {label.get_text()!r} {label.get_fontsize():.4g} {one.get_scale()} {limits} {one.get_visible()}"
        fixed = type(one.get_major_locator()).__name__
        sizes = one.get_tick_params().get("labelsize")
        yield f"{way} ticks {fixed} {type(one.get_major_formatter()).__name__} size {sizes}"
        if fixed == "FixedLocator":
            texts = [label.get_text() for label in one.get_ticklabels()]
            yield from _column([f"{_one(float(p))} {t}" for p, t in zip(one.get_ticklocs(), texts)], f"{way} tick")
    yield "spines " + ", ".join(side for side, spine in axes.spines.items() if spine.get_visible())
    if axes.get_legend():
        yield from _legend(axes.get_legend())
    yield from filter(None, map(_artist, axes.get_children()))


def _legend(legend: Any) -> Iterator[str]:
    handles = [_artist(h) or type(h).__name__ for h in legend.legend_handles]
    yield f"legend {legend._ncols} columns, frame {legend.get_frame_on()}, at {legend._loc}"
    for text, handle in zip(legend.get_texts(), handles):
        yield f"legend {text.get_text()!r} {text.get_fontsize():.4g}: {handle}"


def _text(text: Any) -> str:
    place = ", ".join(_one(float(p)) for p in (getattr(text, "xyann", None) or text.get_position()))
    at = f" of {tuple(_one(float(p)) for p in text.xy)}" if hasattr(text, "xy") else ""
    look = f"{_colour(text.get_color())} {text.get_fontsize():.4g} {text.get_ha()} {text.get_va()}"
    return f"text {text.get_text()!r} at {place}{at} {look} {text.get_rotation():.4g} {text.get_weight()}"


def _colour(colour: Any) -> str:
    try:
        return to_hex(colour, keep_alpha=True)
    except ValueError:
        return " ".join(to_hex(one, keep_alpha=True) for one in colour)


def _numbers(values: Any) -> str:
    return next(_column((np.asarray(values, float).ravel() + 0.0).tolist(), "")).lstrip(": ")


def _artist(artist: Any) -> str:
    """One line of an artist of axes: kind, place, look; empty for parts that every axes has."""
    kind = type(artist).__name__
    if kind in ("Spine", "XAxis", "YAxis", "Legend"):
        return ""
    if hasattr(artist, "get_text"):
        return _text(artist) if artist.get_text() else ""
    look = f"order {artist.get_zorder():.4g} alpha {artist.get_alpha()} label {artist.get_label()!r}"
    look = re.sub(r"label '_(child|container)?\d*'|label '_nolegend_'", "", look).strip()
    if kind == "Line2D":
        style = f"{_colour(artist.get_color())} {artist.get_linestyle()} {artist.get_linewidth():.4g}"
        mark = f"{artist.get_marker()} {artist.get_markersize():.4g} {artist.get_drawstyle()}"
        return f"line {style} {mark} x {_numbers(artist.get_xdata())} y {_numbers(artist.get_ydata())} {look}"
    if kind == "AxesImage":
        data = np.ascontiguousarray(artist.get_array())
        return f"image {data.shape} check {zlib.crc32(data.tobytes()):08x} {_numbers(artist.get_extent())} {look}"
    if kind == "SecondaryAxis":
        size = artist.xaxis.get_label().get_fontsize()
        return f"second axis {artist.get_xlabel()!r} {size:.4g} {_numbers(artist.get_xlim())}"
    if kind == "StepPatch":
        values, edges, base = map(_numbers, artist.get_data())
        return f"steps {values} at {edges} on {base} {_colour(artist.get_facecolor())} {look}"
    if hasattr(artist, "get_bbox"):
        box = artist.get_bbox()
        place = _numbers([box.x0, box.y0, box.width, box.height])
        border = f"{_colour(artist.get_edgecolor())} {artist.get_linewidth():.4g} {artist.get_hatch()}"
        return f"patch {place} {_colour(artist.get_facecolor())} {border} {look}"
    if hasattr(artist, "get_paths"):
        points = [path.vertices for path in artist.get_paths()]
        place = _numbers(np.concatenate(points)) if points else ""
        offsets = _numbers(artist.get_offsets()) if len(artist.get_offsets()) else ""
        faces = " ".join(_colour(one) for one in np.atleast_2d(artist.get_facecolor())[:4])
        return f"{kind} {len(points)} paths {place} {offsets} {faces} {_numbers(artist.get_linewidth())} {look}"
    return f"{kind} {look}"


# -- files -------------------------------------------------------------------------------------------------------------


def protobuf(data: bytes) -> list[str]:
    """Packets of a Perfetto file, one in a line."""
    return [_message(packet) for _, packet in _fields(data)]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        field, kind = divmod(number(), 8)
        if kind == 0:
            yield field, number()
        else:
            size = {1: 8, 2: 0, 5: 4}[kind] or number()
            yield field, data[at : at + size]
            at += size


NESTED = {(): {11, 12, 60}, (11,): {4}, (12,): {1, 2, 3, 29}, (60,): {8}}
"""Fields that are messages, by the fields around them."""


def _message(data: bytes, around: tuple[int, ...] = ()) -> str:
    said = []
    for field, value in _fields(data):
        if field in NESTED.get(around, ()):
            said.append(f"{field}{{{_message(value, (*around, field))}}}")
        else:
            said.append(f"{field}={value if isinstance(value, int) else repr(value)[2:-1].replace(' ', '_')}")
    return " ".join(said)


def png(path: Path) -> str:
    """Width and height of a picture, in pixels."""
    data = path.read_bytes()
    return f"{int.from_bytes(data[16:20], 'big')} x {int.from_bytes(data[20:24], 'big')}"

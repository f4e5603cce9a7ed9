"""Sizes, ticks, grids and clipping of every figure of a report, which the lines of kept figures do not say."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rows import Golden

import ipuperf.report as report
from ipuperf.trace import Trace


def looks(figure: Any) -> list[str]:
    """A line for the figure, then three for each axes."""
    said = [f"layout {type(figure.get_layout_engine()).__name__}, {len(figure.axes)} axes"]
    every = [*figure.axes, *(child for axes in figure.axes for child in axes.child_axes)]
    for axes in every:
        for one in (axes.xaxis, axes.yaxis):
            sizes = sorted({label.get_fontsize() for label in one.get_ticklabels()})
            ticks = [(tick.tick1line.get_markersize(), tick.gridline.get_visible()) for tick in one.get_major_ticks()]
            lines = [tick.gridline for tick in one.get_major_ticks() if tick.gridline.get_visible()]
            grid = {(line.get_color(), line.get_linewidth()) for line in lines}
            said.append(
                f"{one.axis_name}: {sizes} {sorted(set(ticks))} {sorted(map(str, grid))} {one.label.get_fontsize()}"
            )
        parts = ("Spine", "XAxis", "YAxis")
        shown = [child for child in axes.get_children() if child.get_visible() and type(child).__name__ not in parts]
        clipped = [(type(child).__name__, child.get_clip_on(), child.get_zorder()) for child in shown]
        images = [(image.get_interpolation(), axes.get_aspect()) for image in axes.images]
        said.append(f"{sorted(set(clipped))} {images} {axes.title.get_fontsize()} {axes.get_axisbelow()}")
    return said


FIGURES: Mapping[str, Callable[[Trace], Any]] = {
    "timeline": report.timeline_figure,
    "pipeline": report.pipeline_timeline_figure,
    "liveness": report.liveness_figure,
    "liveness of one": lambda t: report.liveness_figure(t, ipu=0),
    "liveness compared": lambda t: report.liveness_figure({"a": t, "b": t}),
    "tiles": report.tile_memory_figure,
    "tiles of one": lambda t: report.tile_memory_figure(t, ipu=1),
    "split": lambda t: report.time_split_figure({"a": t, "b": t}, {"a": 1e-6}),
    "timelines": lambda t: report.timelines_figure({"a": t, "b": t}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_looks_of_figures(name: str, rich: Trace, golden: Golden) -> None:
    golden(looks(FIGURES[name](rich)))

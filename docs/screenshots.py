"""The pictures of a report page in ``docs/images``, one for each view, made anew.

    python docs/screenshots.py [--traces FOLDER] [--into FOLDER]

Takes Chromium, Playwright, two minutes, and the programs of ``benchmarks/page_programs.py``; a window of a laptop
(1366 x 768), no file larger than 150 kB.
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from chromium import Browser, Page
from page_programs import trace_of

from ipuperf.report import report_page

MOST_BYTES = 150_000
SIZE = (1366, 768)


@dataclass(frozen=True)
class Picture:
    """``name``: the file is ``report-NAME.png``; ``keys`` are pressed and ``script`` run before it is taken."""

    name: str
    program: str
    view: str
    keys: str = ""
    script: str = ""
    dark: bool = False


_ZOOMED = "pwwwwwwww" + "a" * 5
_PLAN = "document.querySelectorAll('#operations-table tbody tr')[1].click()"
_VARIABLE = "document.querySelectorAll('#memory-variables tbody tr')[2].click()"

PICTURES: tuple[Picture, ...] = (
    Picture("summary", "remote-variables", "summary"),
    Picture("timeline", "pipeline", "timeline", _ZOOMED),
    Picture("timeline-run", "pipeline", "timeline", dark=True),
    Picture("liveness", "pipeline", "liveness"),
    Picture("memory", "pipeline", "memory", script=_VARIABLE),
    Picture("bsp", "pipeline", "bsp", script="document.getElementById('bsp-worst').click()"),
    Picture("modules", "pipeline", "modules"),
    Picture("operations", "pipeline", "operations", script=_PLAN, dark=True),
    Picture("links", "remote-variables", "links"),
    Picture("critical-path", "remote-variables", "critical-path"),
)


def taken(browser: Browser, file: Path, picture: Picture) -> bytes:
    """The picture of a page as PNG.

    Raises:
        ValueError: it is too large, or the page says something on its console.
    """
    page = browser.open(file, picture.view)
    page.run(f"document.documentElement.dataset.theme = '{'dark' if picture.dark else 'light'}'")
    page.press("c", "c", *picture.keys)  # drawn anew in the theme
    if picture.script:
        page.run(picture.script)
    page.run("scrollTo(0, 0)")
    _drawn(page)
    data = _small(page.picture())
    if page.problems or len(data) > MOST_BYTES:
        raise ValueError(f"report-{picture.name}.png: {len(data):,} bytes; on the console: {page.problems}")
    page.close()
    return data


def _drawn(page: Page) -> None:
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")


def _small(data: bytes) -> bytes:
    """The PNG packed well; where that is not enough, in 256 colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    for each in (image, image.quantize(256, dither=Image.Dither.NONE)):
        out = io.BytesIO()
        each.save(out, "PNG", optimize=True)
        if len(out.getvalue()) <= MOST_BYTES:
            break
    return out.getvalue()


@click.command()
@click.option("--traces", type=click.Path(file_okay=False, path_type=Path), help="Keep traces there, and take them.")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent / "images",
    help="Where the pictures go.",
)
def main(traces: Path | None, into: Path) -> None:
    """Make the pictures anew."""
    with tempfile.TemporaryDirectory() as folder, Browser(SIZE) as browser:
        for program in dict.fromkeys(picture.program for picture in PICTURES):
            file = Path(folder) / f"{program}.html"
            file.write_text(report_page(trace_of(program, traces)), encoding="utf-8")
            for picture in (each for each in PICTURES if each.program == program):
                target = into / f"report-{picture.name}.png"
                target.write_bytes(taken(browser, file, picture))
                click.echo(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

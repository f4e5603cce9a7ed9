"""What is on screen prints: light, without what can only be pressed, and no wider than the paper."""

from pathlib import Path
from typing import Any

import pytest
from chromium import Browser

from ipuperf.report import compare, comparison_page, report_page

VISIBLE = "[...document.querySelectorAll('{}')].filter(e => e.checkVisibility()).map(e => e.innerText || e.value)"
ADDRESSES = {
    "summary": [],
    "timeline?select=5000-90000&grid=1": [],
    "operations?filter=matmul&roofline=1": ["matmul"],
    "memory": [],
    "modules": [],
    "critical-path": [],
}
"""Addresses, and the texts of fields that stay, because they say what is shown."""


def printed(browser: Browser, file: Path, address: str) -> Any:
    page = browser.open(file, address)
    page.run("document.documentElement.dataset.theme = 'dark'")
    page.window.set_viewport_size({"width": 794, "height": 1123})
    page.window.emulate_media(media="print")
    page.wait("document.documentElement.dataset.theme === 'light'")
    return page


@pytest.fixture(scope="module")
def file(trace: Any, tmp_path_factory: Any) -> Path:
    target = tmp_path_factory.mktemp("page") / "page.html"
    target.write_text(report_page(trace), encoding="utf-8")
    return target


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_view_prints_light_and_without_controls(address: str, browser: Browser, file: Path):
    page = printed(browser, file, address)
    view = address.split("?")[0].replace("-", " ").capitalize()
    tabs = page.run(VISIBLE.format("nav button"))
    assert tabs == [view]
    assert page.run(VISIBLE.format(".switches button, .tools button, .fold")) == []
    assert page.run(VISIBLE.format(".tools input")) == ADDRESSES[address]
    assert page.run(VISIBLE.format(".hint, details#text")) == []
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    assert page.until(lambda: page.run("document.documentElement.scrollWidth") <= 794)
    rows = page.run("[...document.querySelectorAll('.scroll')].every(box => box.scrollHeight <= box.clientHeight + 1)")
    assert rows, "a table is cut"
    page.window.emulate_media(media="screen")
    page.wait("document.documentElement.dataset.theme === 'dark'")
    assert page.problems == []
    page.close()


def test_a_comparison_prints_light(browser: Browser, trace: Any, synthetic: Any, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text(comparison_page(compare({"a": trace, "b": synthetic.pipeline_trace(speed=0.8)})), encoding="utf-8")
    page = printed(browser, file, "")
    assert page.run(VISIBLE.format("nav a, .switches *")) == []
    assert page.until(lambda: page.run("document.documentElement.scrollWidth") <= 794)
    assert page.problems == []
    page.close()

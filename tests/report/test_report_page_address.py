"""The address of the page: it opens the same view again, in another tab too, and back and forward go through views."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, Page

from ipuperf.report import report_page

TEXT = """(() => {
  const section = [...document.querySelectorAll("#views section")].find(section => !section.hidden);
  const window = section.querySelector("#timeline-window")?.dataset;
  return [section.ariaLabel, section.innerText, [...section.querySelectorAll("input,select")].map(field => field.value),
    [...section.querySelectorAll(".chosen, [aria-pressed=true], [aria-expanded=false]")].map(e => e.innerText),
    window ? [Math.round(window.from), Math.round(window.to)] : [],
    [...section.querySelectorAll("canvas")].map(canvas => canvas.toDataURL())];
})()"""
"""What a view shows: its text, fields, what is chosen, and its pictures."""

PRESS = """((keys) => {
  for (const key of keys)
    for (const name of ["keydown", "keyup"])
      document.dispatchEvent(new KeyboardEvent(name, {key, bubbles: true}));
})"""
"""Presses keys with no pause between them, so that they are one entry of the history."""

PARTS = ("view", "text", "fields", "chosen", "window", "pictures")
SORT = "document.querySelectorAll('{} th')[{}].click()"

STATES: dict[str, tuple[str, list[str], str]] = {
    "summary": ("", [], SORT.format("#view-0", 2)),
    "timeline": ("", ["w", "w", "a", "Shift+ArrowRight", "Shift+ArrowRight", "p", "+"], ""),
    "timeline of a slice": (
        "document.getElementById('timeline-search').value = 'adam2'; "
        "document.getElementById('timeline-search').dispatchEvent(new Event('input'))",
        ["n", "n"],
        "",
    ),
    "timeline folded": ("", ["f", "l"], ""),
    "liveness": ("", ["ArrowLeft", "ArrowLeft"], "document.querySelector('#view-2 select').selectedIndex = 1"),
    "memory": (
        "document.querySelectorAll('#memory-variables tbody tr')[0].click()",
        [],
        "document.querySelectorAll('#view-3 .tools button')[0].click()",
    ),
    "bsp": ("", ["d", "w"], ""),
    "modules": (
        "document.querySelector('#modules-flame button').click(); "
        "document.querySelector('#modules-tree .fold').click()",
        [],
        "",
    ),
    "operations": (
        "document.getElementById('operations-filter').value = 'matmul'; "
        "document.getElementById('operations-filter').dispatchEvent(new Event('input')); "
        "document.querySelectorAll('#operations-table tbody tr')[3].click(); " + SORT.format("#operations-table", 0),
        [],
        "",
    ),
    "operations in groups": (
        "document.getElementById('operations-group').value = 'phase'; "
        "document.getElementById('operations-group').dispatchEvent(new Event('change')); "
        + SORT.format("#operations-table", 1),
        ["u"],
        "",
    ),
    "links": (SORT.format("#view-7", 0), ["u", "c"], ""),
    "critical-path": (SORT.format("#path-table", 0), [], ""),
}
"""For each state: a script, keys that are pressed then, and a script after them."""


@pytest.fixture(scope="module")
def file(trace: Any, tmp_path_factory: Any) -> Path:
    target = tmp_path_factory.mktemp("page") / "page.html"
    target.write_text(report_page(trace), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def shown(browser: Browser, file: Path) -> Iterator[Page]:
    page = browser.open(file)
    yield page
    assert (page.problems, page.requests) == ([], [])
    page.close()


def shows(page: Page, expected: list[Any]) -> None:
    """Wait until a page shows this, as a busy machine may draw some frames late; what differs is said in one line."""
    page.until(lambda: page.run(TEXT) == expected)
    pairs = zip(PARTS, page.run(TEXT), expected, strict=True)
    assert {part: (str(one)[:200], str(other)[:200]) for part, one, other in pairs if one != other} == {}


@pytest.mark.parametrize("state", STATES)
def test_an_address_opens_the_same_view_in_another_tab(state: str, browser: Browser, file: Path, shown: Page):
    name = state.split()[0]
    first, keys, last = STATES[state]
    shown.run(f"location.hash = '#{name}'")
    assert shown.address() == f"#{name}"
    before = shown.run(TEXT)
    if first:
        shown.run(first)
    shown.press(*keys)
    if last:
        shown.run(last)
        shown.run("document.querySelector('#views section:not([hidden]) select')?.dispatchEvent(new Event('change'))")
    shown.run("document.activeElement.blur()")
    address = shown.address()
    assert address.startswith(f"#{name}?")
    changed = shown.run(TEXT)
    assert changed != before
    other = browser.open(file, address[1:])
    shows(other, changed)
    assert other.run("location.hash") == address
    assert other.problems == []
    other.close()
    shown.run(f"location.hash = '#{name}'")
    shows(shown, before)


def test_back_and_forward_go_through_what_was_shown(browser: Browser, file: Path):
    page = browser.open(file)
    addresses = [page.address()]
    for keys in ("2", "www", "7", "u"):
        page.run(f"{PRESS}('{keys}')")
        addresses.append(page.address())
    assert addresses[0] == "#summary"
    assert addresses[1] == "#timeline"
    assert addresses[2].startswith("#timeline?from=")
    assert addresses[3:] == ["#operations", "#operations?units=us"]
    window = page.run("document.getElementById('timeline-window').textContent")
    for expected in reversed(addresses[:-1]):
        page.run("history.back()")
        assert page.until(lambda: page.address() == expected), expected  # noqa: B023
    assert page.run("document.getElementById('timeline-window').textContent") != window
    for expected in addresses[1:]:
        page.run("history.forward()")
        assert page.until(lambda: page.address() == expected), expected  # noqa: B023
    assert page.run("document.getElementById('timeline-window').textContent") == window
    assert page.problems == []
    page.close()


@pytest.mark.parametrize(
    "address",
    [
        "nothing",
        "timeline?from=x&to=-5&select=9-1&fold=zz&rows=-3&slice=99-1&search=%00",
        "memory?ipu=77&variable=none",
        "liveness?ipu=77&step=1e9",
        "bsp?row=12&from=-9&phases=1e9",
        "modules?module=none&width=none&open=none",
        "operations?op=none&ipu=x&group=none&sort.operations=none",
    ],
)
def test_an_address_that_names_nothing_opens_the_view_all_the_same(address: str, browser: Browser, file: Path):
    page = browser.open(file, address)
    assert page.address().split("?")[0][1:] == address.split("?")[0].replace("nothing", "summary")
    assert page.problems == []
    page.close()

"""The headless browser for pages: what it tells of a page, and its errors."""

import pytest
from chromium import Browser, find_browser

PAGE = """<html><head><title>t</title></head><body>
<p id="p">0</p><input id="i">
<script>
const said = document.getElementById("p");
document.body.addEventListener("click", (event) => { said.textContent = "at " + event.clientX; });
document.documentElement.dataset.ready = "yes";
</script></body></html>"""


@pytest.mark.heavy
@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed, or no Playwright")
def test_a_page_is_driven_and_its_problems_are_kept(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE, encoding="utf-8")
    with Browser((400, 300), patience=60) as browser:
        page = browser.open(file, "view")
        assert page.run("[location.hash, innerWidth, innerHeight]") == ["#view", 400, 300]
        page.click(50, 200)
        page.press("a")
        assert page.run("document.getElementById('p').textContent") == "at 50"
        assert page.run("Promise.resolve(7)") == 7
        assert page.picture().startswith(b"\x89PNG")
        assert (page.problems, page.requests) == ([], [])
        with pytest.raises(Exception, match="nothing_of_this_name"):
            page.run("nothing_of_this_name")
        page.run("console.error('bad', 3); fetch('http://localhost:1/x').catch(() => setTimeout(() => thrown, 0)); 1")
        assert page.until(lambda: bool(page.requests) and any("thrown" in problem for problem in page.problems))
        assert "bad 3" in page.problems
        assert page.requests == ["http://localhost:1/x"]
        browser.open(file, scripts=False).close()
        page.window.set_default_timeout(100)
        with pytest.raises(Exception, match="Timeout 100ms exceeded"):
            page.wait("false")

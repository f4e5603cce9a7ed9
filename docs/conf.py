"""The site, made by Sphinx: ``sphinx-build -W --keep-going docs site``, then open ``site/index.html``.

The pages are Markdown that a code host shows as well; ``_toc.yml`` has their order. Nothing is loaded from the network.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ.setdefault("MPLBACKEND", "Agg")

import gallery  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from ipuperf.base.version import __version__  # noqa: E402

project = "ipuperf"
author = "The ipuperf developers"
version = release = __version__
extensions = ["myst_parser", "sphinx_external_toc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["validation"]
html_theme = "furo"
html_title = f"ipuperf {version}"
html_show_sourcelink = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    """Make the reports of the gallery beside the pages."""

    def reports(app: Sphinx, problem: Exception | None) -> None:
        if problem is None and app.builder.name == "html":
            gallery.write(Path(app.outdir) / "gallery")

    app.connect("build-finished", reports)

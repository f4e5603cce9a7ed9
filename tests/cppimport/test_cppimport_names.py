"""A program that brings C++ along gets one clear error, whichever way it asks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipuperf import cppimport
from ipuperf.runtime.install import install, uninstall

SOURCE = "// cppimport\n#include <popart/op.hpp>\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package ``own_ops`` on the path, with cppimport under its own name."""
    folder = tmp_path / "own_ops"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    install(force=True)
    yield folder
    uninstall()
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "CppFinder"]
    for name in [n for n in sys.modules if n.startswith(("own_ops", "ipuperf.cppimport."))]:
        del sys.modules[name]


def test_an_op_of_a_program(package: Path) -> None:
    (package / "snake_binding.cpp").write_text(SOURCE)
    (package / "snake.py").write_text("import cppimport.import_hook\nfrom . import snake_binding\n")
    with pytest.raises(ImportError, match=r"own_ops\.snake_binding.*snake_binding\.cpp.*adding-a-custom-op\.md"):
        importlib.import_module("own_ops.snake")


def test_an_op_of_the_vendor(package: Path) -> None:
    (package / "rotary_pos_embed_binding.cpp").write_text(SOURCE)
    (package / "rotary.py").write_text("import cppimport.import_hook\nfrom . import rotary_pos_embed_binding\n")
    with pytest.raises(ImportError, match="built in: import popxl_addons.ops.rotary_pos_embed"):
        importlib.import_module("own_ops.rotary")


def test_a_program_may_fall_back_on_its_description(package: Path) -> None:
    (package / "snake_binding.cpp").write_text(SOURCE)
    lines = [
        "import cppimport",
        "try:",
        "    snake = cppimport.imp('snake_binding')",
        "except ImportError:",
        "    snake = 1",
    ]
    (package / "either.py").write_text("\n".join(lines))
    assert importlib.import_module("own_ops.either").snake == 1


def test_other_files_in_cpp_are_no_modules(package: Path) -> None:
    (package / "helper.cpp").write_text("#include <vector>\n")
    (package / "asks.py").write_text("import cppimport.import_hook\nfrom . import helper\n")
    with pytest.raises(ImportError, match="cannot import name 'helper'"):
        importlib.import_module("own_ops.asks")


def test_every_function_says_it(tmp_path: Path) -> None:
    source = tmp_path / "mine.cpp"
    source.write_text(SOURCE)
    for ask in (
        lambda: cppimport.imp("mine"),
        lambda: cppimport.build("mine"),
        lambda: cppimport.imp_from_filepath(source),
        lambda: cppimport.build_filepath(str(source)),
        lambda: cppimport.build_all(tmp_path),
    ):
        with pytest.raises(cppimport.CppOpError, match="'mine'.*describe its op in Python"):
            ask()
    (tmp_path / "mine.cpp").unlink()
    cppimport.build_all(tmp_path)


@pytest.mark.parametrize("module", sorted(set(cppimport.BUILT_IN.values())))
def test_the_ops_that_are_said_to_be_built_in_are(module: str) -> None:
    assert importlib.import_module(f"ipuperf.{module}").__all__

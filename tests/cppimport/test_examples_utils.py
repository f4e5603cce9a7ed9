"""The stand-in for ``examples_utils.load_lib``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuperf.cppimport import CppOpError
from ipuperf.runtime.effects import WithoutEffectWarning
from ipuperf.runtime.install import install, uninstall

PATTERN = '// cppimport\n// OpCreator<is only a comment>\nstatic popart::PatternCreator<Mine> creator("Mine", true);\n'
OP = "// cppimport\nstatic popart::OpCreator<Cube> creator(definitions);\n"


@pytest.fixture
def examples_utils() -> Iterator[Any]:
    install(force=True)
    yield importlib.import_module("examples_utils")
    uninstall()


def test_patterns_of_popart_are_without_effect(examples_utils: Any, tmp_path: Path) -> None:
    assert examples_utils is sys.modules["ipuperf.frontends.cppimport.examples_utils"]
    source = tmp_path / "residual_pattern.cpp"
    source.write_text(PATTERN)
    with pytest.warns(WithoutEffectWarning, match=r"residual_pattern\.cpp.*without effect.*computes the same"):
        examples_utils.load_lib(str(source))
    with pytest.warns(WithoutEffectWarning):
        ((path, _),) = examples_utils.load_lib_all(tmp_path)
    assert path == str(source)
    with pytest.warns(WithoutEffectWarning):
        assert examples_utils.load_lib_all(tmp_path, load=False) == [path]


@pytest.mark.parametrize("text", [OP, PATTERN + OP, "int nothing;\n"])
def test_what_may_compute_something_leads_to_the_description_in_python(
    examples_utils: Any, tmp_path: Path, text: str
) -> None:
    source = tmp_path / "cube.cpp"
    source.write_text(text)
    with pytest.raises(CppOpError, match=r"cube.*describe its op in Python.*docs/how-to/adding-a-custom-op\.md"):
        examples_utils.load_lib(source)


def test_what_is_not_there(examples_utils: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"File does not exist: .*none\.cpp"):
        examples_utils.load_lib(tmp_path / "none.cpp")
    with pytest.raises(ModuleNotFoundError, match=r"load_lib, parse_yaml_config and its parsing are here"):
        importlib.import_module("examples_utils.testing")


def test_only_open_modules_below_a_folder_are_loaded(examples_utils: Any, tmp_path: Path) -> None:
    """A file that is hidden, or whose first line does not ask for it, may hold an op."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".hidden.cpp").write_text(OP)
    (tmp_path / "helper.cpp").write_text(f"int one;\n{OP}")
    for name in ("p.cpp", "a/b/second.cpp"):
        (tmp_path / name).write_text(PATTERN)
    with pytest.warns(WithoutEffectWarning):
        found = examples_utils.load_lib_all(str(tmp_path))
    assert [path for path, _ in found] == [str(tmp_path / "a" / "b" / "second.cpp"), str(tmp_path / "p.cpp")]
    assert [
        inspect.signature(each).parameters["timeout"].default
        for each in (examples_utils.load_lib, examples_utils.load_lib_all)
    ] == [300, 300]

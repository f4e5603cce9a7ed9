"""Libraries of C++ ops: known by their sources, described in Python, without effect, or one clear error."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ipuperf.cppimport import CppOpError
from ipuperf.cppimport.sources import digest
from ipuperf.ops.transfers.remap import CopyTensor
from ipuperf.runtime import custom_ops
from ipuperf.runtime.effects import WithoutEffectWarning
from ipuperf.runtime.install import install, uninstall

OP = """#include <popart/op.hpp>
namespace mine { const OperatorIdentifier Cube = {"com.example", "Cube", 1}; }
const OperatorIdentifier CubeGrad = {"com.example", "CubeGrad", 1};
static OpCreator<CubeOp> creator(OpDefinitions({{mine::Cube, definition}}));
"""
PATTERN = '#include <popart/patterns/pattern.hpp>\nstatic popart::PatternCreator<Mine> creator("Mine", true);\n'
IDENTIFIER = ("Cube", "com.example", 1)


@pytest.fixture(autouse=True)
def front_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(custom_ops, "_CLASSES", dict(custom_ops._CLASSES))
    install(force=True)
    yield
    uninstall()


@pytest.fixture
def libraries() -> ModuleType:
    """The module that ``ctypes`` asks; other tests import it anew."""
    return importlib.import_module("ipuperf.frontends.cppimport.libraries")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "cube" / "cube.cpp"
    path.parent.mkdir()
    path.write_text(OP)
    return path


def test_a_library_whose_sources_are_known_registers_their_ops(
    source: Path, libraries: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(libraries.KNOWN, digest(source), {IDENTIFIER: CopyTensor})
    assert custom_ops.registered(IDENTIFIER) is None
    # ``make`` would have put it there; the sources lie below the library's folder.
    ctypes.cdll.LoadLibrary(str(source.parents[1] / "cube.so"))
    assert custom_ops.registered(IDENTIFIER) is CopyTensor


@pytest.mark.parametrize("place", ["cube/build/cube.so", "cube/cube.so"])
def test_a_file_that_is_no_library_is_answered_as_one_that_is_missing(
    source: Path, place: str, libraries: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(libraries.KNOWN, digest(source), {IDENTIFIER: CopyTensor})
    library = source.parents[1] / place
    library.parent.mkdir(exist_ok=True)
    library.touch()
    ctypes.CDLL(str(library))
    assert custom_ops.registered(IDENTIFIER) is CopyTensor


def test_an_op_that_is_described_in_python_needs_no_known_source(
    source: Path, libraries: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(CppOpError, match=r"'Cube' \(.*cube\.cpp\) is C\+\+.*adding-a-custom-op\.md"):
        libraries.load(source)
    custom_ops.register(IDENTIFIER, CopyTensor)
    libraries.load(source)
    assert libraries.identifiers_of(source) == [IDENTIFIER]


def test_an_unknown_op_is_one_error_also_by_way_of_ctypes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(CppOpError, match="'Cube'"):
        ctypes.cdll.LoadLibrary(str(source.parents[1] / "cube.so"))


def test_patterns_alone_are_without_effect(tmp_path: Path) -> None:
    (tmp_path / "pattern.cpp").write_text(PATTERN)
    with pytest.warns(WithoutEffectWarning, match=r"loading 'pattern\.cpp' is without effect"):
        ctypes.cdll.LoadLibrary(str(tmp_path / "pattern.so"))


@pytest.mark.parametrize("name", ["libnothing.so", "{folder}/libnothing.so", "{folder}/nothing.txt"])
def test_other_libraries_are_left_to_ctypes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the system, one without sources near it, and a source that is not the vendor's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.cpp").write_text("// OpCreator<is only a comment>\nint one;\n")
    with pytest.raises(OSError, match="nothing"):
        ctypes.CDLL(name.format(folder=tmp_path))
    assert ctypes.CDLL(None)._name is None


def test_without_the_front_ends_ctypes_is_as_it_was(source: Path) -> None:
    uninstall()
    with pytest.raises(OSError, match="cube"):
        ctypes.cdll.LoadLibrary(str(source.parents[1] / "cube.so"))

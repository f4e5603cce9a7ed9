"""A program that brings C++ along gets one clear error, whichever way it asks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from ipuperf import cppimport
from ipuperf.cppimport.sources import digest
from ipuperf.runtime.install import install, uninstall

OF_A_TEST = ("own_ops", "ipuperf.cppimport.imp", "ipuperf.frontends.cppimport.imp")
"""Modules that a test imports anew."""
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
    for name in [n for n in sys.modules if n.startswith(OF_A_TEST)]:
        del sys.modules[name]


def test_an_op_of_a_program(package: Path) -> None:
    (package / "snake_binding.cpp").write_text(SOURCE)
    (package / "snake.py").write_text("import cppimport.import_hook\nfrom . import snake_binding\n")
    with pytest.raises(ImportError, match=r"own_ops\.snake_binding.*snake_binding\.cpp.*adding-a-custom-op\.md"):
        importlib.import_module("own_ops.snake")


def test_an_op_that_is_called_as_one_that_is_built_in(package: Path) -> None:
    """LLaMA's rotary embedding rotates halves, popxl.addons' neighbours: no error leads to the other one."""
    (package / "rotary_pos_embed_binding.cpp").write_text(SOURCE)
    (package / "rotary.py").write_text("import cppimport.import_hook\nfrom . import rotary_pos_embed_binding\n")
    with pytest.raises(ImportError, match=r"describe its op in Python.*adding-a-custom-op\.md") as error:
        importlib.import_module("own_ops.rotary")
    assert "popxl_addons" not in str(error.value)


#: Changes of an op's files, and whether they still compute the same.
EDITS = {
    "nothing": (lambda text: text, True),
    "comments": (lambda text: f'// cppimport\n/* a\nb */ {text} // "', True),
    "white space": (lambda text: text.replace(" {", "\n{").replace("  ", "\t"), True),
    "a number": (lambda text: text.replace("0.5f", "0.25f"), False),
    "a string": (lambda text: text.replace("//a", "//b"), False),
    "a directive": (lambda text: text.replace("WIDTH 8", "WIDTH 4"), False),
}


@pytest.mark.parametrize(("edit", "same"), EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("file", ["half.cpp", "half_codelet.cpp"])
def test_a_built_in_op_is_known_by_what_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, edit: Callable[[str], str], same: bool
) -> None:
    """By its own text and that of the files beside it, wherever it stands and whatever its folder is called."""
    text = '#define WIDTH 8\nfloat f(float x) {\n  load("x//a");\n  return 0.5f * x;\n}\n'
    for folder in ("theirs", "mine"):
        (tmp_path / folder).mkdir()
        for name in ("half.cpp", "half_codelet.cpp"):
            (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(cppimport, "BUILT_IN_SOURCES", {digest(tmp_path / "theirs" / "half.cpp")})
    source = tmp_path / "mine" / file
    source.write_text(edit(text))
    assert cppimport.is_built_in(tmp_path / "mine" / "half.cpp") is same
    importer = importlib.import_module("ipuperf.cppimport.importer")
    if same:
        assert not importer.is_build_needed(importer.setup_module_data("half", str(source)))
    else:
        with pytest.raises(cppimport.CppOpError, match=rf"'half'.*{file}.*adding-a-custom-op\.md"):
            importer.setup_module_data("half", str(source))


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


REAL = """from types import ModuleType
def imp_from_filepath(filepath, fullname=None):
    import cppimport
    module = ModuleType(fullname)
    module.compiled_by = cppimport.__file__
    return module
def build_filepath(filepath, fullname=None):
    from pathlib import Path
    built = Path(filepath).with_suffix(".built.py")
    built.write_text("answer = 42")
    return str(built)
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real cppimport as it were, first on the path and imported, and the stand-in in front of it without force."""
    (tmp_path / "cppimport").mkdir()
    (tmp_path / "cppimport" / "__init__.py").write_text(REAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cppimport", raising=False)
    assert Path(importlib.import_module("cppimport").__file__ or "").parent.parent == tmp_path
    install(["cppimport"])
    yield tmp_path
    uninstall(["cppimport"])
    assert importlib.import_module("cppimport").__file__ == str(tmp_path / "cppimport" / "__init__.py")
    for name in [n for n in sys.modules if n == "cppimport" or n.startswith(OF_A_TEST)]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "CppFinder"]


def test_the_real_cppimport_compiles_what_is_not_the_vendors(real: Path) -> None:
    ours = importlib.import_module("cppimport")
    assert ours is cppimport
    for name, include in (("fast", "<vector>"), ("mine", "<popops/ElementWise.hpp>")):
        (real / f"{name}.cpp").write_text(f"// cppimport\n#include {include}\n")
    module = ours.imp("fast")
    assert module.compiled_by == str(real / "cppimport" / "__init__.py")
    assert importlib.import_module("cppimport") is ours  # the stand-in stands again
    with pytest.raises(ImportError, match="'mine'.*describe its op in Python"):
        ours.imp("mine")


def test_the_import_hook_with_the_real_cppimport(real: Path) -> None:
    folder = real / "own_ops"
    folder.mkdir()
    (folder / "__init__.py").write_text("import cppimport.import_hook\n")
    (folder / "fast.cpp").write_text("// cppimport\n#include <vector>\n")
    (folder / "mine.cpp").write_text(SOURCE)
    assert importlib.import_module("own_ops.fast").answer == 42
    with pytest.raises(ImportError, match=r"own_ops\.mine.*adding-a-custom-op\.md"):
        importlib.import_module("own_ops.mine")


def test_load_lib_of_an_op(package: Path) -> None:
    """The steps of ``examples_utils.load_lib``: the SDK's hash, the module's data, where it ends."""
    source = package / "sdk_version_hash_lib.cpp"
    source.write_text("// cppimport\n#include <poplar/Graph.hpp>\n")
    (package / "sdk.py").write_text("import cppimport.import_hook\nfrom . import sdk_version_hash_lib\n")
    assert importlib.import_module("own_ops.sdk").sdk_version_hash_lib.sdk_version_hash().startswith("ipuperf-")
    importer = importlib.import_module("cppimport.importer")
    importlib.import_module("cppimport").settings["lock_timeout"] = 300
    with (
        mock.patch("cppimport.checksum._calc_cur_checksum", new=str),
        pytest.raises(cppimport.CppOpError, match="'snake'.*snake.cpp.*adding-a-custom-op.md"),
    ):
        importer.setup_module_data("snake", str(package / "snake.cpp"))


def test_which_source_a_name_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of its name on the path, which has to say that it is a module only where the program asks for that."""
    for folder in ("first", "second/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "first" / "mine.cpp").write_text(SOURCE.replace("// cppimport\n", ""))
    for place in ("second/mine.cpp", "second/inner/mine.cpp"):
        (tmp_path / place).write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), ""])
    monkeypatch.chdir(tmp_path / "second")
    for name, options, source in (
        ("mine", {}, "first"),
        ("mine", {"opt_in": True}, "mine.cpp"),
        ("inner.mine", {"opt_in": True}, "inner"),
        ("inner.mine", {}, "inner"),
        ("other", {}, ""),
    ):
        with pytest.raises(cppimport.CppOpError, match="is C\\+\\+") as error:
            cppimport.imp(name, **options)
        shown = "" if not source else f" ({ {'first': tmp_path / 'first' / 'mine.cpp'}.get(source, source) }"
        assert str(error.value).startswith(f"{name!r}{shown}"), error.value


def test_what_is_no_file_is_not_built_in(tmp_path: Path) -> None:
    importer = importlib.import_module("ipuperf.cppimport.importer")
    assert not cppimport.is_built_in(tmp_path)
    for ask in (
        lambda: importer.is_build_needed({"fullname": "a"}),
        lambda: importer.build_safely("b.cpp", {"fullname": "a"}),
    ):
        with pytest.raises(cppimport.CppOpError, match="^'a'"):
            ask()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("#define A  1\n", "#define A 1\n", True), ('f = "a  b";', 'f = "a b";', False), ("a  b", "a b", True),
     ("#define A \\\n 1\n", "#define A \\\n 2\n", False), ("f('/');", "f('*');", False), ("a b", "ab", False),
     ("x // y", "x", True), ("x /* y */ z", "x z", True), ('"\\"//"', '"\\""', False)],
)  # fmt: skip
def test_what_a_digest_sees(tmp_path: Path, one: str, other: str, same: bool) -> None:
    digests = []
    for text in (one, other):
        (tmp_path / "op.CPP").write_text(text)
        (tmp_path / "notes.txt").write_text(text)
        digests.append(digest(tmp_path / "op.cpp"))
    assert (digests[0] == digests[1]) is same

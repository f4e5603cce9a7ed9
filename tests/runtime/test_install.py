"""The import finder, with small packages made for the test in place of the real front ends."""

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuperf.runtime.install import AliasFinder, InstallError, install, installed_names, uninstall

NAMES = {"fakexl": "realpkg.fakexl", "fakexl_addons": "realpkg.fakexl_addons"}
FILES = {
    "realpkg/__init__.py": "",
    "realpkg/fakexl/__init__.py": "from realpkg.fakexl.ir import Ir\n",
    "realpkg/fakexl/ir.py": "class Ir:\n    pass\n",
    "realpkg/fakexl/ops/__init__.py": "from realpkg.fakexl.ops.binary import add\n",
    "realpkg/fakexl/ops/binary.py": "from ..ir import Ir\n\ndef add(a, b):\n    return a + b\n",
    "realpkg/fakexl/transforms/__init__.py": "",
    "realpkg/fakexl/transforms/autodiff.py": "from .. import ops\n\nclass GradGraphInfo:\n    ops = ops\n",
    "realpkg/fakexl/broken.py": "import no_such_module_anywhere\n",
    "realpkg/fakexl/circular.py": "import fakexl.circular as itself\nname = itself.__name__\n",
    "realpkg/fakexl_addons/__init__.py": "import realpkg.fakexl as xl\n",
    "realpkg/fakexl_addons/rts.py": "LOADED = True\n",
}


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_tree(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path)
    finders, modules = list(sys.meta_path), set(sys.modules)
    yield
    uninstall(NAMES)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in {"realpkg", "fakexl", "fakexl_addons"}:
            del sys.modules[name]
    assert sys.meta_path == finders


def run(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    return names


def test_the_import_forms_of_the_tutorials() -> None:
    install(NAMES)
    names = run(
        "import fakexl\n"
        "import fakexl_addons as addons\n"
        "import fakexl.ops as ops\n"
        "from fakexl.transforms.autodiff import GradGraphInfo\n"
        "from fakexl_addons.rts import LOADED\n"
        "from fakexl import Ir, transforms\n"
    )
    real = importlib.import_module("realpkg.fakexl")
    assert names["fakexl"] is real
    assert names["ops"] is sys.modules["realpkg.fakexl.ops"] is sys.modules["fakexl.ops"] is real.ops
    assert names["addons"].xl is names["fakexl"]
    assert names["Ir"] is real.Ir
    assert names["GradGraphInfo"] is sys.modules["realpkg.fakexl.transforms.autodiff"].GradGraphInfo
    assert names["GradGraphInfo"].ops is names["ops"]
    assert names["LOADED"]
    for name in ("fakexl", "fakexl.ops", "fakexl.transforms.autodiff", "fakexl_addons.rts"):
        assert sys.modules[name] is sys.modules[f"realpkg.{name}"]
        assert sys.modules[name].__spec__.name == f"realpkg.{name}"
    assert names["fakexl"].ops.binary.add(1, 2) == 3


def test_a_version_that_is_asked_for() -> None:
    install(NAMES)
    importlib.import_module("fakexl").__version__ = "3.3.0+ours"
    assert importlib.metadata.version("fakexl") == "3.3.0+ours"
    for name in ("fakexl-addons", "not_there"):  # without a version, unknown
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)
    uninstall(NAMES)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("fakexl")


def test_submodule_first_and_import_module() -> None:
    install(NAMES)
    binary = importlib.import_module("fakexl.ops.binary")
    assert binary is sys.modules["realpkg.fakexl.ops.binary"]
    assert importlib.import_module("fakexl") is sys.modules["realpkg.fakexl"]


def test_nothing_is_imported_by_installing() -> None:
    install(NAMES)
    assert not {name for name in sys.modules if name.startswith(("realpkg", "fakexl"))}
    importlib.import_module("fakexl")
    assert "realpkg.fakexl.ops" not in sys.modules
    assert importlib.util.find_spec("fakexl.ops") is not None
    assert importlib.util.find_spec("fakexl.nothing") is None


def test_failing_imports() -> None:
    install(NAMES)
    with pytest.raises(ModuleNotFoundError, match=r"fakexl\.nothing"):
        importlib.import_module("fakexl.nothing")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module("fakexl.broken")
    assert "fakexl.broken" not in sys.modules
    with pytest.raises(ImportError, match="cannot import name 'sub'"):
        run("from fakexl.ops import sub")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fakexl.ir.deeper")


def test_a_front_end_that_imports_its_upstream_name() -> None:
    install(NAMES)
    assert importlib.import_module("fakexl.circular").name == "realpkg.fakexl.circular"


def test_idempotent_and_additive() -> None:
    install({"fakexl": NAMES["fakexl"]})
    module = importlib.import_module("fakexl")
    install({"fakexl": NAMES["fakexl"]})
    install(NAMES)
    assert importlib.import_module("fakexl") is module
    assert len([finder for finder in sys.meta_path if isinstance(finder, AliasFinder)]) == 1
    assert {name: installed_names()[name] for name in NAMES} == NAMES


def test_uninstall_forgets_names_but_not_modules() -> None:
    install(NAMES)
    module = importlib.import_module("fakexl.ops")
    uninstall(["fakexl"])
    assert "fakexl_addons" in installed_names()
    assert "fakexl" not in sys.modules
    assert "fakexl.ops" not in sys.modules
    assert sys.modules["realpkg.fakexl.ops"] is module
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fakexl")
    importlib.import_module("fakexl_addons")
    uninstall(NAMES)
    uninstall(NAMES)
    assert not set(NAMES) & set(installed_names())
    install(NAMES)
    assert importlib.import_module("fakexl.ops") is module


@pytest.mark.parametrize("imported", [False, True])
def test_an_installed_package_is_not_shadowed_unless_forced(imported: bool, tmp_path: Path) -> None:
    write_tree(tmp_path, {"fakexl/__init__.py": "UPSTREAM = True\n", "fakexl/ops.py": ""})
    upstream = importlib.import_module("fakexl.ops") if imported else None
    finders = list(sys.meta_path)
    with pytest.raises(InstallError, match=r"fakexl.*__init__.py.*force=True"):
        install(NAMES)
    assert sys.meta_path == finders
    assert not set(NAMES) & set(installed_names())
    install(NAMES, force=True)
    install(NAMES)
    assert importlib.import_module("fakexl.ops") is sys.modules["realpkg.fakexl.ops"]
    uninstall(NAMES)
    assert importlib.import_module("fakexl").UPSTREAM
    if imported:
        assert sys.modules["fakexl.ops"] is upstream


def test_names_must_be_top_level() -> None:
    with pytest.raises(ValueError, match=r"fakexl\.ops"):
        install(["fakexl.ops"])


@pytest.mark.parametrize("name", ["popart._internal.ir", "popart.ir", "popdist.horovod"])
def test_modules_of_popart_that_are_not_here_are_refused_with_a_reason(name: str) -> None:
    program = f"from ipuperf.runtime.install import install; install(['popart', 'popdist'], force=True); import {name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"ModuleNotFoundError: No module named" in done.stderr
    assert b"are here" in done.stderr


def test_the_default_names() -> None:
    program = (
        "from ipuperf.runtime.install import FRONT_ENDS, install, installed_names; import sys; install(); "
        "assert installed_names() == {name: f'ipuperf.frontends.{name}' for name in FRONT_ENDS}; "
        "assert 'popxl' not in sys.modules and 'ipuperf.frontends.popxl' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_poptorch_without_pytorch_says_what_to_install() -> None:
    program = (
        "import importlib.util as u; found = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest); "
        "import ipuperf.poptorch"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"PopTorch programs need PyTorch: pip install 'torch<" in done.stderr


def test_a_program_without_a_test_util_of_its_own_finds_a_stand_in_while_popart_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "test_util", raising=False)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("test_util")
    install(["popart"], force=True)
    try:
        ours = importlib.import_module("test_util")
        assert ours is importlib.import_module("ipuperf.popart.test_util")
    finally:
        uninstall(["popart"])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("test_util")

    (tmp_path / "test_util.py").write_text("OWN = True\n")
    importlib.invalidate_caches()
    install(["popart"], force=True)
    try:
        assert importlib.import_module("test_util").OWN
    finally:
        uninstall(["popart"])
        del sys.modules["test_util"]


def test_trace_points_of_the_host_are_not_recorded() -> None:
    install(["popart"], force=True)
    try:
        libpvti = importlib.import_module("libpvti")
        with pytest.warns(UserWarning, match="libpvti is without effect"):
            channel = libpvti.createTraceChannel("steps")
        with libpvti.Tracepoint(channel, "one step") as point:
            assert (point.channel.name, point.label) == ("steps", "one step")
    finally:
        uninstall(["popart"])


CHILD = "import sys, fakexl.ops, realpkg.fakexl.ops; print(fakexl.ops is realpkg.fakexl.ops)"


def started(*arguments: str) -> str:
    """What a Python process prints or says."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_processes_that_a_program_starts_find_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = str(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('own ')\n")
    monkeypatch.setenv("PYTHONPATH", before)
    install(NAMES)
    assert started("-c", CHILD) == "own True"
    uninstall(["fakexl_addons"])
    assert started("-c", CHILD) == "own True"
    uninstall()
    assert os.environ["PYTHONPATH"] == before
    assert started("-c", "import sys; print('ipuperf' in sys.modules)") == "own False"

"""The package as an index has it: a strict consumer's types, and what goes into wheel and source distribution.

`.ci/package` builds both and works with the wheel alone, which takes minutes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _installed(repository: Path, folder: Path) -> Path:
    """Return the Python of an environment in which the package's files are installed, with its dependencies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "ipuperf", site / "ipuperf", ignore=without_caches)
    for name in ("models", "scenarios"):
        shutil.copytree(repository / name, site / "ipuperf" / name, ignore=without_caches)
    # Of a folder on the path, mypy reads what is not installed before it.
    (site / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return python


@pytest.mark.heavy
def test_a_strict_consumer_is_typed(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    shutil.copy(repository / "tests" / "package" / "consumer.py", tmp_path)
    # If names had no types, this would be no error.
    (tmp_path / "wrong.py").write_text(
        "from ipuperf.machine import load_machine\n\nnumber: int = load_machine('pod4')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    command += ["--python-executable", str(_installed(repository, tmp_path / "environment")), "consumer.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    first, last = done.stdout.splitlines()
    assert first.startswith("wrong.py:3: error: Incompatible types in assignment"), done.stdout + done.stderr
    assert last == "Found 1 error in 1 file (checked 2 source files)"


def test_the_consumer_is_a_program_of_thirty_lines(repository: Path) -> None:
    text = (repository / "tests" / "package" / "consumer.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 35
    assert "Any" not in text


def test_what_says_that_the_package_is_typed_is_installed(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["ipuperf"]
    assert (repository / "ipuperf" / "py.typed").read_bytes() == b""
    classifiers = project["project"]["classifiers"]
    assert "Typing :: Typed" in classifiers
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)}
    assert versions <= set(classifiers)


def test_the_workflow_tries_the_pythons_of_the_classifiers(repository: Path) -> None:
    text = (repository / ".github" / "workflows" / "checks.yml").read_text()
    assert text.count('python: ["3.10", "3.11", "3.12", "3.13"]') == 3
    for command in ("bash .ci/run", "bash .ci/package"):
        assert command in text
        assert (repository / command.split()[1]).is_file()


def test_files_of_the_source_distribution_exist(repository: Path) -> None:
    for line in (repository / "MANIFEST.in").read_text().splitlines():
        kind, *names = line.split()
        if kind in ("include", "graft"):
            assert [name for name in names if not (repository / name).exists()] == []


def test_the_citation_has_the_version(repository: Path) -> None:
    from ipuperf.base.version import __version__

    assert f"\nversion: {__version__}\n" in (repository / "CITATION.cff").read_text()

"""What lies at the top of the repository: what the README speaks of, and nothing that a tool has left there."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_top_level_holds_what_it_is_said_to() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if kept.returncode:
        pytest.skip(kept.stderr)
    files = kept.stdout.rstrip("\0").split("\0")
    assert {name.partition("/")[0] for name in files} == {
        ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md", "Containerfile", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "benchmarks", "docs",
        "ipuperf", "models", "notebooks", "pyproject.toml", "scenarios", "setup.py", "tests",
    }  # fmt: skip
    assert not [name for name in files if name.endswith((".whl", ".pyc", ".egg", ".orig", ".rej"))]

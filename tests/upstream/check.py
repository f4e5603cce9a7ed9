"""The vendor's own tests that are expected to pass, and whether they do.

    python tests/upstream/check.py FOLDER [--all] [--update]

``FOLDER`` holds the vendor's tests and their runner (``run.py``); they are not part of the project. The list,
``expected.txt``, only grows: a test in it that fails ends with code 1, ``--update`` adds the tests that pass now. Of
PopTorch's, which take many minutes, the files of ``SAMPLE`` run; ``--all`` runs every file. ``failing.csv`` says why
others fail; one that fails and is not in it ends with code 1 too.
"""

import argparse
import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected.txt")
FAILING = Path(__file__).with_name("failing.csv")
FORKED = Path(__file__).with_name("forked.py")
SUITES = ("popxl-unit", "addons-unit")
POPTORCH = "poptorch"
TENSORFLOW = ("tf-cnns", "tf-bert", "tf-gnn")
SAMPLE = (
    "if_test.py",
    "loop_test.py",
    "multiconv_test.py",
    "pipelining_test.py",
    "slice_test.py",
    "replicated_graph_test.py",
    "weights_writing_test.py",
)
"""PopTorch's files that run without ``--all``: the quick ones that go through the most of the front end."""


def passing(folder: Path, every: bool) -> tuple[set[str], set[str]]:
    """``suite file::function`` of each test that passes, and of each that fails; the suites run side by side."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folders = dict.fromkeys(SUITES, folder)
        if importable("torch"):
            folders[POPTORCH] = folder if every else sample(folder, work / "sample")
        reports = {suite: work / f"{suite}.json" for suite in folders}
        if importable("tensorflow_addons"):
            folders[TENSORFLOW[0]] = folder
            reports[TENSORFLOW[0]] = work / "tensorflow.json"
        # One process runs all suites of TensorFlow.
        running = [(suite, started(folder_of, suite, reports[suite])) for suite, folder_of in folders.items()]
        for suite, process in running:
            print(process.communicate()[0], end="")
            if process.returncode:
                raise SystemExit(f"{folder / 'run.py'} {suite} ended with {process.returncode}")
        found: dict[str, dict[str, list[str]]] = {}
        for report in reports.values():
            found.update(json.loads(report.read_text(encoding="utf-8")))
    outcomes = {f"{suite} {name}": out for suite, tests in found.items() for name, (out, _) in tests.items()}
    passed = {name for name, out in outcomes.items() if out == "passed"}
    failed = {name for name, out in outcomes.items() if out in ("failed", "error")}
    return passed, failed


def importable(name: str) -> bool:
    """Whether there is such a package."""
    return importlib.util.find_spec(name) is not None


def started(folder: Path, suite: str, report: Path) -> subprocess.Popen[str]:
    """A run of a suite; programs that its tests start find this Python first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    line = [sys.executable, str(folder / "run.py"), suite, "--json", str(report)]
    if suite in TENSORFLOW:
        line = [sys.executable, str(FORKED), str(folder), "--json", str(report)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})


def sample(folder: Path, to: Path) -> Path:
    """A folder with the runner and, of PopTorch's tests, those of :data:`SAMPLE`."""
    tests = to / "poptorch" / "tests"
    tests.mkdir(parents=True)
    for name in ("run.py", "unfair.csv"):
        shutil.copy(folder / name, to)
    for name in ("conftest.py", "helpers.py", *SAMPLE):
        shutil.copy(folder / "poptorch" / "tests" / name, tests)
    return to


def main() -> int:
    """Compare, or add what is new."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="all of PopTorch's files (20 minutes and more)")
    parser.add_argument("--update", action="store_true", help="add the tests that pass now")
    arguments = parser.parse_args()
    expected = set(EXPECTED.read_text(encoding="utf-8").split("\n")) - {""}
    found, failed = passing(arguments.folder, arguments.all)
    asked = {name for name in expected if _asked(name, arguments.all)}
    lost, new = sorted(asked - found), sorted(found - expected)
    if arguments.update:
        EXPECTED.write_text("".join(f"{line}\n" for line in sorted(expected | found)), encoding="utf-8")
    print(f"the vendor's tests: {len(asked) - len(lost)} of {len(asked)} expected ones pass, {len(new)} more do")
    for line in lost:
        print(f"  fails: {line}")
    unexplained = _unexplained(failed, arguments.folder)
    for line in unexplained:
        print(f"  fails, and failing.csv does not say why: {line}")
    return 1 if lost or unexplained else 0


def _asked(name: str, every: bool) -> bool:
    """Whether a test belongs to those that run."""
    suite, _, rest = name.partition(" ")
    if suite in TENSORFLOW:
        return importable("tensorflow_addons") and (suite != "tf-bert" or importable("transformers"))
    return suite != POPTORCH or (importable("torch") and (every or rest.partition("::")[0] in SAMPLE))


def _unexplained(failed: Iterable[str], folder: Path) -> list[str]:
    """Tests that fail although they could pass, and have no reason."""
    with FAILING.open(encoding="utf-8", newline="") as file:
        known = {f"{row['suite']} {row['file']}::{row['function']}" for row in csv.DictReader(file)}
    with (folder / "unfair.csv").open(encoding="utf-8", newline="") as file:
        known |= {f"{row['suite']} {row['file']}::{row['name']}" for row in csv.DictReader(file)}
    return sorted(set(failed) - known)


if __name__ == "__main__":
    sys.exit(main())

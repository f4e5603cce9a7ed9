"""The vendor's own tests that are expected to pass, and whether they do.

    python tests/upstream/check.py FOLDER [--update]

``FOLDER`` holds the vendor's tests and their runner (``run.py``); they are not part of the project. The list,
``expected.txt``, only grows: a test in it that fails ends with code 1, ``--update`` adds the tests that pass now.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected.txt")
SUITES = ("popxl-unit", "addons-unit")


def passing(folder: Path) -> set[str]:
    """``suite file::function`` of each test that passes; the suites run side by side."""
    with tempfile.TemporaryDirectory() as temporary:
        reports = {suite: Path(temporary) / f"{suite}.json" for suite in SUITES}
        command = [sys.executable, str(folder / "run.py")]
        running = [
            (suite, subprocess.Popen([*command, suite, "--json", str(report)], stdout=subprocess.PIPE, text=True))
            for suite, report in reports.items()
        ]
        for suite, process in running:
            print(process.communicate()[0], end="")
            if process.returncode:
                raise SystemExit(f"{folder / 'run.py'} {suite} ended with {process.returncode}")
        found = {}
        for report in reports.values():
            found.update(json.loads(report.read_text(encoding="utf-8")))
    return {f"{suite} {name}" for suite, tests in found.items() for name, (out, _) in tests.items() if out == "passed"}


def main() -> int:
    """Compare, or add what is new."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--update", action="store_true", help="add the tests that pass now")
    arguments = parser.parse_args()
    expected = set(EXPECTED.read_text(encoding="utf-8").split("\n")) - {""}
    found = passing(arguments.folder)
    lost, new = sorted(expected - found), sorted(found - expected)
    if arguments.update:
        EXPECTED.write_text("".join(f"{line}\n" for line in sorted(expected | found)), encoding="utf-8")
    print(f"the vendor's tests: {len(expected) - len(lost)} of {len(expected)} expected ones pass, {len(new)} more do")
    for line in lost:
        print(f"  fails: {line}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

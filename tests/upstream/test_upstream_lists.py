"""What is said of the vendor's tests: a test is expected to pass, or there is a reason why it does not."""

import csv
import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parent


def test_no_test_is_expected_and_excused() -> None:
    spec = importlib.util.spec_from_file_location("check_of_upstream", FOLDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    expected = check.EXPECTED.read_text(encoding="utf-8").splitlines()
    with check.FAILING.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    excused = [f"{row['suite']} {row['file']}::{row['function']}" for row in rows]
    assert expected == sorted(set(expected))
    assert excused == sorted(set(excused))
    assert not set(expected) & set(excused)
    assert all(row["reason"] for row in rows)
    assert {name.partition(" ")[0] for name in expected} == {*check.SUITES, check.POPTORCH, *check.TENSORFLOW}
    assert set(check.SAMPLE) <= {name.partition(" ")[2].partition("::")[0] for name in expected}

"""The fixture by itself: recording, comparing, and baselines that nothing can be compared with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipuperf.testing import BaselineError, CycleBaseline
from ipuperf.testing.fixture import Ledger, stem_of

Fixture = Callable[..., CycleBaseline]
COMMAND = "pytest test_model.py::test_step --update-baselines"


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    """A fixture object like that of a new run of pytest."""

    def make(
        update: bool = False, test: str = "test_model.py::test_step", ledger: Ledger | None = None
    ) -> CycleBaseline:
        stem = stem_of("test_model", test.partition("::")[2])
        command = COMMAND
        return CycleBaseline(test, stem, tmp_path / "baselines", update, command, ledger or Ledger())

    return make


@pytest.fixture
def model(make_trace: Any) -> Any:
    """``model(cycles)``: a trace of one product of so many cycles."""

    def make(cycles: int = 100, **meta: Any) -> Any:
        steps = [
            (0, 0, 0, 0, 10, "host_run", ""),
            (0, 0, 0, 10, cycles, "compute", "main/MatMul.1"),
            (0, 0, 0, 10 + cycles, 20, "compute", "main/Add.2"),
        ]
        return make_trace(steps, runs=[(0, 30 + cycles)], tiles=[(0, 0, "constant", cycles)], **meta)

    return make


def test_recorded_then_compared_then_rewritten(fixture: Fixture, model: Any) -> None:
    fixture(update=True).check(model())
    path = fixture().path()
    assert path.name == "test_model.test_step.step.json"
    recorded = path.read_text()
    fixture().check(model())
    with pytest.raises(AssertionError) as caught:
        fixture().check(model(150))
    text = str(caught.value)
    assert text.startswith("cycles and bytes of 'model' on handmade moved: 5 figures, 1 op (rtol=0)\n")
    assert "\n  main/MatMul 1  MatMul     100    150     +50  +50.00%\n" in text
    words = [line.split() for line in text.splitlines()]
    assert ["total", "130", "180", "+50", "+38.46%"] in words
    assert ["IPU", "0:", "category", "constant", "100", "150", "+50", "+50.00%"] in words
    assert text.endswith(f"If that is meant, run\n    {COMMAND}")
    assert path.read_text() == recorded
    fixture(update=True).check(model(150))
    fixture().check(model(150))


def test_tolerance_and_sections(fixture: Fixture, model: Any) -> None:
    fixture(update=True).check(model())
    fixture().check(model(102), rtol=0.02)
    fixture().check(model(150), atol=50)
    fixture().check(model(150), only=["transfers"])
    with pytest.raises(AssertionError, match=r"moved: 2 figures, 0 ops \(rtol=0.01\)"):
        fixture().check(model(102), rtol=0.01, only="memory")


def test_rows_are_limited(fixture: Fixture, model: Any) -> None:
    fixture(update=True).check(model())
    with pytest.raises(AssertionError, match=r"cycles: 3 moved\n.*\n.*total.*\n  \.\.\. and 2 more\n"):
        fixture().check(model(150), rows=1)


def test_a_missing_baseline_says_how_to_record_it(fixture: Fixture, model: Any) -> None:
    with pytest.raises(
        BaselineError, match="there is no baseline .*test_step.other.json yet\nTo record it, run\n    pyt"
    ):
        fixture().check(model(), "other")
    assert not fixture().path("other").exists()


def test_a_damaged_baseline_says_what_to_do(fixture: Fixture, model: Any) -> None:
    fixture(update=True).check(model())
    fixture().path().write_text("{")
    with pytest.raises(BaselineError, match=f"cannot be read: .*\nRestore .* version control. .*, run\n    {COMMAND}"):
        fixture().check(model())
    fixture(update=True).check(model())
    fixture().check(model())


def header(fixture: Fixture, **changes: Any) -> None:
    path = fixture().path()
    data = json.loads(path.read_text())
    data["header"].update(changes)
    path.write_text(json.dumps(data))


def test_another_machine_is_named_with_both(fixture: Fixture, model: Any) -> None:
    fixture(update=True).check(model())
    message = "was recorded on machine 'handmade', this run simulates 'pod4'. Simulate 'handmade' .*RunSettings"
    with pytest.raises(BaselineError, match=f"{message}(.|\n)*{COMMAND}"):
        fixture().check(model(machine="pod4"))
    with pytest.raises(BaselineError, match="another machine 'handmade': its clock_hz was 1000000, here it is 2000000"):
        fixture().check(model(clock_hz=2_000_000))
    fixture(update=True).check(model(machine="pod4"))
    fixture().check(model(machine="pod4"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ipuperf_version": "99.2.1"},
            r"by ipuperf 99.2.1, this is ipuperf [0-9.]+: another major .* Use ipuperf 99.x",
        ),
        ({"schema_version": 99}, r"traces of schema version 99 by ipuperf .* writes schema version \d"),
    ],
)
def test_another_version_is_named_with_both(fixture: Fixture, model: Any, changes: Any, message: str) -> None:
    fixture(update=True).check(model())
    header(fixture, **changes)
    with pytest.raises(BaselineError, match=f"{message}(.|\n)*{COMMAND}"):
        fixture().check(model())


def test_another_minor_version_is_compared_and_mentioned(fixture: Fixture, model: Any) -> None:
    from ipuperf.base.version import __version__

    major = __version__.partition(".")[0]
    fixture(update=True).check(model())
    header(fixture, ipuperf_version=f"{major}.999.0")
    fixture().check(model())
    with pytest.raises(
        AssertionError, match=rf"recorded by ipuperf {major}.999.0, this is {__version__}: .* the model"
    ):
        fixture().check(model(150))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rtol": -0.1}, "rtol: -0.1, expected a number of at least 0"),
        ({"atol": float("nan")}, "atol: nan"),
        ({"name": "a/b"}, "name: 'a/b', expected letters"),
        ({"name": ""}, "name: ''"),
        ({"name": "../x"}, "name: '../x'"),
        ({"rows": 0}, "rows: 0, expected a whole number"),
        ({"only": ["op"]}, "only: unknown section 'op'"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(
    fixture: Fixture, model: Any, arguments: Any, message: str
) -> None:
    for update in (False, True):
        with pytest.raises(ValueError, match=message):
            fixture(update=update).check(model(), **arguments)
    assert not fixture().folder.exists()


def test_one_name_is_one_check(fixture: Fixture, model: Any) -> None:
    one = fixture(update=True)
    one.check(model())
    with pytest.raises(ValueError, match="is checked twice by test_model.py::test_step: give each check its own name="):
        one.check(model())
    one.check(model(), "second")


def test_two_tests_never_share_a_file(fixture: Fixture, model: Any) -> None:
    ledger = Ledger()
    fixture(True, "test_model.py::test_step[a b]", ledger).check(model())
    fixture(True, "test_model.py::test_step[a b]", ledger).check(model())  # the test runs again
    with pytest.raises(BaselineError, match=r"belongs to two tests, .*\[a b\] and .*\[a-b\]: rename one"):
        fixture(True, "test_model.py::test_step[a-b]", ledger).check(model())


def test_long_names_stay_apart(fixture: Fixture) -> None:
    names = {fixture(test=f"test_model.py::test[{'x' * 300}{end}]").path().name for end in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 125 for name in names)


def test_names_of_files() -> None:
    assert stem_of("test_model", "TestBlock.test_step[pod4-1.5-a/b]") == "test_model.TestBlock.test_step-pod4-1.5-a-b"


def test_a_table_of_ones_own(fixture: Fixture, tmp_path: Path) -> None:
    rows = [{"shape": "8x8", "cycles": 100}, {"shape": "9x9", "cycles": 120}]
    with pytest.raises(BaselineError, match="there is no baseline .*test_model.test_step.plans.csv yet"):
        fixture().check_table(rows, "plans", keys=["shape"])
    fixture(update=True).check_table(rows, "plans", keys=["shape"])
    fixture().check_table(rows, "plans", keys=["shape"])
    slower = [rows[0], {"shape": "9x9", "cycles": 150}]
    with pytest.raises(
        AssertionError, match=r"plans.csv: 1 row moved\n  ~ 9x9: cycles 120 -> 150 \(\+25.00%\)\nIf that"
    ):
        fixture().check_table(slower, "plans", keys=["shape"])
    fixture().check_table(slower, "plans", keys=["shape"], rtol=0.3)
    fixture(update=True).check_table(rows, "mine", keys=["shape"], folder=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "mine.csv").read_text() == "shape,cycles\n8x8,100\n9x9,120\n"
    (tmp_path / "elsewhere" / "mine.csv").write_text("shape\n")
    with pytest.raises(BaselineError, match="mine.csv cannot be read: .*no rows(.|\n)*version control"):
        fixture().check_table(rows, "mine", keys=["shape"], folder=tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="rtol: -1"):
        fixture().check_table(rows, "mine", keys=["shape"], rtol=-1)


def test_nothing_is_simulated_without_a_baseline(fixture: Fixture) -> None:
    class Costly:
        @property
        def trace(self) -> Any:
            raise RuntimeError("simulated")

    with pytest.raises(BaselineError, match="there is no baseline"):
        fixture().check(Costly())

"""The cases that come with ipuperf: complete, true to the published table, and as accurate as promised."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from ipuperf.machine import load_machine
from ipuperf.validation import BUILT_IN, Case, CaseError, figures, predict, problem, read_cases, summarise

FOUND = read_cases(BUILT_IN, known=problem)
TABLE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "measurements.csv"
OWN = {"PTPIPE-PROFILE"}
"""Cases that are no row of the published table."""


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["id"]: row for row in csv.DictReader(lines)}


def test_every_published_row_is_a_case_or_has_a_reason(published: dict[str, dict[str, str]]) -> None:
    listed = Counter([c.id for c in FOUND.cases] + [name for item in FOUND.not_expressed for name in item.ids])
    assert set(listed) - OWN == set(published)
    assert set(listed.values()) == {1}


def test_cases_repeat_what_was_published(published: dict[str, dict[str, str]]) -> None:
    for case in FOUND.cases:
        if case.id in OWN:
            continue
        row = published[case.id]
        measured = case.measured
        assert (case.category, measured.metric, measured.unit) == (row["category"], row["metric"], row["unit"]), case.id
        assert measured.value == float(row["value"]), case.id
        assert case.confidence in row["confidence"], case.id


def test_cases_name_the_figures_that_were_fitted_to_them() -> None:
    names = {case.id: case for case in FOUND.cases}
    for machine in ("gc200-1", "pod4", "bow-1", "gc2-1"):
        for key, figure in load_machine(machine).figures.items():
            if figure.kind not in ("calibrated", "measured"):
                continue
            for name in re.findall(r"[A-Z0-9]+(?:-[A-Z0-9]+)+", figure.source):
                assert name not in names or key in names[name].calibrates, (key, name)


def test_named_figures_are_there() -> None:
    known = load_machine("pod4").figures
    for case in FOUND.cases:
        for name in case.calibrates:
            assert name in known, (case.id, name)


def test_values_of_one_program_are_one_run() -> None:
    """Step and rate, first and second epoch, divisions of a competition count once; two tutorials with one program
    are two runs."""
    alike: dict[tuple[str, str], set[str]] = {}
    for case in FOUND.cases:
        alike.setdefault((case.group, case.program_key), set()).add(case.run_name)
    assert [names for names in alike.values() if len(names) > 1] == [{"POPXL1-TEST", "POPXL2-TEST"}]


def test_what_is_said_not_to_be_stated_is_a_choice() -> None:
    """An IPU that is not stated, and partial sums that are not, are marked, so that their effect is shown."""
    for case in FOUND.cases:
        if "IPU not stated" in case.note:
            assert "machine" in {choice.key for choice in case.choices}, case.id
        if "type of the partial sums is not stated" in case.note:
            assert "precision" in {choice.key for choice in case.choices}, case.id


def test_rows_that_can_be_expressed_are_cases() -> None:
    """The program is known and there is a model of it, however far off the prediction may be."""
    expressed = {case.id for case in FOUND.cases}
    models = ("POPXL6-INF", "POPXL1-TRAIN", "POPXL2-TEST", "PTEDL-R1-SYN", "PTEDL-R2-REAL", "PTPIPE", "LIPU-INCOPY")
    models += ("ALCF-RNSCALE-64", "ALCF-RN50-POD4-E1", "MLP11-GR-ipu-pod64-POPART-closed-bert-STEP")
    assert expressed.issuperset(models)
    written = {path.stem for path in (Path(__file__).resolve().parents[2] / "models").glob("*.py")}
    assert not [item.ids for item in FOUND.not_expressed if item.model in written]


def test_what_is_small_of_them_is_predicted_as_the_guide_says() -> None:
    chosen = ("POPXL6-INF", "POPXL1-TRAIN", "LIPU-INCOPY")
    rows, _ = predict([case for case in FOUND.cases if case.id in chosen])
    found = {row.case.id: row.predicted for row in rows}
    assert found["POPXL6-INF"] == pytest.approx(98_945, rel=0.01)
    assert found["POPXL1-TRAIN"] == pytest.approx(1_391, rel=0.01)
    assert found["LIPU-INCOPY"] == pytest.approx(0.512, rel=0.01)


@pytest.mark.heavy
@pytest.mark.parametrize("category", ["micro-benchmark", "kernel"])
def test_goal_of_micro_benchmarks_and_dense_kernels(category: str) -> None:
    rows, _ = predict([case for case in FOUND.cases if case.category == category])
    assert summarise(category, rows).mean <= 0.10


@pytest.mark.heavy
def test_remote_variables_table_within_5_percent() -> None:
    rows, _ = predict([c for c in FOUND.cases if c.id.startswith("POPXL-MNIST-")])
    assert len(rows) == 10
    assert max(abs(row.error) for row in rows) <= 0.05


def test_calls_and_host_copies_within_15_percent() -> None:
    """What the host's figures were fitted to: no row is far off for the sake of another one."""
    rows, _ = predict([c for c in FOUND.cases if c.id.startswith(("POPXL6", "LWP", "LIPU-RUN", "LIPU-IN"))])
    assert len(rows) == 8
    assert max(abs(row.error) for row in rows) <= 0.15


def model_case(text: str, tmp_path: Path) -> Case:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[case]]\nid = "A"\ncategory = "inference"\nsource = "s"\nmachine = "gc200-1"\nmode = "inference"\n'
        'measured = { metric = "m", quantity = "rate", value = 1, unit = "samples/s" }\n' + text,
        encoding="utf-8",
    )
    return read_cases(file, known=problem).cases[0]


def test_inference_of_the_classifier(tmp_path: Path) -> None:
    case = model_case('model = "mnist_mlp"\nmicro_batch = 80\nio = "streams"\n', tmp_path)
    found = figures(case)
    assert found.values["rate"] * found.values["time"] == pytest.approx(80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'model = "mnist_mlp"\nio = "streams"\nprecision = "f16.16"',
            r"precision: 'f16\.16' is not supported",
        ),
        ('model = "mnist_mlp"\nio = "streams"\nrecompute = "standard"', "recompute: 'standard' is not supported"),
        ('model = "mnist_mlp"\nio = "streams"\nconfig = { x = 1 }', "config: .* is not supported"),
        ('model = "encoder"', "mode: 'inference' is not supported by model 'encoder', allowed: 'training'"),
    ],
)
def test_models_refuse_what_they_do_not_have(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=message):
        figures(model_case(text, tmp_path))


def test_a_model_without_a_program_for_cases(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(CaseError, match="has no function validation_program"):
        figures(model_case('model = "attention"', tmp_path))

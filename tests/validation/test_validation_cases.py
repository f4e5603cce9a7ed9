"""Files of cases are read strictly; one clear error names file, case and key."""

from pathlib import Path

import pytest
from rows import Golden

from ipuperf.validation import CaseError, problem, read_cases

GOOD = """
[defaults]
category = "kernel"
machine = "bow-1"
model = "matmul"
mode = "kernel"
precision = "f16.16"
source = "nowhere"
config = { k = 64, m = 32 }
measured = { metric = "throughput", quantity = "flop rate", unit = "TFLOP/s" }

[[case]]
id = "A"
config = { n = 16 }
measured = { value = 2 }

[[not_expressed]]
ids = ["B", "C"]
reason = "no shapes"
model = "later"
"""


def read(tmp_path: Path, text: str):
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return read_cases(file, known=problem)


def test_defaults_are_merged_key_by_key(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    (case,) = found.cases
    assert dict(case.config) == {"m": 32, "k": 64, "n": 16}
    assert (case.measured.value, case.measured.unit, case.precision) == (2.0, "TFLOP/s", "f16.16")
    assert case.file == str(tmp_path / "mine.toml")
    assert [(item.ids, item.reason, item.model) for item in found.not_expressed] == [(("B", "C"), "no shapes", "later")]


def test_rows_share_what_stands_in_their_case(tmp_path: Path) -> None:
    rows = '[[case.row]]\nid = "A"\n[[case.row]]\nid = "D"\nconfig = { n = 8 }\nmeasured = { value = 3 }\n\n'
    found = read(tmp_path, GOOD.replace('id = "A"\n', "").replace("value = 2 }\n", "value = 2 }\n" + rows))
    first, second = found.cases
    assert (first.id, dict(first.config), first.measured.value) == ("A", {"m": 32, "k": 64, "n": 16}, 2.0)
    assert (second.id, dict(second.config), second.measured.value) == ("D", {"m": 32, "k": 64, "n": 8}, 3.0)


WRONG = (
    ('mode = "kernel"', 'mode = "kernel"\nmicrobatch = 2'),
    ("value = 2 }", "value = 2, until = 3 }"),
    (', unit = "TFLOP/s"', ""),
    ("value = 2 }", "value = 2 }\nrow = []"),
    ("value = 2 }", "value = 2 }\nrow = [{ value = 3 }]"),
    ('unit = "TFLOP/s"', 'unit = "TFLOP"'),
    ('unit = "TFLOP/s"', 'unit = "GB/s"'),
    ('quantity = "flop rate"', 'quantity = "speed"'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "precision", why = "w", others = [] }]'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "id", why = "w", others = ["B"] }]'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "precision", why = "w", others = ["f16.16"] }]'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "precision", why = "w", others = ["f99"] }]'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "config.p", why = "w", others = [1] }]'),
    ("value = 2 }", "value = 2 }\nminus = { config = { m = 32 } }"),
    ("value = 2 }", 'value = 2 }\nminus = { run = "x" }'),
    ("value = 2 }", "value = 0 }"),
    ("value = 2 }", "value = nan }"),
    ("value = 2 }", "value = true }"),
    ('machine = "bow-1"', 'machine = "bow-2"'),
    ('machine = "bow-1"', 'machine = "none.toml"'),
    ('model = "matmul"', 'model = "matmull"'),
    ('model = "matmul"', 'model = "a.b"'),
    ("n = 16", "n = 16, b = 2"),
    ("n = 16", "n = 0"),
    ("{ n = 16 }", "{}"),
    ('id = "A"', 'id = "B"'),
    ('id = "A"', "id = 7"),
    ('source = "nowhere"', ""),
    ('precision = "f16.16"', 'precision = "half"'),
    ('category = "kernel"', 'category = "kernels"'),
    ('id = "A"', 'id = "A"\nreplicas = 0'),
    ('id = "A"', 'id = "A"\npipeline = 3'),
    ('id = "A"', 'id = "A"\nprefetch = 0'),
    ('id = "A"', 'id = "A"\nprefetch = -1'),
    ('id = "A"', 'id = "A"\nprefetch = 0\nmodel = "mnist_mlp"'),
    ('id = "A"', 'id = "A"\ncalls = -5'),
    ('id = "A"', 'id = "A"\nio_tiles = 32'),
    ('id = "A"', 'id = "A"\nio = "overlapped"'),
    ('id = "A"', 'id = "A"\noffload = ["loss"]'),
    ('id = "A"', 'id = "A"\noptimiser = "adam"'),
    ("value = 2 }", "value = 2, harness_cycles = 4 }"),
    ("value = 2 }", 'value = 2, harness_cycles = 4, harness_source = "x" }'),
    ('reason = "no shapes"', ""),
    ("[[case]]", "[[cases]]"),
    ("[[case]]", "[case]"),
    ('id = "A"', "id = "),
    ("value = 2 }", "value = 1e999 }"),
    ("value = 2 }", "value = -1 }"),
    ("value = 2 }", 'value = "2" }'),
    ("value = 2 }", "value = 2, harness_cycles = -1 }"),
    ("value = 2 }", 'value = 2, harness_source = "" }'),
    (
        "value = 2 }",
        'value = 2 }\nminus = {}\nchoices = [{ key = "precision", why = "w", others = ["f32"] }]',
    ),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "precision", others = ["f32"] }]'),
    ("value = 2 }", 'value = 2 }\nchoices = [{ key = "precision", why = "", others = ["f32"] }]'),
    ("value = 2 }", "value = 2 }\nchoices = [3]"),
    ("value = 2 }", "value = 2 }\nminus = { config = { m = 0 } }"),
    ("value = 2 }", "value = 2 }\nminus = 3"),
    ("value = 2 }", "value = 2 }\nminus = { config = 3 }"),
    ("n = 16", "n = 1_000_000_000"),
    ("n = 16", "n = 1_000_000_001"),
    ("n = 16", "n = 1"),
    ("n = 16", "n = true"),
    ('id = "A"', 'id = "A"\nmicro_batch = 2'),
    ('id = "A"', 'id = "A"\naccumulation = 0'),
    ('id = "A"', 'id = "A"\nsharding = 1'),
    ('id = "A"', 'id = "A"\nsharding = -1'),
    ('id = "A"', 'id = "A"\npipeline = [0]'),
    ('id = "A"', 'id = "A"\npipeline = [-1]'),
    ('id = "A"', 'id = "A"\nslow = 1'),
    ('id = "A"', 'id = "A"\nhost_bound = "no"'),
    ('id = "A"', 'id = "A"\ncalibrates = "x"'),
    ('id = "A"', 'id = "A"\ncalibrates = [3]'),
    ('id = "A"', 'id = "A"\nfile = "x"'),
    ('id = "A"', 'id = "A"\nio = "overlapped"\nio_tiles = 32'),
    ('id = "A"', 'id = " "'),
    ('id = "A"', 'id = "A"\nrun = ""'),
    ('id = "A"', 'id = "A"\nprefetch = 0\nmodel = "host_to_device"\nconfig = { n = 1, bytes = 4 }'),
    ('model = "later"', 'model = ""'),
    ('ids = ["B", "C"]', 'ids = ["B", "B"]'),
    ('ids = ["B", "C"]', 'ids = "B"'),
    ('ids = ["B", "C"]', "ids = [3]"),
    ('reason = "no shapes"', "reason = 3"),
    ("config = { k = 64, m = 32 }", "config = 3"),
    ("[defaults]", "[default]"),
    ('category = "kernel"\n', 'ids = "x"\n'),
)


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, golden: Golden) -> None:
    """The error, or the case where there is none."""
    assert old in GOOD
    try:
        text = f"{read(tmp_path, GOOD.replace(old, new)).cases}"
    except CaseError as error:
        text = f"refused: {error}".partition(" as TOML: ")[0]
    golden({"comes to": text.replace(str(tmp_path), "THERE")})


def test_no_file_and_no_cases(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="no such file or folder of cases"):
        read_cases(tmp_path / "gone")
    with pytest.raises(CaseError, match=r"no cases; a file of cases has tables \[\[case\]\]"):
        read_cases(tmp_path)
    with pytest.raises(CaseError, match="no cases"):
        read(tmp_path, "")


def test_a_folder_may_hold_a_machine(tmp_path: Path) -> None:
    (tmp_path / "machine-mine.toml").write_text('extends = "bow-1"\nname = "mine"\n', encoding="utf-8")
    (tmp_path / "a.toml").write_text(GOOD.replace('"bow-1"', '"machine-mine.toml"'), encoding="utf-8")
    (case,) = read_cases(tmp_path, known=problem).cases
    assert case.machine == str((tmp_path / "machine-mine.toml").resolve())


def test_choices_and_differences_are_cases_of_their_own(tmp_path: Path) -> None:
    more = 'choices = [{ key = "config.m", why = "not stated", others = [8, 16] }]\nrun = "ONE"\n'
    (case,) = read(tmp_path, GOOD.replace("value = 2 }\n", "value = 2 }\n" + more)).cases
    assert [dict(other.config)["m"] for other in case.choices[0].cases] == [8, 16]
    assert (case.run_name, case.choices[0].key, len(case.programs)) == ("ONE", "config.m", 3)
    (case,) = read(tmp_path, GOOD.replace("value = 2 }\n", "value = 2 }\nminus = { config = { m = 8 } }\n")).cases
    assert case.minus is not None
    assert dict(case.minus.config) == {"m": 8, "k": 64, "n": 16}

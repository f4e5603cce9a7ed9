"""Files of cases are read strictly; one clear error names file, case and key."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('mode = "kernel"', 'mode = "kernel"\nmicrobatch = 2', r"defaults: unknown key 'microbatch' \(did you mean"),
        ("value = 2 }", "value = 2, until = 3 }", r"mine\.toml: case 'A': measured: unknown key 'until'"),
        (', unit = "TFLOP/s"', "", r"case 'A': measured: key 'unit' is missing"),
        ('unit = "TFLOP/s"', 'unit = "TFLOP"', r"case 'A': measured\.unit: 'TFLOP', allowed: s, ms"),
        ('unit = "TFLOP/s"', 'unit = "GB/s"', r"'GB/s' is no unit of the quantity 'flop rate', allowed: GFLOP/s"),
        ('quantity = "flop rate"', 'quantity = "speed"', r"measured\.quantity: 'speed', allowed: time, device time"),
        (
            "value = 2 }",
            'value = 2 }\nchoices = [{ key = "precision", why = "w", others = [] }]',
            r"others: \[\], allowed",
        ),
        (
            "value = 2 }",
            'value = 2 }\nchoices = [{ key = "id", why = "w", others = ["B"] }]',
            r"number 1: key: 'id', all",
        ),
        (
            "value = 2 }",
            'value = 2 }\nchoices = [{ key = "precision", why = "w", others = ["f16.16"] }]',
            r"number 1: others: 'f16\.16' is what the case has",
        ),
        (
            "value = 2 }",
            'value = 2 }\nchoices = [{ key = "precision", why = "w", others = ["f99"] }]',
            r"number 1: precision = 'f99': precision: 'f99', allowed: f32",
        ),
        (
            "value = 2 }",
            'value = 2 }\nchoices = [{ key = "config.p", why = "w", others = [1] }]',
            r"config: unknown key 'p'",
        ),
        ("value = 2 }", "value = 2 }\nminus = { config = { m = 32 } }", r"minus: .* is the same program"),
        ("value = 2 }", 'value = 2 }\nminus = { run = "x" }', r"minus: unknown key 'run'"),
        ("value = 2 }", "value = 0 }", r"measured\.value: 0, allowed: a finite number above 0"),
        ("value = 2 }", "value = nan }", r"measured\.value: nan"),
        ("value = 2 }", "value = true }", r"measured\.value: True"),
        ('machine = "bow-1"', 'machine = "bow-2"', r"case 'A': machine: .*unknown machine 'bow-2'"),
        ('machine = "bow-1"', 'machine = "none.toml"', r"case 'A': machine: .*none\.toml"),
        ('model = "matmul"', 'model = "matmull"', r"case 'A': model: unknown model 'matmull', allowed: micro-bench"),
        ('model = "matmul"', 'model = "a.b"', r"model: unknown model 'a\.b'"),
        ("n = 16", "n = 16, b = 2", r"case 'A': config: unknown key 'b' for 'matmul', allowed: m, k, n"),
        ("n = 16", "n = 0", r"case 'A': config\.n: 0, allowed: a whole number of 1 or more"),
        ("{ n = 16 }", "{}", r"case 'A': config: key 'n' is missing"),
        ('id = "A"', 'id = "B"', r"case 'B' is there twice"),
        ('id = "A"', "id = 7", r"case number 1: id: 7, allowed: a text"),
        ('source = "nowhere"', "", r"case 'A': key 'source' is missing"),
        ('precision = "f16.16"', 'precision = "half"', r"precision: 'half', allowed: f32, f16\.16"),
        ('category = "kernel"', 'category = "kernels"', r"category: 'kernels', allowed: micro-benchmark, kernel"),
        ('id = "A"', 'id = "A"\nreplicas = 0', r"replicas: 0, allowed: a whole number of 1 or more"),
        ('id = "A"', 'id = "A"\npipeline = 3', r"pipeline: 3, allowed: a list"),
        ('id = "A"', 'id = "A"\nprefetch = 0', r"prefetch: 0 means nothing to micro-benchmark 'matmul', leave it out"),
        ('id = "A"', 'id = "A"\nprefetch = -1', r"prefetch: -1, allowed: a whole number of 0 or more"),
        (
            'id = "A"',
            'id = "A"\nprefetch = 0\nmodel = "mnist_mlp"',
            r"prefetch: 0, allowed: a whole number of 1 or more",
        ),
        ('id = "A"', 'id = "A"\ncalls = -5', r"calls: -5, allowed: a whole number of 0 or more"),
        ('id = "A"', 'id = "A"\nio_tiles = 32', r"io = 'none' with io_tiles = 32; overlapped I/O needs a number"),
        ('id = "A"', 'id = "A"\nio = "overlapped"', r"io = 'overlapped' with io_tiles = 0; overlapped I/O needs"),
        ('id = "A"', 'id = "A"\noffload = ["loss"]', r"offload: 'loss', allowed: optimiser, weights"),
        ('id = "A"', 'id = "A"\noptimiser = "adam"', r"optimiser: 'adam' means nothing to micro-benchmark 'matmul'"),
        ("value = 2 }", "value = 2, harness_cycles = 4 }", r"harness_cycles = 4 without harness_source"),
        ("value = 2 }", 'value = 2, harness_cycles = 4, harness_source = "x" }', r"only for times and cycles"),
        ('reason = "no shapes"', "", r"not_expressed number 1: key 'reason' is missing"),
        ("[[case]]", "[[cases]]", r"mine\.toml: unknown key 'cases' \(did you mean 'case'\?\)"),
        ("[[case]]", "[case]", r"mine\.toml: case: .*, allowed: a list"),
        ('id = "A"', "id = ", r"mine\.toml: cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CaseError, match=message):
        read(tmp_path, GOOD.replace(old, new))


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

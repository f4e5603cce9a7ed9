"""``ipuperf estimate``: plans and vertices on the command line, tables of plans, and wrong input in one line."""

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ipuperf.cli import cli
from ipuperf.lowering import plan_convolution, plan_matmul
from ipuperf.lowering.planner.alternatives import next_best

INPUTS = "kind,target,dtype,partials,pass_,amp,G,M,K,N,B,H,W,kh,kw,cin,cout,stride,pad,groups"
OUTPUTS = ["total", "compute", "exchange", "reduction", "transform", "temp_bytes", "tiles", "program"]
PRODUCT = "matmul --m 1024 --k 1024 --n 1024 --partials f16"
IMAGES = "convolution --batch 4 --height 56 --kh 3 --cin 64 --cout 64 --pad 1 --partials f16"


def run(arguments: str | Sequence[str]) -> Result:
    return CliRunner().invoke(cli, ["estimate", *(arguments.split() if isinstance(arguments, str) else arguments)])


def refused(arguments: str | Sequence[str]) -> str:
    """The one line that a wrong command ends with."""
    result = run(arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("ipuperf: ")
    return line.removeprefix("ipuperf: ")


# -- one plan ----------------------------------------------------------------------------------------------------------


def test_command_of_the_worked_example(ipuperf_here: Callable, tmp_path: Path) -> None:
    line = "estimate matmul --chip gc200 --groups 1 --m 1024 --k 1024 --n 1024 --dtype f16 --partials f16 --pass nonemm"
    done = ipuperf_here(*line.split(), "--amp", "0.6", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "29,904 cycles on 1,408 of 1,472 tiles of GC200: poplin::ConvPartial1x1Out<half,half,16>"
    )
    for words in ("17,873  59.8%  compute", "field 1x8", "output channels 22, input channels 8", "57,344 bytes on a",
                  "next best (+3,915 cycles, +13.1%): "):  # fmt: skip
        assert words in done.stdout


def test_matmul_as_json() -> None:
    found = json.loads(run(f"{PRODUCT} --json").output)
    plan = plan_matmul("gc200", 1, 1024, 1024, 1024, "f16", "f16")
    assert found.pop("next_best") == next_best(plan).values()
    assert (found.pop("layer"), found.pop("program")) == (None, 30504)
    assert found == json.loads(json.dumps(plan.values()))
    assert (found["total"], found["compute"], found["tiles"], found["field"]) == (29904, 17873, 1408, [1, 8])


def test_terms_of_the_text_add_up_to_the_total() -> None:
    text = run("matmul --chip mk2 --m 2048 --k 2048 --n 2048 --partials f16 --amp 0.1").output
    total = int(text.split()[0].replace(",", ""))
    terms = [line.split() for line in text.splitlines() if line.startswith("   ")]
    assert sum(int(term[0].replace(",", "")) for term in terms) == total == 213337
    assert "serial 16" in text
    assert "bring in once" in text


def test_a_layer_in_training_says_how_it_is_planned() -> None:
    arguments = "matmul --m 16 --k 1024 --n 4096 --partials f16 --pass fcfwd"
    text = run(arguments).output
    found = json.loads(run(f"{arguments} --json").output)
    assert found["joint"] is True
    assert found["layer"]["joint"] is True
    assert found["layer"]["jointly"] < found["layer"]["apart"]
    jointly, apart = (format(found["layer"][name], ",") for name in ("jointly", "apart"))
    assert f"planned jointly (forward, backward and update: {jointly} cycles jointly, {apart} apart)" in text
    assert "the pass alone (" in text
    large = json.loads(run(f"{arguments.replace('16 --k', '384 --k')} --json").output)
    assert (large["joint"], large["layer"]["joint"], large["total"]) == (False, False, 38908)
    assert "planned pass by pass" in run(arguments.replace("16 --k", "384 --k")).output


@pytest.mark.parametrize("pass_", ["nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu"])
@pytest.mark.parametrize("shape", ["1,1,1", "7,1,13", "1,997,1", "131,137,139", "65536,65536,65536"])
def test_odd_products_have_a_plan(shape: str, pass_: str, tmp_path: Path) -> None:
    rows = [
        f"matmul,{target},{types},{pass_},1,{groups},{shape}" + "," * 10
        for target, types, groups in (("mk2", "f16,f16", 1), ("mk1", "f32,f32", 3))
    ]
    assert run(table(tmp_path, *rows)).output == ""
    for row in answers(tmp_path):
        assert int(row["total"]) >= int(row["compute"]) > 0
        assert 0 < int(row["tiles"]) <= 1472


@pytest.mark.heavy
@pytest.mark.parametrize(
    "row",
    [
        "4,7,9,3,5,6,10,2,2,2",
        "1,1,1,1,1,1,1,1,0,1",
        "2,5,5,7,7,3,8,1,1,1",
        "1,14,14,3,3,32,32,1,1,32",
        "3,11,13,1,1,5,7,3,0,1",
    ],
)
def test_odd_convolutions_have_a_plan(row: str, tmp_path: Path) -> None:
    targets, passes = ("mk2,f16,f16", "mk1,f32,f32"), ("fwd", "bwd", "wu")
    rows = [f"conv,{target},{pass_},0.6,,,,,{row}" for target in targets for pass_ in passes]
    assert run(table(tmp_path, *rows)).output == ""
    assert len(answers(tmp_path)) == 6
    assert all(int(answer["total"]) > 0 for answer in answers(tmp_path))


def test_convolution_with_its_defaults_and_passes() -> None:
    assert run(IMAGES).output.startswith("15,046 cycles on 1,344 of 1,472 tiles of GC200")
    forward = json.loads(run(f"{IMAGES} --json").output)
    assert (forward["total"], forward["field"], forward["pass_"]) == (15046, [7, 3], "fwd")
    backward = json.loads(run(f"{IMAGES} --width 28 --kw 1 --stride 2 --groups 2 --pass bwd --json").output)
    plan = plan_convolution("gc200", 4, 64, 64, (56, 28), (3, 1), 2, 1, 1, 2, "f16", "f16", "bwd")
    assert backward["total"] == plan.total


def test_any_machine_names_its_chip(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "gc200-1"\nname = "mine"\n')
    totals = {chip: run(f"{PRODUCT} --chip {chip}").output.split()[0] for chip in ("gc2", "mk1", "bow", "pod64")}
    totals["mine"] = run([*PRODUCT.split(), "--chip", str(tmp_path / "mine.toml")]).output.split()[0]
    assert totals == {"gc2": "57,292", "mk1": "57,292", "bow": "29,904", "pod64": "29,904", "mine": "29,904"}


def test_a_plan_that_does_not_fit_says_so() -> None:
    text = run("matmul --chip gc2 --m 4096 --k 4096 --n 4096 --dtype f32 --amp 0.001").output
    assert "no plan fits: the limit was raised" in text


# -- vertices ----------------------------------------------------------------------------------------------------------


def test_vertices_of_a_family() -> None:
    result = run("vertex --name UnaryOp1D --dtype f16 --elements 64,384")
    assert result.exit_code == 0
    lines = dict(line.rsplit(None, 2)[::2] for line in result.output.splitlines())
    assert lines["popops::UnaryOp1D<RELU,half>"] == "410"
    assert "popops::UnaryOp1DInPlace<RELU,half>" not in lines


def test_vertices_as_json() -> None:
    rows = json.loads(run("vertex --chip gc2 --name uniform --dtype f32 --elements 64 --json").output)
    assert rows == [
        {"vertex": "poprand::UniformSupervisor<float>", "dtype": "f32", "elements": 64, "cycles": 172,
         "low_confidence": True}
    ]  # fmt: skip
    assert "low confidence" in run("vertex --name uniform").output


# -- tables ------------------------------------------------------------------------------------------------------------


def table(folder: Path, *rows: str, header: str = INPUTS) -> list[str]:
    """Arguments that answer a table of these rows in ``out.csv``."""
    (folder / "in.csv").write_text("\n".join([header, *rows]) + "\n")
    return ["--csv", str(folder / "in.csv"), "--out", str(folder / "out.csv")]


def answers(folder: Path) -> list[dict[str, str]]:
    with (folder / "out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_table_of_products_and_convolutions(tmp_path: Path) -> None:
    arguments = table(
        tmp_path,
        "matmul,mk2,f16,f16,nonemm,0.6,1,1024,1024,1024,,,,,,,,,,",
        "conv,mk1,f16,f32,fwd,0.6,,,,,4,56,56,3,3,64,64,1,1,1",
        "matmul,mk2,f16,f16,nonemm,0.1,1,2048,2048,2048,,,,,,,,,,",
        "conv,mk2,f16,f16,fwd,0.6,,,,,4,112,112,3,3,32,32,1,1,32",
    )
    result = run(arguments)
    assert (result.exit_code, result.output) == (0, "")
    rows = answers(tmp_path)
    assert list(rows[0]) == OUTPUTS
    assert [[int(v) for v in row.values()] for row in rows] == [
        [29904, 17873, 9670, 2361, 0, 57344, 1408, 30504],
        [24855, 16213, 5209, 3216, 217, 30976, 1216, 25649],
        [213337, 8437, 2365, 1320, 0, 56864, 1456, 225779],
        [4963, 2292, 578, 0, 1821, 9088, 1472, 5255],
    ]


def test_cells_with_a_usual_value_may_be_empty_and_columns_left_out(tmp_path: Path) -> None:
    arguments = table(tmp_path, "matmul,gc200,f16,64.0,64,128", header="kind,target,dtype,M,K,N")
    assert run(arguments).exit_code == 0
    assert int(answers(tmp_path)[0]["total"]) == plan_matmul("gc200", 1, 64, 64, 128).total
    assert run(table(tmp_path)).exit_code == 0
    assert answers(tmp_path) == []


@pytest.mark.heavy
def test_many_random_shapes(tmp_path: Path) -> None:
    """Some of the acceptance's thousand."""
    draw = random.Random(3)
    rows = []
    for _ in range(15):
        m, k, n = (draw.randint(1, 4096) for _ in range(3))
        rows.append(
            f"matmul,{draw.choice(['mk1', 'mk2'])},f16,{draw.choice(['f16', 'f32'])},fcfwd,0.6,1,{m},{k},{n}" + "," * 10
        )
        size, kernel = draw.choice([7, 14, 28, 56]), draw.choice([1, 3, 5])
        channels = draw.choice([3, 16, 64, 256]), draw.choice([16, 64, 256])
        rows.append(f"conv,mk2,f16,f16,wu,0.6,,,,,4,{size},{size},{kernel},{kernel},{channels[0]},{channels[1]},1,1,1")
    assert run(table(tmp_path, *rows)).exit_code == 0
    found = answers(tmp_path)
    assert len(found) == 30
    assert all(int(row["total"]) >= int(row["compute"]) > 0 and int(row["tiles"]) <= 1472 for row in found)


def test_an_old_answer_stays_when_the_new_one_fails(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old\n")
    refused(table(tmp_path, "conv,mk2,f16,f16,fwd,0.6,,,,,4,5,5,9,9,64,64,1,1,1"))
    assert (tmp_path / "out.csv").read_text() == "old\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in.csv", "out.csv"}


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("matmul --m 0 --k 8 --n 8", "matmul [1, 0, 8] x [1, 8, 8]: every dimension has to be at least 1"),
        ("matmul --m 8 --k 8 --n 8 --groups -1", "every dimension has to be at least 1"),
        ("matmul --m 8 --k 8 --n 8 --dtype f64", "dtype is 'f64'; allowed: f16, f32"),
        ("matmul --m 8 --k 8 --n 8 --partials int8", "partials is 'int8'; allowed: f16, f32"),
        ("matmul --m 8 --k 8 --n 8 --dtype f32 --partials f16", "they have to be at least as wide"),
        (
            "matmul --m 8 --k 8 --n 8 --pass fwd",
            "matmul pass is 'fwd' (did you mean fcfwd or fcbwd?); allowed: nonemm, fcinf, fcfwd, fcbwd, fcwu",
        ),
        ("matmul --m 8 --k 8 --n 8 --amp 0", "availableMemoryProportion is 0.0; allowed: above 0, at most 1"),
        ("matmul --m 8 --k 8 --n 8 --amp 1.01", "availableMemoryProportion is 1.01; allowed: above 0, at most 1"),
        ("matmul --m 10000000 --k 10000000 --n 10000000", "1.00e+21 multiplications; allowed: up to 7.21e+16"),
        ("matmul --m 8 --k 8 --n 8 --amp nan", "availableMemoryProportion is nan"),
        (
            "matmul --m 8 --k 8 --n 8 --chip gc3",
            "chip is 'gc3'; allowed: gc2, mk1, gc200, mk2, bow, or the name",
        ),
        ("matmul --m 8 --k 8 --n 8 --chip gone.toml", "gone.toml: cannot be read"),
        ("convolution --height 8 --kh 9 --cin 8 --cout 8", "the kernel does not fit into the padded input"),
        ("convolution --height 8 --kh 3 --cin 8 --cout 9 --groups 2", "2 groups have to divide the channels 8 and 9"),
        (
            "convolution --height 8 --kh 3 --cin 8 --cout 8 --pass fcwu",
            "convolution pass is 'fcwu'; allowed: fwd, bwd",
        ),
        ("convolution --height 8 --kh 3 --cin 8 --cout 8 --stride 0", "every dimension, stride and dilation"),
        ("convolution --height 8 --kh 3 --cin 8 --cout 8 --pad -1", "padding is -1; allowed: 0 and more"),
        ("vertex --name nothing", "vertex is 'nothing', which is none for float16; families: UnaryOp1D, "),
        ("vertex --name relu --elements 1,x", "--elements is '1,x'; whole numbers with commas are needed"),
        ("vertex --name relu --dtype u8", "dtype is 'u8'; allowed: f16, f32"),
        ("--csv gone.csv --out out.csv", "gone.csv"),
    ],
)
def test_wrong_input_is_one_line(arguments: str, message: str) -> None:
    assert message in refused(arguments)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("gemm,mk2,f16,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column kind: is 'gemm'; allowed: matmul, conv"),
        ("matmul,mk9,f16,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column target: chip is 'mk9'"),
        ("matmul,mk2,,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column dtype: is empty"),
        ("matmul,mk2,f8,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column dtype: dtype is 'f8'; allowed: f16, f32"),
        ("matmul,mk2,f16,f8,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column partials: partials is 'f8'"),
        ("matmul,mk2,f32,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", "row 2, column partials: partials are float16 for float32"),
        ("matmul,mk2,f16,f16,wu,0.6,1,8,8,8,,,,,,,,,,", "row 2, column pass_: matmul pass is 'wu'"),
        ("matmul,mk2,f16,f16,nonemm,2,1,8,8,8,,,,,,,,,,", "row 2, column amp: availableMemoryProportion is 2; allowed"),
        ("matmul,mk2,f16,f16,nonemm,much,1,8,8,8,,,,,,,,,,", "row 2, column amp: availableMemoryProportion is much"),
        ("matmul,mk2,f16,f16,nonemm,0.6,1,8,,8,,,,,,,,,,", "row 2, column K: is empty"),
        ("matmul,mk2,f16,f16,nonemm,0.6,1,8,8.5,8,,,,,,,,,,", "row 2, column K: is '8.5'; a whole number of at"),
        ("matmul,mk2,f16,f16,nonemm,0.6,0,8,8,8,,,,,,,,,,", "row 2, column G: is '0'"),
        ("matmul,mk2,f16,f16,nonemm,0.6,1,8,8,8,4,,,,,,,,,", "row 2, column B: is '4', but does not apply to matmul"),
        ("matmul,mk2,f16,f16,nonemm,1,1,1e12,1e6,1,,,,,,,,,,", "row 2, column M: matmul [1, 1000000000000, 1000000]"),
        ("conv,mk2,f16,f16,fwd,1,,,,,1e9,1e6,9,3,3,64,64,1,1,1", "row 2, column B: convolution 1000000000x64x"),
        ("conv,mk2,f16,f16,fwd,0.6,,,,,1,8,8,3,3,,64,1,1,1", "row 2, column cin: is empty"),
        ("conv,mk2,f16,f16,fwd,0.6,,,,,4,5,5,9,9,64,64,1,1,1", "row 2, column kh: convolution 4x64x5x5->64 k9x9 fwd"),
        ("conv,mk2,f16,f16,fwd,0.6,,,,,4,5,5,3,3,64,64,1,-1,1", "row 2, column pad: is '-1'; a whole number of at"),
        ("conv,mk2,f16,f16,fwd,0.6,,,,,4,5,5,3,3,64,60,1,1,8", "row 2, column groups: convolution"),
        ("conv,mk2,f16,f16,nonemm,0.6,,,,,4,5,5,3,3,64,64,1,1,1", "row 2, column pass_: convolution pass is 'nonemm'"),
        ("matmul,mk2,f16,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,,7", "row 2, column 21: more cells than the header has"),
    ],
)
def test_wrong_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    line = refused(table(tmp_path, "matmul,mk2,f16,f16,nonemm,0.6,1,8,8,8,,,,,,,,,,", row))
    assert line.startswith(f"{tmp_path / 'in.csv'}: {message}")
    assert not (tmp_path / "out.csv").exists()


def test_wrong_files_are_one_line(tmp_path: Path) -> None:
    assert "header, column colour: unknown; allowed: kind, " in refused(table(tmp_path, header=f"{INPUTS},colour"))
    assert "header, column M: is there 2 times" in refused(table(tmp_path, header="kind,target,dtype,M,M,N"))
    assert "header, column target: missing" in refused(table(tmp_path, header="kind,dtype,M,K,N"))
    arguments = table(tmp_path)
    assert "does not exist" in refused([*arguments[:3], str(tmp_path / "gone" / "out.csv")])
    (tmp_path / "in.csv").write_bytes(b"kind,\xff\xfe\n")
    assert "not a CSV file" in refused(arguments)
    (tmp_path / "in.csv").write_text("")
    assert "header, column kind: missing" in refused(arguments)


def test_without_anything_there_is_help() -> None:
    result = run([])
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.output for command in ("matmul", "convolution", "vertex"))

"""``scenarios/design_space.py``: machines with one figure changed, of a program small enough to be lowered often."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.machine import MachineError, load_machine
from ipuperf.scenarios import design_space
from ipuperf.validation.cases import unmeasured_case
from ipuperf.validation.programs import program_of

ENCODER = {"model": "encoder", "mode": "training", "precision": "f16.16", "optimiser": "sgd", "io": "streams"}
ENCODER |= {"micro_batch": 1, "accumulation": 4, "replicas": 2}
ENCODER |= {"config": {"stages": 2, "layers": 2, "hidden": 128, "heads": 2, "sequence": 64, "feed_forward": 512}}
FIGURES = ("chip.exchange_rate", "chip.clock", "chip.tiles", "chip.bytes_per_tile", "ipu_machine.link_bandwidth")


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """The machine as it is, each figure doubled, and one that contradicts others."""
    return list(design_space.rows(ENCODER, "pod4", (*FIGURES, "chip.interleaved"), (2.0,)))


@pytest.mark.heavy
def test_each_machine_is_that_of_a_file(rows: list[dict], tmp_path: Path) -> None:
    """The oracle: a machine file that says the figure, and the program built for nothing else."""
    doubled = {
        "chip.exchange_rate": "[chip]\nexchange_rate = { value = 8, unit = 'bytes/cycle'",
        "chip.clock": "[chip]\nclock = { value = 2.65, unit = 'GHz'",
        "chip.tiles": "[chip]\ntiles = { value = 2944, unit = 'count'",
        "ipu_machine.link_bandwidth": "[ipu_machine]\nlink_bandwidth = { value = 256, unit = 'Gbit/s'",
    }
    for row in rows:
        if row["figure"] in doubled:
            file = tmp_path / "m.toml"
            file.write_text(f"extends = 'pod4'\n{doubled[row['figure']]}, source = 'what if', kind = 'assumed' }}\n")
            program = program_of(unmeasured_case({**ENCODER, "machine": str(file)}, "test", file))
            assert program.executable.simulated_run_seconds == row["seconds"]
            assert row["samples_per_second"] == program.samples / row["seconds"]


def test_what_doubling_buys(rows: list[dict]) -> None:
    before, *others = rows
    found = {row["figure"]: row for row in others}
    assert (before["speedup"], before["figure"], before["fits"]) == (1.0, "", True)
    assert sum(before["breakdown"].values()) == pytest.approx(before["seconds"])
    for figure in FIGURES:
        assert found[figure]["speedup"] == pytest.approx(before["seconds"] / found[figure]["seconds"])
    exchange, clock = found["chip.exchange_rate"]["breakdown"], found["chip.clock"]["breakdown"]
    assert 0.45 * before["breakdown"]["exchange"] < exchange["exchange"] < before["breakdown"]["exchange"]
    assert clock["compute"] == pytest.approx(before["breakdown"]["compute"] / 2)
    assert found["ipu_machine.link_bandwidth"]["breakdown"]["links"] < before["breakdown"]["links"]
    assert found["ipu_machine.link_bandwidth"]["breakdown"]["compute"] == before["breakdown"]["compute"]
    assert found["chip.bytes_per_tile"]["bytes_per_tile"] == 2 * before["bytes_per_tile"]
    assert "non_interleaved + interleaved make" in found["chip.interleaved"]["error"]


def test_table_and_picture(rows: list[dict], tmp_path: Path) -> None:
    text = design_space.table_of([*rows, {**rows[1], "fits": False}])
    assert len(text.splitlines()) == 2 + len(rows) + 1 + 1
    assert "exchange rate of a tile x 2" in text
    assert " ! |" in text
    design_space.draw(rows, tmp_path / "p.png", "encoder")
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_refused() -> None:
    with pytest.raises(MachineError, match=r"unknown figure 'chip\.exchange', allowed: chip\.tiles, .*host\."):
        next(design_space.rows(ENCODER, "pod4", ("chip.exchange",)))
    with pytest.raises(MachineError, match=r"unknown figure 'system\.ipus'"):
        next(design_space.rows(ENCODER, "pod4", ("system.ipus",)))
    done = CliRunner().invoke(design_space.main, ["--machine", "pod5"])
    assert (done.exit_code, "unknown machine 'pod5'" in done.output) == (1, True)


def test_regions_follow_the_memory_of_a_tile() -> None:
    from ipuperf.machine import load_scaled

    for factor in (0.5, 1.1, 2):
        chip = load_scaled("pod4", {"chip.bytes_per_tile": factor}).chip
        assert chip.bytes_per_tile == chip.interleaved_bytes + chip.non_interleaved_bytes
        assert chip.non_interleaved_bytes * 2 == pytest.approx(chip.interleaved_bytes, rel=1e-3)
    assert load_scaled("pod4", {"chip.bytes_per_tile": 1}).chip == load_machine("pod4").chip


@pytest.mark.slow
def test_bert_large(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    target = tmp_path / "rows.json"
    done = CliRunner().invoke(
        design_space.main, ["--figure", "chip.exchange_rate", "--figure", "ipu_machine.ddr_bandwidth", "--factor", "2",
                            "--json", str(target), "--plot", str(tmp_path / "p.png")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    before, exchange, memory = json.loads(target.read_text())
    assert before["samples_per_second"] == pytest.approx(5179, rel=0.1)  # measured, GPP-BL1-A
    assert 1.05 < exchange["speedup"] < 1.28  # less than its part of the step
    assert 1 <= memory["speedup"] < 1.02

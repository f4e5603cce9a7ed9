"""Every figure of a chip that lowering uses stands in its data file: shown by ``ipuperf machines``, replaced by a TOML
file, and then different in what is lowered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ipuperf import ir, ops
from ipuperf.cli import cli
from ipuperf.ir import FLOAT32, TensorSpec
from ipuperf.lowering import TileVector, lower
from ipuperf.lowering.code import (
    call_code,
    compute_code,
    exchange_code,
    global_exchange_code,
    host_exchange_code,
    minimal_code,
    vertex_code_bytes,
)
from ipuperf.lowering.rearrangements import copy_cycles
from ipuperf.machine import Chip, Machine, load_machine
from ipuperf.machine.schema import FIGURES

#: The figures that are not those of the data sheets' hardware but of code and copies.
CODE = [key for key in FIGURES if key.startswith(("chip.code.", "chip.rearrangement."))]
GC200 = load_machine("gc200-1")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, float], Machine]:
    """A GC200 with another value of one figure."""

    def machine(key: str, value: float) -> Machine:
        figure = f'{{ value = {value}, unit = "{GC200.figures[key].unit}", source = "a test", kind = "assumed" }}'
        path = tmp_path / "mine.toml"
        path.write_text(f'extends = "gc200-1"\n{key} = {figure}\n', encoding="utf-8")
        return load_machine(path)

    return machine


def everything(chip: Chip) -> list[object]:
    """All that :mod:`ipuperf.lowering.code` and the copies of rearrangements say about a chip, as plain values."""
    share = TileVector.uniform(3000, 4, 2)
    pieces = [
        minimal_code(chip), exchange_code(chip, share), compute_code(chip), call_code(chip, 2, np.array([3, 3, 0, 0])),
        host_exchange_code(chip, share), global_exchange_code(chip, share, 2),
    ]  # fmt: skip
    found = [{name: np.asarray(value).tolist() for name, value in piece.parts.items()} for piece in pieces]
    codes = [vertex_code_bytes(chip, vertex) for vertex in ("popops::Fill<half>", "popnn::Any")]
    return [found, codes, copy_cycles({8: 8000, 4: 800, 2: 80}, chip)]


@pytest.mark.parametrize("key", CODE)
def test_a_figure_of_code_or_copies_is_replaced_by_a_file(key: str, changed: Callable[[str, float], Machine]) -> None:
    machine = changed(key, 2 * GC200.figures[key].value)
    assert machine.figures[key].source == "a test"
    assert everything(machine.chip) != everything(GC200.chip)


def program() -> ir.Ir:
    """A variable of 1,000 floats, transposed."""
    made = ir.Ir()
    graph, spec = made.main_graph, TensorSpec((1000, 10), FLOAT32)
    held = ir.Variable(graph.tensor_id("v"), spec, graph, np.zeros((1000, 10), np.float32), made.grouping())
    graph.add(held)
    graph.create(ops.Transpose, [held], ["t"], permutation=(1, 0))
    return made


def test_set_up_of_a_copy_is_the_chips(changed: Callable[[str, float], Machine]) -> None:
    def longest(machine: Machine) -> int:
        steps = lower(program(), machine).walk()
        return max(step.cycles.max for step in steps if getattr(step, "vertex", "").startswith("poplar::Memcpy"))

    assert longest(changed("chip.copy_setup", 1120)) == longest(GC200) + 1000


def test_variables_are_aligned_as_the_chip_says(changed: Callable[[str, float], Machine]) -> None:
    def bytes_of(machine: Machine) -> set[int]:
        (held,) = [each for each in lower(program(), machine).memory.variables if each.name == "v"]
        return {value for value in held.bytes.values if value}

    assert all(size % 16 == 0 for size in bytes_of(GC200))
    assert bytes_of(changed("chip.alignment", 1000)) == {1000}


def test_the_command_shows_them() -> None:
    output = CliRunner().invoke(cli, ["machines", "gc200-1"]).output
    rows = {line.split()[0]: line.split()[1:4] for line in output.splitlines() if line.strip().startswith("chip.")}
    assert set(CODE) <= set(rows)
    assert rows["chip.code.vertex"] == ["240", "bytes", "calibrated"]
    assert rows["chip.code.step_instructions"] == ["2", "count", "calibrated"]
    assert rows["chip.copy_setup"] == ["120", "cycles", "assumed"]
    assert rows["chip.rearrangement.atoms_of_8"] == ["0.44043", "cycles/byte", "datasheet"]


def test_rounds_of_a_collective_are_a_loop() -> None:
    """Every replica runs one program, so a ring of 64 has the code of one of 4: chunks are smaller, rounds more."""

    def held(machine: str, replicas: int) -> int:
        made = ir.Ir(replicas)
        graph, spec = made.main_graph, TensorSpec((64 * 1472, 4), FLOAT32)
        data = np.zeros(spec.shape, np.float32)
        value = graph.add(ir.Variable(graph.tensor_id("v"), spec, graph, data, made.grouping()))
        graph.create(ops.ReplicatedAllReduceInplace, [value], ["r"], op="add", group=made.grouping())
        categories = lower(made, load_machine(machine)).memory.categories[0]
        return categories["globalExchangeCode"].total + categories["globalExchangePacketHeader"].total

    assert 0 < held("pod64", 64) <= held("pod4", 4)

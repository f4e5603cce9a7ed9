"""A program that does not fit says which tile, how much over, and by what: as a warning, or as an error when asked."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.lowering import DoesNotFitError, lower
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.simulation import simulate

ELEMENTS = 1472 * 60_000  # 240,000 bytes of float32 on every tile


@pytest.fixture(scope="module")
def too_large() -> popxl.Ir:
    """Two variables, widened, and their sum take more than the 638,976 bytes of every tile. It is never evaluated."""
    ir = popxl.Ir()
    with ir.main_graph:
        a, b = (popxl.variable(np.zeros(ELEMENTS, np.float16), popxl.float16, name=n) for n in ("left", "right"))
        wide = ops.cast(a, popxl.float32)
        addons.host_store(ops.slice(ops.add(wide, ops.cast(b, popxl.float32)), 0, 1))
    return ir


def test_a_program_that_does_not_fit(too_large: popxl.Ir) -> None:
    machine = load_machine("gc200-1")
    with pytest.raises(DoesNotFitError) as caught:
        lower(too_large._ir, machine, strict_memory=True)
    message = str(caught.value)
    found = re.search(
        r"IPU 0 tile (\d+) needs ([\d,]+) bytes at program step (\d+) "
        r"\((.+?) of Add\.\d+ at \S*test_bad_memory\.py:\d+\), ([\d,]+) bytes over the 638,976 there are "
        r"\(all tiles are over\); by category: intermediate .+; largest: (.+); would help: .+",
        message,
    )
    assert found is not None, message
    needs, over = (int(found[i].replace(",", "")) for i in (2, 5))
    assert needs - over == 638_976
    assert needs > 4 * 240_000 / 2 + 240_000
    largest = [part.rsplit(" ", 1)[0] for part in found[6].split(", ")]
    assert {"left", "right", "add_out"} & {name.split("/")[-1] for name in largest}


def test_a_program_that_does_not_fit_is_simulated_with_a_warning(too_large: popxl.Ir) -> None:
    program = lower(too_large._ir, load_machine("gc200-1"))
    (warning,) = program.texts("does not fit")
    assert "bytes over the 638,976 there are" in warning
    trace = simulate(program, load_machine("gc200-1"))
    assert trace.meta["oom"]
    assert warning in trace.meta["warnings"]


FEW, LIMIT = ELEMENTS // 16, 39 * 1024
MACHINE = """
extends = "gc200-1"
name = "small"
[chip]
bytes_per_tile = { value = 39, unit = "KiB", source = "a sixteenth, to be full soon", kind = "assumed" }
non_interleaved = { value = 13, unit = "KiB", source = "a sixteenth", kind = "assumed" }
interleaved = { value = 26, unit = "KiB", source = "a sixteenth", kind = "assumed" }
"""
BIG_SCRIPT = f"""
import numpy as np
import popxl
import popxl_addons as addons
from popxl import ops

ir = popxl.Ir()
with ir.main_graph:
    a, b = (popxl.variable(np.zeros({FEW}, np.float16), popxl.float16, name=n) for n in ("left", "right"))
    c = ops.add(ops.cast(a, popxl.float32), ops.cast(b, popxl.float32))
    addons.host_store(ops.slice(c, 0, 1))
session = popxl.Session(ir, "ipu_hw")
print("built")
with session:
    session.run()
print("ran")
"""


@pytest.fixture(scope="module")
def big_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program as a script, and beside it a machine; data and memory are a sixteenth."""
    path = tmp_path_factory.mktemp("big") / "big.py"
    path.write_text(BIG_SCRIPT)
    path.with_name("small.toml").write_text(MACHINE)
    return path


@pytest.fixture
def run_big(run_ipuperf: Callable, big_script: Path, tmp_path: Path) -> Callable:
    """``run_big("--clock", "wall")``: the finished process."""
    machine = big_script.with_name("small.toml")
    return lambda *options: run_ipuperf("run", big_script, "--machine", machine, *options, cwd=tmp_path)


@pytest.mark.heavy
def test_strict_memory_refuses_on_the_command_line(run_big: Callable) -> None:
    done = run_big("--strict-memory")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "does not fit: IPU 0 tile " in last
    assert f"bytes over the {LIMIT:,} there are (" in last
    assert "; largest: " in last
    assert "; would help: " in last
    assert "ran" not in done.stdout


@pytest.mark.heavy
def test_strict_memory_refuses_whatever_the_clock(run_big: Callable) -> None:
    done = run_big("--strict-memory", "--clock", "wall")
    assert done.returncode == 1
    assert "does not fit" in done.stderr


@pytest.mark.heavy
def test_a_program_that_does_not_fit_warns_on_the_command_line(run_big: Callable) -> None:
    done = run_big()
    assert done.returncode == 0
    assert "does not fit: IPU 0 tile " in done.stderr

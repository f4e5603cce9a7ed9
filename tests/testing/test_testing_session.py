"""A real session guarded in this process: what is recorded does not depend on the run, the machine does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.testing import (
    BaselineError,
    CycleBaseline,
    assert_fits,
    assert_overlap,
    assert_throughput,
    bubble_share,
    trace_of,
)
from ipuperf.testing.fixture import Ledger


def session(machine: str = "gc200-1", more: bool = False) -> Any:
    """Two products; with ``more``, an op between them that creates later names anew."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = ops.host_load(popxl.h2d_stream((16, 64), popxl.float16, "x"))
        weight = popxl.variable(np.ones((64, 64)), popxl.float16, name="weight")
        y = x @ weight
        y = ops.gelu(y) if more else y
        ops.host_store(popxl.d2h_stream((16, 64), popxl.float16, "y"), y @ weight)
    with use_settings(RunSettings(machine=machine)):
        return popxl.Session(ir, "ipu_hw")


def fixture(folder: Path, update: bool = False) -> CycleBaseline:
    return CycleBaseline("test_x.py::test", "test_x.test", folder, update, "pytest test_x.py --update", Ledger())


def test_the_same_program_made_anew_is_the_same(tmp_path: Path) -> None:
    fixture(tmp_path, update=True).check(session())
    text = fixture(tmp_path).path().read_text()
    fixture(tmp_path).check(session())
    fixture(tmp_path).check(session().executable)
    fixture(tmp_path).check(session().executable.trace)
    fixture(tmp_path, update=True).check(session())
    assert fixture(tmp_path).path().read_text() == text


def test_one_op_more_is_one_new_row(tmp_path: Path) -> None:
    fixture(tmp_path, update=True).check(session())
    with pytest.raises(AssertionError) as caught:
        fixture(tmp_path).check(session(more=True), only=["operations"], atol=100)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("moved: 0 figures, 1 op (rtol=0, atol=100)")
    (row,) = (line.split() for line in lines if "main/" in line)
    assert row[:4] == ["main/Gelu", "1", "Gelu", "0"]
    assert row[-1] == "new"


def test_another_machine_is_refused(tmp_path: Path) -> None:
    fixture(tmp_path, update=True).check(session())
    with pytest.raises(BaselineError, match="on machine 'gc200-1', this run simulates 'pod4'"):
        fixture(tmp_path).check(session("pod4"))


def test_assertions_on_a_session() -> None:
    guarded = session()
    assert_fits(guarded)
    cycles = guarded.executable.simulated_run_cycles
    clock = guarded.executable.trace.meta["clock_hz"]
    assert_throughput(guarded, 16 * clock / cycles * 0.999, samples_per_run=16)
    with pytest.raises(AssertionError, match="throughput is .*(.|\n)*main/HostLoad"):
        assert_throughput(guarded, 16 * clock / cycles * 1.001, samples_per_run=16)
    assert bubble_share(guarded) == 0.0  # one IPU waits for nobody
    assert 0 < bubble_share(guarded, waiting_for_host=True) < 1
    with pytest.raises(AssertionError, match="^0.00% of the time of host is hidden behind compute"):
        assert_overlap(guarded, ("host", "compute"), 0.01)


def test_a_poptorch_executor_is_a_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch

    executor = poptorch.inferenceModel(torch.nn.Linear(16, 8))
    with pytest.raises(ValueError, match="PoplarExecutor is not compiled yet"):
        fixture(tmp_path, update=True).check(executor)
    executor.compile(torch.ones(4, 16))
    fixture(tmp_path, update=True).check(executor)
    fixture(tmp_path).check(executor)


def test_a_function_of_tensorflow_is_a_program(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from ipuperf.tensorflow.programs.hosting import call, program_of
    from ipuperf.tensorflow.python import ipu  # noqa: F401
    from ipuperf.tensorflow.state import isolated

    with isolated():
        function = tf.function(lambda x: x * 2)
        value = tf.ones((3, 4))
        program = program_of(function, value)
        with pytest.raises(ValueError, match="is not compiled yet"):
            trace_of(program)
        call(function, [value], {})
        assert trace_of(program) is program.executable.trace

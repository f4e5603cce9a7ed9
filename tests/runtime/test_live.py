"""The line of a terminal beside running programs."""

import io
import sys

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.runtime import live
from ipuperf.runtime.clock import SimulatedClock, activate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def session() -> tuple[popxl.Session, popxl.DeviceToHostStream]:
    """A program whose only floating-point number is 3, after an integer and a vector."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.float32(1.5), name="x")
        for name, value in (("count", np.int32(7)), ("vector", np.ones(2, np.float32))):
            variable = popxl.variable(value, name=f"v_{name}")
            ops.host_store(popxl.d2h_stream(variable.shape, variable.dtype, name), variable)
        out = popxl.d2h_stream((), popxl.float32, "loss")
        ops.host_store(out, x * 2)
    return popxl.Session(ir, "ipu_hw"), out


@pytest.mark.parametrize("terminal", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_terminal_shows_simulated_time_throughput_and_loss(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    program, _ = session()
    with activate(SimulatedClock()), program:
        for _ in range(3):
            program.run()
        if terminal.isatty():
            program.executable._line._line.refresh()
    text, seconds = terminal.getvalue(), program.executable.simulated_run_seconds
    if not terminal.isatty():
        assert text == ""
        return
    total = 3 * seconds + program.executable.first_run_seconds
    assert "3 runs [" in text
    assert f"simulated {total:.4g} s, {1 / seconds:,.4g} runs/s, loss 3" in text
    assert text.endswith("\r"), "the line goes away"


def test_without_the_simulated_clock_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SHOWN_AFTER", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    program, _ = session()
    with program:
        program.run()
    assert terminal.getvalue() == ""


def test_samples_and_programs_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    line = live.RunLine("train")
    assert line._facts(0.5, 100, {}) == "simulated 0 s, 200 samples/s"
    line.ran(0.5, 100, {})
    assert line._facts(0.0, None, {}) == "simulated 0.5 s"

"""``%%ipuperf`` in a shell of IPython: what is printed, the page in a frame, a machine that does not exist."""

import html
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("IPython")

CELL = """
import numpy as np
import popxl
from popxl import ops
ir = popxl.Ir()
with ir.main_graph:
    x = popxl.variable(np.ones((4, 4), np.float32))
    out = popxl.d2h_stream((4, 4), popxl.float32)
    ops.host_store(out, ops.matmul(x, x))
with popxl.Session(ir, "ipu_hw") as session:
    result = session.run()[out]
"""


@pytest.fixture
def shell(installed_front_ends: Any) -> Iterator[Any]:
    """A shell with the extension."""
    from IPython.core.interactiveshell import InteractiveShell

    with installed_front_ends():
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "ipuperf")
        yield shell
    InteractiveShell.clear_instance()


def test_a_cell_shows_its_figures_and_its_page(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        shell.run_cell_magic("ipuperf", "--machine pod4", CELL)
    assert "session: " in captured.stdout
    assert "simulated on 1 of 4 IPUs of pod4" in captured.stdout
    (frame,) = [output.data["text/html"] for output in captured.outputs]
    page = html.unescape(frame.partition('srcdoc="')[2].rpartition('" width=')[0])
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>session - ipuperf</title>" in page
    assert shell.user_ns["result"].tolist() == [[4.0] * 4] * 4


def test_an_unknown_machine_is_an_error_before_the_cell(shell: Any) -> None:
    from ipuperf.machine import MachineError

    with pytest.raises(MachineError, match="pod5"):
        shell.run_cell_magic("ipuperf", "--machine pod5", "ran = True")
    assert "ran" not in shell.user_ns

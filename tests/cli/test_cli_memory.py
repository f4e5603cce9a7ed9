"""Programs whose values are more than the host's memory: one line that names tensors, what is needed and what helps."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.numerics import HostMemoryError, evaluator, room
from ipuperf.popxl import ops

resource = pytest.importorskip("resource")

PROGRAM = """
import numpy as np, popxl
from popxl import ops
SIZE = {size}
ir = popxl.Ir()
with ir.main_graph:
    column = popxl.variable(np.ones((SIZE, 1), np.float32), name="column")
    out = popxl.d2h_stream((1, 1), popxl.float32, "out")
    total = ops.sum(ops.gelu(ops.add(column, ops.transpose(column))), keepdims=True)
    ops.host_store(out, ops.reshape(total, (1, 1)))
session = popxl.Session(ir, "ipu_hw")
with session:
    print("runs", flush=True)
    session.run()
print("done")
"""


def _limited(
    command: list[str], place: Path, environment: dict[str, str], limit: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip


@pytest.mark.heavy
def test_a_limit_of_address_space_is_one_line(
    ipuperf_command: list[str], child_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "big.py").write_text(PROGRAM.format(size=30_000))
    done = _limited([*ipuperf_command, "run", "--clock", "wall", "big.py"], tmp_path, child_environment, 3 * 10**9)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ipuperf: the program does not fit this host: ")
    assert "GB" in line
    assert "largest: " in line
    assert "3.60 GB" in line, "30,000 x 30,000 x 4 bytes"
    assert "ulimit -v" in line
    assert "--no-numbers" in line


def _doubled(size: int, replicas: int = 1) -> popxl.Session:
    ir = popxl.Ir(replication=replicas)
    with ir.main_graph:
        x = popxl.variable(np.ones((size, size), np.float32), name="x")
        ops.host_store(popxl.d2h_stream((size, size), popxl.float32, "out"), ops.gelu(x + 1))
    return popxl.Session(ir, "ipu_hw")


def test_what_is_needed_is_known_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variable and intermediates of all replicas, and no byte of them written."""
    needed = evaluator.Evaluator(_doubled(100, 2).executable.ir).memory_bytes
    assert needed >= 2 * 2 * 40_000
    monkeypatch.setattr(room, "free_bytes", lambda: (needed - 1, "memory of this host"))
    with pytest.raises(
        HostMemoryError, match=r"its values need 0\.00 GB and 0\.00 GB are free \(memory of this host\)"
    ):
        evaluator.Evaluator(_doubled(100, 2).executable.ir)
    monkeypatch.setattr(room, "free_bytes", lambda: (needed, "memory of this host"))
    evaluator.Evaluator(_doubled(100, 2).executable.ir)


def test_running_out_while_it_runs_is_the_same_line(
    ipuperf_here: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.py").write_text(PROGRAM.format(size=8))

    def fails(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 7 GiB")

    from ipuperf.numerics.streams import OutputCursor

    monkeypatch.setattr(OutputCursor, "open", fails)
    done = ipuperf_here("run", "small.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "runs\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ipuperf: the program does not fit this host: Unable to allocate 7 GiB (")
    monkeypatch.undo()
    from ipuperf.numerics import host

    monkeypatch.setattr(host, "to_device", eval("lambda variable: np.empty(2**60, np.int8)"))  # in no file
    done = ipuperf_here("run", "small.py", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ipuperf: {tmp_path / 'small.py'}:"), line


def test_control_groups_and_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"max": "5000", "current": "4500", "stat": "anon 7\ninactive_file 300"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(room, "_CONTROL_GROUPS", ((tmp_path / "memory.max", tmp_path / "memory.current"),))
    assert room.free_bytes() == (800, "limit of the control group")
    (tmp_path / "memory.max").write_text("max\n")
    assert room.free_bytes()[1] != "limit of the control group"


def test_without_numbers_the_sessions_are_simulated(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(PROGRAM.format(size=8))
    whole = ipuperf_here("run", "small.py", cwd=tmp_path)
    none = ipuperf_here("run", "--no-numbers", "small.py", cwd=tmp_path)
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr == whole.stderr


def test_without_numbers_no_value_takes_memory(
    ipuperf_here: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "torch_program.py").write_text(
        "import poptorch, torch\nmodel = poptorch.inferenceModel(torch.nn.Linear(3, 4))\n"
        "print(model(torch.ones(2, 3)).shape)\n"
    )

    def fails(*arguments: object, **named: object) -> None:
        raise AssertionError("values are made")

    monkeypatch.setattr(evaluator.Evaluator, "__init__", fails)
    none = ipuperf_here("run", "--no-numbers", "torch_program.py", cwd=tmp_path)
    assert (none.returncode, none.stdout) == (0, ""), none.stderr
    assert " a run (" in none.stderr

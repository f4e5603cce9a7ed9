"""Programs for the levers, run and reported as a user does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from ipuperf.levers import LeverResults, Rerun, Trial, measure, rerun_of
from ipuperf.levers.trial import Lever
from ipuperf.report import folder as report_folder
from ipuperf.trace import Trace

RTS = """
import math, sys
import numpy as np
from ipuperf.models.mnist_mlp import TrainingOptions, training_session

threshold = float(sys.argv[1])
options = TrainingOptions(threshold=threshold)
built = training_session(options)
images = np.random.default_rng(0).normal(size=(8, 4, 8, 28, 28)).astype(np.float32)
with built.session as session:
    session.run({built.images: images, built.labels: np.ones((8, 4, 8), np.int32)})
"""

PIPELINE = """
import poptorch, torch


torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(size, 512) for size in (784, 512, 512))
        self.fc4 = torch.nn.Linear(512, 10)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, labels):
        with poptorch.Block("front", ipu_id=0):
            x = torch.relu(self.fc1(x))
            x = torch.relu(self.fc2(x))
            # here
            x = torch.relu(self.fc3(x))
        with poptorch.Block("back", ipu_id=1):
            x = self.fc4(x)
            return x, self.loss(x, labels)


ACCUMULATION, ITERATIONS = 8, 2
options = poptorch.Options()
options.deviceIterations(ITERATIONS)
options.Training.gradientAccumulation(ACCUMULATION)
net = Net()
model = poptorch.trainingModel(net, options=options, optimizer=torch.optim.SGD(net.parameters(), lr=0.01))
count = 16 * ITERATIONS * ACCUMULATION
model(torch.randn(count, 784), torch.randint(0, 10, (count,)))
"""

INFERENCE = """
import numpy as np
from ipuperf.models.mnist_mlp import TrainingOptions, inference_session

built = inference_session(16, TrainingOptions())
with built.session as session:
    session.run({built.images: np.zeros((16, 28, 28), np.float32)})
"""

LOOPED = """
import sys
import numpy as np
import popxl
from popxl import ops

times = int(sys.argv[1])
ir = popxl.Ir(replication=1)
ir.num_host_transfers = times
with ir.main_graph:
    stream = popxl.h2d_stream((64, 64), popxl.float32, "x")
    out = popxl.d2h_stream((64, 64), popxl.float32, "out")
    weight = popxl.variable(np.ones((64, 64), np.float32), name="weight")

    def batch(weight):
        ops.host_store(out, ops.host_load(stream) @ weight)

    with popxl.in_sequence(True):
        ops.repeat(ir.create_graph(batch, weight), times, weight)
with popxl.Session(ir, "ipu_hw") as session:
    session.run({stream: np.zeros((times, 64, 64), np.float32) if times > 1 else np.zeros((64, 64), np.float32)})
"""

ACCUMULATED = """
import sys
import numpy as np
import popxl
from popxl import ops

times = int(sys.argv[1])
ir = popxl.Ir(replication=1)
ir.num_host_transfers = times
with ir.main_graph:
    stream = popxl.h2d_stream((16, 64), popxl.float32, "x")
    weight = popxl.variable(np.ones((64, 64), np.float32), name="weight")
    total = popxl.variable(np.zeros((64, 64), np.float32), name="total")

    def micro_batch(weight: popxl.Tensor, total: popxl.TensorByRef):
        x = ops.host_load(stream)
        ops.var_updates.accumulate_(total, x.T @ (x @ weight))

    with popxl.in_sequence(True):
        ops.repeat(ir.create_graph(micro_batch, weight, total), times, weight, total)
        ops.scaled_add_(weight, total, b=-0.01)
        ops.var_updates.accumulator_scale_(total, 0.0)
with popxl.Session(ir, "ipu_hw") as session:
    session.run({stream: np.zeros((times, 16, 64), np.float32)})
"""


READ = ("trace.ipt", "summary.txt")
"""All that a lever, and who asks for levers, reads of a report's views: the tests draw no others."""


class Case:
    """Folders of programs, and the command that runs them; the same program with the same arguments runs once."""

    known: ClassVar[dict[tuple[str, ...], Path]] = {}
    reruns: ClassVar[dict[Path, Rerun]] = {}

    def __init__(self, command: Callable, folder: Path, kept: Path) -> None:
        self._command, self._folder, self._kept = command, folder, kept

    def run(self, text: str, *arguments: object, machine: str = "pod4") -> Path:
        """The report of the first session of a program that no test changes."""
        key = (text, machine, *map(str, arguments))
        if key not in self.known:
            folder = self._kept / f"case{len(self.known)}"
            folder.mkdir()
            self.known[key] = self._run(folder, text, arguments, machine)
        return self.known[key]

    def own(self, text: str, *arguments: object, machine: str = "gc200-1", options: tuple[str, ...] = ()) -> Path:
        """The report of the first session of a program in the folder of the test, run with these options."""
        return self._run(self._folder, text, arguments, machine, options)

    def _run(
        self, folder: Path, text: str, arguments: tuple[object, ...], machine: str, options: tuple[str, ...] = ()
    ) -> Path:
        (folder / "program.py").write_text(text)
        words = ("--machine", machine, "--report", "report", *options, "program.py", "--", *arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_folder, "VIEWS", [view for view in report_folder.VIEWS if view.name in READ])
            done = self._command("run", *words, cwd=folder)
        assert done.returncode == 0, done.stderr
        return sorted((folder / "report").iterdir())[0]

    def rerun(self, folder: Path) -> Rerun:
        """The program of a report that no test changes, run again once for all that ask (levers leave it as it is)."""
        if folder not in self.reruns:
            self.reruns[folder] = rerun_of(folder, Trace.load(folder / "trace.ipt"))
        return self.reruns[folder]

    def measured(self, folder: Path, *levers: Lever) -> LeverResults:
        """What these levers give for such a run."""
        return measure(self.rerun(folder), levers)

    def only(self, folder: Path, lever: Lever) -> Trial:
        """The one change that a lever gives."""
        (trial,) = self.measured(folder, lever).trials
        return trial

    def why(self, folder: Path) -> str:
        """What ``--why`` says, from an empty folder."""
        empty = self._folder / "empty"
        empty.mkdir(exist_ok=True)
        done = self._command("report", folder, "--why", cwd=empty)
        assert done.returncode == 0, done.stderr
        assert list(empty.iterdir()) == []
        return done.stdout


def cycles_of(folder: Path) -> int:
    """Cycles of the run in a report."""
    return int(Trace.load(folder / "trace.ipt").columns("runs")["dur"][-1])


def levers_in(text: str) -> list[str]:
    """The lines of the largest levers in what ``--why`` says."""
    listed = text.split("What would change it")[1].split("\n\n")[0]
    return re.findall(r"^ +-.+$", listed, re.MULTILINE)

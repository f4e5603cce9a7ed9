"""What a program's own functions raise keeps its type, its cause and its frames, through every front end."""

import importlib.util
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from behaviour import version_2

from ipuperf.runtime.script import run_script

HEAD = """
class MyError(Exception):
    def __init__(self, one, two):  # cannot be made anew from its text
        super().__init__(f"{one} {two}")

def fail():
    try:
        {}["k"]
    except KeyError as error:
        raise MyError("no", "good") from error  # HERE
"""
POPXL = "import popxl, popxl_addons as addons, numpy as np\nir = popxl.Ir()\n"
TORCH = """
import torch, poptorch
class Fails(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] == 2:
            fail()
        return x
class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(3, 3), Fails()
    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            y = self.layer(x)
        return y, poptorch.identity_loss(self.fails(y).sum(), "mean")
"""
TF = """
import numpy as np, tensorflow as tf
from tensorflow.python import ipu
tf.compat.v1.disable_v2_behavior()
config = ipu.config.IPUConfig(); config.auto_select_ipus = 2; config.configure_ipu_system()
def compiled(net, args):
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        return ipu.ipu_compiler.compile(net, args)
"""
PROGRAMS = {
    "popxl graph": f"{POPXL}def f(x):\n    fail()\n"
    "with ir.main_graph:\n    ir.create_graph(f, popxl.variable(np.ones(2)))\n",
    "popxl.addons build": f"{POPXL}class B(addons.Module):\n    def build(self, x):\n        fail()\n"
    "class A(addons.Module):\n    def __init__(self):\n        super().__init__()\n        self.b = B()\n"
    "    def build(self, x):\n        return self.b(x)\n"
    "with ir.main_graph:\n    A().create_graph(popxl.variable(np.ones(2)))\n",
    "torch inference": f"{TORCH}poptorch.inferenceModel(Fails())(torch.ones(2, 3))\n",
    "torch training": f"{TORCH}m = Trained()\noptimizer = torch.optim.SGD(m.parameters(), 0.1)\n"
    "poptorch.trainingModel(m, optimizer=optimizer)(torch.ones(2, 3))\n",
    "tensorflow compile": f"{TF}def net(x):\n    fail()\ncompiled(net, [tf.constant(1.0)])\n",
    "tensorflow loop": f"{TF}def body(x):\n    fail()\n"
    "compiled(lambda x: ipu.loops.repeat(3, body, [x]), [tf.constant(1.0)])\n",
    "tensorflow stage": f"""{TF}
from tensorflow.python.ipu.ops import pipelining_ops
def two(x):
    fail()
ones = tf.compat.v1.data.Dataset.from_tensors(np.ones(3, np.float32)).repeat()
source = ipu.ipu_infeed_queue.IPUInfeedQueue(ones)
def net():
    stages = [lambda x: x + 1, two]
    return pipelining_ops.pipeline(stages, gradient_accumulation_count=4, infeed_queue=source)
compiled(net, [])
""",
}
KERAS = """
import numpy as np, tensorflow as tf
from tensorflow.python import ipu
config = ipu.config.IPUConfig(); config.auto_select_ipus = 1; config.configure_ipu_system()
def loss(truth, found):
    raise ValueError("no good")  # HERE
data = np.ones((4, 3), np.float32)
with ipu.ipu_strategy.IPUStrategy().scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(3,))])
    model.compile("sgd", loss)
    model.fit(data, data, batch_size=2)
"""


def _ran(source: str, place: Path, capsys: pytest.CaptureFixture[str], debug: bool = False) -> tuple[Exception, str]:
    (place / "program.py").write_text(source)
    done = run_script(place / "program.py", debug=debug)
    assert done.exit_code == 1
    assert isinstance(done.error, Exception)
    return done.error, capsys.readouterr().err


def _needs(name: str) -> None:
    if name in ("torch", "tensorflow") and importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_is_the_programs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _needs(name.split()[0])
    with version_2() if name.startswith("tensorflow") else nullcontext():
        error, said = _ran(HEAD + PROGRAMS[name], tmp_path, capsys)
        _, whole = _ran(HEAD + PROGRAMS[name], tmp_path, capsys, debug=True)
    assert type(error).__name__ == "MyError"
    assert str(error) == "no good"
    assert isinstance(error.__cause__, KeyError)
    assert said.splitlines()[-1] == "MyError: no good"
    frames = re.findall(r'^  File "(.*?)", line', said, re.M)
    assert "# HERE" in said
    inner = [file for file in frames if file.endswith("program.py")]
    assert len(inner) >= 3
    assert not [file for file in frames if "/ipuperf/" in file]
    if name.split()[0] != "torch":  # Linear's own frames are torch's, but those that call it are hidden
        assert inner == frames
    assert "/ipuperf/" in whole
    assert whole.splitlines()[-1] == "MyError: no good"


def test_keras_keeps_the_type_and_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AutoGraph makes an error anew, of the same type, and its text has the frames: so it is upstream."""
    _needs("tensorflow")
    error, said = _ran(KERAS, tmp_path, capsys)
    assert type(error) is ValueError
    assert "no good" in str(error)
    assert "# HERE" in said
    assert not re.findall(r'^  File ".*/ipuperf/.*", line', said, re.M)


def test_a_defect_of_ipuperf_keeps_its_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipuperf.popxl import tracing

    monkeypatch.setattr(tracing, "graph_output", None)
    source = f"{POPXL}with ir.main_graph:\n    ir.create_graph(lambda x: x + 1, popxl.variable(np.ones(2)))\n"
    _, said = _ran(source, tmp_path, capsys)
    assert "popxl/tracing.py" in said


def test_what_a_library_raises_within_forward_ends_with_the_programs_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"{POPXL}def f(x):\n    np.ones(3).reshape(2)  # HERE\n"
    source += "with ir.main_graph:\n    ir.create_graph(f, popxl.variable(np.ones(2)))\n"
    error, said = _ran(source, tmp_path, capsys)
    assert type(error) is ValueError
    assert [line for line in said.splitlines() if "File" in line][-1].endswith("in f")

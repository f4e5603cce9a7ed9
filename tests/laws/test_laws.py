"""The laws of time hold for whole programs: `pytest -m slow tests/laws` tries those that the normal run leaves out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from laws import BETTER, LAWS
from programs import GROWING, PAIRS, PROGRAMS, QUICK, executables, main, stored

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.runtime.executable import Executable

NEEDS = ("torch", "tensorflow")


CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROGRAMS]


@pytest.fixture(scope="module", autouse=True)
def made(installed_front_ends: Any) -> Iterator[dict[str, Executable]]:
    """Executables by name, made when they are asked for."""
    with installed_front_ends():
        yield {}


@pytest.mark.heavy
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CASES)
def test_the_law_holds(name: str, law: str, made: dict[str, Executable]) -> None:
    if (library := name.split()[0]) in NEEDS:
        pytest.importorskip(library)
    if name not in made:
        made[name] = PROGRAMS[name]()
    LAWS[law](made[name])


def test_there_are_forty_programs_and_all_figures_of_time() -> None:
    assert len(PROGRAMS) >= 40
    assert len(BETTER) == 29


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_cycles(name: str) -> None:
    one, other = (build().simulated_run_cycles for build in PAIRS[name])
    assert one == other


@pytest.mark.heavy
@pytest.mark.parametrize("name", GROWING)
def test_time_grows_evenly(name: str) -> None:
    build, counts = GROWING[name]
    cycles = [build(count).simulated_run_cycles for count in counts]
    slopes = np.diff(cycles) / np.diff(counts)
    assert len(set(slopes.tolist())) == 1, cycles


# -- one model, three front ends ---------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
X, W, V = (RANDOM.standard_normal(size).astype(np.float32) for size in ((64, 96), (96, 128), (128, 32)))


def by_popxl() -> None:
    def body() -> None:
        x = ops.host_load(popxl.h2d_stream(X.shape, popxl.float32, "x"))
        stored(ops.softmax(ops.relu(x @ popxl.variable(W)) @ popxl.variable(V), -1))

    main(body)


def by_poptorch() -> None:
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = (torch.nn.Parameter(torch.tensor(array)) for array in (W, V))

        def forward(self, x: Any) -> Any:
            return torch.softmax(torch.relu(x @ self.w) @ self.v, -1)

    poptorch.inferenceModel(Model())(torch.tensor(X))


def by_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    from ipuperf.tensorflow.python.ipu import config, ipu_strategy
    from ipuperf.tensorflow.state import isolated

    with isolated():
        settings = config.IPUConfig()
        settings.auto_select_ipus = 1
        settings.configure_ipu_system()
        strategy = ipu_strategy.IPUStrategy()
        with strategy.scope():
            w, v = tf.Variable(W), tf.Variable(V)
            function = tf.function(lambda x: tf.nn.softmax(tf.nn.relu(x @ w) @ v), jit_compile=True)
            strategy.run(function, args=[tf.constant(X)])


def test_one_model_is_the_same_work_in_all_front_ends() -> None:
    work = []
    for run in (by_popxl, by_poptorch, by_tensorflow):
        with executables() as made:
            run()
        steps = made[-1].trace.expand()
        steps = steps[steps["kind"].isin(["compute", "exchange", "sync"])]
        sums = steps.groupby(["op_id", "kind"], observed=True)["dur"].sum()
        work.append(
            [
                [int(sums.get((op, kind), 0)) for kind in ("compute", "exchange")]
                for op in sorted({op for op, _ in sums.index})
            ]
        )
    assert work[0] == work[1] == work[2]

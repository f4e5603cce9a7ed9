"""A short run of every family of random programs, kept failures, and that the tools find what they look for.

The long run is ``python tests/fuzz/run.py``, see ``docs/testing.md``.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from fuzzing import popxl_programs
from fuzzing.families import family
from fuzzing.kinds import KINDS
from fuzzing.outcome import guarded, load, shrunk
from fuzzing.storage import Memory, differences
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ipuperf.popxl import ops

pytestmark = pytest.mark.heavy

KEPT = sorted((Path(__file__).parent / "regressions").glob("*.json"))
RANDOM = st.randoms(use_true_random=False)


def short(programs: int):
    """Derandomised settings of a short run."""
    return settings(
        max_examples=programs,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )


def same(name: str, r: random.Random, traced_every: int = 0) -> None:
    """One program of a family, as it would be read from a file; the trace of one in so many is looked at too.

    Which ones, its text decides: the first numbers that hypothesis draws are 0 and 1 far more often than that.
    """
    module = family(name)
    text = module.draw(r).to_json()
    program = module.Program.from_json(text)
    trace = traced_every > 0 and zlib.crc32(text.encode()) % traced_every == 0
    outcome = module.check(program, trace=trace)
    assert not outcome.problems, f"{program}\n{program.to_json()}\n{outcome.problems[:5]}"


@short(120)
@given(RANDOM)
def test_popxl_programs_like_numpy(r: random.Random) -> None:
    same("popxl", r, traced_every=6)


@short(60)
@given(RANDOM)
def test_gradients_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("autodiff", r)


@short(150)
@given(RANDOM)
def test_single_ops_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("ops", r, traced_every=8)


@short(20)
@given(RANDOM)
def test_addons_trainings_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("addons", r, traced_every=8)


@short(6)
@given(RANDOM)
def test_operations_of_torch_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("aten", r, traced_every=4)


@short(6)
@given(RANDOM)
def test_torch_training_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("torch", r, traced_every=4)


@short(3)
@given(RANDOM)
def test_torch_statements_like_torch(r: random.Random) -> None:
    pytest.importorskip("torch")
    same("statements", r, traced_every=4)


@short(12)
@given(RANDOM)
def test_tensorflow_pipelines_like_numpy(r: random.Random) -> None:
    pytest.importorskip("tensorflow")
    same("tensorflow", r, traced_every=4)


@short(20)
@given(RANDOM)
def test_functions_of_the_ipu_like_tensorflow(r: random.Random) -> None:
    pytest.importorskip("tensorflow")
    same("ipu", r, traced_every=4)


@settings(short(4), phases=[Phase.generate])  # a smaller program takes as long as another one
@given(RANDOM)
def test_keras_models_like_keras(r: random.Random) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf_keras")
    same("keras", r, traced_every=4)


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_what_failed_once_holds(path: Path) -> None:
    name, text = load(path)
    if name not in ("popxl", "tensorflow"):
        pytest.importorskip("torch")
    if name in ("tensorflow", "keras"):
        pytest.importorskip("tensorflow")
    module = family(name)
    outcome = module.check(module.Program.from_json(text), trace=True)
    assert not outcome.problems
    assert not outcome.refused


# -- the tools themselves ----------------------------------------------------------------------------------------------


def test_a_program_is_what_its_json_says() -> None:
    for seed in range(20):
        program = popxl_programs.draw(random.Random(seed))
        again = popxl_programs.Program.from_json(program.to_json())
        assert again == popxl_programs.Program.from_json(again.to_json())
        assert str(again) == str(popxl_programs.Program.from_json(again.to_json()))
        assert again.size() == program.size() >= 1


def test_programs_hold_every_kind_of_instruction() -> None:
    drawn = [popxl_programs.draw(random.Random(seed)) for seed in range(300)]
    kinds = {ins.kind for p in drawn for body in p.bodies() for ins in body.instructions}
    assert kinds == set(KINDS)
    sizes = [p.size() for p in drawn]
    assert 5 <= np.median(sizes) <= 40


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("addinplace", lambda ins, operands, builder: ops.add(*operands)),
        ("transpose", lambda ins, operands, builder: ops.transpose(operands[0], ins.attributes["order"])),
        ("allreduce", lambda ins, operands, builder: ops.identity(operands[0])),
        ("remoteload", lambda ins, operands, builder: ops.remote_load(builder.buffer(ins.attributes["buffer"]), 0)),
    ],
)
def test_a_planted_defect_is_found_and_made_small(kind: str, wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(KINDS[kind]), "build", staticmethod(wrong))
    for seed in range(1000):
        program = popxl_programs.draw(random.Random(seed))
        if program.size() <= 15 and any(ins.kind == kind for body in program.bodies() for ins in body.instructions):
            outcome = guarded(popxl_programs, program)
            if outcome.kind == "values" and outcome.problems:
                smaller = shrunk(popxl_programs, program, outcome)
                assert guarded(popxl_programs, smaller).problems
                assert len(smaller.main.instructions) <= min(8, len(program.main.instructions))
                return
    pytest.fail("not found")


@pytest.mark.parametrize("around", ["main", "constants", "call", "repeat", "branch", "stream"])
def test_another_op_is_found(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    module = family("ops")
    program = module.Program(5, "popxl.ops.tanh", "float32", [["normal", [3, 2], "any"]], {}, around, transfers=1)
    assert not module.check(program).problems
    monkeypatch.setattr(module, "_resolved", lambda name: ops.sin)
    found = " ".join(module.check(program).problems)
    assert "result 0: got" in found
    assert ("gradient 0: got" in found) == (around == "call")


def test_rounding_excuses_an_ill_conditioned_program_and_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm over two samples: PyTorch's own weights move by 0.03 when its start weights do by 1e-7."""
    pytest.importorskip("torch")
    module = family("torch")
    _, text = load(next(path for path in KEPT if path.stem == "torch-ill-conditioned-batch-norm"))
    ill, well = module.Program.from_json(text), module.draw(random.Random(3))
    for program, says in ((ill, "of PyTorch's own jitter"), (well, "")):
        outcome = module.check(program)
        assert not outcome.problems
        assert says in outcome.ill_conditioned
        assert bool(says) == bool(outcome.ill_conditioned)
    sides = []

    def a_wrong_rate(optimisers, parameters, decay):
        sides.append(optimisers.__name__)
        return optimisers.SGD(parameters, lr=0.1 if optimisers.__name__.startswith("ipuperf") else 0.02)

    for program in (ill, well):
        monkeypatch.setitem(module.OPTIMISERS, program.optimiser, a_wrong_rate)
        outcome = module.check(program)
        assert outcome.problems
        assert not outcome.ill_conditioned
    assert {"torch.optim", "ipuperf.poptorch.optim"} == set(sides)


def test_views_share_addresses_and_copies_do_not() -> None:
    memory = Memory(replicas=2, seed=0)
    whole = memory.new(np.zeros((4, 3, 2)), "float32")
    row, copied = whole.view(whole.addresses[1]), whole.copy()
    row.write(np.ones((4, 2)))
    np.testing.assert_array_equal(whole.read()[0], [[0, 0], [1, 1], [0, 0]])
    assert not copied.read().any()


def test_tolerances_follow_the_rounding_of_the_program() -> None:
    memory = Memory(replicas=1, seed=0)
    exact = memory.new(np.full((2, 4), 0.3), "float32")
    steep = memory.new(1e3 * np.sin(100 * memory.disturbed(exact.read(), "float32")), "float32")
    got = steep.read()[:1] + 1e-2
    assert differences("x", got, exact.read() + 0, "float32")[0]
    assert not differences("x", got, steep.read(), "float32")[0]
    assert differences("x", exact.read()[:1] + np.float32(1e-4), exact.read(), "float32")[0]
    assert differences("x", np.array([[1]]), np.array([[2], [2]]), "int32")[0]
    assert differences("x", np.zeros((1, 2)), np.zeros((2, 3)), "float32") == (["x: shape (1, 2), expected (1, 3)"], 0)

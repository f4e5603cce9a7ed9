"""A short run of every family of random programs, kept failures, and that the tools find what they look for.

The long run is ``python tests/fuzz/run.py``, see ``docs/random-programs.md``.
"""

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from fuzzing import popxl
from fuzzing.families import FAMILIES, family
from fuzzing.outcome import guarded, load, shrunk
from fuzzing.popxl.kinds import KINDS
from fuzzing.popxl.storage import Memory, differences
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ipuperf.popxl import ops

pytestmark = pytest.mark.heavy

KEPT = sorted((Path(__file__).parent / "regressions").glob("*.json"))
RANDOM = st.randoms(use_true_random=False)


def short(programs: int, smaller: bool):
    """Derandomised settings of a short run; ``smaller``: whether a failing program is made smaller."""
    return settings(
        max_examples=programs,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *[Phase.shrink] * smaller],
    )


SHORT = {
    "popxl": (120, 6, ()),
    "autodiff": (60, 0, ("torch",)),
    "ops": (150, 8, ("torch",)),
    "addons": (20, 8, ("torch",)),
    "aten": (6, 4, ("torch",)),
    "torch": (6, 4, ("torch",)),
    "statements": (3, 4, ("torch",)),
    "tensorflow": (12, 4, ("tensorflow",)),
    "ipu": (20, 4, ("tensorflow",)),
    "keras": (4, 4, ("tensorflow", "tf_keras")),
}
"""Of each family: programs of the short run, one in how many has its trace looked at (0: none), packages it needs."""


@pytest.mark.parametrize("name", SHORT)
def test_programs_like_their_oracle(name: str) -> None:
    programs, traced_every, packages = SHORT[name]
    for package in packages:
        pytest.importorskip(package)
    module = family(name)

    @short(programs, smaller=name != "keras")  # a smaller Keras program takes as long as another one
    @given(RANDOM)
    def holds(r: random.Random) -> None:
        """A program, as it would be read from a file. Its text decides about the trace: the first numbers that
        hypothesis draws are 0 and 1 far more often than others."""
        text = module.draw(r).to_json()
        program = module.Program.from_json(text)
        trace = traced_every > 0 and zlib.crc32(text.encode()) % traced_every == 0
        outcome = module.check(program, trace=trace)
        assert not outcome.problems, f"{program}\n{program.to_json()}\n{outcome.problems[:5]}"

    holds()


def test_every_family_has_a_short_run() -> None:
    assert SHORT.keys() == FAMILIES.keys()


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
        program = popxl.draw(random.Random(seed))
        again = popxl.Program.from_json(program.to_json())
        assert again == popxl.Program.from_json(again.to_json())
        assert str(again) == str(popxl.Program.from_json(again.to_json()))
        assert again.size() == program.size() >= 1


def test_programs_hold_every_kind_of_instruction() -> None:
    drawn = [popxl.draw(random.Random(seed)) for seed in range(300)]
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
        program = popxl.draw(random.Random(seed))
        if program.size() <= 15 and any(ins.kind == kind for body in program.bodies() for ins in body.instructions):
            outcome = guarded(popxl, program)
            if outcome.kind == "values" and outcome.problems:
                smaller = shrunk(popxl, program, outcome)
                assert guarded(popxl, smaller).problems
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
    assert {"torch.optim", "ipuperf.frontends.poptorch.optimisers.classes"} == set(sides)


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

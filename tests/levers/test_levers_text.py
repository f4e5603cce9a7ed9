"""The lines of programs in diffs: calls that are there, calls to add, and text that is no Python."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from ipuperf.levers.change import ProgramChange
from ipuperf.levers.parts import expression, parts_of
from ipuperf.levers.program_text import ProgramText

PROGRAM = ProgramText("""
train = poptorch.Options(); train.Training.gradientAccumulation(8)
train.deviceIterations(
    2
)
valid = poptorch.Options().deviceIterations(4)
valid.replicationFactor(2)
train._Popart.set("outlineThreshold", 3.0)
loader = poptorch.DataLoader(train, data, batch_size=size)
for n, part in enumerate(parts): poptorch.BeginBlock(part, ipu_id=n); poptorch.BeginBlock(part, "x", ipu_id=n + 1)
with poptorch.Block(ipu_id=3): pass
model = poptorch.trainingModel(self.net, options=train)
""")


@pytest.mark.parametrize(
    ("call", "arguments", "diff"),
    [
        ("Training.gradientAccumulation", "4",
         ("- train.Training.gradientAccumulation(8)", "+ train.Training.gradientAccumulation(4)")),
        ("deviceIterations", "4", ("- train.deviceIterations(", "-     2", "- )", "+ train.deviceIterations(4)")),
        ("replicationFactor", "4", ("- valid.replicationFactor(2)", "+ valid.replicationFactor(4)")),
        ("Precision.setPartialsType", "torch.half", ("+ train.Precision.setPartialsType(torch.half)",)),
        ("_Popart.set", "'autoRecomputation', 0", ("+ train._Popart.set('autoRecomputation', 0)",)),
        ("_Popart.set", "'outlineThreshold', 1",
         ('- train._Popart.set("outlineThreshold", 3.0)', "+ train._Popart.set('outlineThreshold', 1)")),
    ],
    ids=str,
)  # fmt: skip
def test_a_call_of_the_options(call: str, arguments: str, diff: tuple[str, ...]) -> None:
    assert PROGRAM.called(call, arguments) == diff


def test_arguments_with_a_name() -> None:
    places = ("- ipu_id=n", "+ ipu_id=n // 2", "- ipu_id=n + 1", "+ ipu_id=(n + 1) // 2", "- ipu_id=3", "+ ipu_id=1")
    assert sorted(PROGRAM.keyword("ipu_id", Fraction(1, 2))) == sorted(places)
    assert PROGRAM.keyword("batch_size", Fraction(2), "DataLoader") == ("- batch_size=size", "+ batch_size=2 * size")
    assert PROGRAM.keyword("batch_size", Fraction(2), "Sampler") == ()


def test_names_of_model_and_options() -> None:
    assert (PROGRAM.module, PROGRAM.options) == ("self.net", "train")
    other = ProgramText("poptorch.inferenceModel(Net(), make_options())")
    assert (other.module, other.options) == ("model", "options")
    broken = ProgramText("def (")
    assert broken.called("deviceIterations", "2") == ("+ options.deviceIterations(2)",)


def test_two_changes_become_one() -> None:
    seen: list[str] = []
    first = ProgramChange("a", of_model=lambda request: seen.append("a"), of_pipeline=lambda n: n + 1)
    second = ProgramChange("b", training="t", of_model=lambda request: seen.append("b"))
    third = ProgramChange("c", work=Fraction(2), diff=("+ c",), of_pipeline=lambda n: 10 * n)
    joined = first.then(second).then(third)
    assert joined.what == "a; and b; and c"
    assert joined.from_program
    assert (joined.work, joined.training, joined.diff) == (2, "t", ("+ c",))
    assert joined.of_model is not None
    assert joined.of_pipeline is not None
    joined.of_model(None)  # type: ignore[arg-type]
    assert seen == ["a", "b"]
    assert joined.of_pipeline(1) == 20  # type: ignore[arg-type]
    assert joined.of_ir is joined.of_program is joined.of_executable is None


def test_the_lines_of_two_changes_become_those_of_one() -> None:
    """What both replace or add is said once, by the second, which was chosen for the program with the first."""
    count, accumulated = "- options.replicationFactor(1)", "+ options.Training.gradientAccumulation"
    first = ProgramChange("a", diff=(count, "+ options.replicationFactor(2)", f"{accumulated}(8)", "+ # samples"))
    second = ProgramChange("b", diff=(count, "+ options.replicationFactor(4)", f"{accumulated}(2)"))
    assert first.then(second).diff == ("+ # samples", *second.diff)
    set_one, set_other = (ProgramChange("c", diff=(f"+ options._Popart.set('{key}', 1)",)) for key in "ab")
    assert first.then(set_one).then(set_other).diff == (*first.diff, *set_one.diff, *set_other.diff)
    assert set_one.then(replace(set_one, diff=("+ options._Popart.set('a', 3)",))).diff == (
        "+ options._Popart.set('a', 3)",
    )


def test_a_keyword_is_scaled_by_all_changes() -> None:
    """The second change replaces the lines of the first one, also where the two cancel each other."""
    first = ProgramChange("a", diff=("- batch_size=4", "+ batch_size=8", "+ x"), scaled={"batch_size": Fraction(2)})
    second = ProgramChange("b", diff=("- batch_size=4", "+ batch_size=32"), scaled={"batch_size": Fraction(4)})
    back = ProgramChange("c", scaled={"batch_size": Fraction(1, 2)})
    assert first.then(second).diff == ("+ x", *second.diff)
    assert (first.then(second).scale("batch_size"), first.scale("ipu_id")) == (8, 1)
    assert first.then(back).diff == ("+ x",)
    twice, more = (ProgramChange("d", diff=(f"+ # and pass {n} times as many samples in a call",)) for n in (2, 16))
    assert twice.then(more).diff == more.diff


def test_parts_of_a_module() -> None:
    nn = pytest.importorskip("torch").nn
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])
    model = nn.ModuleDict({"first": nn.Linear(8, 2), "body": nn.ModuleDict({"blocks": blocks}), "last": nn.ReLU()})
    assert parts_of(model) == ["first", "body.blocks.0.0", "body.blocks.1.0", "body.blocks.2.0"]
    assert expression("net", "body.blocks.0.fc") == "net.body.blocks[0].fc"

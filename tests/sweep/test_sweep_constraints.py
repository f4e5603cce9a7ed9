"""Constraints: what they mean, and that nothing but arithmetic is evaluated."""

import pytest

from ipuperf.sweep import SweepError
from ipuperf.sweep.constraints import Constraint

VALUES = {"stages": 4, "replicas": 2, "machine": "pod16", "recompute": True, "config.hidden": 64, "split": [1, 3]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages * replicas <= 8", True),
        ("stages * replicas < 8", False),
        ("2 < stages <= 4", True),
        ("machine in ['pod4', 'pod16'] and not recompute", False),
        ("machine != 'pod4' or stages == 1", True),
        ("config.hidden // stages == 16 and config.hidden % 3 == 1", True),
        ("max(stages, replicas) == 4 and min(1, 2.5) == 1", True),
        ("len(split) == 2 and 3 in split", True),
        ("-stages + 10 / 4 == -1.5", True),
    ],
)
def test_meaning(text: str, expected: bool) -> None:
    assert Constraint(text, VALUES).holds(VALUES) is expected
    assert bool(eval(text.replace("config.hidden", "64"), {}, VALUES)) is expected  # the oracle: Python itself


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('x')",
        "(lambda: 1)()",
        "[x for x in split]",
        "machine.__class__",
        "stages ** 99",
        "split[0]",
        "f'{stages}'",
        "max(1, 2, key=len)",
        "(stages := 3)",
        "stages if recompute else 1",
        "None",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(SweepError, match="not allowed|unknown factor"):
        Constraint(text, VALUES)


def test_unknown_factor_no_expression_and_what_cannot_be_evaluated() -> None:
    with pytest.raises(SweepError, match="unknown factor 'stage' .did you mean stages.*; allowed: stages, replicas"):
        Constraint("stage < 3", VALUES)
    with pytest.raises(SweepError, match="no expression"):
        Constraint("stages <", VALUES)
    with pytest.raises(SweepError, match="characters"):
        Constraint("1 + " * 400 + "1", VALUES)
    for text in ("stages / (replicas - 2) > 1", "machine < 3", "machine * 1000000000 == ''"):
        with pytest.raises(SweepError, match="for stages = 4"):
            Constraint(text, VALUES).holds(VALUES)

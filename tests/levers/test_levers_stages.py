"""A better division of a pipeline, against the program that is written so."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from levercases import PIPELINE, RTS, Case, cycles_of

from ipuperf.levers import levers_text
from ipuperf.levers.layers import divided, layers_of
from ipuperf.levers.stages import StageDivision, _evenest
from ipuperf.numerics import Evaluator

pytest.importorskip("torch")

EVEN = PIPELINE.replace("            x = torch.relu(self.fc3(x))\n", "").replace(
    "            x = self.fc4(x)\n", "            x = torch.relu(self.fc3(x))\n            x = self.fc4(x)\n"
)
"""The pipeline with its third layer in the second stage."""


@pytest.mark.heavy
def test_an_uneven_pipeline_names_its_stage_and_a_split_that_takes_what_is_said(case: Case) -> None:
    folder = case.run(PIPELINE)
    found = case.measured(folder, StageDivision())
    (trial,) = found.trials
    assert trial.what.startswith("move fc3 from stage 0 to stage 1; stage 0 has ")
    assert trial.cycles == pytest.approx(cycles_of(case.run(EVEN)), rel=1e-3)
    line, place = levers_text(case.rerun(folder).trace, found).split("\n\n")[0].splitlines()[1:]
    assert re.match(r" +-\S+ us +-\d+\.\d %  move fc3 from stage 0 to stage 1; stage 0 has \d+ % of the work", line)
    assert place.strip() == "+ # fc3 in stage 1"


def test_layers_are_named_for_their_modules_and_keep_their_ops(case: Case) -> None:
    asked = []
    case.rerun(case.run(PIPELINE)).fresh(lambda request: asked.append(request) or request)
    layers = layers_of(asked[0])
    assert [layer.name for layer in layers] == ["fc1", "fc2", "fc3", "fc4"]
    assert [op for layer in layers for op in layer.ops] != []
    assert sum(len(layer.ops) for layer in layers) == sum(len(part.graph.ops) for part in asked[0].parts)


@pytest.mark.heavy
def test_every_division_computes_the_same_loss(case: Case) -> None:
    run = case.rerun(case.run(PIPELINE))
    losses = []
    for division in (None, (1, 3), (2, 2), (3, 1)):
        program = run.fresh(None if division is None else partial(divided, division=division)).ir
        evaluator = Evaluator(program)
        evaluator.load_variables()
        rng = np.random.default_rng(3)
        inputs = {
            stream: rng.normal(size=(16, 1, *stream.shape)).astype(np.float32)
            if stream.dtype.is_floating_point
            else rng.integers(0, 10, (16, 1, *stream.shape)).astype(stream.dtype.numpy)
            for stream in evaluator.required_inputs()
        }
        found = evaluator.run(inputs)
        losses.append(next(value for stream, value in found.items() if stream.spec.elements == 1))
    for loss in losses[1:]:
        np.testing.assert_array_equal(losses[0], loss)


def test_a_program_that_places_its_ops_itself_is_not_divided_anew(case: Case) -> None:
    found = case.measured(case.run(RTS, 512), StageDivision())
    assert not found.trials
    assert not found.untried  # one IPU per replica


@pytest.mark.parametrize(
    ("cycles", "stages", "division"),
    [([1, 1, 1, 3], 2, (3, 1)), ([5, 1, 1], 3, (1, 1, 1)), ([2, 2, 2, 2], 2, (2, 2)), ([9, 1, 1, 1, 1], 2, (1, 4))],
)
def test_the_evenest_division_by_hand(cycles: list[int], stages: int, division: tuple[int, ...]) -> None:
    assert _evenest(cycles, stages, [None] * len(cycles)) == division


def test_pinned_layers_keep_their_stage() -> None:
    assert _evenest([1, 1, 1, 1, 4], 2, [None, None, 0, None, 1]) == (4, 1)
    assert _evenest([9, 1, 1, 1, 1], 3, [0, None, None, None, 2]) == (1, 1, 3)
    assert _evenest([1, 1, 9], 2, [0, 1, None]) == (1, 2)

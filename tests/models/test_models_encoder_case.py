"""The encoder as a program of a case: what a case says is what is built, anything else is refused."""

from pathlib import Path
from typing import Any

import pytest

from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.runtime.executable import Executable
from ipuperf.schedules import ScheduleError, timetable_of
from ipuperf.tools.errors import CaseError
from ipuperf.validation.cases import unmeasured_case
from ipuperf.validation.programs import Program, program_of

SIZES = {"layers": 2, "stages": 2, "hidden": 32, "heads": 2, "sequence": 16, "feed_forward": 64}
STATED = {"machine": "pod4", "model": "encoder", "mode": "training", "precision": "f16.16", "optimiser": "sgd"}
STATED |= {"io": "streams", "accumulation": 4, "micro_batch": 3}


def program(config: dict[str, Any], **stated: Any) -> Program:
    values = {**STATED, **stated, "config": {**SIZES, **config}}
    return program_of(unmeasured_case(values, "here", Path("here")))


@pytest.mark.heavy
def test_it_is_the_pipeline_of_its_parts() -> None:
    found = program({"schedule": "grouped"}, recompute="standard")
    table = timetable_of("grouped", 2, 4, recompute=True)
    model = encoder(EncoderOptions(**SIZES, batch=3), seed=None)
    build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
    assert found.samples == 12
    assert found.executable.simulated_run_cycles == Executable(model.ir, "pod4").simulated_run_cycles


@pytest.mark.parametrize(
    ("config", "stated", "message"),
    [
        ({"layer": 2}, {}, "config.layer: no such option .did you mean layers.*; allowed: schedule, layers"),
        ({"hidden": "wide"}, {}, "config.hidden: 'wide', allowed: as 1024"),
        ({"hidden": 0}, {}, "config.hidden: 0"),
        ({"stages": 3}, {}, "3 stages of 2 layers"),
        ({"heads": 5}, {}, "heads divide hidden"),
        ({}, {"optimiser": "adam"}, "optimiser: 'adam' is not supported"),
        ({}, {"precision": "f16.32"}, "precision: 'f16.32' is not supported"),
    ],
)
def test_refused(config: dict[str, Any], stated: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        program(config, **stated)


def test_unknown_schedules_and_keys() -> None:
    with pytest.raises(ScheduleError, match="zigzag"):
        program({"schedule": "zigzag"})
    with pytest.raises(CaseError, match="stages"):
        program({}, stages=2)

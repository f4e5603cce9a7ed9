"""What the pipeline builder refuses, by message."""

from __future__ import annotations

import dataclasses

import pytest
from pipelinecases import network

from ipuperf.pipelines import Activation, Data, PipelineError, build_pipeline
from ipuperf.schedules import grouped, popart_pipeline


def built(net, timetable, **options):
    return build_pipeline(net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, **options)


def test_another_number_of_stages_than_the_schedule():
    with pytest.raises(PipelineError, match=r"stages \[0, 1, 2\], the schedule popart_pipeline has 0 to 1"):
        built(network(3), popart_pipeline(2, 4))


def test_an_inference_schedule_for_training():
    with pytest.raises(PipelineError, match="the schedule grouped is for inference; training is True"):
        built(network(2), grouped(2, 4, inference=True))


def test_a_stage_on_another_ipu_than_the_schedule():
    with pytest.raises(PipelineError, match=r"stage 1 is on IPU 2, the schedule has it on \[1\]"):
        built(network(2, ipus=[0, 2]), popart_pipeline(2, 4))


def test_a_variable_of_stages_on_two_ipus():
    net = network(2)
    net.parts[1] = dataclasses.replace(
        net.parts[1], sources=[Activation(0, 0), Data(net.weights[0]), *net.parts[1].sources[2:]]
    )
    with pytest.raises(PipelineError, match="variable 'w0' is used by stages on IPU 0 and IPU 1"):
        built(net, popart_pipeline(2, 4))


def test_a_result_of_a_later_stage():
    net = network(2)
    net.parts[0] = dataclasses.replace(net.parts[0], sources=[Activation(1, 0), *net.parts[0].sources[1:]])
    with pytest.raises(PipelineError, match="stage 0 uses a result of stage 1; only results of earlier stages"):
        built(net, popart_pipeline(2, 4))


def test_unknown_way_of_copying():
    with pytest.raises(PipelineError, match="copies='sometimes'; allowed are"):
        built(network(2), popart_pipeline(2, 4), copies="sometimes")

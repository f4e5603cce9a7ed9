"""The assertions: what passes, and what a failure says."""

from typing import Any

import pytest

from ipuperf.testing import (
    assert_bubble,
    assert_fits,
    assert_overlap,
    assert_peak_tile_bytes,
    assert_throughput,
    trace_of,
)

TILES = [
    (0, 0, "variableAlwaysLive", 300),
    (0, 1, "variableAlwaysLive", 700),
    (0, 1, "vertexCode", 250),
    (0, 1, "gaps", 10),
]
VARIABLES = [("weight", 0, 0, 2, 800), ("bias", 0, 1, 2, 60), ("elsewhere", 0, 2, 4, 500)]
STEPS = [
    (0, 0, 0, 0, 20, "host_run", ""),
    (0, 0, 0, 20, 60, "compute", "main/MatMul.1"),
    (0, 0, 0, 80, 20, "link", "main/Copy.2"),
]


@pytest.fixture
def trace(make_trace: Any) -> Any:
    return make_trace(STEPS, runs=[(0, 100)], tiles=TILES, variables=VARIABLES)


def test_bounds_that_hold_are_silent(trace: Any) -> None:
    assert_peak_tile_bytes(trace, 960)
    assert_fits(trace)
    assert_throughput(trace, 10_000, samples_per_run=1)
    assert_bubble(trace, 0.0)
    assert_overlap(trace, ("link", "compute"), 0.0)


def test_peak_tile_bytes_names_the_tile_and_what_is_on_it(trace: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_peak_tile_bytes(trace, 900)
    lines = str(caught.value).splitlines()
    assert lines[0] == "fullest tile 1 of IPU 0 holds 960 bytes, allowed are 900: 60 over"
    assert [line.split() for line in lines[2:5]] == [
        ["variableAlwaysLive", "700"],
        ["vertexCode", "250"],
        ["gaps", "10"],
    ]
    assert [line.split() for line in lines[6:]] == [["weight", "400"], ["bias", "60"]]


def test_a_program_that_does_not_fit_is_explained(make_trace: Any) -> None:
    trace = make_trace(STEPS, tiles=[*TILES, (0, 1, "stack", 90)], variables=VARIABLES)
    with pytest.raises(
        AssertionError, match=r"does not fit: 1 tile with .* 1,000 bytes it has, .*tile 1 of IPU 0: .* 50 over\n"
    ):
        assert_fits(trace)


def test_throughput_says_where_the_time_goes(trace: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_throughput(trace, 40_000, samples_per_run=2)
    text = str(caught.value)
    assert text.startswith("throughput is 20,000.0 samples/s, wanted are at least 40,000.0 (50.0%): a run of 2 samples")
    assert "takes 100 cycles, allowed are 50\n" in text
    assert [line.split() for line in text.splitlines()[2:5]] == [["compute", "60"], ["host", "20"], ["links", "20"]]
    assert "main/MatMul.1  60" in text


def test_bubble_and_overlap_name_the_ops(make_trace: Any) -> None:
    steps = [*STEPS, *[(0, 1, 0, 10 * n, 10, "sync_external", f"main/Wait.{n}") for n in range(7)]]
    trace = make_trace(steps, runs=[(0, 100)])
    with pytest.raises(AssertionError) as caught:
        assert_bubble(trace, 0.25)
    text = str(caught.value)
    assert text.startswith("IPUs wait 55.56% of their time, allowed are 25.00%: 100 of 180 IPU cycles\n")
    assert "main/Wait.0 / sync_external  10" in text
    assert text.endswith("... and 3 more")
    with pytest.raises(
        AssertionError, match=r"^0.00% of the time of links \+ host is hidden behind compute, .*0 of 20 c"
    ):
        assert_overlap(trace, (("links", "host"), "compute"), 0.5)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "1"])
def test_bounds_must_be_numbers(trace: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="at_most: .*expected a number of at least 0"):
        assert_peak_tile_bytes(trace, value)
    with pytest.raises(ValueError, match="at_least: .*expected a number of at least 0"):
        assert_throughput(trace, value, 1)
    with pytest.raises(ValueError, match="at_most: .*expected a share from 0 to 1"):
        assert_bubble(trace, value)
    with pytest.raises(ValueError, match="at_least: .*expected a share from 0 to 1"):
        assert_overlap(trace, ("link", "compute"), value)


def test_without_memory_nothing_can_be_said(make_trace: Any) -> None:
    for check in (assert_fits, lambda trace: assert_peak_tile_bytes(trace, 1)):
        with pytest.raises(ValueError, match="says nothing about memory"):
            check(make_trace(STEPS))


class Holder:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_what_leads_to_a_trace(trace: Any) -> None:
    executable = Holder(trace=trace)
    for subject in (
        trace,
        executable,
        Holder(executable=executable),  # a PopXL session
        Holder(compiled_model=Holder(executable=executable), trace=print),  # a PopTorch executor
        Holder(program=Holder(executable=executable, trace=print)),  # a compiled TensorFlow function
    ):
        assert trace_of(subject) is trace


def test_what_does_not_is_refused() -> None:
    for subject in (Holder(compiled_model=None), Holder(program=Holder(executable=None))):
        with pytest.raises(ValueError, match="Holder is not compiled yet: run it once"):
            trace_of(subject)
    for subject in (None, 3, "model", Holder, Holder(trace=print), Holder(executable=3)):
        with pytest.raises(TypeError, match="has no trace; give an ipuperf Trace, an Executable, a popxl.Session"):
            trace_of(subject)
    loop = Holder()
    loop.program = Holder(program=loop)
    with pytest.raises(TypeError, match="has no trace"):
        trace_of(loop)

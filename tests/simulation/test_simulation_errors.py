"""Programs that cannot run are refused, and programs that hang say who waits for what."""

from __future__ import annotations

import dataclasses

import pytest
import simprograms as s

from ipuperf.lowering.steps import Call, IoTiles
from ipuperf.machine import MachineError, load_machine
from ipuperf.simulation import SimulationError, simulate


def refused(program, *words, error=SimulationError, machine=None, **options):
    with pytest.raises(error) as caught:
        simulate(program, machine or s.machine(), **options)
    for word in words:
        assert word in str(caught.value)


# -- deadlocks ---------------------------------------------------------------------------------------------------------


def test_copy_without_a_partner():
    program = s.program(s.seq(s.phase(40), s.copy(0, 1, 8, name="activations")), s.seq(s.phase(3)))
    refused(
        program,
        "deadlock at cycle 40",
        "replica 0 IPU 0 (IPU 0 of the machine) waits in step 'activations'",
        "copy 'activations' with IPU 1",
        "finished: replica 0 IPU 1",
    )


def test_copies_in_crossed_order():
    there, back = s.copy(0, 1, 8, name="there"), s.copy(1, 0, 8, name="back")
    program = s.program(s.seq(there, back), s.seq(back, there))
    refused(program, "IPU 0 (IPU 0 of the machine) waits in step 'there'", "waits in step 'back'")


def test_collective_that_a_replica_never_reaches():
    # IPU 1 of every replica waits for a copy that IPU 0 never makes, so the collective of IPU 1 is never reached.
    gather = s.collective("all_gather", 8, ((0, 1),), name="weights")
    program = s.program(s.seq(gather), s.seq(s.copy(0, 1, 8, name="lost"), gather), replicas=2)
    refused(program, "replica 1 IPU 1 (IPU 3 of the machine) waits in step 'lost'")


def test_sides_of_a_copy_disagree():
    program = s.program(s.seq(s.copy(0, 1, 8, name="a")), s.seq(s.copy(0, 1, 9, name="b")))
    refused(program, "8 bytes in 'a'", "9 bytes in 'b'", "same order")


# -- refused before anything runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (s.copy(0, 0, 8), "from IPU 0 to IPU 0"),
        (s.copy(0, 5, 8), "from IPU 0 to IPU 5"),
        (s.copy(0, 1, -8), "bytes is -8"),
        (s.collective("all_reduce", 8, ((0, 1),)), "replicas 0 to 0 exactly once"),
        (s.collective("broadcast", 8, ((0,),)), "'broadcast'"),
        (dataclasses.replace(s.load(8), direction="up"), "'up'"),
        (dataclasses.replace(s.h2d(8), direction="up"), "'up'"),
        (s.phase(5, "wait"), "'wait'"),
        (s.phase([5, -1]), "-1 cycles"),
        (s.phase([0, 1] * 800), "1600 tiles"),
        (s.sync(-3), "-3 cycles"),
        (s.repeat(-1, s.phase(5)), "count -1"),
        (Call(-1, "call", "nowhere"), "'nowhere'"),
    ],
)
def test_steps_that_make_no_sense(step, words):
    refused(s.program(s.seq(step), s.seq()), words)


def test_copy_on_an_ipu_that_has_no_part_in_it():
    refused(s.program(s.seq(), s.seq(), s.seq(s.copy(0, 1, 8))), "on IPU 2", "between IPU 0 and IPU 1")


def test_function_that_calls_itself():
    functions = {"f": s.seq(Call(-1, "c", "g"), name="f"), "g": s.seq(Call(-1, "c", "f"), name="g")}
    refused(s.program(s.seq(Call(-1, "c", "f")), functions=functions), "f -> g -> f")


@pytest.mark.parametrize(
    ("placement", "replicas", "words"),
    [(((0,), (0,)), 2, "replicas 0 and 1"), (((9,),), 1, "IPU 9"), (((0, 1),), 1, "2 IPUs"), (((0,),), 2, "1 of them")],
)
def test_placement(placement, replicas, words):
    refused(s.program(s.seq(s.phase(5)), replicas=replicas, placement=placement), words)


def test_options():
    refused(s.program(s.seq()), "'cycle'", fidelity="cycle")
    refused(s.program(s.seq()), "-1", prefetch_depth=-1)


def test_remote_transfer_without_streaming_memory():
    refused(s.program(s.seq(s.load(8))), "Streaming Memory", error=MachineError, machine=load_machine("gc2-1"))


def test_both_tile_sets_of_an_ipu_at_one_copy_between_ipus_is_a_deadlock():
    """One of them takes part, the other waits for ever, and is named."""
    copy = s.copy(0, 1, 8)
    both = s.seq(IoTiles(-1, "io", (copy,)), copy)
    program = dataclasses.replace(s.program(both, s.seq(copy)), io_tiles=32)
    with pytest.raises(SimulationError, match="deadlock at cycle .*\n.*waits in step 'copy'"):
        simulate(program, s.machine())

"""Stages of reductions over tiles, by hand (PopLibs: lib/popops/reduction/ReductionPlan.cpp)."""

from __future__ import annotations

import pytest
from executables import digest
from rows import Golden

from ipuperf.lowering.code import exchange_code
from ipuperf.lowering.reductions import _last, has_intermediate_stage, intermediate_groups, plan_reduction
from ipuperf.lowering.tilevector import TileVector
from ipuperf.machine import load_machine
from ipuperf.ops.work import Reduction

CHIP = load_machine("gc200-1").chip


def stages(sources, outputs=1, run=1, each=1, tiles=CHIP.tiles, together=1):
    """(partials on the fullest tile, tiles, whether copies follow) of each stage after the first."""
    item = Reduction("v", sources * each, outputs, None, None, run=run, together=together)
    found = plan_reduction(TileVector.uniform(each, tiles, sources), item, CHIP)
    return [(stage.partials.max, stage.partials.active, stage.last_copy is not None) for stage in found]


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        (1, []),
        (2, [(2, 1, False)]),
        (64, [(64, 1, False)]),
        # more than 64 for a sum: 9 tiles add 8 of 65 each, 39 tiles 38 of 1,472
        (65, [(8, 9, False), (9, 1, False)]),
        (1472, [(38, 39, False), (39, 1, False)]),
    ],
)
def test_sums_of_many_tiles_take_a_stage_between(sources, wanted):
    assert stages(sources) == wanted


@pytest.mark.parametrize(
    ("fan_in", "sources", "wanted"),
    [(64, 100, False), (65, 100, True), (65, 1104, True), (65, 1105, False), (76, 1472, False), (77, 1472, True)],
)
def test_when_a_stage_between_is_taken(fan_in, sources, wanted):
    """From 65 partials on; where more than 3/4 of 1,472 tiles have partials, from 2 sqrt(1,472) = 76.7 on."""
    assert has_intermediate_stage(fan_in, sources, CHIP) == wanted


def test_runs_that_stay_on_their_tiles_are_complete():
    assert stages(8, outputs=8, run=16, each=16) == []
    assert stages(8, outputs=4, run=32, each=16) == [(8, 1, False)]


def test_a_tile_holds_the_channels_of_few_groupings():
    """Sums for 64 channels of 128 positions on 8 tiles of 1,024 elements: row by row each tile has a partial sum for
    every channel. In groupings of 16 channels it has half the positions of one, so that two come together for each; on
    4 tiles the sums are complete."""

    def received(**changes):
        return sum(partials * tiles for partials, tiles, _ in stages(8, outputs=64, each=1024, **changes))

    assert received() == 8 * 64
    assert received(run=128, together=16) == 2 * 64
    assert stages(4, outputs=64, each=2048, run=128, together=16) == []


@pytest.mark.parametrize(("sent", "moves"), [(None, 2 * 4), (1000, 4 + 1), (100, 1 + 4), (5000, 8)])
def test_instructions_of_an_exchange(sent, moves):
    """1,000 bytes arrive in 4 sends of 256; a broadcast is sent once, and received in pieces of what each tile sends,
    unless pieces of one send are fewer."""
    sizes = CHIP.code
    assert (sizes.send_bytes, sizes.exchange_instructions, sizes.instruction_bytes) == (256, 8, 4)
    code = exchange_code(CHIP, TileVector.uniform(1000, 3, 2), sent).parts["internalExchangeCode"]
    assert code.tolist() == [4 * (8 + moves), 4 * (8 + moves), 4 * 4]


def test_one_byte_is_an_exchange_too():
    code = exchange_code(CHIP, TileVector.uniform(1, 2, 1)).parts["internalExchangeCode"]
    assert code.tolist() == [4 * (8 + 2), 4 * 4]


@pytest.mark.parametrize("fan_in", [2, 3, 5, 8, 30, 200])
def test_where_the_last_stage_is(fan_in: int, golden: Golden) -> None:
    """At the destination or balanced, on 24 tiles; of 44 sums of 3 and of 27 of 5 both take the same."""
    chip = CHIP.with_tiles(24)
    made = [_last(outputs, fan_in, chip) for outputs in range(1, 120)]
    said = [[vector and vector.dense().tolist() for vector in (stage.partials, stage.last_copy)] for stage in made]
    groups = has_intermediate_stage(fan_in, 20, chip), intermediate_groups(fan_in)
    golden({"balanced": sum(stage.last_copy is not None for stage in made), "groups": groups, "all": digest(said)})

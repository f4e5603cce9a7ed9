"""Blocks, strategies and the partition: semantics of ``docs/reference/pipelines.md`` 1.1 and 4."""

import copy
import logging
import pickle

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.blocks import BEFORE_FIRST_BLOCK, BlockUse, record_blocks  # noqa: E402
from ipuperf.poptorch.executor.partition import partition  # noqa: E402


def uses(*entries):
    return [entry if isinstance(entry, tuple) else (entry, None) for entry in entries]


def stages_and_ipus(found):
    return [(place.stage, place.ipu) for place in found.places]


# -- marks -----------------------------------------------------------------------------------------------------------


def test_natively_every_mark_is_a_no_op() -> None:
    layer = poptorch.BeginBlock(torch.nn.Linear(2, 2), "a", ipu_id=1)
    poptorch.Block.useAutoId()
    poptorch.Block.start("x")
    with poptorch.Block("b"):
        assert layer(torch.ones(1, 2)).shape == (1, 2)
    assert poptorch.Block._stages_manager is None


def beginning(x):
    return x + 1


class Decorated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = 2

    def forward(self, x):
        return self.inner(x)

    @lambda f: poptorch.BeginBlock(f, "inner", ipu_id=0)
    def inner(self, x):
        return x + self.step


def test_functions_that_begin_a_block_are_functions() -> None:
    marked = poptorch.BeginBlock(beginning, "a", 2)
    for function in (marked, pickle.loads(pickle.dumps(marked)), copy.deepcopy(marked)):
        assert (function._user_id, function._ipu_id, function(1)) == ("a", 2, 2)
    assert Decorated()(torch.ones(1)).item() == 3
    with record_blocks() as recorder:
        marked(1)
    assert recorder.uses == [("a", 2)]


def test_blocks_are_told_of_modules_and_their_copies() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    assert poptorch.module_repr(model) == repr(model)
    poptorch.BeginBlock(model[0], ipu_id=1)
    poptorch.BeginBlock(model[1], "b", 2)
    text = poptorch.module_repr(model)
    assert "(0): BeginBlock(user_id=None, ipu_id=1) Linear(in_features=2" in text
    assert "(1): BeginBlock(user_id=b, ipu_id=2) Sequential(\n    (0): ReLU()" in text
    assert [poptorch.module_repr(copied) for copied in (copy.copy(model), copy.deepcopy(model))] == [text, text]
    assert text in repr(poptorch.inferenceModel(model))


def test_leaving_a_block_leaves_none_active_even_inside_another() -> None:
    with record_blocks() as recorder:
        assert recorder.tag() == BEFORE_FIRST_BLOCK
        with poptorch.Block("outer", ipu_id=1):
            assert recorder.tag() == 0
            with poptorch.Block("inner"):
                assert recorder.tag() == 1
            with pytest.raises(poptorch.Error, match=r"No active Block, all the ops must belong to a Block \(op mul\)"):
                recorder.tag("mul")
    assert recorder.uses == [BlockUse("outer", 1), BlockUse("inner", None)]
    assert poptorch.Block._stages_manager is None


def test_running_on_ipu_is_true_while_recording() -> None:
    with record_blocks():
        assert poptorch.isRunningOnIpu()
    assert not poptorch.isRunningOnIpu()


def test_begin_block_lasts_until_the_next() -> None:
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(4)])
    assert poptorch.BeginBlock(model[1], "second") is model[1]
    poptorch.BeginBlock(model[3])
    tags = []
    for layer in model:
        layer.register_forward_hook(lambda *_: tags.append(recorder.tag()))
    with record_blocks() as recorder:
        model(torch.ones(1))
    assert tags == [BEFORE_FIRST_BLOCK, 0, 0, 1]
    assert recorder.uses == [("second", None), ("0", None)]
    with record_blocks() as recorder:  # the automatic id is kept
        recorder.nextAutoId()
        model(torch.ones(1))
    assert recorder.uses[-1] == ("0", None)


def test_begin_block_twice_raises_and_remove_blocks_allows_it_again() -> None:
    model = torch.nn.Sequential(poptorch.BeginBlock(torch.nn.Linear(2, 2), "a"))
    with pytest.raises(poptorch.Error, match="has a block already"):
        poptorch.BeginBlock(model[0], "b")
    poptorch.removeBlocks(model)
    poptorch.BeginBlock(model[0], "b")
    with pytest.raises(poptorch.Error, match="neither a torch.nn.Module nor a function"):
        poptorch.BeginBlock(3, "c")


def test_begin_block_of_a_function_and_block_function() -> None:
    begun = poptorch.BeginBlock(lambda x: x + 1, "f")

    @poptorch.BlockFunction("g", ipu_id=2)
    def inside(x: int) -> int:
        """Named."""
        return x * 2

    with record_blocks() as recorder:
        assert begun(1) == 2
        assert recorder.tag() == 0
        assert inside(3) == 6
        assert recorder.current is None
    assert inside.__doc__ == "Named."
    assert recorder.uses == [("f", None), ("g", 2)]


def test_auto_ids() -> None:
    with record_blocks() as recorder:
        for _ in range(2):
            poptorch.Block.useAutoId()
            with poptorch.Block():
                pass
            with poptorch.Block("special"):
                pass
            with poptorch.Block():
                pass
    assert [use.user_id for use in recorder.uses] == ["0", "special", "1"] * 2


def test_bad_ids() -> None:
    with pytest.raises(AssertionError, match="ipu_id -1"):
        poptorch.Block("a", ipu_id=-1)
    with pytest.raises(AssertionError, match="user_id 1.5"):
        poptorch.Block(1.5)


# -- pipelined and sharded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_the_tutorials_strategies(strategy) -> None:
    program = uses("B1", "B2", "B3", "B4", "B4")  # the loss is in B4 again
    explicit = strategy(*[poptorch.Stage(f"B{n + 1}").ipu(n) for n in range(4)])
    for chosen in (explicit, strategy("B1", "B2", "B3", "B4")):
        found = partition(chosen, program)
        assert stages_and_ipus(found) == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 3)]
        assert (found.stages, found.num_ipus) == (4, 4)
    two = strategy(poptorch.Stage("B1", "B2").ipu(0), ["B3", "B4"])
    assert stages_and_ipus(partition(two, program)) == [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1)]
    assert two.stage("B2").blocks == ("B1", "B2")


def test_ipu_of_a_block_is_stage_ipu_else_ipu_id_else_stage_id() -> None:
    strategy = poptorch.PipelinedExecution(poptorch.Stage("A").ipu(3), "B", "C")
    resolver = strategy.resolver()
    assert resolver.stage_of("A", 1) == (0, 3, -1)
    assert resolver.stage_of("B", 5) == (1, 5, -1)
    assert resolver.stage_of("C", None) == (2, 2, -1)


def test_neighbours_on_one_ipu_merge_and_a_return_makes_a_new_stage() -> None:
    strategy = poptorch.PipelinedExecution(*[poptorch.Stage(b).ipu(i) for b, i in zip("ABCDE", (0, 0, 1, 0, 0))])
    found = partition(strategy, uses(*"ABCDE"))
    assert stages_and_ipus(found) == [(0, 0), (0, 0), (1, 1), (2, 0), (2, 0)]
    assert (found.stages, found.ipus_per_replica) == (3, 2)


def test_auto_stages() -> None:
    program = uses(("0", 0), ("1", 1), ("2", 0))
    for auto in poptorch.AutoStage:
        found = partition(poptorch.PipelinedExecution(auto), program)
        assert stages_and_ipus(found) == [(0, 0), (1, 1), (2, 0)]
    increment = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement).resolver()
    assert [increment.stage_of(b, i).stage for b, i in program] == [0, 1, 2]
    same = poptorch.PipelinedExecution().resolver()
    assert [same.stage_of(b, i).stage for b, i in program] == [0, 1, 0]
    assert stages_and_ipus(
        partition(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), uses("x", "y"))
    ) == [
        (0, 0),
        (1, 1),
    ]
    with pytest.raises(poptorch.PartitionError, match="SameAsIpu .* block x has none"):
        partition(poptorch.PipelinedExecution(), uses("x"))


def test_unknown_block() -> None:
    with pytest.raises(poptorch.PartitionError, match=r"Unknown Block 'Z' list of expected Blocks: \['A', 'B'\]"):
        partition(poptorch.PipelinedExecution("A", "B"), uses("A", "Z"))


def test_ops_before_the_first_block_are_stage_0_on_ipu_0() -> None:
    strategy = poptorch.PipelinedExecution(poptorch.Stage("A").ipu(1), poptorch.Stage("B").ipu(0))
    found = partition(strategy, uses("A", "B"), leading_ops=True)
    assert found.place(BEFORE_FIRST_BLOCK)[:2] == (0, 0)
    assert stages_and_ipus(found) == [(1, 1), (2, 0)]
    assert found.stages == 3
    assert stages_and_ipus(partition(strategy, uses("A", "B"))) == [(0, 1), (1, 0)]


def test_a_model_without_blocks_is_one_stage() -> None:
    found = partition(poptorch.PipelinedExecution(), [])
    assert (found.stages, found.num_ipus, found.places) == (1, 1, ())


def test_stages_out_of_program_order_are_told(caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="poptorch"):
        partition(poptorch.PipelinedExecution("A", "B"), uses("B", "A"))
    assert "Block 'A' of stage 0 runs after block 'B' of stage 1" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poptorch.PipelinedExecution("A", poptorch.Stage("A")), "A associated with more than one stage"),
        (lambda: poptorch.Stage(1), "Block IDs are supposed to be strings"),
        (lambda: poptorch.Stage("A").ipu("0"), "Stage.ipu: '0'"),
        (lambda: poptorch.PipelinedExecution(3), "3 given as a stage"),
        (lambda: poptorch.PipelinedExecution("A").stage("B"), "Unknown block B"),
        (lambda: poptorch.SerialPhasedExecution(), "has no AutoStage: list its phases"),
        (lambda: poptorch.Phase("A", poptorch.Stage("B")), "must either be block ids"),
        (lambda: poptorch.Phase("A").ipus(0, 1), "contains 1 stages but you provided 2 ipus"),
    ],
)
def test_bad_strategies(call, message) -> None:
    with pytest.raises(AssertionError, match=message):
        call()


def test_number_of_ipus_is_a_power_of_two_or_an_error() -> None:
    strategy, program = poptorch.PipelinedExecution("A", "B", "C"), uses("A", "B", "C")
    with pytest.raises(poptorch.PartitionError, match=r"the model is on 3, .* here 4\..*autoRoundNumIPUs"):
        partition(strategy, program)
    found = partition(strategy, program, auto_round_num_ipus=True)
    assert (found.ipus_per_replica, found.num_ipus) == (3, 4)
    assert partition(strategy, program, replication_factor=4, auto_round_num_ipus=True).num_ipus == 16
    assert partition(strategy, program, replication_factor=64).num_ipus == 192


# -- phased ----------------------------------------------------------------------------------------------------------


def test_parallel_phases() -> None:
    phases = [poptorch.Phase(poptorch.Stage(a), poptorch.Stage(b)) for a, b in ("01", "23", "45")]
    strategy = poptorch.ParallelPhasedExecution(phases)  # as in upstream's documentation
    strategy.phase(0).ipus(0, 2)
    strategy.phase(1).ipus(1, 3)
    strategy.phase(2).ipus(0, 2)
    found = partition(strategy, uses(*"012345"))
    assert [(p.phase, p.ipu) for p in found.places] == [(0, 0), (0, 2), (1, 1), (1, 3), (2, 0), (2, 2)]
    assert found.stages == 6
    strategy.phase(1).ipus(1, 2)
    with pytest.raises(poptorch.PartitionError, match="Block '3' of phase 1 is on IPU 2: .* odd phases on odd IPUs"):
        partition(strategy, uses(*"012345"))


def test_serial_phases() -> None:
    strategy = poptorch.SerialPhasedExecution([poptorch.Stage("A").ipu(0), poptorch.Stage("A2").ipu(1)], ["B", "C"])
    with pytest.raises(poptorch.PartitionError, match="Block 'B' of phase 1 has no IPU"):
        partition(strategy, uses("A", "A2", "B"))
    found = partition(strategy, uses("A", "A2", ("B", 0), ("C", 1)))
    assert [(p.phase, p.ipu) for p in found.places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(poptorch.PartitionError, match="phases run in order"):
        partition(strategy, uses(("B", 0), "A"))
    strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd).useSeparateBackwardPhase()
    assert strategy.liveness is poptorch.Liveness.OffChipAfterFwd
    assert strategy.separate_backward_phase
    assert strategy.backendOptions()["serial_phases_execution"] is True
    assert poptorch.ParallelPhasedExecution("A").sendTensorsOffChipAfterFwd().liveness.value == 1


NN = torch.nn


@pytest.mark.parametrize(
    "module",
    [NN.ReLU(), NN.Linear(2, 3), NN.Sequential(), NN.Sequential(NN.ReLU()), NN.Sequential(NN.ReLU(), NN.Linear(2, 3)),
     NN.MultiheadAttention(4, 2)],
    ids=lambda module: f"{type(module).__name__} of {len(list(module.children()))}",
)  # fmt: skip
def test_a_module_without_blocks_is_shown_as_pytorch_shows_it(module: torch.nn.Module) -> None:
    assert poptorch.module_repr(module) == repr(module)
    module.extra_repr = lambda: "one\ntwo"
    assert poptorch.module_repr(module) == repr(module)
    del module.extra_repr

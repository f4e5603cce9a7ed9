"""``popdist``: one process stands for all instances."""

import warnings

import numpy as np
import pytest

from ipuperf import popdist, popxl
from ipuperf.popdist import popart as popdist_popart
from ipuperf.popxl import ops
from ipuperf.runtime.effects import WithoutEffectWarning


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (popdist.TOTAL, popdist.LOCAL, popdist.IPUS, *popdist.INSTANCES, *popdist.INDEX):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What poprun says to an instance of four with four replicas each."""
    monkeypatch.setenv(popdist.TOTAL, "16")
    monkeypatch.setenv(popdist.LOCAL, "4")
    monkeypatch.setenv(popdist.IPUS, "2")


def test_alone_there_is_one_instance_with_one_replica() -> None:
    popdist.init()
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getNumIpusPerReplica()) == (1, 1, 1)
    assert (popdist.getNumInstances(), popdist.getInstanceIndex(), popdist.getReplicaIndexOffset()) == (1, 0, 0)
    with pytest.warns(WithoutEffectWarning, match="not launched by poprun"):
        assert popxl.Ir(replication="popdist").replication_factor == 1


@pytest.mark.usefixtures("sixteen")
def test_the_replicas_of_all_instances_run_in_this_process() -> None:
    assert popdist.isPopdistEnvSet()
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getNumInstances()) == (16, 16, 1)
    with pytest.warns(WithoutEffectWarning, match="runs the 16 replicas of 4 instances"):
        ir = popxl.Ir(replication="popdist")
    assert ir.replication_factor == ir.instance_replication_factor == 16
    assert popxl.Session(ir, "ipu_hw").executable.host_options["host_processes"] == 4
    popdist.checkNumIpusPerReplica(2)
    with pytest.raises(RuntimeError, match="says 2"):
        popdist.checkNumIpusPerReplica(1)


@pytest.mark.usefixtures("sixteen")
def test_a_distributed_program_gives_the_numbers_of_all_groups() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WithoutEffectWarning)
        ir = popxl.Ir(replication="popdist")
    groups = ir.replica_grouping(stride=4, group_size=4)
    data = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    with ir.main_graph, popxl.in_sequence():
        handle, shard = popxl.replica_sharded_variable(data, replica_grouping=groups, shard_over=2)
        parts = ir.replica_grouping(stride=4, group_size=2)
        whole = ops.collectives.replicated_all_gather(shard, group=parts)
        own = ops.collectives.replica_sharded_slice(whole + 1, group=parts)
        ops.var_updates.copy_var_update_(shard, own)
    with popxl.Session(ir, "ipu_hw") as session:
        session.run()
    np.testing.assert_array_equal(session.get_tensor_data(handle), data + 1)


@pytest.mark.usefixtures("sixteen")
def test_other_instances_say_that_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    for question in (popdist.init, popdist.getInstanceIndex, lambda: popxl.Ir(replication="popdist")):
        with pytest.raises(RuntimeError, match="instance 2 of 4.*Launch the program alone"):
            question()


def test_functions_run_on_the_instances_named() -> None:
    assert popdist.execute_on_instances({0}, max, 3, 4) == 4
    assert popdist.execute_on_instances({1, 2}, max, 3, 4) is None


@pytest.mark.parametrize("text", ["0", "many", "-1"])
def test_an_environment_that_makes_no_sense(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(popdist.TOTAL, text)
    with pytest.raises(ValueError, match=f"{popdist.TOTAL}='{text}'; a whole number"):
        popdist.getNumTotalReplicas()


@pytest.mark.usefixtures("sixteen")
@pytest.mark.filterwarnings("ignore::ipuperf.runtime.effects.WithoutEffectWarning")
def test_options_of_popart_and_poptorch() -> None:
    options = popxl.Ir()._pb_ir.getSessionOptions()
    popdist_popart.configureSessionOptions(options)
    assert options.getGlobalReplicationFactor() == 16
    pytest.importorskip("torch")
    from ipuperf.popdist import poptorch

    options = poptorch.Options(ipus_per_replica=2)
    assert (options.replication_factor, options._host_processes) == (16, 4)
    with pytest.raises(RuntimeError, match="says 2"):
        poptorch.Options(ipus_per_replica=1)

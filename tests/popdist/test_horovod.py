"""The stand-in for Horovod: a job of one process."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ipuperf.runtime.install import install, uninstall

torch = pytest.importorskip("torch")


@pytest.fixture
def hvd() -> Iterator[Any]:
    if importlib.util.find_spec("horovod") is not None:
        pytest.skip("Horovod is installed")
    install(force=True)
    module = importlib.import_module("horovod.torch")
    module.shutdown()
    yield module
    module.shutdown()
    uninstall()


def test_it_is_found_where_horovod_is_not_installed(hvd: Any) -> None:
    assert hvd is sys.modules["ipuperf.frontends.popdist.horovod_standin.torch"]
    with pytest.raises(ModuleNotFoundError, match=r"horovod\.mxnet.*horovod\.torch and horovod\.tensorflow are here"):
        importlib.import_module("horovod.mxnet")
    uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("horovod")


def test_before_init_there_is_no_job(hvd: Any) -> None:
    assert not hvd.is_initialized()
    for ask in (hvd.size, hvd.rank, hvd.local_rank, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match="has not been initialized"):
            ask()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_collectives_give_a_copy_of_the_only_tensor(hvd: Any, shape: tuple[int, ...], dtype: Any) -> None:
    hvd.init()
    given = torch.ones(shape, dtype=dtype)
    found = [hvd.allreduce(given), hvd.allreduce(given, op=hvd.Sum), hvd.allreduce(given, average=True)]
    found += [hvd.broadcast(given, root_rank=0), *hvd.grouped_allreduce([given], op=hvd.Max)]
    found += [hvd.allgather(given)] if shape else []
    for each in found:
        assert each is not given
        assert each.dtype is dtype
        assert torch.equal(each, given)
        each.fill_(7)
    assert torch.equal(given, torch.ones(shape, dtype=dtype))


def test_factors_objects_and_the_job_of_one(hvd: Any) -> None:
    hvd.init()
    assert (hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank(), hvd.join()) == (1, 0, 1, 0, 0)
    assert hvd.allreduce(torch.tensor(3.0), prescale_factor=2.0, postscale_factor=0.5).item() == 3.0
    tensor = torch.tensor([2.0])
    assert hvd.allreduce_(tensor, postscale_factor=4.0) is tensor
    assert tensor.item() == 8.0
    assert hvd.broadcast_(tensor, 0) is tensor
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    assert hvd.allgather_object("a") == ["a"]
    model = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1), root_rank=0)


def test_bad_arguments(hvd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    for error, message, call in (
        (ValueError, "root_rank=1 in a job of 1 process", lambda: hvd.broadcast(torch.ones(1), root_rank=1)),
        (ValueError, "op='Mean'; allowed: Average, Sum", lambda: hvd.allreduce(torch.ones(1), op="Mean")),
        (ValueError, "give one of them", lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)),
        (TypeError, "expected a torch.Tensor, got float", lambda: hvd.allreduce(1.0)),
        (ValueError, r"shape \(\)", lambda: hvd.allgather(torch.tensor(1.0))),
    ):
        with pytest.raises(error, match=message):
            call()
    monkeypatch.setenv("POPDIST_INSTANCE_INDEX", "1")
    with pytest.raises(RuntimeError, match="instance 0 simulates the replicas of all"):
        hvd.init()


ONES = torch.ones(2)
ROOTED = {
    "broadcast": lambda hvd, root: hvd.broadcast(ONES, root),
    "broadcast_": lambda hvd, root: hvd.broadcast_(ONES, root_rank=root),
    "broadcast_parameters": lambda hvd, root: hvd.broadcast_parameters({}, root),
    "broadcast_optimizer_state": lambda hvd, root: hvd.broadcast_optimizer_state(None, root),
    "broadcast_object": lambda hvd, root: hvd.broadcast_object("a", root),
}
ASKED = {
    **{name: lambda hvd, call=call: call(hvd, 0) for name, call in ROOTED.items()},
    "size": lambda hvd: hvd.cross_size(),
    "rank": lambda hvd: hvd.cross_rank(),
    "join": lambda hvd: hvd.join(),
    "barrier": lambda hvd: hvd.barrier(),
    "allgather": lambda hvd: hvd.allgather(ONES),
    "allgather_object": lambda hvd: hvd.allgather_object(1),
    "allreduce_": lambda hvd: hvd.allreduce_(ONES),
    "grouped_allreduce": lambda hvd: hvd.grouped_allreduce([ONES]),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_every_function_needs_a_job(hvd: Any, ask: Any) -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        ask(hvd)
    hvd.init()
    ask(hvd)
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        ask(hvd)


@pytest.mark.parametrize("broadcast", ROOTED.values(), ids=ROOTED)
def test_another_root_is_none_of_the_job(hvd: Any, broadcast: Any) -> None:
    hvd.init()
    with pytest.raises(ValueError, match="root_rank=1 in a job of 1 process; the root is 0"):
        broadcast(hvd, 1)


def test_names_and_defaults_are_horovods(hvd: Any) -> None:
    """As Horovod 0.28 documents them, and no job has begun where the module is new."""
    reduced = {"average": None, "name": None, "compression": None, "op": None}
    factors = {"prescale_factor": 1.0, "postscale_factor": 1.0, "process_set": None}
    expected = {
        "allreduce": {**reduced, **factors},
        "broadcast_object": {"root_rank": 0, "name": None, "process_set": None},
        "join": {"device": -1},
        "barrier": {"process_set": None},
    }
    spec = importlib.util.find_spec("ipuperf.frontends.popdist.horovod_standin.torch")
    assert spec is not None
    assert spec.loader is not None
    new = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(new)
    for name, defaults in expected.items():
        parameters = inspect.signature(getattr(new, name)).parameters.values()
        assert {p.name: p.default for p in parameters if p.default is not p.empty} == defaults
    assert [
        new.Average,
        new.Sum,
        new.Adasum,
        new.Min,
        new.Max,
        new.Product,
    ] == "Average Sum Adasum Min Max Product".split()


@pytest.mark.heavy
def test_tensorflow_has_the_same_job(hvd: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    job = importlib.import_module("horovod.tensorflow")
    with pytest.raises(ValueError, match="has not been initialized"):
        job.allreduce([1.0])
    job.init()
    assert (job.size(), job.rank(), job.local_size(), job.local_rank(), hvd.size()) == (1, 0, 1, 0, 1)
    for op in (None, job.Sum, job.Average, job.Adasum, job.Max):
        assert job.allreduce([1, 2], op=op).numpy().tolist() == [1, 2]
    assert job.allreduce([1.0], prescale_factor=3.0, postscale_factor=0.5).numpy().tolist() == [1.5]
    assert [t.numpy().tolist() for t in job.grouped_allreduce([[1], [2]], op=job.Sum)] == [[1], [2]]
    assert job.allgather([[1], [2]]).numpy().tolist() == job.broadcast([[1], [2]], 0).numpy().tolist() == [[1], [2]]
    variable = tf.Variable([3.0])
    job.broadcast_variables([variable], root_rank=0)
    assert variable.numpy().tolist() == [3.0]
    for wrong in (
        lambda: job.broadcast([1], 1),
        lambda: job.allgather(1),
        lambda: job.allreduce([1], op="Summ"),
        lambda: job.broadcast_variables([variable], 2),
    ):
        with pytest.raises(ValueError, match="horovod: "):
            wrong()

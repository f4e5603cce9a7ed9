"""The stand-in for Horovod: a job of one process."""

from __future__ import annotations

import importlib
import importlib.util
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
    assert hvd is sys.modules["ipuperf.popdist.horovod_standin.torch"]
    with pytest.raises(ModuleNotFoundError, match=r"horovod\.tensorflow.*horovod\.torch is here"):
        importlib.import_module("horovod.tensorflow")
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
        (ValueError, "op='Mean'; expected one of Average, Sum", lambda: hvd.allreduce(torch.ones(1), op="Mean")),
        (ValueError, "give one of them", lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)),
        (TypeError, "expected a torch.Tensor, got float", lambda: hvd.allreduce(1.0)),
        (ValueError, r"shape \(\)", lambda: hvd.allgather(torch.tensor(1.0))),
    ):
        with pytest.raises(error, match=message):
            call()
    monkeypatch.setenv("POPDIST_INSTANCE_INDEX", "1")
    with pytest.raises(RuntimeError, match="instance 0 simulates the replicas of all"):
        hvd.init()

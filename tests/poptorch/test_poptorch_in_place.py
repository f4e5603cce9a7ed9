"""Inputs that ``forward`` changes in place: the host's tensors have the new values after the call."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.enums import CommGroupType  # noqa: E402


def module(function: Any) -> nn.Module:
    """A module whose forward is ``function``."""

    class Model(nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    return Model()


CHANGES = [
    (lambda x, y: x.add_(y).mul_(2), (3,)),
    (lambda x, y: x[1:3].copy_(y[:2]), (4, 2)),
    (lambda x, y: torch.add(y, 1, out=x), (2, 3)),
    (lambda x, y: (x.fill_(3.0), y.sub_(x)), (2,)),
    (lambda x, y: x.t().mul_(y.t()), (2, 3)),
    (lambda x, y: x[::2].add_(1), (5, 2)),
    (lambda x, y: x[1::3].mul_(0), (8,)),
    (lambda x, y: x.zero_(), (1,)),
    (lambda x, y: x.copy_(2), (3,)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize(("function", "shape"), CHANGES)
def test_as_pytorch_does(function: Any, shape: tuple[int, ...], dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    given = [torch.randint(-4, 5, shape, generator=generator).to(dtype) for _ in range(2)]
    ours, theirs = ([t.clone() for t in given] for _ in range(2))
    model = poptorch.inferenceModel(module(function))
    for _ in range(2):
        result, expected = model(*ours), function(*theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
        if isinstance(expected, torch.Tensor):
            assert torch.equal(result, expected)


def test_what_is_only_read_stays_and_the_streams_take_time() -> None:
    x, y = torch.ones(1, 4000), torch.ones(1, 4000)
    changing = poptorch.inferenceModel(module(lambda x, y: (x.add_(y), y.sum())[1]))
    reading = poptorch.inferenceModel(module(lambda x, y: (x + y).sum() - x.sum()))
    changing(x, y)
    reading(x, y)
    assert torch.equal(y, torch.ones(1, 4000))
    assert changing.cycleCount() > reading.cycleCount()


def test_each_micro_batch_changes_its_own_samples() -> None:
    options = poptorch.Options().deviceIterations(3).replicationFactor(2)
    x = torch.arange(12.0).reshape(12, 1)
    assert poptorch.inferenceModel(module(lambda x: x.mul_(2).sum()), options)(x) is not None
    assert torch.equal(x, 2 * torch.arange(12.0).reshape(12, 1))


@pytest.mark.parametrize("kind", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
def test_replicas_that_share_samples_write_them_once(kind: Any) -> None:
    options = poptorch.Options().deviceIterations(2).replicationFactor(4)
    options.inputReplicaGrouping(2, kind)
    x = torch.arange(8.0)
    poptorch.inferenceModel(module(lambda x: x.add_(1)), options)(x)
    assert torch.equal(x, torch.arange(8.0) + 1)


def test_a_result_that_is_known_beforehand_is_sent() -> None:
    assert torch.equal(poptorch.inferenceModel(module(lambda: torch.arange(3) + 1))(), torch.tensor([1, 2, 3]))
    with pytest.raises(poptorch.Error, match="no result that is a tensor"):
        poptorch.inferenceModel(module(lambda: None))()


def test_training_writes_inputs_too() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Any, counts: Any) -> Any:
            counts += 1
            return poptorch.identity_loss((x * self.weight).sum(), "sum")

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    counts = torch.zeros(2, 3)
    poptorch.trainingModel(Model(), options)(torch.ones(2, 2), counts)
    np.testing.assert_array_equal(counts.numpy(), np.ones((2, 3)))


class Averaged(torch.nn.Module):
    """A student and its teacher, whose frozen weight follows the student's."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.student, self.teacher = torch.nn.Linear(4, 3, bias=False), torch.nn.Linear(4, 3, bias=False)
        self.teacher.weight.requires_grad = not frozen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.teacher(x)
            self.teacher.weight.mul_(0.75).add_(self.student.weight, alpha=0.25)
        return poptorch.identity_loss((self.student(x) - wanted).pow(2).sum(), reduction="sum")


def test_a_frozen_parameter_that_forward_changes() -> None:
    torch.manual_seed(4)
    model = Averaged()
    reference = copy.deepcopy(model)
    native = torch.optim.SGD([reference.student.weight], lr=0.05)
    trained = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD([model.student.weight], lr=0.05))
    for x in torch.randn(3, 5, 4):
        native.zero_grad()
        loss = reference(x)
        loss.backward()
        native.step()
        torch.testing.assert_close(trained(x).reshape(()), loss.detach())
    torch.testing.assert_close(model.teacher.weight, reference.teacher.weight)
    both = Averaged(frozen=False)
    trained = poptorch.trainingModel(both, optimizer=poptorch.optim.SGD(both.parameters(), lr=0.05))
    with pytest.raises(poptorch.UnsupportedError, match=r"forward changes parameter 'teacher\.weight', which the opt"):
        trained(torch.randn(5, 4))


class Placed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([2.0, 3.0], device="ipu")
        return x.to(torch.device("ipu")) * scale + torch.ones(2, device=torch.device("ipu", 0)).to("ipu")


def test_within_forward_the_ipu_is_a_device() -> None:
    found = poptorch.inferenceModel(Placed())(torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(found, torch.tensor([[3.0, -2.0]]))

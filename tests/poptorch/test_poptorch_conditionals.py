"""``poptorch.cond`` in programs: values as PyTorch gives them, one graph for each body, one of them charged."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.ops import If  # noqa: E402


def module(function: Any) -> nn.Module:
    """A module whose forward is ``function``."""

    class Model(nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    return Model()


def both(function: Any, *args: Any) -> Any:
    """Checks that a program gives what PyTorch does, for a condition that holds and one that does not."""
    model = poptorch.inferenceModel(module(function))
    for condition in (True, False):
        given, expected = (f(torch.tensor([condition]), *args) for f in (model, function))
        torch.testing.assert_close(given, expected)
    return model


def test_values_from_around_and_constants() -> None:
    def forward(condition: Any, x: Any, y: Any) -> Any:
        z = x * 2
        bias = torch.tensor([1.0, 2.0])
        return poptorch.cond(condition, lambda a: (a + z, y), [y], lambda a, b: (bias, a * b), [x, bias])

    both(forward, torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0]))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_shapes_and_types(shape: Any, dtype: Any) -> None:
    def forward(condition: Any, x: Any) -> Any:
        return poptorch.cond(condition, lambda a: a + a, [x], lambda a: a, [x])[0]

    if not shape:
        forward_scalar = lambda condition, x: forward(condition, x.sum(dtype=dtype))  # noqa: E731
        both(forward_scalar, torch.ones(3, dtype=dtype).to(dtype))
    else:
        both(forward, torch.ones(shape, dtype=dtype))


def test_bodies_change_their_inputs_and_nothing_else() -> None:
    x = torch.ones(3)

    def forward(condition: Any, x: Any) -> Any:
        return poptorch.cond(condition, lambda a: a.add_(1), [x], lambda a: a.mul_(5), [x])[0], x

    both(forward, x)
    assert torch.equal(x, torch.ones(3))


def test_bodies_in_bodies() -> None:
    def forward(condition: Any, other: Any, x: Any) -> Any:
        def inner(a: Any) -> Any:
            return poptorch.cond(other, lambda: a + x, [], lambda: a - x, [])[0]

        return poptorch.cond(condition, inner, [x * 3], lambda a: inner(a) * 2, [x])[0]

    for other in (True, False):
        both(forward, torch.tensor([other]), torch.tensor([2.0]))


def test_layers_as_bodies() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, condition: Any, x: Any) -> Any:
            return poptorch.cond(condition, self.first, [x], self.second, [x])[0]

    model, x = poptorch.inferenceModel(Model()), torch.rand(2, 4)
    torch.testing.assert_close(model(torch.tensor([True]), x), first(x))
    torch.testing.assert_close(model(torch.tensor([False]), x), second(x))


def test_norms_in_a_body_follow_the_options() -> None:
    norm, order, options = nn.GroupNorm(2, 4), [0, 2, 1, 3], poptorch.Options()
    options._Popart.set("groupNormStridedChannelGrouping", True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, condition: Any, x: Any) -> Any:
            return poptorch.cond(condition, self.norm, [x], lambda a: a, [x])[0]

    x = torch.rand(3, 4, 5)
    given = poptorch.inferenceModel(Model(), options)(torch.tensor([True]), x)
    torch.testing.assert_close(given, norm(x[:, order])[:, order], rtol=1e-4, atol=1e-5)


def test_the_longer_body_is_charged_once() -> None:
    def chain(x: Any, count: int) -> Any:
        for _ in range(count):
            x = torch.tanh(x)
        return x

    def cycles(first: int, second: int) -> int:
        def forward(condition: Any, x: Any) -> Any:
            return poptorch.cond(condition, lambda a: chain(a, first), [x], lambda a: chain(a, second), [x])[0]

        model = poptorch.inferenceModel(module(forward))
        model.compile(torch.tensor([True]), torch.ones(1, 3000))
        return model.cycleCount()

    assert cycles(1, 6) == cycles(6, 1)
    assert cycles(2, 1) < cycles(6, 1) < 2 * cycles(6, 6)


def test_each_replica_and_micro_batch_takes_its_own_way() -> None:
    def forward(condition: Any, x: Any) -> Any:
        return poptorch.cond(condition, lambda a: a + 1, [x], lambda a: -a, [x])[0]

    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    model = poptorch.inferenceModel(module(forward), options)
    conditions = torch.tensor([True, False, False, True])
    assert model(conditions, torch.arange(4.0)).tolist() == [1, -1, -2, 4]


@pytest.mark.parametrize("pipelined", [True, False])
def test_on_several_ipus(pipelined: bool) -> None:
    class Model(nn.Module):
        def forward(self, condition: Any, x: Any) -> Any:
            for ipu in range(2):
                with poptorch.Block(str(ipu), ipu_id=ipu):
                    x = poptorch.cond(condition, lambda a: a * 2, [x], lambda a: a + 1, [x])[0]
            return x

    options = poptorch.Options().deviceIterations(2)
    options.setExecutionStrategy(poptorch.PipelinedExecution() if pipelined else poptorch.ShardedExecution())
    model = poptorch.inferenceModel(Model(), options)
    assert model(torch.tensor([True, False]), torch.tensor([3.0, 5.0])).tolist() == [12, 7]
    placed = {
        op.ipu for graph in model.compiled_model.exported.ir.graphs.values() for op in graph.ops if isinstance(op, If)
    }
    assert len(placed) >= 1


def change_from_outside(condition: Any, x: Any) -> Any:
    y = x * 2
    poptorch.cond(condition, lambda: y.add_(1), [], lambda: y, [])
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (change_from_outside, "a body cannot change tensors from outside in place"),
        (lambda c, x: poptorch.cond(c, lambda: x, [], lambda: x.sum(), []), "they have to be equal"),
        (lambda c, x: poptorch.cond(c, lambda: x, [], lambda: (x, x), []), "they have to be equal"),
        (lambda c, x: poptorch.cond(x, lambda: x, [], lambda: x, []), "one element is needed"),
        (lambda c, x: poptorch.cond(c, lambda: 3, [], lambda: x, []), "must take a torch.tensor"),
        (lambda c, x: poptorch.cond(c, lambda a: a, [3], lambda: x, []), "expected a list of tensors"),
    ],
)
def test_bad_input(function: Any, message: str) -> None:
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(module(function))(torch.tensor([True]), torch.ones(2))

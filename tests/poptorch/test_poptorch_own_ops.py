"""``poptorch.CPU`` and ``poptorch.custom_op``: functions and ops that a program brings along."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch import custom_ops  # noqa: E402
from ipuperf.poptorch.custom_ops import NUMBER, Attribute, CustomOp, TensorSpec, Vertices, vertices  # noqa: E402

X = torch.tensor([[3.0, -1.0], [2.0, 5.0], [0.5, 4.0], [1.0, 1.5]])


def options(replicas: int = 1, iterations: int = 1) -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas).deviceIterations(iterations)


class Sorted(torch.nn.Module):
    """A function with NumPy in it, called twice, that reads a parameter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.calls: list[Any] = []
        self.cpu = poptorch.CPU(self.sort, "Sort")

    def sort(self, x: Any, *, more: float = 0.0) -> Any:
        self.calls.append(tuple(x.shape))
        return torch.from_numpy(np.sort(x.detach().numpy(), 0)) * self.scale.detach() + more

    def forward(self, x: Any) -> Any:
        return self.cpu(self.cpu(x * 2), more=0.5) - 1


def test_the_host_calls_a_function() -> None:
    module = Sorted()
    model = poptorch.inferenceModel(module, options())
    wanted = module(X)
    torch.testing.assert_close(model(X), wanted.detach())
    torch.testing.assert_close(model(X + 1), module(X + 1).detach())
    types = [op["type"] for op in json.loads(model._debugGetPopartIR())["maingraph"]]
    assert types.count("HostCall") == 2


def test_each_replica_and_micro_batch_has_its_own_call() -> None:
    module = Sorted()
    model = poptorch.inferenceModel(module, options(replicas=2, iterations=2))
    model.compile(X)
    module.calls.clear()
    found = model(X)
    assert module.calls == [(1, 2)] * 8
    torch.testing.assert_close(found, torch.cat([module(part) for part in X.split(1)]).detach())


def test_the_way_to_the_host_takes_time() -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 - 1

    plain, called = (poptorch.inferenceModel(m, options()) for m in (Plain(), Sorted()))
    plain(X), called(X)
    assert called.cycleCount() > 1.5 * plain.cycleCount()


def test_several_results_types_and_structures() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cpu = poptorch.CPU(lambda x, pair: {"sum": x + pair[0], "top": pair[1].argmax(1).int()}, "several")

        def forward(self, x: Any, y: Any) -> Any:
            found = self.cpu(x, [y, x])
            return found["sum"].half(), found["top"]

    for ours, theirs in zip(poptorch.inferenceModel(Model(), options())(X, X + 1), Model()(X, X + 1), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_mistakes_with_functions() -> None:
    with pytest.raises(poptorch.Error, match="3 given, expected a function or a module"):
        poptorch.CPU(3, "three")
    with pytest.raises(poptorch.Error, match="ID 3 given, expected a name"):
        poptorch.CPU(print, 3)

    class Model(torch.nn.Module):
        def __init__(self, function: Any, given: Any = None) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))
            self.given = given
            self.cpu = poptorch.CPU(function, "op")

        def forward(self, x: Any) -> Any:
            found = self.cpu(x * self.w if self.given is None else self.given)
            return (found, poptorch.identity_loss(found, "sum")) if self.training else found

    with pytest.raises(poptorch.UnsupportedError, match="CPU ops are only supported in inference graphs"):
        poptorch.trainingModel(Model(torch.abs), options())(X)
    with pytest.raises(poptorch.Error, match="gave .*expected tensors"):
        poptorch.inferenceModel(Model(lambda x: 3), options())(X)
    with pytest.raises(poptorch.Error, match="a call needs a tensor among its arguments"):
        poptorch.inferenceModel(Model(lambda x: x, 3), options())(X)
    shapes = [(4, 2), (4, 2), (3,)]
    model = poptorch.inferenceModel(Model(lambda x: torch.ones(shapes.pop(0))), options())
    model.compile(X)
    shapes[:] = [(3,)]
    with pytest.raises(poptorch.Error, match=r"gave \(3,\) torch.float32, the program was compiled for"):
        model(X)


def test_a_stored_program_needs_its_function(tmp_path: Path) -> None:
    path = str(tmp_path / "model.poptorch")
    model = poptorch.inferenceModel(Sorted(), options())
    model.compile(X)
    model.save(path)
    del model
    gc.collect()
    with pytest.raises(poptorch.Error, match="calls the host's function 'Sort', which no file holds"):
        poptorch.load(path)


class Snake(CustomOp):
    """``x + sin(a x)**2 / a``."""

    type = "Snake"
    a = Attribute(NUMBER, 1.0)

    def infer(self) -> list[TensorSpec]:
        self.floating(self.inputs[0])
        return [self.inputs[0].spec]

    def value(self, x: np.ndarray) -> np.ndarray:
        return x + np.sin(self.a * x) ** 2 / self.a

    def gradient(self, builder: Any, grads: Sequence[Any]) -> list[Any]:
        return [builder.op(SnakeGrad, [grads[0], builder.forward(self.inputs[0])], a=self.a)]

    def work(self) -> list[Any]:
        x = self.outputs[0].spec
        cycles = vertices.tile_cycles(lambda m, chip: 30 + 12 * m, 0)
        return [Vertices(f"Snake<{x.dtype.name}>", x.elements, cycles, flops=5 * x.elements)]


class SnakeGrad(Snake):
    type = "SnakeGrad"

    def value(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        return grad * (1 + np.sin(2 * self.a * x))


class Snakes(torch.nn.Module):
    def __init__(self, name: str = "Snake", **attributes: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.name, self.attributes = name, attributes

    def snake(self, x: Any) -> Any:
        a = self.attributes.get("a", 1.0)
        if poptorch.isRunningOnIpu():
            return poptorch.custom_op([x], self.name, "custom.ops", 1, example_outputs=[x], attributes=self.attributes)[
                0
            ]
        return x + torch.sin(a * x) ** 2 / a

    def forward(self, x: Any) -> Any:
        return poptorch.identity_loss(self.snake(self.linear(x)), "mean")


@pytest.mark.parametrize("attributes", [{}, {"a": 0.5}])
def test_a_registered_op_trains(attributes: Any) -> None:
    custom_ops.register("Snake", "custom.ops", 1, Snake)
    losses = []
    for ours in (True, False):
        torch.manual_seed(1)
        module = Snakes(**attributes)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
        if ours:
            model = poptorch.trainingModel(module, options(), optimiser)
            losses.append([model(X) for _ in range(4)])
            continue
        found = []
        for _ in range(4):
            optimiser.zero_grad()
            found.append(module(X))
            found[-1].backward()
            optimiser.step()
        losses.append([loss.detach() for loss in found])
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)


def test_mistakes_with_ops() -> None:
    custom_ops.register("Snake", "custom.ops", 1, Snake)
    with pytest.raises(TypeError, match="is no subclass of CustomOp"):
        custom_ops.register("Snake", "custom.ops", 1, dict)
    with pytest.raises(poptorch.UnsupportedError, match=r"custom_op \(Worm\).*see docs/how-to/adding-a-custom-op.md"):
        poptorch.trainingModel(Snakes("Worm"), options())(X)
    with pytest.raises(poptorch.UnsupportedError, match="runs in a program only"):
        poptorch.custom_op([X], "Snake", "custom.ops", 1, example_outputs=[X])
    with pytest.raises(Exception, match="venom"):
        poptorch.trainingModel(Snakes(venom=1), options())(X)

    class Wrong(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return poptorch.custom_op([x], "Snake", "custom.ops", 1, example_outputs=[x[0]])[0]

    with pytest.raises(poptorch.Error, match="the op gives .*4, 2.* example_outputs say"):
        poptorch.inferenceModel(Wrong(), options())(X)

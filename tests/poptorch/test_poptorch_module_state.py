"""What of a module is compiled in: its mode, plain tensors (changes last for one call), and values that need care."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.rows = torch.tensor([3.0]), torch.zeros(2, 2)

    def forward(self, x: Any) -> Any:
        self.count += 1
        self.rows[0] += 2
        return self.count * x, self.rows + 0, self.count + 0


def test_a_changed_constant_begins_anew_and_shows_one_change_on_the_host() -> None:
    model = Counter()
    program = poptorch.inferenceModel(model)
    for _ in range(2):
        product, rows, count = program(torch.tensor([2.0]))
        assert (product.tolist(), count.tolist(), rows.tolist()) == ([8.0], [4.0], [[2.0, 2.0], [0.0, 0.0]])
    assert model.count.tolist() == [4.0]


def test_a_buffer_keeps_its_change() -> None:
    model = Counter()
    count = model.count
    del model.count
    model.register_buffer("count", count)
    program = poptorch.inferenceModel(model)
    assert [program(torch.tensor([2.0]))[0].item() for _ in range(2)] == [8.0, 10.0]


class Sum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.zeros(2)

    def forward(self, x: Any) -> Any:
        self.sum += x
        return self.sum * 1


def test_what_depends_on_inputs_begins_anew_too() -> None:
    program = poptorch.inferenceModel(Sum())
    assert [program(torch.ones(2)).tolist() for _ in range(2)] == [[1.0, 1.0]] * 2


def test_memory_without_values_is_zero() -> None:
    class Empty(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            made = x.new_empty(3, dtype=torch.int64)
            made[1:] = 2
            return made, torch.empty(2)

    whole, rest = poptorch.inferenceModel(Empty())(torch.ones(1))
    assert (whole.tolist(), rest.tolist()) == ([0, 2, 2], [0.0, 0.0])


def test_truths_are_written_at_positions() -> None:
    class Marked(torch.nn.Module):
        def forward(self, places: Any) -> Any:
            marks = torch.zeros(5, dtype=torch.bool)
            marks[places] = True
            return marks, marks.index_put((places,), torch.tensor(False)), marks.scatter(0, places.long(), False)

    marks, *rest = poptorch.inferenceModel(Marked())(torch.tensor([0, 3]))
    assert marks.tolist() == [True, False, False, True, False]
    assert not any(bool(other.any()) for other in rest)


def test_angles_and_their_gradients_are_pytorchs(check_all: Any) -> None:
    angles = torch.linspace(-3, 3, 13) + 0.01
    y, x = angles.sin(), angles.cos()
    axes = torch.tensor([1.0, -1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, -1.0, 2.0])
    check_all({"atan2": torch.atan2}, y, x)
    check_all({"atan2": torch.atan2}, *axes)
    check_all(
        {"arctan2": lambda a: torch.arctan2(a, torch.tensor([1.0, -2.0]))}, torch.tensor([[0.5, 3.0], [0.0, -1.0]])
    )


class Scored(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        result = self.layer(x)
        return (result, torch.nn.functional.mse_loss(result, x)) if self.training else result


def test_a_training_model_keeps_the_mode_that_its_module_had() -> None:
    model = Scored()
    trained = poptorch.trainingModel(model)
    model.eval()
    assert len(trained(torch.ones(1, 2))) == 2
    assert not model.training
    trained.destroy()
    trained = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="loss"):
        trained(torch.ones(1, 2))
    trained.train()
    assert len(trained(torch.ones(1, 2))) == 2

"""Recurrent layers of several layers and directions against eager PyTorch: results, states, weights after training."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402

TIME, BATCH, INPUTS, UNITS = 4, 3, 5, 6
CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("LSTM", {}, False),
    ("LSTM", {"num_layers": 2, "bidirectional": True}, True),
    ("LSTM", {"batch_first": True, "bias": False}, True),
    ("LSTM", {"proj_size": 3, "bidirectional": True}, True),
    ("GRU", {}, True),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}, True),
    ("GRU", {"bias": False}, False),
    ("RNN", {"num_layers": 2}, True),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}, False),
]


class Layer(torch.nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(torch.nn, kind)(INPUTS, UNITS, **options)

    def forward(self, x: Any, *states: Any) -> Any:
        given = None if not states else states if len(states) > 1 else states[0]
        results, after = self.layer(x, given)
        after = after if isinstance(after, tuple) else (after,)
        loss = (results**2).sum() + sum((state * (n + 1)).sin().sum() for n, state in enumerate(after))
        return (results, *after, poptorch.identity_loss(loss, reduction="none"))


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "options", "with_states"), CASES)
def test_as_eager_pytorch(kind: str, options: dict[str, Any], with_states: bool) -> None:
    module = Layer(kind, **options)
    plain = copy.deepcopy(module)
    x = torch.randn(*((BATCH, TIME) if options.get("batch_first") else (TIME, BATCH)), INPUTS)
    number = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    widths = [options.get("proj_size", UNITS), *[UNITS] * (kind == "LSTM")] * with_states
    states = [torch.randn(number, BATCH, wide) for wide in widths]
    inference = poptorch.inferenceModel(copy.deepcopy(module))
    for mine, theirs in zip(inference(x, *states), plain(x, *states), strict=True):
        torch.testing.assert_close(mine, theirs)
    model = poptorch.trainingModel(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.05))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        expected = plain(x, *states)
        for mine, theirs in zip(model(x, *states), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=1e-5)
        expected[-1].backward()
        optimizer.step()
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=2e-5, atol=1e-5)


def test_dropout_between_layers_is_random_in_training_alone() -> None:
    x = torch.randn(TIME, BATCH, INPUTS)
    module = Layer("LSTM", num_layers=2, dropout=0.5)
    options = poptorch.Options().randomSeed(3)
    module.train()
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=0.0))
    first, second = model(x)[0].clone(), model(x)[0]
    assert not torch.equal(first, second)
    module.eval()
    inference = poptorch.inferenceModel(module)
    torch.testing.assert_close(inference(x)[0], module(x)[0])


def test_half_precision() -> None:
    module = Layer("GRU").half()
    x = torch.randn(TIME, BATCH, INPUTS).half()
    mine = poptorch.inferenceModel(copy.deepcopy(module))(x)[0]
    torch.testing.assert_close(mine.float(), module.float()(x.float())[0], rtol=2e-3, atol=2e-3)


@pytest.mark.heavy
def test_many_steps_fit_and_their_code_is_there_once() -> None:
    """500 steps of 256 units, which step by step would take 1.3 MB of a tile."""
    found = {}
    for steps in (50, 500):
        with use_settings(RunSettings(machine="gc200-1")):
            torch.manual_seed(0)
            module = Wide()
            model = poptorch.trainingModel(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
            model.compile(torch.zeros(steps, 16, 256))
        executable = model.compiled_model.executable
        assert executable.memory_problems() == []
        memory = executable.device_program.memory
        found[steps] = memory.always_live_bytes(0), executable.simulated_run_cycles
        assert executable.memory_problems() == []
    assert found[500][0] < 2 * found[50][0]
    assert 5 < found[500][1] / found[50][1] < 10


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(256, 256)

    def forward(self, x: Any) -> Any:
        return poptorch.identity_loss((self.layer(x)[0] ** 2).mean(), reduction="none")

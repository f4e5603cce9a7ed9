"""Phases over several IPUs, whose stages may use each other's results, against plain gradient accumulation."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch import Phase, Stage  # noqa: E402
from ipuperf.schedules import Liveness, ScheduleError, phased_parallel, phased_serial  # noqa: E402

ORDER = ("a0", "a1", "a2", "b0", "b1", "c0", "c1", "d")


class Crossing(torch.nn.Module):
    """Within phase ``a`` data go from one IPU to the other and back, as in upstream's example."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ORDER})

    def layer(self, name: str, x: Any) -> Any:
        with poptorch.Block(name):
            return torch.tanh(self.layers[name](x))

    def forward(self, x: Any) -> Any:
        left = self.layer("a0", x)
        right = self.layer("a1", left)
        left = self.layer("a2", right)
        left, right = self.layer("b0", left), self.layer("b1", right)
        left, right = self.layer("c0", left), self.layer("c1", right)
        with poptorch.Block("d"):
            return poptorch.identity_loss((self.layers["d"](left) * right).square(), "mean")


def phases(kind: Any, ipus: dict[str, int]) -> Any:
    groups = (("a0", "a1", "a2"), ("b0", "b1"), ("c0", "c1"), ("d",))
    return kind(*(Phase(*(Stage(name).ipu(ipus[name]) for name in group)) for group in groups))


SERIAL = dict(zip(ORDER, (0, 1, 0, 0, 1, 1, 0, 1), strict=True))
STRATEGIES: dict[str, Any] = {
    "parallel": lambda: phases(
        poptorch.ParallelPhasedExecution, dict(zip(ORDER, (0, 2, 0, 1, 3, 0, 2, 3), strict=True))
    ),
    "serial": lambda: phases(poptorch.SerialPhasedExecution, SERIAL),
    "serial, off chip after each phase": lambda: phases(poptorch.SerialPhasedExecution, SERIAL).setTensorsLiveness(
        poptorch.Liveness.OffChipAfterEachPhase
    ),
    "serial, separate backward phase": lambda: phases(
        poptorch.SerialPhasedExecution, SERIAL
    ).useSeparateBackwardPhase(),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
def test_values(strategy: Any) -> None:
    torch.manual_seed(0)
    module = Crossing()
    plain = copy.deepcopy(module)
    options = poptorch.Options().showCompilationProgressBar(False).setExecutionStrategy(strategy())
    options.outputMode(poptorch.OutputMode.All).Training.gradientAccumulation(2)
    x = torch.randn(4, 4)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=0.5))
    found = [model(x) for _ in range(3)]
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.5)
    for losses in found:
        optimiser.zero_grad()
        for part, loss in zip(x.chunk(2), losses, strict=True):
            wanted = plain(part)
            torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-7)
            (wanted / 2).backward()
        optimiser.step()
    phase_of_stage = model.compiled_model.exported.phases
    assert [phase_of_stage.count(number) for number in range(4)] == [3, 2, 2, 1]


@pytest.mark.heavy
def test_stages_that_do_not_wait_run_at_once() -> None:
    class Model(torch.nn.Module):
        def __init__(self, apart: bool) -> None:
            super().__init__()
            self.apart = apart
            self.chains = torch.nn.ModuleList(
                torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(24))) for _ in range(2)
            )

        def forward(self, x: Any, other: Any) -> Any:
            with poptorch.Block("0"):
                y = self.chains[0](x)
            with poptorch.Block("1"):
                z = self.chains[1](other if self.apart else y + other)
            with poptorch.Block("2"):
                return y + z

    cycles = []
    for apart in (True, False):
        strategy = poptorch.ParallelPhasedExecution(
            Phase(Stage("0").ipu(0), Stage("1").ipu(2)), Phase(Stage("2").ipu(1))
        )
        options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
        on_chip = poptorch.TensorLocationSettings().useOnChipStorage(True)
        options.setExecutionStrategy(strategy).TensorLocations.setWeightLocation(on_chip)
        model = poptorch.inferenceModel(Model(apart), options)
        model.compile(torch.zeros(16, 256), torch.zeros(16, 256))
        cycles.append(model.cycleCount())
    assert cycles[0] < 0.9 * cycles[1], cycles


def test_steps_of_stages_in_turn() -> None:
    """Stages of a phase have steps of their own; the backward goes back through them."""
    table = phased_serial(2, 1, ipus=[[0, 1], [1, 0]], turns=[[0, 1], [0, 1]])
    steps = {(cell.kind, cell.stage): step for cell, step in table.when.items()}
    assert [steps["F", stage] for stage in range(4)] == [0, 1, 2, 3]
    assert [steps["B", stage] for stage in range(4)] == [6, 5, 4, 3]
    assert table.devices == ((0,), (1,), (1,), (0,))
    apart = phased_serial(2, 1, ipus=[[0, 1], [1, 0]], turns=[[0, 1], [0, 1]], separate_backward_phase=True)
    assert sorted(step for cell, step in apart.when.items() if cell.kind == "B")[0] > 3
    forward = phased_parallel(2, 2, ipus=[[0, 2, 0], [1]], turns=[[0, 0, 1], [0]], inference=True)
    assert sorted(forward.when.values()) == [0, 0, 1, 2, 3, 3, 4, 5]
    gaps = phased_serial(2, 1, ipus=[[0, 1], [0]], turns=[[0, 0], [0]], liveness=Liveness.OffChipAfterFwd)
    assert gaps.stages == 3
    with pytest.raises(ScheduleError, match="an IPU has one stage in a turn"):
        phased_serial(1, 1, ipus=[[0, 0]], turns=[[0, 0]])

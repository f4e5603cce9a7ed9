"""Programs that are only timed hold no values."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch import compile_offline  # noqa: E402

OPTIMISERS = {
    "adam": lambda p: poptorch.optim.AdamW(p),
    "lamb": lambda p: poptorch.optim.LAMB(p),
    "sgd": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True),
    "rmsprop": lambda p: poptorch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 32)
        self.register_buffer("table", torch.empty(32, 32))

    def forward(self, x):
        y = self.layer(x) @ self.table
        return y, poptorch.identity_loss(y.sum(), "none")


@pytest.mark.parametrize("name", OPTIMISERS)
def test_weights_and_optimiser_state_on_meta_take_no_memory(name):
    with torch.device("meta"):
        model, x = Network(), torch.empty(4, 64)
    optimiser = OPTIMISERS[name](model.parameters())
    compiled = compile_offline(model, None, x, optimizer=optimiser, machine="pod4")
    large = [v for v in compiled.executable.ir.variables() if v.spec.elements >= 1024]
    assert len(large) >= 3
    for variable in large:
        assert not any(np.asarray(variable.data).strides), variable.id
    assert compiled.executable.simulated_run_cycles > 0


def test_state_of_one_optimiser_is_not_shared_between_its_variables():
    """Momentum and mean gradient of a centred RMSprop are two variables: reading them back keeps both."""
    torch.manual_seed(0)
    model = Network()
    torch.nn.init.eye_(model.table)
    training = poptorch.trainingModel(model, optimizer=OPTIMISERS["rmsprop"](model.parameters()))
    training(torch.ones(4, 64))
    executable = training._program.require().executable
    state = [v for v in executable.ir.variables() if v.name.startswith("layer.weight___")]
    executable.evaluator.store_variables(state)
    values = {v.name.rpartition("___")[2]: np.asarray(v.data) for v in state}
    assert values.keys() >= {"momentum", "grad_avg", "square_avg"}
    assert values["momentum"].any()
    assert not np.shares_memory(values["momentum"], values["grad_avg"])
    assert not np.array_equal(values["momentum"], values["grad_avg"])

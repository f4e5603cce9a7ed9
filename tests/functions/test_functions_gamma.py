"""The logarithm of the gamma function and its derivatives against PyTorch, with the gradients that ipuperf makes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import popxl  # noqa: E402
from ipuperf.functions import gamma  # noqa: E402
from ipuperf.popxl import ops, transforms  # noqa: E402
from ipuperf.popxl.ops.lifting import lifted  # noqa: E402

X = np.array([0.01, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 7.3, 40.0, 800.0, -0.5, -1.3, -2.7, -7.1], np.float32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (gamma.lgamma, torch.lgamma),
        (gamma.digamma, torch.digamma),
        (gamma.trigamma, lambda x: torch.polygamma(1, x)),
    ],
)
def test_values_and_gradients(function, expected) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(X)
        graph = ir.create_graph(lambda t: lifted(function)(t), x)
        call = ops.call_with_info(graph, x)
        info = transforms.autodiff(graph)
        seed = popxl.constant(np.ones_like(X))
        (slope,) = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(X.shape, popxl.float32) for _ in range(2)]
        ops.host_store(streams[0], call.outputs[0])
        ops.host_store(streams[1], slope)
    with popxl.Session(ir, "ipu_hw") as session:
        value, gradient = (session.run()[stream] for stream in streams)
    wanted = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    result = expected(wanted)
    (of_wanted,) = torch.autograd.grad(result.sum(), wanted)
    np.testing.assert_allclose(value, result.detach().numpy(), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(gradient, of_wanted.numpy(), rtol=4e-3, atol=2e-4)

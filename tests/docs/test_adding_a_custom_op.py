"""``docs/how-to/adding-a-custom-op.md``, followed to the letter: the op of its block in a program, against PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.popxl.custom_ops import CustomOp, custom_op
from ipuperf.popxl.errors import popart_exception

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "adding-a-custom-op.md").read_text(encoding="utf-8")
POPTORCH = (Path(__file__).parents[2] / "docs" / "how-to" / "adding-a-poptorch-op.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    (block,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.S | re.M)
    found: dict[str, Any] = {"np": np}
    exec(block, found)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 40)])
def test_value_and_gradient_on_two_replicas(names: dict[str, Any], dtype: Any, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x, grad = (np.random.default_rng(seed).normal(size=(2, *shape)).astype(dtype) for seed in (0, 1))
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        tensor, back = (popxl.variable(a, replica_grouping=ir.replica_grouping(group_size=1)) for a in (x, grad))
        graph = ir.create_graph(names["snake"], tensor, 0.7)
        info = ops.call_with_info(graph, tensor)
        derivative = popxl.transforms.autodiff(graph)
        (dx,) = ops.call(derivative.graph, back, inputs_dict=derivative.inputs_dict(info))
        outputs = [addons.host_store(t) for t in (info.outputs[0], dx)]
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run()
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    expected = leaf + torch.sin(0.7 * leaf) ** 2 / 0.7
    expected.backward(torch.tensor(grad.astype(np.float64)))
    tolerance = 1e-5 if dtype is np.float32 else 4e-3
    np.testing.assert_allclose(found[outputs[0]], expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found[outputs[1]], leaf.grad.numpy(), rtol=tolerance, atol=tolerance)


def test_the_cost_is_the_codelets(names: dict[str, Any]) -> None:
    chip = load_machine("pod4").chip
    with popxl.Ir().main_graph:
        op = names["snake"](popxl.variable(np.zeros(1000, np.float32)))._ir_tensor.producer
    (work,) = op.work()
    assert (work.vertex, work.elements, work.flops) == ("Snake<float32>", 1000, 5000)
    assert work.cycles(np.array([0, 1, 12, 13]), chip).tolist() == [0, 6 * 42, 6 * 42, 6 * (30 + 24)]


def test_what_is_wrong_is_said(names: dict[str, Any]) -> None:
    class Half(names["Snake"]):
        type = "Half"

        def value(self, x: np.ndarray) -> np.ndarray:
            return x[: len(x) // 2]

    class Turned(names["Snake"]):
        type = "Turned"

        def value(self, x: np.ndarray) -> np.ndarray:
            return x * np.complex64(1j)

    class Nothing(CustomOp):
        type = "Nothing"

    def run(op_class: Any) -> None:
        ir = popxl.Ir()
        with ir.main_graph:
            addons.host_store(custom_op(op_class, popxl.variable(np.zeros(4, np.float32))))
        with popxl.Session(ir, "ipu_hw") as session:
            session.run()

    with pytest.raises(popart_exception, match=r"`value` gave shape \(2,\).*`infer` \(4,\)"):
        run(Half)
    with pytest.raises(popart_exception, match=r"`value` gave complex64 for .*, which is float32"):
        run(Turned)
    with pytest.raises(popart_exception, match="no shape rule"):
        run(Nothing)
    with pytest.raises(TypeError, match="no subclass"):
        run(int)
    with popxl.Ir().main_graph, pytest.raises(popart_exception, match="a floating-point type is needed"):
        names["snake"](popxl.variable(np.zeros(4, np.int32)))


def test_the_same_op_in_poptorch(names: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch
    from ipuperf.runtime.install import install, uninstall

    (block,) = re.findall(r"^```python\n(.*?)^```", POPTORCH, flags=re.S | re.M)
    install(["poptorch"])
    try:
        exec(block, names)
    finally:
        uninstall()
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    found = poptorch.inferenceModel(names["Activation"]())(x)
    torch.testing.assert_close(found, x + torch.sin(0.5 * x) ** 2 / 0.5)

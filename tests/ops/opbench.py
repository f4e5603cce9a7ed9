"""A minimal evaluator for op tests: fresh arrays per op, scratch memory full of garbage, schedule order."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ipuperf import ir, ops


class FakeEnvironment:
    """What op kernels ask of an evaluator; scratch arrays of one slot share memory, which starts as garbage."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self._slots: dict[int, np.ndarray] = {}

    def scratch(self, shape: Sequence[int], dtype: Any, slot: int = 0) -> np.ndarray:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if slot not in self._slots or self._slots[slot].size < size:
            self._slots[slot] = np.empty(max(size, 1 << 12), np.uint8)
        return spoilt(self._slots[slot][:size].view(dtype).reshape(tuple(shape)))


def garbage(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    """An array whose old contents would show in a result."""
    return spoilt(np.empty(shape, dtype, order))


def spoilt(array: np.ndarray) -> np.ndarray:
    """The array with what no result may hold."""
    array.fill(np.nan if array.dtype.kind == "f" else 1)
    return array


def evaluate(
    graph: ir.Graph, feeds: dict[ir.Tensor, np.ndarray], views: bool = True, order: Any = "C"
) -> dict[ir.Tensor, np.ndarray]:
    """Values of all tensors of ``graph``; ``feeds`` holds ``(R, *shape)`` arrays for its inputs. ``order``: of results
    in memory."""
    values = dict(feeds)
    replicas = next(iter(feeds.values())).shape[0] if feeds else 1
    env = FakeEnvironment(replicas)
    for tensor in graph.tensors.values():
        if isinstance(tensor, ir.Constant):
            values[tensor] = np.broadcast_to(tensor.data, (replicas, *tensor.shape)).copy()
    with np.errstate(all="ignore"):
        for op in ir.schedule(graph):
            assert isinstance(op, ops.Op)
            inputs = [values[t] for t in op.inputs]
            made = op.view(inputs, env) if views or op.aliases() else None
            if made is None:
                made = [garbage((replicas, *t.shape), t.dtype.numpy, order) for t in op.outputs]
                for output, index in op.aliases().items():
                    if index in op.modified_inputs():
                        made[output] = inputs[index]
                op.kernel(inputs, made, env)()
            for tensor, array in zip(op.outputs, made, strict=True):
                assert array.shape == (replicas, *tensor.shape), op.where()
                assert array.dtype == tensor.dtype.numpy, op.where()
                values[tensor] = array
    return values


def tensor_for(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Tensor:
    """A graph input for an ``(R, *shape)`` array."""
    return graph.add_input(ir.TensorSpec(array.shape[1:], ir.dtype_of(array)), name)


class Bench:
    """Builds one-op graphs, evaluates them and their gradients."""

    values = staticmethod(evaluate)

    def op(self, op_class: type[ops.Op], *arrays: np.ndarray, outputs: int = 1, **attributes: Any) -> ops.Op:
        """An op over inputs shaped as ``arrays`` (with replica axis)."""
        graph = ir.Ir().create_graph("test")
        tensors = [tensor_for(graph, a, f"x{i}") for i, a in enumerate(arrays)]
        return graph.create(op_class, tensors, [f"y{i}" for i in range(outputs)], **attributes)

    def run(self, op_class: type[ops.Op], *arrays: np.ndarray, outputs: int = 1, views: bool = True, **attributes: Any):
        """The value of an op (a list when it has several outputs)."""
        op = self.op(op_class, *arrays, outputs=outputs, **attributes)
        values = evaluate(op.graph, dict(zip(op.inputs, arrays, strict=True)), views)
        results = [values[t] for t in op.outputs]
        return results[0] if outputs == 1 else results

    def gradients(
        self,
        build: Callable[..., ir.Tensor],
        arrays: Sequence[np.ndarray],
        seed: int = 0,
        required: Sequence[int] | None = None,
        replicas: int = 1,
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """(output, output gradient used, input gradients) of ``build(graph, *tensors)``."""
        graph = ir.Ir(replicas).create_graph("test")
        tensors = [tensor_for(graph, a, f"x{i}") for i, a in enumerate(arrays)]
        output = graph.add_output(build(graph, *tensors))
        wanted = [t for t in tensors if t.dtype.is_floating_point]
        if required is not None:
            wanted = [tensors[i] for i in required]
        derivative = ops.autodiff(graph, [output], wanted)
        values = evaluate(graph, dict(zip(tensors, (a.copy() for a in arrays), strict=True)))
        rng = np.random.default_rng(seed)
        grad = rng.standard_normal(values[output].shape).astype(output.dtype.numpy)
        feeds = {
            image: grad if c.is_gradient else values[c.tensor]
            for image, c in zip(derivative.graph.inputs, derivative.inputs, strict=True)
        }
        back = evaluate(derivative.graph, feeds)
        return values[output], grad, [back[t] for t in derivative.graph.outputs]

    def check(
        self,
        build: Callable[..., ir.Tensor],
        reference: Callable[..., Any],
        arrays: Sequence[np.ndarray],
        *,
        rtol: float = 1e-9,
        atol: float = 1e-11,
    ) -> None:
        """Compare value and gradients with PyTorch's, replica by replica (float64 unless the arrays say otherwise)."""
        torch = pytest.importorskip("torch")
        output, grad, found = self.gradients(build, arrays)
        for replica in range(arrays[0].shape[0]):
            leaves = [torch.tensor(a[replica]) for a in arrays]
            floating = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
            expected = reference(*leaves)
            np.testing.assert_allclose(output[replica], expected.detach().numpy(), rtol=rtol, atol=atol)
            expected.backward(torch.tensor(grad[replica]))
            for mine, leaf in zip(found, floating, strict=True):
                np.testing.assert_allclose(mine[replica], leaf.grad.numpy(), rtol=rtol, atol=atol)

"""A plain evaluator of exported stage graphs and of their gradients, one replica, op after op."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ops.control import reached_by_gradients
from ipuperf.pipelines import Activation, Data, HostInput, Seed

TESTS = os.path.dirname(os.path.dirname(__file__))


class FakeEnvironment:
    """What op kernels ask of an evaluator; every scratch array is new."""

    replicas = 1

    def scratch(self, shape: Sequence[int], dtype: Any, slot: int = 0) -> np.ndarray:
        return np.zeros(tuple(shape), dtype)


def evaluate(graph: ir.Graph, feeds: dict[ir.Tensor, np.ndarray]) -> dict[ir.Tensor, np.ndarray]:
    """Values (without replica axis) of all tensors of ``graph``."""
    values = {t: v[None] for t, v in feeds.items()}
    for tensor in graph.tensors.values():
        if isinstance(tensor, ir.Constant):
            values[tensor] = tensor.data[None].copy()
    with np.errstate(all="ignore"):
        for op in ir.schedule(graph):
            assert isinstance(op, ops.Op)
            inputs = [values[t] for t in op.inputs]
            made = _looped(op, inputs) if isinstance(op, ops.Loop) else op.view(inputs, FakeEnvironment())
            if made is None:
                made = [np.full((1, *t.shape), 1, t.dtype.numpy) for t in op.outputs]
                op.kernel(inputs, made, FakeEnvironment())()
            values.update(zip(op.outputs, made, strict=True))
    return {t: v[0] for t, v in values.items()}


@dataclass
class Outcome:
    """What a forward and a backward gave: the result's tensors, gradients by variable name, new state by variable."""

    outputs: list[np.ndarray]
    gradients: dict[str, np.ndarray]
    updates: dict[str, np.ndarray]


def run_stages(exported: Any, tensors: Sequence[Any], seed: int = 1) -> Outcome:
    """Run an :class:`ExportedModel` forwards, and backwards from its loss."""
    values: list[dict[ir.Tensor, np.ndarray]] = []
    streams = {
        spec.stream: spec.to_numpy(tensor)
        for spec, tensor in zip(exported.inputs, tensors, strict=True)
        if spec.stream is not None
    }
    updates: dict[str, np.ndarray] = {}
    for part in exported.parts:
        feeds = {}
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            if isinstance(source, Data):
                feeds[tensor] = source.tensor.data
            elif isinstance(source, HostInput):
                feeds[tensor] = streams[source.stream]
            elif isinstance(source, Activation):
                assert exported.parts[source.part].stage < part.stage
                feeds[tensor] = values[source.part][exported.parts[source.part].graph.outputs[source.output]]
            else:
                assert isinstance(source, Seed)
                feeds[tensor] = np.array([seed, 2], np.uint32)
        values.append(evaluate(part.graph, feeds))
        for index, variable in part.updates.items():
            updates[variable.name] = values[-1][part.graph.outputs[index]]
    outputs = [
        spec.constant.numpy()
        if spec.part < 0
        else values[spec.part][exported.parts[spec.part].graph.outputs[spec.output]]
        for spec in exported.outputs
    ]
    gradients = _backward(exported, values) if exported.loss is not None else {}
    return Outcome(outputs, gradients, updates)


def _backward(exported: Any, values: list[dict[ir.Tensor, np.ndarray]]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    trained = {exported.variables[name] for name in exported.parameters}
    loss_part, loss_output = exported.loss
    loss = exported.parts[loss_part].graph.outputs[loss_output]
    grads: dict[tuple[int, ir.Tensor], np.ndarray] = {(loss_part, loss): np.ones(loss.shape, loss.dtype.numpy)}
    for index in range(len(exported.parts) - 1, -1, -1):
        part = exported.parts[index]
        provided = [t for t in list(part.graph.outputs) if (index, t) in grads]
        if not provided:
            continue
        reached = reached_by_gradients(part.graph, provided)
        required = []
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            wanted = source.tensor in trained if isinstance(source, Data) else isinstance(source, Activation)
            if wanted and tensor in reached:
                required.append((tensor, source))
        if not required:
            continue
        derivative = ops.autodiff(part.graph, provided, [t for t, _ in required])
        feeds = {
            image: grads[index, c.tensor] if c.is_gradient else values[index][c.tensor]
            for image, c in zip(derivative.graph.inputs, derivative.inputs, strict=True)
        }
        back = evaluate(derivative.graph, feeds)
        for (_, source), result in zip(required, derivative.graph.outputs, strict=True):
            if isinstance(source, Data):
                name = source.tensor.name
                found[name] = found.get(name, 0) + back[result]
            else:
                key = (source.part, exported.parts[source.part].graph.outputs[source.output])
                grads[key] = grads.get(key, 0) + back[result]
    return found


def case_module() -> type:
    """The class of modules that :func:`compare_with_torch` exports (PyTorch may be missing)."""
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch

    class Case(torch.nn.Module):
        """Functions, each of its own parameters (floating point) and buffers (others); the loss is a weighted sum."""

        def __init__(self, functions: dict[str, Any], tensors: dict[str, Sequence[Any]]) -> None:
            super().__init__()
            self.functions = functions
            self.counts = {name: len(tensors[name]) for name in functions}
            for name in functions:
                for index, tensor in enumerate(tensors[name]):
                    if tensor.is_floating_point():
                        self.register_parameter(f"{name}_{index}", torch.nn.Parameter(tensor.clone()))
                    else:
                        self.register_buffer(f"{name}_{index}", tensor.clone())

        def forward(self, start: Any) -> Any:
            loss, results = start, {}
            for name, function in self.functions.items():
                result = function(*(getattr(self, f"{name}_{i}") for i in range(self.counts[name])))
                results[name] = list(result) if isinstance(result, (tuple, list)) else [result]
                for item in results[name]:
                    if item.is_floating_point():
                        weights = torch.linspace(0.5, 1.5, item.numel()).reshape(item.shape).to(item.dtype)
                        loss = loss + (item * weights).sum()
            return results, poptorch.identity_loss(loss, "sum")

    return Case


def compare_with_torch(
    functions: dict[str, Any],
    *tensors: Any,
    operands: dict[str, Sequence[Any]] | None = None,
    rtol: float = 2e-4,
    atol: float = 2e-5,
) -> Any:
    """Compare values and gradients of all functions (in one export) with PyTorch's; the exported model.

    All functions take the tensors, or each its own ``operands``.
    """
    torch = pytest.importorskip("torch")
    from ipuperf.poptorch.aten.lowering import narrowed
    from ipuperf.poptorch.export.module import export_model

    case = case_module()(functions, operands or dict.fromkeys(functions, tensors))
    start = torch.zeros(())
    exported = export_model(case, (start,), training=True)
    outcome = run_stages(exported, [start])
    found, _ = exported.result_of(list(zip(outcome.outputs, exported.outputs, strict=True)))
    results, loss = case(start)
    for name, wanted in results.items():
        for (mine, spec), tensor in zip(found[name], wanted, strict=True):
            assert mine.shape == tuple(tensor.shape), name
            assert spec.dtype == narrowed(tensor.dtype), name
            np.testing.assert_allclose(mine, tensor.detach().numpy(), rtol=rtol, atol=atol, err_msg=name)
    if loss.requires_grad:
        loss.backward()
    for name, parameter in case.named_parameters():
        if name in outcome.gradients:
            wanted = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
            np.testing.assert_allclose(outcome.gradients[name], wanted, rtol=rtol, atol=atol, err_msg=name)
        else:
            assert parameter.grad is None or not parameter.grad.any(), name
    for part in exported.parts:
        for op in part.graph.ops:
            op.work()
            assert TESTS in op.location, op
    return exported


def _looped(op: ops.Loop, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The values that a loop carries, after its trips; each has a replica axis."""
    carried, fixed = inputs[: op.carried], inputs[op.carried :]
    for _ in range(op.trip_count):
        feeds = {t: value[0] for t, value in zip(op.callee.inputs, [*carried, *fixed], strict=True)}
        values = evaluate(op.callee, feeds)
        carried = [values[t][None] for t in op.callee.outputs]
    return carried

"""A plain evaluator of exported stage graphs and of their gradients, one replica, op after op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ops.control import reached_by_gradients
from ipuperf.pipelines import Activation, Data, HostInput, Seed


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
            made = op.view(inputs, FakeEnvironment())
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


@pytest.fixture
def stages() -> Callable[..., Outcome]:
    """Runs exported stages."""
    return run_stages

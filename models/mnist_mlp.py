"""An MNIST classifier (784-512-512-512-10, GELU) in popxl.addons, trained data-parallel with Adam.

The network, the accumulation loop and the optimiser are those of the public PopXL tutorials on data parallelism and on
remote variables with replicated tensor sharding (RTS); where the optimiser state lives is a parameter:

- ``on_chip``: Adam's moments are ordinary variables, gradients are all-reduced in place;
- ``off_chip``: the moments live in Streaming Memory and are loaded, used and stored once per step. Tensors with at
  least ``threshold`` elements are sharded over the replicas: their gradients are reduce-scattered, every replica
  updates its shard with its shard of the state, and the weights are gathered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import popxl
import popxl_addons as addons
from popxl import ops
from popxl_addons.named_tensors import NamedTensors
from popxl_addons.rts import reduce_replica_sharded_graph, replica_sharded_spec


@dataclass(frozen=True)
class TrainingOptions:
    """Configuration of :func:`training_session`.

    ``threshold`` counts elements; ``None`` keeps the optimiser state on chip, ``math.inf`` moves it off chip unsharded.
    ``optimiser`` is ``adam`` or ``sgd``, which has no state.
    """

    micro_batch_size: int = 8
    gradient_accumulation: int = 8
    replicas: int = 4
    learning_rate: float = 1e-3
    threshold: float | None = 512
    optimiser: str = "adam"
    hidden: Sequence[int] = (512, 512, 512)
    classes: int = 10

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all replicas."""
        return self.micro_batch_size * self.gradient_accumulation * self.replicas


class Dense(addons.Module):
    """``x @ weight + bias``; weights are drawn from N(0, 0.02), biases start at zero."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """``(batch, inputs)`` to ``(batch, features)``."""
        init = partial(np.random.normal, 0, 0.02, (x.shape[-1], self.features))
        weight = self.add_variable_input("weight", init, x.dtype)
        bias = self.add_variable_input("bias", partial(np.zeros, self.features), x.dtype)
        return x @ weight + bias


class Classifier(addons.Module):
    """Dense layers with GELU between them."""

    def __init__(self, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        self.layers = len(hidden) + 1
        for number, features in enumerate((*hidden, classes), start=1):
            setattr(self, f"fc{number}", Dense(features))

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        """Images ``(batch, ...)`` to scores ``(batch, classes)``."""
        x = x.reshape((x.shape[0], -1))
        for number in range(1, self.layers):
            x = ops.gelu(getattr(self, f"fc{number}")(x))
        return getattr(self, f"fc{self.layers}")(x)


class Adam(addons.Module):
    """One Adam step on one (possibly sharded) variable, in place; moments in fp16 and fp32, bias corrected."""

    @popxl.in_sequence()
    def build(self, var: popxl.TensorByRef, grad: popxl.Tensor, *, lr: float) -> None:
        """Update ``var`` by ``grad``, both of one shape."""
        add = self.add_replica_sharded_variable_input if var.meta_shape else self.add_variable_input
        shape = var.meta_shape or var.shape
        first = add("first_order", partial(np.zeros, shape), popxl.float16, by_ref=True)
        second = add("second_order", partial(np.zeros, shape), popxl.float32, by_ref=True)
        ops.var_updates.accumulate_moving_average_(first, grad, f=0.9)
        ops.var_updates.accumulate_moving_average_square_(second, grad, f=0.999)
        step = self.add_variable_input("step", partial(np.zeros, ()), popxl.float32, by_ref=True)
        updater = ops.var_updates.adam_updater(
            first, second, weight=var, weight_decay=0.0, time_step=step, beta1=0.9, beta2=0.999, epsilon=1e-5
        )
        ops.scaled_add_(var, updater, b=-lr)


@dataclass
class Training:
    """A training program ready to run.

    ``session.run`` takes images ``(accumulation, replicas, micro batch, 28, 28)`` and labels alike, without the axes
    of length one, and returns one loss per micro-batch.
    """

    session: Any
    images: Any
    labels: Any
    loss: Any
    variables: NamedTensors


def training_session(options: TrainingOptions, *, device: str = "ipu_hw") -> Training:
    """Build the training program; one ``session.run`` is one optimiser step."""
    ir = popxl.Ir()
    ir.replication_factor = options.replicas
    ir.num_host_transfers = options.gradient_accumulation
    batch = options.micro_batch_size
    with ir.main_graph:
        images = popxl.h2d_stream((batch, 28, 28), popxl.float32, "image")
        labels = popxl.h2d_stream((batch,), popxl.int32, "labels")
        loss_stream = popxl.d2h_stream((), popxl.float32, "loss")
        factories, forward = Classifier(options.hidden, options.classes).create_graph(
            popxl.TensorSpec((batch, 28, 28), popxl.float32)
        )
        variables = factories.init()
        grad_factories, backward = addons.autodiff_with_accumulation(forward, forward.args.tensors)
        accumulators = grad_factories.init()
        bound_forward, bound_backward = forward.bind(variables), backward.bind(accumulators)
        with popxl.in_sequence(True):
            for _ in range(options.gradient_accumulation):
                _micro_batch(images, labels, loss_stream, bound_forward, backward, bound_backward)
            _update(options, variables, accumulators)
            ops.var_updates.accumulator_scale_(accumulators.mean_accum_counter, 0.0)
    return Training(popxl.Session(ir, device), images, labels, loss_stream, variables)


def _micro_batch(
    images: popxl.HostToDeviceStream,
    labels: popxl.HostToDeviceStream,
    loss_stream: popxl.DeviceToHostStream,
    forward: addons.BoundGraph,
    backward: addons.GraphWithNamedArgs,
    bound_backward: addons.BoundGraph,
) -> None:
    """Load, forward, loss, backward with accumulation."""
    image = ops.host_load(images)
    label = ops.host_load(labels, "labels")
    info = forward.call_with_info(image)
    loss, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], label)
    ops.host_store(loss_stream, loss)
    bound_backward.call(gradient, args=backward.grad_graph_info.inputs_dict(info))


def _update(options: TrainingOptions, variables: NamedTensors, accumulators: NamedTensors) -> None:
    """Reduce the gradients over the replicas and apply the optimiser, with its state where the options say."""
    names = [name for name in accumulators.named_tensors if name != "mean_accum_counter"]
    grads = accumulators.tensors[:-1]
    optimizer = Adam(cache=True)
    if options.threshold is None or options.optimiser == "sgd":
        for grad in grads:
            ops.collectives.replicated_all_reduce_(grad, op="mean")
    if options.optimiser == "sgd":
        for variable, grad in zip(variables.tensors, grads, strict=True):
            ops.scaled_add_(variable, grad, b=-options.learning_rate)
        return
    if options.threshold is None:
        for variable, grad in zip(variables.tensors, grads, strict=True):
            factories, graph = optimizer.create_graph(variable, variable.spec, lr=options.learning_rate)
            graph.bind(factories.init()).call(variable, grad)
        return
    threshold = options.threshold
    named = NamedTensors.pack(names, grads)
    reduce, _ = reduce_replica_sharded_graph(named, "mean", threshold=threshold)
    reduced = reduce.bind(named).call()
    shards = [
        ops.collectives.replica_sharded_slice(v) if v.nelms >= threshold and v.nelms % options.replicas == 0 else v
        for v in variables.tensors
    ]
    for shard, grad in zip(shards, reduced, strict=True):
        _remote_step(optimizer, shard, grad, options)
    for variable, shard in zip(variables.tensors, shards, strict=True):
        if shard.meta_shape:
            ops.var_updates.copy_var_update_(variable, ops.collectives.replicated_all_gather(shard))


def _remote_step(
    optimizer: addons.Module, variable: popxl.Tensor, grad: popxl.Tensor, options: TrainingOptions
) -> None:
    """Load the state from Streaming Memory, update the variable, store the state."""
    threshold = options.threshold
    factories, graph = optimizer.create_graph(
        replica_sharded_spec(variable, threshold=threshold),
        replica_sharded_spec(grad, threshold=threshold),
        lr=options.learning_rate,
    )
    buffers = addons.named_variable_buffers(factories, entries=1, sharded_threshold=threshold)
    load, names = addons.load_remote_graph(buffers, entries=1)
    store = addons.store_remote_graph(buffers, entries=1)
    factories.init_remote(buffers)
    state = NamedTensors.pack(names, load.call(0))
    graph.bind(state).call(variable, grad)
    store.bind(state).call(0)


@dataclass
class Inference:
    """A program that gives the logits of a batch of images."""

    session: Any
    images: Any
    logits: Any
    variables: NamedTensors


def inference_session(batch: int, options: TrainingOptions, *, device: str = "ipu_hw") -> Inference:
    """Build the inference program for ``batch`` images on one replica."""
    ir = popxl.Ir(replication=1)
    with ir.main_graph:
        images = popxl.h2d_stream((batch, 28, 28), popxl.float32, "image")
        x = ops.host_load(images)
        factories, graph = Classifier(options.hidden, options.classes).create_graph(x)
        variables = factories.init()
        (logits,) = graph.bind(variables).call(x)
        stream = popxl.d2h_stream(logits.shape, logits.dtype, "logits")
        ops.host_store(stream, logits)
    return Inference(popxl.Session(ir, device), images, stream, variables)

"""The model of a random Keras program, on the IPU or on the CPU, with its optimizer, weights and data."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from ipuperf.tensorflow.python import ipu

from . import layers, training
from .program import VOCABULARY, Program

Values = dict[str, np.ndarray]


class Network(keras.Model):
    """The nodes of a program as a subclass of ``Model``, on request with a step of its own."""

    def __init__(self, program: Program, on_ipu: bool) -> None:
        super().__init__(name="net")
        self.program, self.on_ipu = program, on_ipu
        self.parts = _layers(program, on_ipu)

    def call(self, inputs: Any, training: Any = None) -> Any:
        return _outputs(self.program, self.on_ipu, self.parts, inputs)


class OwnStep(Network):
    """Gradients are changed before they are applied, and the loss has another part."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compiled_loss(y, predicted, weights, regularization_losses=self.losses)
            whole = loss + 0.01 * tf.reduce_mean(tf.square(predicted))
        variables = self.trainable_variables
        gradients = [tf.clip_by_norm(tf.convert_to_tensor(g), 0.5) for g in tape.gradient(whole, variables)]
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.compiled_metrics.update_state(y, predicted, weights)
        return {m.name: m.result() for m in self.metrics} | {"whole": whole}


def _layers(program: Program, on_ipu: bool) -> list[Any]:
    return [
        None if description[0] in layers.FUNCTIONAL_MERGES else layers.made(description, on_ipu, name=f"n{i}")
        for i, (description, _, _) in enumerate(program.nodes)
    ]


def _stage(program: Program, on_ipu: bool, number: int) -> Any:
    return keras.ipu.PipelineStage(number) if on_ipu and program.stages > 1 else nullcontext()


def _outputs(program: Program, on_ipu: bool, parts: list[Any], inputs: Any) -> Any:
    values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    for i, ((name, _), operands, stage) in enumerate(program.nodes):
        given = [values[o] for o in operands]
        with _stage(program, on_ipu, stage):
            if parts[i] is None:
                values.append(getattr(keras.layers, name)(given, name=f"n{i}"))
            elif name == "MultiHeadAttention":
                values.append(parts[i](*given))
            else:
                values.append(parts[i](given[0] if len(given) == 1 else given))
    found = [values[o] for o in program.outputs]
    return found[0] if len(found) == 1 else found


def build(program: Program, on_ipu: bool) -> Any:
    """The model, with weights as Keras begins."""
    keras.backend.reset_uids()  # names of metrics would be counted on
    dtype = "int32" if program.whole else "float32"
    with_batch = [keras.Input(shape, batch_size=program.batch, dtype=dtype) for shape in program.inputs]
    if program.style == "sequential":
        model = keras.Sequential([with_batch[0], *_layers(program, on_ipu)], name="net")
        if on_ipu and program.stages > 1:
            model.set_pipeline_stage_assignment([stage for _, _, stage in program.nodes])
        return model
    if program.style == "functional":
        return keras.Model(with_batch, _outputs(program, on_ipu, _layers(program, on_ipu), with_batch), name="net")
    model = (OwnStep if program.own_step else Network)(program, on_ipu)
    shapes = [(program.batch, *shape) for shape in program.inputs]
    if on_ipu:
        specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
        from ipuperf.tensorflow.keras.extension import extension

        extension(model).build(specs[0] if len(specs) == 1 else specs)
    else:
        zeros = [tf.zeros(shape, dtype) for shape in shapes]
        model(zeros[0] if len(zeros) == 1 else zeros)
    return model


def compiled(program: Program, model: Any, on_ipu: bool) -> Any:
    """The model with optimizer, losses and metrics; on the IPU with its options."""
    name, options, rate = program.optimizer
    optimizer = training.optimizer(name, options, rate, on_ipu)
    if program.wrapper == "LossScaleOptimizer":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=64.0)
    elif program.wrapper and on_ipu:
        more = [training.mapped] if program.wrapper.startswith("Map") else []
        optimizer = getattr(keras.ipu.optimizers, program.wrapper)(optimizer, *more)
    losses = [training.loss(*loss) for loss in program.losses]
    metrics = [[training.metric(metric) for metric in metrics] for metrics in program.metrics]
    single = len(losses) == 1
    model.compile(
        "sgd" if isinstance(optimizer, training.ByHand) else optimizer,
        loss=losses[0] if single else losses,
        metrics=metrics[0] if single else metrics,
        weighted_metrics=[] if program.weights else None,
        steps_per_execution=program.accumulation * program.updates if on_ipu else None,
        run_eagerly=not on_ipu,
    )
    if on_ipu:
        _set_options(program, model)
    return optimizer


def _set_options(program: Program, model: Any) -> None:
    if program.stages > 1:
        model.set_pipelining_options(
            program.accumulation,
            device_mapping=program.mapping,
            gradient_accumulation_reduction_method=program.reduction,
            pipeline_schedule=getattr(ipu.pipelining_ops.PipelineSchedule, program.schedule),
            **program.options,
        )
    elif program.accumulation > 1:
        model.set_gradient_accumulation_options(program.accumulation, program.reduction)


def start(program: Program, model: Any) -> list[np.ndarray]:
    """Start weights: those of Keras, moved a little, so that biases are not 0."""
    rng = np.random.default_rng(program.seed)
    found = []
    for variable in model.weights:
        moved = variable.numpy() + 0.1 * rng.normal(size=variable.shape).astype(np.float32)
        found.append(np.abs(moved) if "variance" in variable.name else moved)
    return [value.astype(np.float32) for value in found]


@dataclass
class Data:
    """Arrays of an epoch: inputs, targets, weights of samples (None: there are none)."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    weights: np.ndarray | None
    classes: dict[int, float] | None


def data(program: Program) -> Data:
    """Random data for an epoch. Replicas take batches in turn."""
    rng = np.random.default_rng(program.seed + 1)
    count = program.steps * (1 if program.equal else program.replicas) * program.batch

    def spread(values: np.ndarray) -> np.ndarray:
        if not program.equal:
            return values
        batches = values.reshape(program.steps, 1, program.batch, *values.shape[1:])
        return np.repeat(batches, program.replicas, 1).reshape(-1, *values.shape[1:])

    def inputs(shape: list[int]) -> np.ndarray:
        if program.whole:
            return rng.integers(0, VOCABULARY, [count, *shape]).astype(np.int32)
        return rng.normal(size=[count, *shape]).astype(np.float32)

    x = [spread(inputs(shape)) for shape in program.inputs]
    y = []
    for kind, shape, classes in program.targets:
        one = training.targets(kind, [count, *shape, *([classes] if kind == "class" else [])], rng)
        y.append(spread(one))
    weights = spread(rng.random(count).astype(np.float32) + 0.2) if program.weights == "sample" else None
    return Data(x, y, weights, {0: 0.5, 1: 2.0, 2: 1.0, 3: 1.5} if program.weights == "class" else None)


def state(program: Program, model: Any, optimizer: Any) -> Values:
    """Weights (statistics only where replicas have the same) and the optimizer's variables."""
    kept = model.weights if program.replicas == 1 or program.equal else model.trainable_weights
    values = {f"weight {i}": v.numpy() for i, v in enumerate(kept)}
    differs = (
        "Ftrl" in program.optimizer[0]
    )  # its sums hold differences of roots: nothing but rounding where these are near
    if (
        program.trains
        and not differs
        and not program.wrapper
        and program.optimizer[0].rpartition(".")[0] in ("", "legacy")
    ):
        found = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        values |= {f"state {i}": np.asarray(v) for i, v in enumerate(found)}
    return values

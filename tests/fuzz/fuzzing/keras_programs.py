"""Random Keras models on the IPU, against Keras on the CPU with gradient accumulation and replicas written out.

Histories, metrics, predictions, weights and the optimizer's state are compared. The CPU runs op by op
(:mod:`.keras_oracle`). Where values differ, it trains again from weights moved by a unit in the last place: a program
whose results then move as far is ill-conditioned, which is counted and no failure.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow import keras

from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.state import isolated

from . import keras_layers as layers
from . import keras_training as training
from .invariants import trace_problems
from .outcome import Outcome
from .stored import Stored

ipu.ipu_strategy.attach_keras()
gc.freeze()  # what is imported stays
Values = dict[str, np.ndarray]
VOCABULARY = 7


@dataclass
class Program(Stored):
    """A model and what is done with it.

    Attributes:
        style: sequential, functional or subclass.
        inputs: shapes of samples; of integers where ``whole`` says so.
        nodes: ``[description of a layer, operands, stage]``; operands count the inputs first.
        outputs: nodes with losses; of each, ``targets`` has kind and shape, ``losses`` name and options, ``metrics``
            names.
        weights: of samples: "", "sample" or "class".
        optimizer: ``[name, options, rate]``, ``wrapper`` goes around it.
        accumulation: batches of an update, on each replica; ``executions`` of ``updates`` each make an epoch.
        equal: replicas get the same data, so that what metrics and statistics are does not depend on the replica.
        options: of the pipeline. ``mapping``: the IPU of each stage.
        phases: ``fit``, ``evaluate``, ``predict``, one batch of each, or a new learning rate, in turn.
    """

    seed: int
    style: str
    inputs: list[list[int]]
    whole: bool
    nodes: list[list[Any]]
    outputs: list[int]
    targets: list[list[Any]]
    losses: list[list[Any]]
    metrics: list[list[str]]
    weights: str
    optimizer: list[Any]
    wrapper: str
    policy: str
    own_step: bool
    batch: int
    accumulation: int
    reduction: str
    updates: int
    executions: int
    epochs: int
    replicas: int
    equal: bool
    stages: int
    mapping: list[int] | None
    schedule: str
    options: dict[str, Any]
    recompute: bool
    data: str
    phases: list[str]

    def size(self) -> int:
        """Number of layers."""
        return len(self.nodes)

    @property
    def steps(self) -> int:
        """Batches of an epoch on each replica."""
        return self.accumulation * self.updates * self.executions

    @property
    def trains(self) -> bool:
        """Whether weights change."""
        return any(phase in ("fit", "train_on_batch") for phase in self.phases)


# -- drawing -----------------------------------------------------------------------------------------------------------


class _Graph:
    """Nodes of a model that is drawn, with the shapes of their results."""

    def __init__(self, r: random.Random, program: dict[str, Any], shapes: list[list[int]]) -> None:
        self.r, self.program, self.shapes = r, program, [list(shape) for shape in shapes]
        self.nodes: list[list[Any]] = []
        self.last = len(shapes) - 1
        self.masked = False

    def add(self, description: list[Any], operands: list[int], shape: list[int]) -> int:
        self.nodes.append([description, operands, 0])
        self.shapes.append(list(shape))
        self.last = len(self.shapes) - 1
        return self.last

    def _fits(self, name: str, rank: int) -> bool:
        kind, program = layers.KINDS[name], self.program
        noisy = name in layers.RANDOM or name == "ipu.Dropout"
        statistics = name in ("BatchNormalization", "SpectralNormalization")
        if name == "SpectralNormalization" and program["stages"] > 1:
            return False  # a weight that a stage changes is refused
        if name.startswith("MaxPool") and name.endswith("3D") and self.nodes:
            return False  # the CPU's gradient goes to each of equal elements; only the inputs have none
        if name.startswith("ipu.") and self.masked:
            return False  # upstream's recurrent layers take no mask
        alone = program["replicas"] == 1 or program["equal"]
        return (
            kind.rank in (0, rank)
            and (kind.half or program["policy"] == "float32")
            and not (noisy and program["trains"])
            and (alone or not statistics)
        )

    def grow(self) -> None:
        """Another layer on the last result, or a merge of it with an older one."""
        shape = self.shapes[self.last]
        if self.program["style"] != "sequential" and self.r.random() < 0.3 and self._merge():
            return
        names = [name for name in layers.KINDS if self._fits(name, len(shape))]
        if len(shape) > 1:  # layers for sequences and images are few among those for any shape
            names += 3 * [name for name in names if layers.KINDS[name].rank]
        for name in self.r.sample(names, 6):
            if name in layers.ATTENTIONS:
                if self.program["style"] == "sequential":
                    continue
                self.add([name, dict(self.r.choice(layers.ATTENTIONS[name]))], [self.last, self.last], shape)
                return
            drawn = layers.KINDS[name].rule(self.r, shape)
            if drawn is not None and np.prod(drawn[1]) <= 200:
                self.masked |= name == "Masking"
                self.add([name, drawn[0]], [self.last], drawn[1])
                return

    def _merge(self) -> bool:
        shape = self.shapes[self.last]
        others = [i for i, other in enumerate(self.shapes[:-1]) if other == shape and not self._is_ids(i)]
        if not others:
            return False
        names = [*layers.MERGES, *(layers.FUNCTIONAL_MERGES if self.program["style"] == "functional" else ())]
        if self.program["policy"] != "float32":  # which of two nearly equal values is larger is rounding there
            names = [n for n in names if n.lower() not in ("maximum", "minimum")]
        name, other = self.r.choice(names), self.r.choice(others)
        if name == "Dot" and len(shape) != 1:
            name = "Add"
        results = {"Dot": [1], "Concatenate": [*shape[:-1], 2 * shape[-1]]}
        results["concatenate"] = results["Concatenate"]
        arguments = {"axes": 1} if name == "Dot" else {}
        self.add([name, arguments], [self.last, other], results.get(name, shape))
        return True

    def _is_ids(self, number: int) -> bool:
        return self.program["whole"] and number < len(self.program["inputs"])

    def embed(self) -> None:
        """Rows of a table for inputs that are integers."""
        name, size = self.r.choice(["Embedding", "ipu.Embedding"]), self.r.choice([3, 4])
        arguments = {"input_dim": VOCABULARY, "output_dim": size}
        if name == "ipu.Embedding" and self.r.random() < 0.4:
            arguments["serialization_factor"] = self.r.choice([1, VOCABULARY])
        elif name == "Embedding" and self.r.random() < 0.2:
            arguments["mask_zero"] = self.masked = True
        self.add([name, arguments], [self.last], [*self.shapes[self.last], size])

    def finish(self, kind: str, linear: bool) -> int:
        """A layer that gives what the targets are; its number."""
        r, shape = self.r, self.shapes[self.last]
        if len(shape) > 1 and not (len(shape) == 2 and r.random() < 0.15):
            rank = len(shape) - 1
            flat = np.prod(shape) <= 60 and r.random() < 0.5
            name = "Flatten" if flat else r.choice([f"GlobalMaxPooling{rank}D", f"GlobalAveragePooling{rank}D"])
            self.add([name, {}], [self.last], [int(np.prod(shape))] if flat else shape[-1:])
        shape = self.shapes[self.last]
        activation = "linear" if linear else training.HEADS[kind]
        return self.add(["Dense", {"units": 4, "activation": activation}], [self.last], [*shape[:-1], 4])


_SHAPES: dict[str, list[list[int]]] = {
    "vector": [[4], [6], [8]],
    "sequence": [[4, 3], [5, 4], [6, 4]],
    "image": [[5, 5, 2], [6, 6, 3], [4, 5, 3]],
    "volume": [[4, 4, 3, 2]],
    "integers": [[4], [5]],
}


def draw(r: random.Random) -> Program:
    """A random model with its training."""
    made = _execution(r)
    sample = r.choice(["vector", "vector", "sequence", "sequence", "image", "image", "volume", "integers"])
    made["whole"] = sample == "integers"
    many = 2 if made["style"] != "sequential" and sample == "vector" and r.random() < 0.2 else 1
    made["inputs"] = [r.choice(_SHAPES[sample]) for _ in range(many)]
    graph = _Graph(r, made, made["inputs"])
    if made["whole"]:
        graph.embed()
    if many == 2:
        first, second = (graph.add(["Dense", {"units": 5}], [i], [5]) for i in range(2))
        graph.add(["Add", {}], [first, second], [5])
    for _ in range(r.choice([1, 2, 2, 3, 3, 4, 5])):
        graph.grow()
    _heads(r, made, graph)
    made["nodes"] = _staged(r, graph.nodes, made["stages"])
    made["stages"] = max(stage for _, _, stage in made["nodes"]) + 1
    made["accumulation"] += -made["accumulation"] % PERIODS.get(made["schedule"], lambda stages: 1)(made["stages"])
    if made["mapping"] is not None:
        made["mapping"] = list(reversed(range(made["stages"])))
    name, options, _ = made["optimizer"]
    if name in ("Adafactor", "addons.LAMBIpuOptimizer") or "clipnorm" in options or "global_clipnorm" in options:
        # Means and norms are of a whole variable, which a replica then does not have.
        made["options"].pop("replicated_optimizer_state_sharding", None)
    if made["own_step"] and made["wrapper"].startswith("Map"):  # the CPU's own step would have to map gradients itself
        made["wrapper"] = ""
    return Program(**{name: value for name, value in made.items() if name != "trains"})


def _heads(r: random.Random, made: dict[str, Any], graph: _Graph) -> None:
    made |= {"outputs": [], "targets": [], "losses": [], "metrics": []}
    body = graph.last
    half = made["policy"] != "float32"
    for _ in range(2 if made["style"] == "functional" and r.random() < 0.15 else 1):
        graph.last = body
        loss = r.choice([name for name in training.LOSSES if not (half and "Percentage" in name)])
        kind, options, others = training.LOSSES[loss]
        option = r.choice(options)
        name, option = (loss, option) if r.random() < 0.6 else (r.choice(others.split()), {})
        number = graph.finish(kind, "from_logits" in option)
        shape = graph.shapes[number]
        made["outputs"].append(number)
        made["targets"].append([kind, shape[:-1] if kind == "class" else shape, shape[-1]])
        made["losses"].append([name, option])
        few = (
            []
            if half or (len(shape) > 1 and kind == "one hot")
            else r.sample(training.METRICS[kind], r.choice([0, 1, 2]))
        )
        few = [m for m in few if not (m == "R2Score" and len(shape) > 1)]
        made["metrics"].append(list({_logged(m): m for m in few}.values()))
    targets = made["targets"]
    weights = ["", "", "", "sample"]
    if len(targets) == 1 and targets[0][0] in ("class", "one hot") and len(targets[0][1]) == (targets[0][0] != "class"):
        weights.append("class")
    made["weights"] = "" if made["own_step"] else r.choice(weights)


def _logged(metric: str) -> str:
    """A name that is the same for metrics whose logs would have one name."""
    name = metric.replace("_", "").lower()
    return "kl" if name.startswith(("kl", "kullback")) else name.removesuffix("error")


#: Micro-batches that a schedule takes at once, by the number of stages.
PERIODS = {"Grouped": lambda stages: 2 * stages, "Interleaved": lambda stages: stages}


def _execution(r: random.Random) -> dict[str, Any]:
    """How a model is made, trained and placed."""
    stages, replicas = r.choice([1, 1, 1, 2, 2, 3]), r.choice([1, 1, 1, 2])
    style = r.choice(["sequential", "functional", "functional", "subclass"])
    schedule = r.choice(["Grouped", "Interleaved", "Sequential"])
    count = r.choice([1, 1, 2, 3])
    if stages > 1:
        count = {"Grouped": 2 * stages, "Interleaved": stages * r.choice([1, 2]), "Sequential": r.choice([2, 3])}[
            schedule
        ]
    policy = r.choice(["float32"] * 6 + ["mixed_float16"])
    alone = stages == 1 and count == 1 and replicas == 1
    own_step = style == "subclass" and alone and policy == "float32" and r.random() < 0.4
    name = r.choice([n for n in training.OPTIMIZERS if _allowed(n, alone, policy)])
    updates, executions, epochs = r.choice([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 2), (1, 3, 1)])
    phases = _phases(r, stages == 1 and replicas == 1 and count == 1, name)
    return {
        "seed": r.randrange(1 << 20),
        "style": style,
        "optimizer": _optimizer(r, name, policy, "new rate" in phases, stages > 1),
        "wrapper": _wrapper(r, name, policy, stages > 1 and replicas > 1),
        "policy": policy,
        "own_step": own_step,
        "batch": r.choice([2, 3, 4]),
        "accumulation": count,
        "reduction": r.choice(["sum", "mean", "running_mean"]),
        "updates": updates,
        "executions": executions,
        "epochs": epochs,
        "replicas": replicas,
        "equal": replicas > 1 and r.random() < 0.5,
        "stages": stages,
        "mapping": r.choice([None, None, list(reversed(range(stages)))]) if stages > 1 else None,
        "schedule": schedule if stages > 1 else "",
        "options": _pipeline_options(r, replicas) if stages > 1 else {},
        "recompute": stages > 1 and r.random() < 0.3,
        "data": r.choice(["arrays", "tensors", "dataset", "repeated"]),
        "phases": phases,
        "trains": any(phase in ("fit", "train_on_batch") for phase in phases),
    }


def _allowed(name: str, alone: bool, policy: str) -> bool:
    """Version 1's optimizers are drawn where nothing is accumulated; float16 with Keras' own."""
    if name.startswith("v1."):
        return alone and policy == "float32"
    return policy == "float32" or (not name.startswith("addons.") and name not in ("Lion", "Adafactor"))


def _phases(r: random.Random, alone: bool, optimizer: str) -> list[str]:
    phases = [r.choice(["evaluate", "predict"])] if r.random() < 0.15 else ["fit"]
    more = ["evaluate", "predict", *(["test_on_batch", "predict_on_batch"] if alone else [])]
    phases += r.sample(more, r.choice([0, 1, 1]))
    if phases[0] == "fit" and r.random() < 0.25:
        again = ["fit"]
        if not optimizer.startswith("v1.") and r.random() < 0.5:
            again = ["new rate", "fit"]
        phases += ["train_on_batch"] if alone and r.random() < 0.5 else again
    return phases


def _optimizer(r: random.Random, name: str, policy: str, number: bool, pipelined: bool) -> list[Any]:
    options = dict(r.choice(training.OPTIMIZERS[name]))
    if pipelined and "use_ema" in options:  # a mean of a variable is refused there
        options = {}
    if policy != "float32" and "Adagrad" not in name and "SGD" not in name and "Ftrl" not in name:
        options |= training.LARGE
    library = name.rpartition(".")[0]
    if library in ("", "legacy") and r.random() < 0.2:
        options |= r.choice(training.CLIPS)
    first = r.choice([0.01, 0.03])
    constant = number or library == "v1" or "decay" in options or name == "legacy.Nadam"
    if not constant and r.random() < 0.25:
        schedule = r.choice(list(training.SCHEDULES))
        return [name, options, [schedule, r.choice(training.SCHEDULES[schedule]), first]]
    return [name, options, first]


def _wrapper(r: random.Random, name: str, policy: str, pipelined_replicas: bool) -> str:
    if policy != "float32":
        return "LossScaleOptimizer"
    if name.startswith(("v1.", "addons.")) or r.random() < 0.8:
        return ""
    wrapper = r.choice(training.WRAPPERS)
    # In a pipeline, gradients that are changed before replicas add them up are refused.
    return "" if pipelined_replicas and wrapper.startswith("Map") else wrapper


def _pipeline_options(r: random.Random, replicas: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, chance in (
        ("accumulate_outfeed", 0.2),
        ("offload_weight_update_variables", 0.3),
        ("offload_activations", 0.2),
        ("offload_gradient_accumulation_buffers", 0.2),
        ("replicated_optimizer_state_sharding", 0.5 if replicas > 1 else 0),
    ):
        if r.random() < chance:
            options[name] = True
    return options


def _staged(r: random.Random, nodes: list[list[Any]], stages: int) -> list[list[Any]]:
    """The nodes with their stages, which follow the order of the nodes."""
    stages = min(stages, len(nodes))
    cuts = sorted(r.sample(range(1, len(nodes)), stages - 1))
    return [[layer, operands, sum(i >= cut for cut in cuts)] for i, (layer, operands, _) in enumerate(nodes)]


# -- making ------------------------------------------------------------------------------------------------------------


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


# -- both sides --------------------------------------------------------------------------------------------------------


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of histories, metrics, predictions, weights and the state of the optimizer."""
    from . import keras_oracle

    keras.mixed_precision.set_global_policy(program.policy)
    keras.utils.set_random_seed(program.seed)
    try:
        with quiet(), isolated(), use_settings(RunSettings()) as settings:
            weights, want = keras_oracle.run(program)
            got = _on_ipus(program, weights)
            outcome = keras_oracle.judged(program, weights, got, want)
            if trace and settings.executables:
                outcome.problems += trace_problems(settings.executables[-1])
        return outcome
    finally:
        keras.mixed_precision.set_global_policy("float32")
        keras.backend.clear_session()
        _collected()


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program with what the failure does not need left out."""
    plain: dict[str, Any] = {"phases": ["fit"], "options": {}, "mapping": None, "recompute": False, "wrapper": ""}
    plain |= {"weights": "", "metrics": [[] for _ in program.metrics], "data": "arrays", "epochs": 1, "executions": 1}
    plain |= {"updates": 1, "equal": True, "replicas": 1, "optimizer": ["SGD", {}, 0.01]}
    for name, value in plain.items():
        if getattr(program, name) != value and fails(smaller := replace(program, **{name: value})):
            program = smaller
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Without TensorFlow's advice."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


_CHECKED = itertools.count(1)


def _collected() -> None:
    """Free memory now and then: TensorFlow's objects are many, and looking at all takes half a second."""
    if next(_CHECKED) % 16 == 0:
        gc.collect()


def _on_ipus(program: Program, weights: list[np.ndarray]) -> Values:
    config = ipu.config.IPUConfig()
    ipus = 1 << (program.stages - 1).bit_length()
    config.auto_select_ipus = ipus * program.replicas
    config.allow_recompute = program.recompute
    config.optimizations.minimum_remote_tensor_size = 4
    config.configure_ipu_system()
    given, values = data(program), {}
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = build(program, on_ipu=True)
        model.set_weights(weights)
        optimizer = compiled(program, model, on_ipu=True)
        for number, phase in enumerate(program.phases):
            for name, value in _phase(program, model, phase, given).items():
                values[f"{number} {phase}, {name}"] = np.asarray(value)
        return values | state(program, model, optimizer)


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


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _phase(program: Program, model: Any, phase: str, given: Data) -> dict[str, Any]:
    if phase == "new rate":
        model.optimizer.learning_rate = 0.005
        return {}
    if phase.endswith("on_batch"):
        return _single(program, model, phase, given)
    options = {"verbose": 0}
    x, y = _one(given.x), _one(given.y)
    if program.data == "tensors":
        x, y = tf.nest.map_structure(tf.constant, (x, y))
    if phase == "predict":
        found = model.predict(list(x) if isinstance(x, tuple) else x, batch_size=program.batch, **options)
        return {str(i): value for i, value in enumerate(found if isinstance(found, list) else [found])}
    if phase == "fit":
        options |= {"epochs": program.epochs, "class_weight": given.classes}
    run = model.fit if phase == "fit" else model.evaluate
    if program.data in ("tensors", "arrays"):
        options |= {"batch_size": program.batch, "sample_weight": given.weights}
        options |= {"shuffle": False} if phase == "fit" else {"return_dict": True}
        x, y = (list(values) if isinstance(values, tuple) else values for values in (x, y))
        found = run(x, y, **options)
    else:
        parts = (x, y) if given.weights is None else (x, y, given.weights)
        made = tf.data.Dataset.from_tensor_slices(parts).batch(program.batch, drop_remainder=True)
        if program.data == "repeated":
            made = made.repeat()
            options["steps_per_epoch" if phase == "fit" else "steps"] = program.steps * program.replicas
        options |= {} if phase == "fit" else {"return_dict": True}
        found = run(made, **options)
    return found.history if phase == "fit" else found


def _single(program: Program, model: Any, phase: str, given: Data) -> dict[str, Any]:
    x, y = (_one([value[: program.batch] for value in values]) for values in (given.x, given.y))
    x, y = (list(values) if isinstance(values, tuple) else values for values in (x, y))
    if phase == "predict_on_batch":
        found = model.predict_on_batch(x)
        return {str(i): value for i, value in enumerate(found if isinstance(found, list) else [found])}
    weights = None if given.weights is None else given.weights[: program.batch]
    options = {"class_weight": given.classes} if phase == "train_on_batch" else {}
    return getattr(model, phase)(x, y, sample_weight=weights, return_dict=True, **options)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def drawn_names() -> set[str]:
    """Public names that these tables hold, as a user writes them."""
    places = {"ipu": "tensorflow.python.ipu.keras.layers", "": "keras.layers"}
    found = set()
    for name in (*layers.KINDS, *layers.MERGES, *layers.FUNCTIONAL_MERGES, "Embedding", "ipu.Embedding"):
        library, _, own = name.rpartition(".")
        found |= {f"{places[library]}.{own}"} if library in places else set()
    found |= {f"keras.layers.{name}" for name in ("LSTMCell", "GRUCell", "SimpleRNNCell", "StackedRNNCells", "Layer")}
    libraries = {"": "keras.optimizers", "legacy": "keras.optimizers.legacy", "v1": "tensorflow.compat.v1.train"}
    libraries["addons"] = "ipu_tensorflow_addons.keras.optimizers"
    for name in training.OPTIMIZERS:
        library, _, own = name.rpartition(".")
        found.add(f"{libraries[library]}.{own}")
    found |= {f"keras.optimizers.schedules.{name}" for name in training.SCHEDULES}
    found |= {f"tensorflow.python.ipu.keras.optimizers.{name}" for name in training.WRAPPERS[:3]}
    found |= {f"keras.losses.{name}" for name in training.LOSSES}
    found |= {f"keras.metrics.{n}" for names in training.METRICS.values() for n in names if hasattr(keras.metrics, n)}
    found |= {f"keras.activations.{name}" for name in layers.ACTIVATIONS}
    return found | {"keras.Sequential", "keras.Model", "keras.Input", "keras.mixed_precision.LossScaleOptimizer"}

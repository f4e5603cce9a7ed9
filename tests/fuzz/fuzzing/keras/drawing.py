"""How random Keras programs are drawn, and which public names they can hold."""

import random
from typing import Any

import numpy as np
from tensorflow import keras

from . import layers, training
from .program import VOCABULARY, Program


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
        # Softmax masks elements, not steps; Keras' own group norm cannot spread a mask; upstream's recurrent layers
        # take none.
        if self.masked and (name.startswith("ipu.") or name in ("Softmax", "GroupNormalization")):
            return False
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
    constrained = any("constraint" in argument for (_, arguments), *_ in made["nodes"] for argument in arguments)
    whole = name in ("Adafactor", "addons.LAMBIpuOptimizer") or "clipnorm" in options or "global_clipnorm" in options
    if whole or constrained:
        # Means and norms are of a whole variable, which a replica then does not have.
        made["options"].pop("replicated_optimizer_state_sharding", None)
    if name.startswith("addons."):  # the CPU's own step would have to apply gradients by hand
        made["own_step"] = False
    if made["stages"] > 1 and made["wrapper"].startswith("Map") and "global_clipnorm" in options:
        made["wrapper"] = ""  # refused: the norm of all mapped gradients depends on variables
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

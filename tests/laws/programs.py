"""Whole programs for the laws of time: small ones of every front end, each a function that gives its executable.

``PAIRS`` are programs that have to take the same cycles, ``GROWING`` families that grow by the same cycles with each
further trip or micro-batch.
"""

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from fuzzing.families import family

from ipuperf import popxl
from ipuperf.pipelines import build_pipeline
from ipuperf.popxl import ops
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.schedules import timetable_of

Build = Callable[[], Executable]
FLOAT, HALF, INT = popxl.float32, popxl.float16, popxl.int32
RANDOM = np.random.default_rng(0)
C = ops.collectives


@contextmanager
def executables() -> Iterator[list[Executable]]:
    """Every executable that is made inside, whoever makes it."""
    made: list[Executable] = []
    start = Executable.__init__

    def begin(self: Executable, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        made.append(self)

    with mock.patch.object(Executable, "__init__", begin):
        yield made


# -- PopXL -------------------------------------------------------------------------------------------------------------


def main(body: Callable[[], Any], replicas: int = 1, *, in_sequence: bool = True) -> Executable:
    """What ``body`` writes into a main graph."""
    ir = popxl.Ir(replicas)
    with ir.main_graph, popxl.in_sequence(in_sequence):
        body()
    return popxl.Session(ir, "ipu_hw").executable


def loaded(shape: Sequence[int], dtype: Any = FLOAT) -> Any:
    return ops.host_load(popxl.h2d_stream(shape, dtype, "in"))


def stored(x: Any) -> None:
    ops.host_store(popxl.d2h_stream(x.shape, x.dtype, "out"), x)


def weights(*shape: int, dtype: Any = FLOAT, name: str = "w") -> Any:
    return popxl.variable(RANDOM.standard_normal(shape).astype(dtype.as_numpy()), name=name)


def of(function: Callable[[Any], Any], *shape: int, dtype: Any = FLOAT, replicas: int = 1) -> Build:
    """A program that loads a tensor, changes and stores it."""
    return lambda: main(lambda: stored(function(loaded(shape, dtype))), replicas)


def repeated(x: Any, trips: int = 50) -> Any:
    w = weights(96, 96)
    (found,) = ops.repeat(popxl.gir().create_graph(lambda x, w: ops.gelu(x @ w), x, w), trips, x, w)
    return found


def kept_remotely(x: Any) -> Any:
    buffer = popxl.remote_buffer(x.shape, x.dtype, 4)
    ops.remote_store(buffer, 0, x)
    return ops.gelu(ops.remote_load(buffer, 0))


def convolved(x: Any) -> Any:
    return ops.conv(x, weights(16, 8, 3, 3, dtype=HALF), padding=(1, 1, 1, 1))


def normalised(x: Any) -> Any:
    return ops.softmax(ops.layer_norm(x, weights(256), weights(256)), -1)


POPXL: Mapping[str, Build] = {
    "product": of(lambda x: x @ weights(64, 64), 64, 64),
    "large product": of(lambda x: x @ weights(512, 512), 512, 512),
    "tall product": of(lambda x: x @ weights(128, 2000, dtype=HALF), 1000, 128, dtype=HALF),
    "odd product": of(lambda x: x @ weights(77, 331), 53, 77),
    "convolution": of(convolved, 2, 8, 32, 32, dtype=HALF),
    "norm": of(normalised, 128, 256),
    "lookup": of(lambda x: ops.gather(weights(1000, 64), x), 200, dtype=INT),
    "reductions": of(lambda x: ops.sum(x, axis=0) + ops.max(x, axis=0), 300, 517),
    "transposition": of(lambda x: ops.transpose(x) + 1.0, 300, 517),
    "all-reduce": of(lambda x: C.replicated_all_reduce(x, op="add"), 1000, 333, replicas=4),
    "reduce-scatter": of(lambda x: C.replicated_reduce_scatter(x, op="add"), 1000, 333, replicas=4),
    "small all-reduce": of(lambda x: C.replicated_all_reduce(x, op="add") + x, 1000, replicas=2),
    "loop": of(repeated, 64, 96),
    "remote buffer": of(kept_remotely, 1000, 64),
    "remainders": of(lambda x: ops.fmod(x, popxl.constant(7, INT)), 1000, dtype=INT),
}


# -- models and random programs ----------------------------------------------------------------------------------------


def perceptron(machine: str, **changes: Any) -> Executable:
    """Training with popxl.addons."""
    model = importlib.import_module("ipuperf.models.mnist_mlp")
    with use_settings(RunSettings(machine=machine)):
        options = {"micro_batch_size": 4, "gradient_accumulation": 3, "hidden": (64, 48), **changes}
        return model.training_session(model.TrainingOptions(**options)).session.executable


def encoder(schedule: str, stages: int, micro_batches: int = 0, **changes: Any) -> Executable:
    """A pipeline of stage graphs."""
    model = importlib.import_module("ipuperf.models.encoder")
    sizes = {"hidden": 64, "heads": 2, "sequence": 16, "feed_forward": 128, "host_inputs": False, **changes}
    made = model.encoder(model.EncoderOptions(stages, stages, **sizes), seed=None)
    copies = "when needed" if schedule == "sharded" else "every step"
    table = timetable_of(schedule, stages, micro_batches or 2 * stages)
    build_pipeline(made.ir, made.parts, table, outputs=made.outputs, training=made.training, copies=copies)
    return Executable(made.ir, "pod16" if changes.get("replicas", 1) > 1 else "pod4", name=schedule)


def drawn(kind: str, seed: int) -> Executable:
    """A random program of the fuzz."""
    module = family(kind)
    with executables() as made:
        if kind == "popxl":
            return module.Device(module.draw(random.Random(seed))).session.executable
        module.check(module.draw(random.Random(seed)))
    return made[-1]


MODELS: Mapping[str, Build] = {
    "perceptron": partial(perceptron, "pod4", replicas=1, threshold=None),
    "replicated perceptron": partial(perceptron, "pod4", replicas=4, threshold=None),
    "offloaded perceptron": partial(perceptron, "pod4", replicas=4, threshold=float("inf")),
    "sharded perceptron": partial(perceptron, "pod16", replicas=16, threshold=512),
    "grouped pipeline": partial(encoder, "grouped", 4),
    "interleaved pipeline": partial(encoder, "interleaved", 4),
    "sequential pipeline": partial(encoder, "sequential", 4),
    "sharded pipeline": partial(encoder, "sharded", 4),
    "short pipeline": partial(encoder, "grouped", 2),
    "replicated pipeline": partial(encoder, "popart_pipeline", 3, replicas=2, host_inputs=True),
}
FUZZ = {f"{kind} {seed}": partial(drawn, kind, seed)
        for kind, seeds in {"popxl": (3, 11, 20, 40, 41, 57, 63, 88, 90, 101), "torch": (1, 2, 3),
                            "tensorflow": (1, 2, 3)}.items() for seed in seeds}  # fmt: skip
PROGRAMS: Mapping[str, Build] = {**POPXL, **MODELS, **FUZZ}
QUICK = {*POPXL, "offloaded perceptron", "short pipeline", "popxl 3", "popxl 57"}
"""Programs of the normal run; the others are ``slow``."""


# -- programs that take the same, or grow evenly -----------------------------------------------------------------------


def branches(*, swapped: bool = False, in_sequence: bool = True) -> Build:
    """Two branches that do not depend on each other, written in either order."""

    def body() -> None:
        x, w, v = loaded((64, 96)), weights(96, 128, name="w"), weights(96, 128, name="v")
        both = [lambda: ops.gelu(x @ w), lambda: ops.softmax(x @ v, -1)]
        found = [branch() for branch in both[:: -1 if swapped else 1]]
        stored(found[0] + found[1])

    return lambda: main(body, in_sequence=in_sequence)


def ladder(ipus: Sequence[int], replicas: int = 1) -> Build:
    """A product on each of some IPUs, one after the other."""

    def body() -> None:
        with popxl.ipu(ipus[0]):
            x = loaded((64, 96))
        for before, ipu in zip((None, *ipus), ipus, strict=False):
            x = x if before is None else ops.ipu_copy(x, ipu)
            with popxl.ipu(ipu):
                x = ops.gelu(x @ weights(96, 96))
        with popxl.ipu(ipus[-1]):
            stored(x)

    return lambda: main(body, replicas)


def reduced(replicas: int, how: str) -> Build:
    """A sum over all replicas: as such, over one group of all, and in two steps."""

    def add(x: Any) -> Any:
        if how == "steps":
            shard = C.replicated_reduce_scatter(x, op="add", configure_output_for_replicated_tensor_sharding=True)
            return C.replicated_all_gather(shard).reshape_((1000, 33))
        grouping = {"group": popxl.gir().replica_grouping(1, replicas)} if how == "group" else {}
        return C.replicated_all_reduce(x, op="add", **grouping)

    return of(add, 1000, 33, replicas=replicas)


PAIRS: Mapping[str, tuple[Build, Build]] = {
    "order of branches": (branches(), branches(swapped=True)),
    "order of branches, free": (branches(in_sequence=False), branches(swapped=True, in_sequence=False)),
    "order left free": (branches(), branches(in_sequence=False)),
    "two stages": (ladder((0, 1)), ladder((1, 0))),
    **{
        f"stages {order}, {replicas} replicas": (ladder((0, 1, 2, 3), replicas), ladder(order, replicas))
        for replicas in (1, 2)
        for order in ((1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
    },
    **{
        f"all-reduce over {replicas}, {how}": (reduced(replicas, "whole"), reduced(replicas, how))
        for replicas in (2, 4, 8, 16)
        for how in ("group", "steps")
    },
}
GROWING: Mapping[str, tuple[Callable[[int], Executable], Sequence[int]]] = {
    "trips": (lambda n: of(partial(repeated, trips=n), 64, 96)(), (2, 3, 4, 10, 1000)),
    "accumulation": (
        lambda n: perceptron("pod4", replicas=4, threshold=512, gradient_accumulation=n),
        (2, 3, 4, 8, 16),
    ),
    "micro-batches": (partial(encoder, "grouped", 2), (4, 8, 12, 16)),
}

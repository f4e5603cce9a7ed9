"""Random Keras models on the IPU, against Keras on the CPU with gradient accumulation and replicas written out.

Histories, metrics, predictions, weights and the optimizer's state are compared. The CPU runs op by op
(:mod:`.oracle`). Where values differ, it trains again from weights moved by a unit in the last place: a program
whose results then move as far is ill-conditioned, which is counted and no failure.
"""

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow import keras

from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.tensorflow.facade.strategies import attach_keras
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.state import isolated

from ..invariants import trace_problems
from ..outcome import Outcome
from . import oracle
from .drawing import draw, drawn_names
from .models import Data, Values, build, compiled, data, state
from .program import Program

__all__ = ["Program", "check", "draw", "drawn_names", "shrink"]

attach_keras()
gc.freeze()  # what is imported stays


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of histories, metrics, predictions, weights and the state of the optimizer."""
    keras.mixed_precision.set_global_policy(program.policy)
    keras.utils.set_random_seed(program.seed)
    try:
        with quiet(), isolated(), use_settings(RunSettings()) as settings:
            weights, want = oracle.run(program)
            got = _on_ipus(program, weights)
            outcome = oracle.judged(program, weights, got, want)
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

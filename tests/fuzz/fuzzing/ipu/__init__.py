"""One function of ``tensorflow.python.ipu`` at a time, in a loop that is fed and read by queues, on one replica or two;
TensorFlow on the CPU says what it gives, and what its gradient is.
"""

import contextlib
import io
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.state import isolated

from ..invariants import trace_problems
from ..names import used_by
from ..outcome import Outcome
from ..stored import Stored
from .cases import CASES, REPLICAS, Case

tf1 = tf.compat.v1
TOLERANCE = 3e-5
OPTIONS: dict[str, list[Any]] = {
    "allow_recompute": [True],
    "selection_order": ["ZIGZAG", "SNAKE", "HOOF"],
    "select_ipus": [0, 2],
    "convolutions.poplar_options": [{"availableMemoryProportion": "0.3"}, {"partialsType": "float"}],
    "matmuls.poplar_options": [{"availableMemoryProportion": "0.2"}, {"partialsType": "float"}],
    "io_tiles.num_io_tiles": [32],
    "norms.use_stable_statistics": [True],
    "norms.experimental.distributed_batch_norm_replica_group_size": [1],
    # True ends a run whose values overflow, as random ones may.
    "floating_point_behaviour.inv": [False],
    "floating_point_behaviour.div0": [False],
    "floating_point_behaviour.oflo": [False],
    "floating_point_behaviour.set_all": [False],
    "optimizations.enable_graph_outlining": [False],
    "optimizations.maximum_cross_replica_sum_buffer_size": [64],
    "optimizations.maximum_reduce_scatter_buffer_size": [64],
    "optimizations.maximum_all_gather_buffer_size": [64],
    "optimizations.minimum_remote_tensor_size": [4],
    "optimizations.triangular_solve_expander_block_size": [2],
    "optimizations.cholesky_block_size": [2],
}
"""Options that change time and memory, never a value."""


@dataclass
class Program(Stored):
    """A call of the function ``name``, ``steps`` times on each of ``replicas``; ``options`` of the configuration."""

    seed: int
    name: str
    operands: list[list[Any]]
    arguments: dict[str, Any]
    steps: int = 1
    replicas: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def size(self) -> int:
        """Number of functions."""
        return 1


def drawn_names() -> set[str]:
    """The functions of the table, and those that every program calls."""
    options = {f"tensorflow.python.ipu.config.IPUConfig.{name}" for name in (*OPTIONS, "auto_select_ipus")}
    split = [name.rpartition(".") for name in CASES]
    functions = {
        f"{attrgetter(module)(ipu).__name__}.{name}".removeprefix("ipuperf.frontends.") for module, _, name in split
    }
    functions |= {name.replace("tensorflow.keras", "tensorflow.python.ipu.keras") for name in functions}
    return {*options, *functions, *used_by(sys.modules[__name__])}


def draw(r: random.Random) -> Program:
    """A random call."""
    name = r.choice(list(CASES))
    case = CASES[name]
    operands, arguments = case.draw(r)
    steps = 2 * arguments["count"] if case.steps else r.randint(1, 3)
    replicas = REPLICAS if case.across else 1 if case.alone else r.choice([1, 1, REPLICAS])
    program = Program(r.randrange(1 << 20), name, operands, arguments, steps, replicas)
    for option in r.sample(list(OPTIONS), r.choice([0, 0, 1, 2])):
        if option != "select_ipus" or replicas * case.shards == 1:  # it names one device
            program.options[option] = r.choice(OPTIONS[option])
    return program


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of values and gradients."""
    case, rng = CASES[program.name], np.random.default_rng(program.seed)
    data = [_data(program, operand, rng) for operand in program.operands]
    got, executable = _by_ipuperf(program, case, data)
    outcome = Outcome()
    for number, (found, want) in enumerate(zip(got, _expected(program, case, data, got), strict=True)):
        want = np.asarray(want)
        outcome.compared += want.size
        if found.shape != want.shape:
            outcome.problems.append(f"{program.name}, result {number}: shape {found.shape}, expected {want.shape}")
        elif not np.allclose(found, want, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(want).max(initial=0)))):
            seen = f"got {found.reshape(-1)[:4]}, expected {want.reshape(-1)[:4]}"
            outcome.problems.append(f"{program.name}, result {number}: {seen}")
    if trace:
        outcome.problems += trace_problems(executable)
    return outcome


def _data(program: Program, operand: list[Any], rng: np.random.Generator) -> np.ndarray:
    """An operand for all steps and replicas: ``[step, replica, ...]``."""
    lead = [program.steps, program.replicas]
    if operand[0] == "normal":
        return rng.normal(size=[*lead, *operand[1]]).astype(np.float32)
    fixed = np.asarray(operand[2], operand[1])
    return np.broadcast_to(fixed, [*lead, *fixed.shape])


def _loss(values: list[Any]) -> Any:
    """What gradients are taken of."""
    weighted = [
        v * np.cos(np.arange(np.prod(v.shape, dtype=int))).reshape(v.shape).astype(v.dtype.name) for v in values
    ]
    return tf.add_n([tf.reduce_sum(v) for v in weighted])


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _configure(config: Any, program: Program, case: Case) -> None:
    if "select_ipus" not in program.options:
        config.auto_select_ipus = program.replicas * case.shards
    for option, value in program.options.items():
        group, _, name = option.rpartition(".")
        value = ipu.config.SelectionOrder[value] if name == "selection_order" else value
        setattr(attrgetter(group)(config) if group else config, name, value)


# -- both sides --------------------------------------------------------------------------------------------------------


def _by_ipuperf(program: Program, case: Case, data: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
    """Results ``[step, replica, ...]``, gradients after the values; the executable."""
    function = attrgetter(program.name)(ipu)

    def body(*tensors: Any) -> Any:
        values = _listed(case.build(function, *tensors, **program.arguments))
        leaves = [t for t in tensors if t.dtype.is_floating] if case.gradient else []
        gradients = tf1.gradients(_loss(values), leaves, unconnected_gradients="zero") if leaves else []
        return results.enqueue([*values, *gradients])

    with isolated(), use_settings(RunSettings()) as settings, tf.Graph().as_default(), tf1.Session() as session:
        config = ipu.config.IPUConfig()
        _configure(config, program, case)
        config.configure_ipu_system()
        flat = tuple(array.reshape(-1, *array.shape[2:]) for array in data)
        feed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(flat))
        results = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(program.steps, body, [], feed))
        session.run([tf1.global_variables_initializer(), feed.initializer])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            session.run(run)  # what print_tensor prints
        found = [np.asarray(value) for value in session.run(results.dequeue())]
    lead = 1 if program.replicas == 1 else 2
    shaped = [value.reshape(program.steps, program.replicas, *value.shape[lead:]) for value in found]
    return shaped, settings.executables[-1]


def _expected(program: Program, case: Case, data: list[np.ndarray], got: list[np.ndarray]) -> list[Any]:
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in data]
    if case.steps:
        return _listed(case.oracle(*wide, **program.arguments))
    rows = []
    for step in range(program.steps):
        if case.across:
            rows += [[value] for value in case.oracle(*(list(array[step]) for array in wide), **program.arguments)]
            continue
        for replica in range(program.replicas):
            seen = [[value[step, replica] for value in got]] if case.random else []
            rows.append(_one(case, seen, [array[step, replica] for array in wide], program.arguments))
    lead = (program.steps, program.replicas)
    return [np.stack(column).reshape(*lead, *column[0].shape) for column in _columns(rows)]


def _columns(rows: list[list[Any]]) -> list[list[np.ndarray]]:
    return [[np.asarray(value) for value in column] for column in zip(*rows, strict=True)]


def _one(case: Case, seen: list[Any], arrays: list[np.ndarray], arguments: dict[str, Any]) -> list[Any]:
    """Values of one call, and gradients."""
    tensors = [tf.constant(array) for array in arrays]
    leaves = [t for t in tensors if t.dtype.is_floating] if case.gradient else []
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        values = _listed(case.oracle(*seen, *tensors, **arguments))
        loss = _loss(values) if leaves else None
    gradients = tape.gradient(loss, leaves, unconnected_gradients="zero") if leaves else []
    return [*values, *(tf.convert_to_tensor(g) for g in gradients)]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Without options, with one step and on one replica, where the failure stays."""
    case = CASES[program.name]
    simple: dict[str, Any] = {"options": {}, **({} if case.across or case.steps else {"steps": 1, "replicas": 1})}
    for name, value in simple.items():
        if fails(smaller := Program(**{**vars(program), name: value})):
            program = smaller
    return program

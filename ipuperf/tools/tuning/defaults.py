"""The factors of a model that a tuning varies by default."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.base.requirements import pip_install
from ipuperf.machine import Machine, load_machine
from ipuperf.pipelines.schedules import SCHEDULES
from ipuperf.tools.errors import CaseError, TuningError
from ipuperf.tools.sweep import Sweep, read_sweep, script_sweep
from ipuperf.tools.sweep.spec import MACHINE
from ipuperf.tools.validation.cases import Case, read_cases, select
from ipuperf.tools.validation.programs import front_ends, model_names, problem

from .space import ACCUMULATION, MICRO_BATCH, REPLICAS, TuningSpace, accumulations
from .splits import splits

_LARGEST_MICRO_BATCH = 64
_SHARDED = 8_192
"""The number of elements from which a tensor is sharded (PopTorch's ``minElementsForReplicatedTensorSharding``)."""
_PROPORTIONS = ((0.1,), (0.15,), (0.15, 0.25), (0.25,), (0.4,), (0.6,))
_FIXED: Mapping[str, Any] = {"precision": "f16.16", "optimiser": "adamw", "io": "streams"}
_OF_CASE = ("precision", "optimiser", "recompute", "offload", "sharding", "io", "io_tiles", "prefetch", "micro_batch",
            "accumulation", "replicas", "pipeline")  # fmt: skip
_UNSAID: Mapping[str, Any] = {
    "pipeline": (), MICRO_BATCH: 1, REPLICAS: 1, "recompute": "none", "offload": (), "sharding": 0,
    "config.memory_proportions": (),
}  # fmt: skip
"""The factors that are varied around a case, with their values in cases that do not name them."""
_VARIED = (*_UNSAID,)


def factors_of(
    model: str, machine: Machine, global_batch: int, chosen: Mapping[str, tuple[Any, ...]]
) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Factors and constraints of a model: the given ones, and default values for the others.

    Models for PyTorch (those with a function ``placed_layers``) are split over powers of two of IPUs, and so is the
    encoder, by ``config.stages``. In other models only the given factors are varied.

    Raises:
        TuningError: an unknown model, or one whose layers are not known.
    """
    # Options of the configuration say how many layers the model has.
    config = {name.removeprefix("config."): values[0] for name, values in chosen.items() if name.startswith("config.")}
    module = _module(model)
    if hasattr(module, "placed_layers"):
        try:
            layers = module.placed_layers(config)
        except CaseError as error:
            raise TuningError(f"model {model!r}: {error}; say it with --set config.preset=NAME") from None
        defaults = _of_pipelines(layers, machine, global_batch)
        constraints: tuple[str, ...] = (f"replicas * len(pipeline) <= {machine.num_ipus}",)
    elif model == "encoder":
        defaults = _of_encoder(config.get("layers", 24), machine, global_batch)
        constraints = (f"replicas * config.stages <= {machine.num_ipus}",)
    else:
        defaults, constraints = {}, ()
    factors = {**defaults, **chosen}
    if len(factors.get("sharding", ())) > 1:
        constraints += ("sharding == 0 or replicas > 1",)
    return factors, constraints


def _module(model: str) -> Any:
    try:
        if not model.isidentifier():
            raise ModuleNotFoundError(name=f"ipuperf.models.{model}")
        with front_ends():
            return importlib.import_module(f"ipuperf.models.{model}")
    except ModuleNotFoundError as error:
        if error.name == f"ipuperf.models.{model}":
            raise TuningError(f"unknown model {model!r}{instead_of(model, model_names())}") from None
        extra = {"torch": "torch", "torch_geometric": "geometric"}.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        raise TuningError(f"model {model!r} needs {error.name}: {pip_install(extra)}") from None


def _of_pipelines(layers: int, machine: Machine, global_batch: int) -> dict[str, tuple[Any, ...]]:
    return {
        **{name: (value,) for name, value in _FIXED.items()},
        "pipeline": splits(layers, machine.num_ipus),
        **_batches(machine, global_batch),
        "recompute": ("checkpoints", "none"),
        "offload": (("optimiser",), ()),
        "sharding": (0, _SHARDED),
        "config.memory_proportions": _PROPORTIONS,
    }


def _of_encoder(layers: int, machine: Machine, global_batch: int) -> dict[str, tuple[Any, ...]]:
    # Powers of two from 2 on, as one stage is no pipeline.
    stages = [1 << bit for bit in range(1, min(layers, machine.num_ipus).bit_length())]
    return {
        "precision": ("f16.16",),
        "optimiser": ("sgd",),
        "io": ("streams",),
        "config.stages": tuple(stages),
        "config.schedule": tuple(sorted(name for name, schedule in SCHEDULES.items() if schedule.stages_per_ipu == 1)),
        **_batches(machine, global_batch),
        "recompute": ("none", "standard"),
    }


def _batches(machine: Machine, global_batch: int) -> dict[str, tuple[Any, ...]]:
    sizes = [size for size in range(1, _LARGEST_MICRO_BATCH + 1) if global_batch % size == 0]
    copies = [1 << bit for bit in range(machine.num_ipus.bit_length()) if global_batch % (1 << bit) == 0]
    return {MICRO_BATCH: tuple(sizes), REPLICAS: tuple(copies)}


def configuration_of(case: Case) -> dict[str, Any]:
    """The factors of a case of ``ipuperf validate``."""
    defaults = {case_field.name: case_field.default for case_field in fields(Case)}
    stated = {name: getattr(case, name) for name in _OF_CASE if getattr(case, name) != defaults[name]}
    return {**stated, **{f"config.{name}": _tuples(value) for name, value in case.config.items()}}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(element) for element in value) if isinstance(value, list) else value


@checked()
def model_space(
    model: str,
    machine: str,
    global_batch: int,
    given: Mapping[str, tuple[Any, ...]] | None = None,
    constraints: tuple[str, ...] = (),
    folder: str = ".",
) -> TuningSpace:
    """The space of a model.

    Args:
        model: a module of ``ipuperf.models``.
        machine: a preset, or a TOML file relative to ``folder``.
        global_batch: samples of a weight update.
        given: factors with their values, which replace the default ones (see :func:`factors_of`).
        constraints: expressions that must hold too.

    Raises:
        TuningError, SweepError, MachineError: a name is unknown, or no configuration is possible.
    """
    given = dict(given or {})
    loaded_machine = load_machine(str(Path(folder, machine)) if machine.endswith(".toml") else machine)
    factors, default_constraints = factors_of(model, loaded_machine, global_batch, given)
    sweep = Sweep(
        {MACHINE: (machine,), **factors}, model=model, constraints=(*default_constraints, *constraints), folder=folder
    )
    return TuningSpace(sweep, global_batch)


@checked()
def script_space(
    script: Path,
    arguments: Sequence[str],
    machine: str,
    global_batch: int,
    factors: Mapping[str, tuple[Any, ...]],
    constraints: tuple[str, ...] = (),
) -> TuningSpace:
    """The space of a script. ``{NAME}`` in an argument is the place of a factor.

    The factors among ``micro_batch``, ``accumulation`` and ``replicas`` that the script has make the global batch.

    Raises:
        TuningError, SweepError: as :class:`TuningSpace` and :class:`~ipuperf.sweep.Sweep`.
    """
    takes_accumulation = any("{accumulation}" in argument for argument in arguments)
    all_factors = {MACHINE: (machine,), **factors}
    if takes_accumulation and ACCUMULATION not in all_factors:
        all_factors[ACCUMULATION] = accumulations(all_factors, global_batch)
    sweep = script_sweep(script, arguments, all_factors, constraints=constraints)
    return TuningSpace(sweep, global_batch)


@checked()
def file_space(path: Path, machine: str | None, global_batch: int, constraints: tuple[str, ...] = ()) -> TuningSpace:
    """The configurations of a sweep's file, on ``machine`` if one is given.

    Raises:
        TuningError, SweepError: as :class:`TuningSpace` and :func:`~ipuperf.sweep.read_sweep`.
    """
    sweep = read_sweep(path)
    factors = {**sweep.factors, **({MACHINE: (machine,)} if machine else {})}
    if MACHINE not in factors:
        raise TuningError(f"{path}: no factor machine; say it with --machine")
    changed_sweep = replace(sweep, factors=factors, constraints=(*sweep.constraints, *constraints))
    return TuningSpace(changed_sweep, global_batch)


@checked()
def case_space(
    name: str,
    machine: str | None = None,
    global_batch: int | None = None,
    given: Mapping[str, tuple[Any, ...]] | None = None,
    constraints: tuple[str, ...] = (),
) -> tuple[TuningSpace, dict[str, Any]]:
    """The space around a case of ``ipuperf validate``, and the configuration of the case to begin with.

    Everything that is not varied comes from the case, and so do machine and global batch unless they are given.

    Raises:
        CaseError: no such case. TuningError: the case is no training, or as :func:`model_space`.
    """
    cases = [case for case in read_cases(known=problem).cases if case.id == name]
    if not cases:
        # This raises first where no id contains the name.
        near = [case.id for case in select(read_cases(known=problem), [name]).cases]
        raise CaseError(f"no case has the id {name!r}{did_you_mean(name, near)}; `ipuperf validate` lists the cases")
    case = cases[0]
    if case.mode != "training":
        raise TuningError(f"case {name!r} is of {case.mode}, allowed: training")
    # The accumulation follows from the global batch.
    start = {key: value for key, value in configuration_of(case).items() if key != ACCUMULATION}
    batch = case.samples if global_batch is None else global_batch
    loaded_machine = load_machine(case.machine if machine is None else machine)
    fixed = {key: (value,) for key, value in start.items() if key not in _VARIED}
    defaults, _ = factors_of(case.model, loaded_machine, batch, fixed)
    # The case's own value is one of the values, so that the search can begin with it.
    varied = {
        key: tuple(dict.fromkeys((*defaults[key], start.get(key, _UNSAID[key])))) for key in _VARIED if key in defaults
    }
    space = model_space(case.model, machine or case.machine, batch, {**fixed, **varied, **(given or {})}, constraints)
    # A case may have values that the space cannot have, such as another global batch. Then there is no start.
    begin = {**{key: _UNSAID[key] for key in _VARIED if key in defaults}, **start}
    if space.place({key: begin.get(key, values[0]) for key, values in space.sweep.factors.items()}) is None:
        return space, {}
    return space, begin

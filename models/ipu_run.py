"""How the PyTorch models of this package run: options that they share, and what a simulated call gives.

Names and defaults follow the configurations of Graphcore's example applications (BERT, GPT-2, ViT and CNNs for
PopTorch). The models import ``poptorch`` under its upstream name: call ``ipuperf.install()`` first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import poptorch
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ipuperf.base.near_names import instead_of
from ipuperf.lowering import NewValues
from ipuperf.poptorch.optimisers.lars import LARS
from ipuperf.poptorch.optimisers.streams import OPTIMISER_RUN
from ipuperf.poptorch.options.groups import MIN_ELEMENTS_SHARDING
from ipuperf.tools.errors import CaseError, UnknownOption
from ipuperf.validation.programs import Program

if TYPE_CHECKING:
    from typing_extensions import Self

    from ipuperf.machine import Machine
    from ipuperf.poptorch.executor.compilation import CompiledModel
    from ipuperf.trace import Trace
    from ipuperf.validation.cases import Case

PRECISIONS = ("32.32", "16.32", "16.16")
OPTIMISERS = ("sgd", "adam", "adamw", "lamb", "lars")
NEW_VALUES = ("none", "set_optimizer", "rates and betas")
#: Fields of :class:`RunOptions` that no model's own code sees.
_OF_RUN = ("gradient_accumulation", "replicas", "device_iterations", "optimiser", "half_accumulators", "half_momentum")
_OF_RUN += ("half_variance", "max_grad_norm", "offload_optimiser", "offload_activations", "sharding", "sharded_from")
_OF_RUN += ("memory_proportions", "merge_collectives", "return_all", "io_tiles", "synthetic", "prefetch")
_OF_RUN += ("host_processes", "norm_replicas", "stable_norms", "new_values")


@dataclass(frozen=True)
class RunOptions:
    """How a model runs, whatever the model.

    Attributes:
        training: with backward pass and weight updates; else inference.
        micro_batch, gradient_accumulation, replicas, device_iterations: samples of a micro-batch, micro-batches of a
            weight update on one replica, copies of the model, weight updates (inference: micro-batches) per call.
        layers_per_ipu: layers (ResNet: residual blocks) of each stage; stage ``i`` runs on IPU ``i``.
        precision: bits of weights and activations, and of the partial sums of products, joined by a dot.
        optimiser: ``sgd`` (with momentum), ``adam``, ``adamw``, ``lamb``, or ``lars`` (of which PopTorch knows nothing:
            with the layer-wise rate for weights, with plain momentum for biases and norms).
        half_accumulators, half_momentum, half_variance: gradient accumulators, the first and the second moment in
            float16. They are so only when the weights are float16 too.
        max_grad_norm: gradients are scaled so that the norm of all of them together is this at the most (any
            optimiser but ``lars``); infinity for no clipping.
        offload_optimiser: optimiser state lives in Streaming Memory.
        offload_activations: stashed activations live there.
        sharding: optimiser state, and with it the weight update, is split over the replicas, of tensors that have
            ``sharded_from`` elements or more.
        recompute: forwards of pipeline stages are computed again in the backward pass; on one IPU what stands between
            the checkpoints is, or without ``checkpoint_layers`` what PopART's Standard recomputation picks.
        checkpoint_layers: with recomputation, the result of each layer is kept.
        memory_proportions: available memory proportion of each IPU; the last one also holds for the IPUs after it;
            empty: PopTorch's default.
        merge_collectives: the all-reduces of an IPU's weight update become one (where state is sharded, its
            reduce-scatters and all-gathers stay apart, as in Graphcore's applications).
        io_tiles: with more than 0, inputs and results are loaded and stored on so many tiles of each IPU while the
            others compute (one stage only; in training results of every micro-batch go to the host).
        synthetic: no host I/O, the IPUs work on numbers of their own.
        prefetch: slices of an input that the host prepares ahead.
        host_processes: processes of the host (instances of ``poprun``) that the replicas are divided over.
        norm_replicas: neighbouring replicas that share the statistics of batch norms in training (TensorFlow's
            ``distributed_batch_norm_replica_group_size``; PopTorch has no such option).
        stable_norms: variances of norms are those of centred values, a pass more (TensorFlow's
            ``use_stable_statistics``).
        strided_groups: groups of group norms are of every so-many-th channel, which is faster (TensorFlow's default,
            ``strided_channel_grouping``; PopART's ``groupNormStridedChannelGrouping``).
        new_values: what the host brings for the optimiser before each call, in a run of its own: ``none``;
            ``set_optimizer``, what PopTorch does when the program calls ``setOptimizer`` with another learning rate;
            or ``rates and betas``, what MLPerf's BERT for PopART brings by ``updateOptimizerFromHost``: a rate, both
            betas and a decay for each parameter that decays, and one rate and betas for all others.
        return_all: results of every micro-batch go to the host, not only the last (inference always returns all).
    """

    training: bool = True
    micro_batch: int = 1
    gradient_accumulation: int = 16
    replicas: int = 1
    device_iterations: int = 1
    layers_per_ipu: tuple[int, ...] = (1,)
    precision: str = "16.16"
    optimiser: str = "adamw"
    half_accumulators: bool = True
    half_momentum: bool = False
    half_variance: bool = False
    max_grad_norm: float = math.inf
    offload_optimiser: bool = False
    offload_activations: bool = False
    sharding: bool = False
    sharded_from: int = MIN_ELEMENTS_SHARDING
    recompute: bool = True
    checkpoint_layers: bool = True
    memory_proportions: tuple[float, ...] = ()
    merge_collectives: bool = False
    return_all: bool = False
    io_tiles: int = 0
    synthetic: bool = False
    prefetch: int = 1
    host_processes: int = 1
    norm_replicas: int = 1
    stable_norms: bool = False
    strided_groups: bool = False
    new_values: str = "none"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r}{instead_of(self.precision, PRECISIONS)}")
        if self.optimiser not in OPTIMISERS:
            raise ValueError(f"optimiser {self.optimiser!r}{instead_of(self.optimiser, OPTIMISERS)}")
        if self.new_values not in NEW_VALUES:
            raise ValueError(f"new_values {self.new_values!r}{instead_of(self.new_values, NEW_VALUES)}")
        if self.new_values != "none" and not self.training:
            raise ValueError(f"new_values {self.new_values!r} in inference: allowed in training")
        if not self.layers_per_ipu or min(self.layers_per_ipu) < 0:
            raise ValueError(f"layers_per_ipu {self.layers_per_ipu}: counts from 0, at least one IPU")
        if self.io_tiles not in (0, *range(32, 193, 2)):
            raise ValueError(f"io_tiles {self.io_tiles}: an even number from 32 to 192, or 0 for none")
        if not 1 <= self.host_processes <= self.replicas:
            raise ValueError(f"host_processes {self.host_processes}: allowed: 1 to {self.replicas} (replicas)")
        if self.max_grad_norm <= 0 or math.isnan(self.max_grad_norm):
            raise ValueError(f"max_grad_norm {self.max_grad_norm}: allowed: above 0, infinity for no clipping")
        if self.optimiser == "lars" and math.isfinite(self.max_grad_norm):
            raise ValueError(f"max_grad_norm {self.max_grad_norm} with lars: allowed: any other optimiser")
        if self.norm_replicas < 1 or self.replicas % self.norm_replicas:
            raise ValueError(f"norm_replicas {self.norm_replicas}: allowed: divisors of {self.replicas} (replicas)")
        if self.io_tiles and len(self.layers_per_ipu) > 1:
            raise ValueError(f"io_tiles {self.io_tiles} with layers_per_ipu {self.layers_per_ipu}: allowed on one IPU")

    @property
    def half(self) -> bool:
        """Whether weights and activations are float16."""
        return self.precision.startswith("16")

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and activations."""
        return torch.float16 if self.half else torch.float32

    @property
    def micro_batches_per_call(self) -> int:
        """Micro-batches of all replicas in one call."""
        accumulation = self.gradient_accumulation if self.training else 1
        return accumulation * self.replicas * self.device_iterations

    @property
    def samples_per_call(self) -> int:
        """Rows of the tensors that one call takes."""
        return self.micro_batch * self.micro_batches_per_call

    def of_model(self) -> Self:
        """What a model keeps: all that only the run depends on as in a new object, so that models that run otherwise
        are equal and exported once."""
        return replace(self, **{item.name: item.default for item in fields(self) if item.name in _OF_RUN})

    def ipu_of_layer(self, layers: int) -> list[int]:
        """The IPU of each of ``layers`` layers. Raises ``ValueError`` when :attr:`layers_per_ipu` has another sum."""
        if sum(self.layers_per_ipu) != layers:
            raise ValueError(
                f"layers_per_ipu {self.layers_per_ipu} places {sum(self.layers_per_ipu)} layers, the model has {layers}"
            )
        return [ipu for ipu, count in enumerate(self.layers_per_ipu) for _ in range(count)]


def poptorch_options(options: RunOptions) -> poptorch.Options:
    """The options of a training or inference model."""
    found = poptorch.Options()
    found.showCompilationProgressBar(False)
    found.autoRoundNumIPUs(True)
    if options.io_tiles:
        found.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
        found.TensorLocations.numIOTiles(options.io_tiles)
    else:
        found.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    found.enableSyntheticData(options.synthetic)
    found._Popart.set("defaultPrefetchBufferingDepth", options.prefetch)
    found.deviceIterations(options.device_iterations).replicationFactor(options.replicas)
    found._host_processes = options.host_processes
    found._norm_replicas = options.norm_replicas
    if options.stable_norms:
        found.enableStableNorm(True)
    if options.strided_groups:
        found._Popart.set("groupNormStridedChannelGrouping", True)
    found.Precision.setPartialsType(torch.float16 if options.precision == "16.16" else torch.float32)
    if options.memory_proportions:
        found.setAvailableMemoryProportion(_proportions(options))
    if not options.training:
        return found
    found.Training.gradientAccumulation(options.gradient_accumulation)
    every = options.return_all or options.io_tiles
    found.outputMode(poptorch.OutputMode.All if every else poptorch.OutputMode.Final)
    state = poptorch.TensorLocationSettings().useOnChipStorage(not options.offload_optimiser)
    if options.sharded_from != MIN_ELEMENTS_SHARDING:
        state.minElementsForReplicatedTensorSharding(options.sharded_from)
    found.TensorLocations.setOptimizerLocation(state.useReplicatedTensorSharding(options.sharding))
    if options.offload_activations:
        off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
        found.TensorLocations.setActivationLocation(off_chip)
    if options.merge_collectives:
        for name in ("prepareScheduleForMerging", "mergeAllReduce"):
            found._Popart.set(f"replicatedCollectivesSettings.{name}Collectives", True)
    found._Popart.set("autoRecomputation", _recomputation(options))
    return found


def _recomputation(options: RunOptions) -> int:
    """Number of PopART's recomputation type: 0 None, 1 Standard, 3 Pipeline, 4 RecomputeAll."""
    if not options.recompute:
        return 0
    if sum(1 for layers in options.layers_per_ipu if layers) > 1:
        return 3
    return 4 if options.checkpoint_layers else 1


def _proportions(options: RunOptions) -> dict[str, float]:
    given = options.memory_proportions
    return {f"IPU{ipu}": given[min(ipu, len(given) - 1)] for ipu in range(len(options.layers_per_ipu))}


def optimiser_of(model: nn.Module, options: RunOptions) -> torch.optim.Optimizer:
    """The optimiser of a training; biases and the parameters of norms do not decay."""
    decaying = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    half = torch.float16 if options.half else torch.float32
    accumulator = half if options.half_accumulators else torch.float32
    moment = half if options.half_momentum else torch.float32
    if options.optimiser == "sgd":
        return poptorch.optim.SGD(
            groups, lr=0.01, momentum=0.9, accum_type=accumulator, velocity_accum_type=moment, loss_scaling=1.0
        )
    if options.optimiser == "lars":
        groups[1]["trust_coefficient"] = 0.0
        return LARS(groups, lr=1.0, momentum=0.9, accum_type=accumulator, velocity_accum_type=moment)
    kinds = {"adam": poptorch.optim.Adam, "adamw": poptorch.optim.AdamW, "lamb": poptorch.optim.LAMB}
    if options.optimiser == "adam":
        groups[0]["weight_decay"] = 0.0
    found = kinds[options.optimiser](
        groups,
        lr=1e-4,
        eps=1e-6,
        loss_scaling=1.0,
        accum_type=accumulator,
        first_order_momentum_accum_type=moment,
        second_order_momentum_accum_type=half if options.half_variance else torch.float32,
    )
    found.max_grad_norm = options.max_grad_norm  # PopART clips with LAMB too, PopTorch's LAMB has no argument for it
    return found


class InFloat32(nn.Module):
    """``module`` (of one tensor) in float32 whatever the type of the model: what it reads is cast, its result is cast
    back, its parameters stay float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The result of the module, in the type of ``x``."""
        found: torch.Tensor = self.module(x.float())
        return found.to(x.dtype)


def cast(model: nn.Module, options: RunOptions) -> nn.Module:
    """``model`` with parameters and buffers in the options' type; running statistics of norms stay float32, as
    PopTorch keeps them, and so do modules :class:`InFloat32`."""
    model = model.to(options.dtype)
    for member in model.modules():
        if isinstance(member, InFloat32):
            member.float()
        if isinstance(member, nn.BatchNorm2d):
            for name in ("running_mean", "running_var"):
                setattr(member, name, getattr(member, name).float())
    return model


def overlap_io(model: nn.Module) -> None:
    """Mark all inputs and results of ``model`` for overlapped I/O."""
    mode = poptorch.OverlapMode.OverlapDeviceIterationLoop

    def loaded(value: Any) -> Any:
        return None if value is None else poptorch.set_overlap_for_input(value, mode)

    def inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(loaded, args)), {name: loaded(value) for name, value in kwargs.items()}

    def results(_: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        return poptorch.set_overlap_for_output(result, mode)

    model.register_forward_pre_hook(inputs, with_kwargs=True)
    model.register_forward_hook(results)


class _WithoutRandomNumbers(TorchFunctionMode):
    """Parameters without data are not initialised: PyTorch would load its compiler to find that there is no work."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def compiled_of(
    build: Callable[[], nn.Module], options: RunOptions, batch: Sequence[Any], machine: str | Machine | None = None
) -> CompiledModel:
    """The program of one call, without numbers; module and batch take no memory.

    Args:
        build: makes the module; called with PyTorch's ``meta`` device in force.
        batch: arguments of the call, on ``meta``.
        machine: see ``poptorch.compile_offline``.
    """
    with torch.device("meta"), _WithoutRandomNumbers():
        model = cast(build(), options)
    if options.io_tiles:
        overlap_io(model)
    model.train(options.training)
    optimizer = optimiser_of(model, options) if options.training else None
    compiled = poptorch.compile_offline(
        model,
        poptorch_options(options),
        *batch,
        training=options.training,
        optimizer=optimizer,
        machine=machine,
    )
    runs = replace(compiled.executable.options, values_each_run=options.new_values != "none")
    if options.new_values == "rates and betas":
        runs = replace(runs, new_values=_rates_and_betas(compiled))
    return replace(compiled, executable=compiled.executable.changed(options=runs))


def _rates_and_betas(compiled: CompiledModel) -> NewValues:
    """Four numbers of each parameter that decays; the others share three.

    Source: mlcommons/training_results_v2.0: Graphcore/benchmarks/bert/implementations/popart/bert_optimizer.py
    (``create``, ``_non_const_options``).
    """
    decaying = Counter(ipu for variable, ipu in compiled.pipeline.updated_on.items() if len(variable.shape) > 1)
    scalars = tuple(4 * decaying[ipu] for ipu in range(compiled.exported.num_ipus))
    return NewValues(OPTIMISER_RUN, scalars, shared=3)


def trace_of(
    build: Callable[[], nn.Module], options: RunOptions, batch: Sequence[Any], machine: str | Machine | None
) -> Trace:
    """Simulate one call without numbers; arguments as for :func:`compiled_of`."""
    return compiled_of(build, options, batch, machine).executable.trace


def figures(trace: Trace, options: RunOptions, samples: float) -> dict[str, Any]:
    """What a call of ``samples`` samples gives.

    Keys: ``samples_per_second``; ``step_seconds`` (one weight update, in inference one micro-batch of all replicas);
    ``run_seconds`` and ``run_cycles`` (the call, host included); ``fits``, ``max_tile_bytes`` and ``bytes_per_tile``
    (memory of the fullest tile); ``ipus`` of all replicas.
    """
    summary = trace.summary()
    run = summary["runs"][0]
    memory = summary["memory"]
    return {
        "samples_per_second": samples / run["seconds"],
        "step_seconds": run["seconds"] / options.device_iterations,
        "run_seconds": run["seconds"],
        "run_cycles": run["cycles"],
        "fits": memory["fits"],
        "max_tile_bytes": memory["max_tile"]["bytes"],
        "bytes_per_tile": memory["bytes_per_tile"],
        "ipus": summary["num_ipus"],
    }


# -- cases of ``ipuperf validate`` -------------------------------------------------------------------------------------

_OPTIMISERS = MappingProxyType({"momentum": "sgd", "adam": "adam", "adamw": "adamw", "lamb": "lamb", "lars": "lars"})
_RECOMPUTE = MappingProxyType({"none": (False, False), "standard": (True, False), "checkpoints": (True, True)})
_STATED_BY_CASE = frozenset(
    {"training", "micro_batch", "gradient_accumulation", "replicas", "layers_per_ipu", "precision", "optimiser",
     "io_tiles", "synthetic", "prefetch", "offload_optimiser", "offload_activations", "sharding", "sharded_from",
     "recompute", "checkpoint_layers"}
)  # fmt: skip
Chosen = TypeVar("Chosen", bound=RunOptions)


def options_of_case(case: Case, presets: Mapping[str, Chosen]) -> Chosen:
    """The options that a case of ``ipuperf validate`` states.

    ``config`` names one of ``presets`` (``preset``) and changes any options that the case has no keys of its own for;
    lists stand for tuples.

    Raises:
        CaseError: the case states what these models do not have.
    """
    config = dict(case.config)
    preset = config.pop("preset", None)
    if preset not in presets:
        raise _refused(case, "config.preset", preset, ", ".join(presets))
    options = presets[preset]
    allowed = sorted({field.name for field in fields(options)} - _STATED_BY_CASE)
    for name in config:
        if name not in allowed:
            instead = instead_of(name, ("preset", *allowed))
            raise UnknownOption(f"{case.file}: case {case.id!r}: config.{name}: no such option{instead}")
    changes = {name: _tuples(value) for name, value in config.items()}
    for name, value in changes.items():
        usual = getattr(options, name)
        if usual is not None and not isinstance(value, (int, float) if type(usual) is float else type(usual)):
            raise _refused(case, f"config.{name}", value, f"a value like {usual!r}")
    try:
        return replace(options, **changes, **_how(case))
    except ValueError as error:
        raise CaseError(f"{case.file}: case {case.id!r}: {error}") from error


def placed_layers_of(config: Mapping[str, Any], presets: Mapping[str, RunOptions]) -> int:
    """How many layers (ResNet: residual blocks) ``pipeline`` of a case with this ``config`` places: ``layers`` of a
    model that has as many as that says, all alike.

    Raises:
        CaseError: an unknown preset.
    """
    preset = config.get("preset")
    if preset not in presets:
        raise CaseError(f"config.preset: {preset!r}{instead_of(preset, presets)}")
    options = presets[preset]
    return int(config["layers"]) if "layers" in config and hasattr(options, "layers") else sum(options.layers_per_ipu)


def _tuples(value: Any) -> Any:
    """Lists, and lists in lists, as tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _how(case: Case) -> dict[str, Any]:
    """How the case runs, as options."""
    training = case.mode == "training"
    _allow(case, "mode", ("training", "inference"))
    _allow(case, "io", ("streams", "synthetic", "overlapped"))
    _allow(case, "precision", ("f32", "f16.16", "f16.32"))
    _allow(case, "optimiser", tuple(_OPTIMISERS) if training else ("none",))
    _allow(case, "recompute", tuple(_RECOMPUTE) if training else ("none",))
    _allow(case, "offload", ((), ("optimiser",), ("activations",), ("optimiser", "activations")) if training else ((),))
    fewest = max(2, case.replicas // case.config.get("host_processes", 1))
    if case.sharding and not (training and case.sharding >= fewest):
        allowed = f"0 or a number of elements from {fewest} on" if training else "0"
        raise _refused(case, "sharding", case.sharding, allowed)
    if not training:
        _allow(case, "accumulation", (1,))
    if not case.pipeline:
        raise _refused(case, "pipeline", case.pipeline, "layers of each IPU, [12] for twelve on one")
    recompute, checkpoint = _RECOMPUTE[case.recompute]
    return {
        "training": training,
        "micro_batch": case.micro_batch,
        "gradient_accumulation": case.accumulation,
        "replicas": case.replicas,
        "io_tiles": case.io_tiles,
        "synthetic": case.io == "synthetic",
        "prefetch": case.prefetch,
        "layers_per_ipu": case.pipeline,
        "precision": "32.32" if case.precision == "f32" else case.precision[1:],
        "optimiser": _OPTIMISERS.get(case.optimiser, "sgd"),
        "offload_optimiser": "optimiser" in case.offload,
        "offload_activations": "activations" in case.offload,
        "sharding": bool(case.sharding),
        "sharded_from": case.sharding or MIN_ELEMENTS_SHARDING,
        "recompute": recompute,
        "checkpoint_layers": checkpoint,
    }


def _allow(case: Case, key: str, values: tuple[Any, ...]) -> None:
    if getattr(case, key) not in values:
        raise _refused(case, key, getattr(case, key), " or ".join(repr(value) for value in values))


def _refused(case: Case, key: str, value: object, allowed: str) -> CaseError:
    return CaseError(
        f"{case.file}: case {case.id!r}: {key}: {value!r} is not supported by model {case.model!r}, allowed: {allowed}"
    )


def program_of_case(
    build: Callable[[], nn.Module], options: RunOptions, batch: Sequence[Any], items: float = 1.0
) -> Program:
    """The program of a case on the machine in force; a row of the batch holds ``items`` items."""
    executable = compiled_of(build, options, batch).executable
    return Program(executable, options.samples_per_call * items, steps=options.device_iterations)


@dataclass(frozen=True)
class ModelRun:
    """The functions that every PyTorch model of this package offers.

    Attributes:
        model: makes the module of some options.
        batch: makes random arguments of one call; on the device ``meta`` only their shapes.
        presets: the options that cases name.
        items: how many items (sequences, molecules) a row of the batch holds.
    """

    model: Callable[[Any], nn.Module]
    batch: Callable[..., list[torch.Tensor]]
    presets: Mapping[str, RunOptions]
    items: Callable[[Any], float] = lambda options: 1.0

    def simulate(self, options: RunOptions, machine: str | Machine | None = None) -> Trace:
        """The trace of one call, without numbers."""
        return trace_of(lambda: self.model(options), options, self.batch(options, "meta"), machine)

    def throughput(self, options: RunOptions, machine: str | Machine | None = None) -> dict[str, Any]:
        """Items per second of one simulated call and more, see :func:`figures`."""
        return figures(self.simulate(options, machine), options, options.samples_per_call * self.items(options))

    def options_of(self, case: Case) -> Any:
        """The options that a case of ``ipuperf validate`` states, see :func:`options_of_case`."""
        return options_of_case(case, self.presets)

    def validation_program(self, case: Case) -> Program:
        """The program of a case of ``ipuperf validate``, see :func:`options_of_case`."""
        options = self.options_of(case)
        return program_of_case(lambda: self.model(options), options, self.batch(options, "meta"), self.items(options))

    def placed_layers(self, config: Mapping[str, Any]) -> int:
        """Layers that ``pipeline`` of a case places, see :func:`placed_layers_of`."""
        return placed_layers_of(config, self.presets)

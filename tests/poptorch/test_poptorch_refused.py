"""What upstream refuses is refused here, with an exception of the same class.

The conditions are those of upstream's Python sources: options.py, _options_impl.py, _args_parser.py,
_poplar_executor.py, ops.py, _optimizer_attributes.py, optim.py, __init__.py, and InplaceOps.cpp.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch import (  # noqa: E402
    AsynchronousDataAccessor,
    DataLoader,
    DataLoaderMode,
    Error,
    MatMulSerializationMode,
    MultiConv,
    OverlapMode,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    Stage,
    TensorLocationSettings,
    inferenceModel,
    trainingModel,
)

T = torch.ones(2, 2)
DATA = torch.utils.data.TensorDataset(T)
ONE, OVERLAP = torch.tensor(0), OverlapMode.OverlapAccumulationLoop


def options(**given: Any) -> Any:
    """Options with some of their setters called."""
    made = poptorch.Options().showCompilationProgressBar(False)
    for name, value in given.items():
        getattr(made, name)(value)
    return made


class Formula(torch.nn.Module):
    """A formula of the module and its argument; with a parameter and a buffer."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        super().__init__()
        self.formula = formula
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.scalar = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("state", torch.ones(2))

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.formula(self, x)


class Loss(Formula):
    """A model that trains."""

    def __init__(self) -> None:
        super().__init__(lambda m, x: poptorch.identity_loss((m.weight * x).sum(), "none"))


def model(formula: Callable[..., Any] = lambda m, x: x + m.state, **given: Any) -> Any:
    return inferenceModel(Formula(formula), options(**given))


def called(formula: Callable[..., Any], **given: Any) -> Callable[[], Any]:
    """A call of a model."""
    return lambda: model(formula, **given)(T)


def twice(first: Any, second: Any, formula: Callable[..., Any] = lambda m, x: m.state + 1) -> Callable[[], Any]:
    """A call of a model with the arguments ``second`` after one with ``first``."""

    def run() -> None:
        program = model(formula)
        program(*first)
        program(*second)

    return run


def frozen(change: Callable[[Any], Any], use: Callable[[Any], Any] | None = None) -> Callable[[], Any]:
    """A change of options that a model uses."""

    def run() -> None:
        used = options()
        (use or (lambda o: inferenceModel(torch.nn.Linear(2, 2), o)))(used)
        change(used)

    return run


def trained(kind: Any, group: dict[str, Any] | None = None, **arguments: Any) -> Callable[[], Any]:
    """A model with an optimiser of this kind, the first group of which is changed."""

    def run() -> None:
        module = Loss()
        optimizer = kind(module.parameters(), **arguments)
        optimizer.param_groups[0].update(group or {})
        trainingModel(module, options(), optimizer)

    return run


def _block(module: Any, x: Any, name: str = "b", ipu: int | None = 0) -> Any:
    with poptorch.Block(name, ipu_id=ipu):
        return x + 1


def _three(module: Any, x: Any) -> Any:
    for ipu in range(3):
        x = _block(module, x, str(ipu), ipu)
    return x


def _matmul(*arguments: Any) -> Callable[[], Any]:
    return called(lambda m, x: poptorch.serializedMatMul(x, x, *arguments))


def _custom(attributes: Any) -> Callable[[], Any]:
    return called(lambda m, x: poptorch.custom_op([x], "Cube", "own", 1, [x], attributes)[0])


def _gather(data: tuple[int, ...], index: tuple[int, ...]) -> Callable[[], Any]:
    def formula(m: Any, x: Any) -> Any:
        at = torch.zeros(index, dtype=torch.int32)
        return poptorch.custom_op([torch.ones(data), at], "FastGatherLastDim", "poptorch.custom_ops", 1, [at.float()])

    return called(formula)


def _centered() -> None:
    groups = [{"params": [torch.nn.Parameter(T)], "centered": True}, {"params": [torch.nn.Parameter(T)]}]
    trainingModel(Loss(), options(), torch.optim.RMSprop(groups))


def _wrapped_twice() -> None:
    module = Loss()
    first = trainingModel(module, options())
    trainingModel(module, options())
    first.destroy()


def _of_a_group(module: Any) -> None:
    program = inferenceModel(Formula(lambda m, x: x * m.scalar), options(replicationFactor=2))
    program.scalar.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)
    program(T)


def _file_of(text: str) -> Callable[[Path], Any]:
    def run(folder: Path) -> None:
        (folder / "file").write_text(text)
        poptorch.Options().loadFromFile(folder / "file")

    return run


def _exceptions() -> Any:
    made = options()
    made.Precision.enableFloatingPointExceptions(True)
    return inferenceModel(Formula(lambda m, x: 1 / (x - 1)), made)(T)


def _accumulating() -> Any:
    made = options()
    made.Training.gradientAccumulation(2)
    return made


def _run_then(action: Callable[[Any], Any], **given: Any) -> Callable[[], Any]:
    def run() -> None:
        program = model(**given)
        program(T)
        action(program)

    return run


ASSERTED: dict[str, Callable[..., Any]] = {
    "set: unknown": lambda: options().set(nothing=1),
    "set: type": lambda: options().set(device_iterations="4"),
    "createOrSet: type": lambda: options().createOrSet(replication_factor=1.5),
    "attribute: unknown": lambda: setattr(options(), "deviceIterations", 4),
    "attribute: type": lambda: setattr(options(), "device_iterations", "4"),
    **{
        f"{name}: {value!r}": lambda name=name, value=value: options(**{name: value})
        for name, value in [
            ("deviceIterations", "2"), ("deviceIterations", 2.0), ("replicationFactor", None), ("autoRoundNumIPUs", 1),
            ("logDir", 3), ("broadcastBuffers", "no"), ("connectionType", 0), ("syncPattern", "Full"),
            ("useIpuId", "0"), ("outputMode", 2), ("outputMode", poptorch.OutputMode.EveryN), ("randomSeed", 1.5),
            ("setAvailableMemoryProportion", {"CPU0": 0.5}), ("setExecutionStrategy", "B"),
        ]
    },
    "outputMode: every 0": lambda: options().outputMode(poptorch.OutputMode.EveryN, 0),
    **{
        f"numIOTiles: {count}": lambda count=count: options().TensorLocations.numIOTiles(count)
        for count in (32.0, 30, 33, 194)
    },
    **{
        f"set{kind}Location": lambda kind=kind: getattr(options().TensorLocations, f"set{kind}Location")({})
        for kind in ("Weight", "Activation", "Optimizer", "Accumulator")
    },
    **{
        f"{name}: {value!r}": lambda name=name, value=value: getattr(TensorLocationSettings(), name)(value)
        for name, value in [
            ("minElementsForOffChip", 1.5), ("minElementsForReplicatedTensorSharding", "1"), ("useOnChipStorage", 1),
            ("useReplicatedTensorSharding", 1), ("useIOTilesToLoad", 0), ("useIOTilesToStore", "y"),
        ]
    },
    "exceptions": lambda: options().Precision.enableFloatingPointExceptions(1),
    "accumulation: 2.5": lambda: options().Training.gradientAccumulation(2.5),
    "accumulation: text": lambda: options().Training.gradientAccumulation("2"),
    "mean": lambda: options().Training.setMeanAccumulationAndReplicationReductionStrategy(3.5),
    "patterns": lambda: options()._Popart.setPatterns([]),
    "patterns: level": lambda: options()._Popart.setPatterns({}, "2"),
    "traceModel": lambda: options().Jit.traceModel(1),
    "stage of a number": lambda: Stage(1),
    "stage: ipu": lambda: Stage("a").ipu("0"),
    "phase of both": lambda: Phase("a", Stage("b")),
    "phase: ipus": lambda: Phase("a").ipus(0, 1),
    "stages with one block": lambda: PipelinedExecution("a", "a"),
    "stages of numbers": lambda: PipelinedExecution([1, 2]),
    "no phases": lambda: poptorch.ParallelPhasedExecution(),
    "phases with one block": lambda: SerialPhasedExecution(["a"], ["a"]),
    "phase -1": lambda: SerialPhasedExecution(["a"]).phase(-1),
    "separate phase": lambda: SerialPhasedExecution(["a"]).useSeparateBackwardPhase(1),
    "liveness": lambda: SerialPhasedExecution(["a"]).setTensorsLiveness(0),
    "off chip": lambda: poptorch.ParallelPhasedExecution(["a"]).sendTensorsOffChipAfterFwd(1),
    "stage of no block": lambda: PipelinedExecution("a").stage("b"),
    "block of no stage": called(_block, setExecutionStrategy=PipelinedExecution("a")),
    "block of no IPU": called(lambda m, x: _block(m, x, ipu=None)),
    "accumulation in inference": lambda: inferenceModel(torch.nn.Linear(2, 2), _accumulating()),
    "name scope": lambda: poptorch.NameScope(3),
    "product: mode": _matmul("input_channels", 1),
    "product: factor": _matmul(MatMulSerializationMode.InputChannels, 1.0),
    "product: precision": _matmul(MatMulSerializationMode.InputChannels, 1, 1),
    "loss: reduction": called(lambda m, x: poptorch.identity_loss(x, "avg")),
    "removeBlocks": lambda: poptorch.removeBlocks(3),
    "proportions: text": lambda: MultiConv().availableMemoryProportions("a"),
    "proportions: none": lambda: MultiConv().availableMemoryProportions([]),
    "proportions: mixed": lambda: MultiConv().availableMemoryProportions([0.1, "a"]),
    "plan type": lambda: MultiConv().planType(0),
    "reserved tiles": lambda: MultiConv().perConvReservedTiles(1.5),
    "back off": lambda: MultiConv().cycleBackOff(1),
    "call: too many": lambda: model()(T, T, T),
    "call: unknown": lambda: model()(T, z=T),
    "call: given twice": lambda: model()(T, x=T),
    "call: offline": called(_block, connectionType=poptorch.ConnectionType.Never),
    "call: offline target": called(_block, useOfflineIpuTarget=2),
    "call: batch": called(_block, deviceIterations=3),
    "tensor names": lambda: model().getTensorNames(),
    "anchor": _run_then(lambda program: program.getAnchoredTensor("x")),
    "optimiser": trained(torch.optim.Adagrad),
    "optimiser: centered": _centered,
    "optimiser: text": trained(torch.optim.SGD, {"lr": "a"}, lr=0.1),
    "optimiser: betas": trained(torch.optim.Adam, {"betas": [0.9, 0.9]}),
    **{
        f"optimiser: {name}": trained(kind, **{name: value})
        for kind, name, value in [
            (poptorch.optim.AdamW, "accum_type", torch.int32),
            (poptorch.optim.Adam, "first_order_momentum_accum_type", "half"),
            (poptorch.optim.LAMB, "second_order_momentum_accum_type", torch.int8),
        ]
    },
    "optimiser: velocity": trained(poptorch.optim.SGD, lr=0.1, velocity_accum_type=torch.bool),
    "loader: options": lambda: DataLoader({}, DATA),
    "loader: batch": lambda: DataLoader(options(), DATA, batch_size="1"),
    "loader: mode": lambda: DataLoader(options(), DATA, mode=0),
    "loader: rebatched": lambda: DataLoader(
        options(), DATA, mode=DataLoaderMode.AsyncRebatched, async_options={"rebatched_size": 2}
    ),
    "accessor: rebatched": lambda: AsynchronousDataAccessor([T], rebatched_size=1),
}  # fmt: skip
"""Upstream asserts."""

VALUES: dict[str, Callable[..., Any]] = {
    "autocast": lambda: options().Precision.autocastEnabled(1),
    "half casts": lambda: options().Precision.halfFloatCasting(1),
    "statistics": lambda: options().Precision.runningStatisticsAlwaysFloat(1),
    "partials": lambda: options().Precision.setPartialsType(torch.int32),
    "reduction": lambda: options().Training.accumulationAndReplicationReductionType(1),
    "no reduction": lambda: options().Training.accumulationAndReplicationReductionType(
        poptorch.ReductionType.NoReduction
    ),
    "loop: no list": called(lambda m, x: poptorch.for_loop(2, lambda t: [t], (x,))[0]),
    "loop: no tensor": called(lambda m, x: poptorch.for_loop(2, lambda t: [t], [3])[0]),
    "checkpoint": called(lambda m, x: poptorch.recomputationCheckpoint(x, 3)),
    **{
        f"custom op: {attributes}": _custom(attributes)
        for attributes in ({1: 2}, {"a": None}, {"a": [1, "b"]}, {"a": "é"}, {"é": 1}, {"a": ["b", "é"]})
    },
    "partials of convolutions": lambda: MultiConv().partialsTypes("half"),
    "partials of one": lambda: MultiConv().partialsTypes([torch.float, torch.int]),
    "dithering": lambda: MultiConv().enableConvDithering(1),
    "dithering of one": lambda: MultiConv().enableConvDithering([True, 1]),
    "amsgrad": trained(torch.optim.Adam, amsgrad=True),
    "amsgrad of AdamW": trained(torch.optim.AdamW, amsgrad=True),
}
"""Upstream raises ``ValueError``."""

ATTRIBUTES: dict[str, Callable[..., Any]] = {
    "iterations": frozen(lambda o: o.deviceIterations(2)),
    "accumulation": frozen(lambda o: o.Training.gradientAccumulation(2)),
    "PopART": frozen(lambda o: o._Popart.set("autoRecomputation", 1)),
    "loader": frozen(lambda o: o.randomSeed(2), lambda o: DataLoader(o, DATA)),
    "training": frozen(lambda o: o.deviceIterations(2), lambda o: trainingModel(Loss(), o)),
    "tiles": frozen(lambda o: o.TensorLocations.numIOTiles(32)),
    "rounding": frozen(lambda o: o.Precision.enableStochasticRounding(True)),
    "processes": frozen(lambda o: o.Distributed.disable()),
    "tracing": frozen(lambda o: o.Jit.traceModel(False)),
    "strategy": frozen(lambda o: o.setExecutionStrategy(poptorch.ShardedExecution())),
    "bar": frozen(lambda o: o.showCompilationProgressBar(True)),
    "cycles": frozen(lambda o: o.logCycleCount(True)),
    "value": frozen(lambda o: setattr(o, "device_iterations", 2)),
    "read unknown": lambda: options().nothing,
    "private unknown": lambda: setattr(options(), "_nothing", 1),
}
"""Upstream raises ``AttributeError``: options are frozen once they are used."""

ERRORS: dict[str, Callable[..., Any]] = {
    "options": lambda: inferenceModel(torch.nn.Linear(2, 2), {}),
    "options of training": lambda: trainingModel(Loss(), "o"),
    "call: missing": lambda: model()(),
    **{
        f"not compiled: {name}": lambda name=name: getattr(model(), name)()
        for name in (
            "copyWeightsToHost", "copyWeightsToDevice", "copyNamedBuffersToDevice", "detachFromDevice",
            "attachToDevice", "cycleCount",
        )
    },
    "not compiled: save": lambda folder: model().save(str(folder / "file")),
    "not compiled: random state": lambda: model().rng_state,
    "not compiled: set random state": lambda: setattr(model(), "rng_state", [1]),
    "attached": _run_then(lambda program: program.attachToDevice()),
    "detached": _run_then(lambda program: (program.detachFromDevice(), program.detachFromDevice())),
    "no named buffers": _run_then(lambda program: program.copyNamedBuffersToDevice()),
    "unknown named buffer": called(_block, updatableNamedBuffers=["nothing"]),
    "another type": twice([T], [T.half()]),
    "another shape": twice([T], [torch.ones(4, 2)]),
    "no tensor": twice([T], [3]),
    "another number": twice([T, 3], [T, 4]),
    "another length": twice([(T, T)], [(T,)]),
    "another container": twice([(T, T)], [[T, T]]),
    "other keys": twice([{"a": T}], [{"b": T}]),
    "backward": lambda: model()(T).backward(),
    "wrapped twice": _wrapped_twice,
    "no loss": lambda: trainingModel(torch.nn.Linear(2, 2), options())(T),
    "two losses": lambda: trainingModel(
        Formula(lambda m, x: [poptorch.identity_loss((m.weight * f).sum(), "none") for f in (1, 2)]), options()
    )(T),
    "print": called(lambda m, x: poptorch.ipu_print_tensor(3)),
    "nop": called(lambda m, x: poptorch.nop(3)),
    **{
        f"slice: {arguments}": called(lambda m, x, arguments=arguments: poptorch.dynamic_slice(*arguments))
        for arguments in ((3, 0, ONE, 1, 1), (T, 0.0, ONE, 1, 1), (T, 0, 1, 1, 1), (T, 0, ONE, 1.0, 1),
                          (T, 0, ONE, 1, 1.0))
    },
    "proportion": called(lambda m, x: poptorch.set_available_memory(3, 0.5)),
    "decoder": called(lambda m, x: poptorch.ctc_beam_search_decoder(3, x)),
    "decoder: lengths": called(lambda m, x: poptorch.ctc_beam_search_decoder(x, 3)),
    "overlapped input": called(lambda m, x: poptorch.set_overlap_for_input(3, OVERLAP)),
    "overlapped output": called(lambda m, x: poptorch.set_overlap_for_output([3], OVERLAP)),
    "begin": lambda: poptorch.BeginBlock(3),
    "begin twice": lambda: poptorch.BeginBlock(poptorch.BeginBlock(torch.nn.Linear(2, 2), "a"), "b"),
    "over 64 IPUs for a process": lambda: model(replicationFactor=128)(torch.ones(128, 2)),
    "a buffer over replicas": called(lambda m, x: m.state.add_(x.sum()), replicationFactor=2),
    "a scalar of groups": lambda: _of_a_group(None),
    "no file of ours": lambda folder: ((folder / "file").write_text("no"), poptorch.load(str(folder / "file"))),
    "three IPUs": called(_three, deviceIterations=1, setExecutionStrategy=poptorch.ShardedExecution()),
    "accessor of a loader": lambda: AsynchronousDataAccessor(
        DataLoader(options(), DATA, mode=DataLoaderMode.Async)
    ),
    "data that fail": lambda: AsynchronousDataAccessor([3]),
    "one_hot": called(lambda m, x: torch.nn.functional.one_hot(x.long())),
    "bincount": called(lambda m, x: torch.bincount(x.long().view(-1))),
    "a branch": called(lambda m, x: x if x.sum() > 0 else -x),
    "options file": _file_of("nothing(3)"),
    "exception": _exceptions,
    "fast gather: ranks": _gather((2, 3), (2, 2, 3)),
    "fast gather: axes": _gather((2, 4, 3), (2, 2, 3)),
}  # fmt: skip
"""Upstream raises ``poptorch.Error``."""

HOOKS: dict[str, Callable[..., Any]] = {
    "before": lambda: poptorch.registerPreCompileHook(3),
    "after": lambda: poptorch.registerPostCompileHook(3),
}
TABLES = ((AssertionError, ASSERTED), (ValueError, VALUES), (AttributeError, ATTRIBUTES), (Error, ERRORS),
          (RuntimeError, HOOKS))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind.__name__}: {name}") for kind, table in TABLES for name, case in table.items()],
)
@pytest.mark.filterwarnings("ignore")
def test_refused(kind: type[Exception], case: Callable[..., Any], tmp_path: Path) -> None:
    takes_folder = "folder" in getattr(case, "__code__", test_refused.__code__).co_varnames[:1]
    with pytest.raises(kind):
        case(tmp_path) if takes_folder else case()


def test_a_default_that_is_a_tensor_is_an_input() -> None:
    """It may be given later (``poptorch:python/_args_parser.py``)."""

    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any = torch.zeros(2), scale: float = 2.0, *more: Any) -> Any:  # noqa: B008
            return a + b * c * scale

    program = inferenceModel(Model(), options())
    a, b, c = torch.ones(2), torch.full((2,), 3.0), torch.tensor([1.0, 2.0])
    torch.testing.assert_close(program(a, b), a)
    torch.testing.assert_close(program(a, b, c=c), a + b * c * 2)
    torch.testing.assert_close(program(a, b, c, 2.0), a + b * c * 2)
    with pytest.raises(Error, match="scale: 3.0 given, the model was compiled with 2.0"):
        program(a, b, c, 3.0)


def test_buffers_over_replicas_that_are_no_broadcast() -> None:
    """Each replica's own where the program says so, statistics of norms, and buffers that nobody changes."""
    own = model(lambda m, x: m.state.add_(x.sum()) + 0, replicationFactor=2, broadcastBuffers=False)
    torch.testing.assert_close(own(torch.tensor([[1.0, 2], [3, 4]])), torch.tensor([4.0, 4, 8, 8]))
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2), torch.nn.Softmax(1), torch.nn.Flatten())

    class Trained(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = norm

        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(self.layers(x).sum(), "none")

    trainingModel(Trained(), options(replicationFactor=2))(torch.randn(4, 2))
    torch.testing.assert_close(model(replicationFactor=2)(T), T + 1)


@pytest.mark.parametrize("strategy", [*poptorch.SharingStrategy, "SharedMemory", "Fork"])
def test_strategies_of_sharing_by_name(strategy: Any) -> None:
    """As options files have them; a thread shares everything."""
    loader = DataLoader(options(), DATA, mode=DataLoaderMode.Async, async_options={"sharing_strategy": strategy})
    assert len(list(loader)) == 2

"""Options: argument checks, the table of effects, freezing, copying, printed form, what the executor reads."""

import copy
import logging
import pickle

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.frontends.options import APPLIED, NO_EFFECT, UNSUPPORTED  # noqa: E402
from ipuperf.poptorch.options import EFFECTS, ConfigFileError  # noqa: E402


def test_printed_form_of_training_and_locations_is_the_tutorials() -> None:
    options = poptorch.Options()
    assert repr(options.TensorLocations) == (
        "_TensorLocationOptions(, _warnings={}, _warnings_disabled=set(), _is_frozen=False)"
    )
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    assert repr(options.TensorLocations.setOptimizerLocation(location)) == (
        "_TensorLocationOptions(location_optimizer={'onChip': 0}, _warnings={}, _warnings_disabled=set(), "
        "_is_frozen=False)"
    )
    assert repr(options.Training.gradientAccumulation(10)) == (
        "_TrainingOptions(gradient_accumulation=10, accumulation_and_replication_reduction_type=<ReductionType.Mean: 1>"
        ", meanAccumulationAndReplicationReductionStrategy=<MeanReductionStrategy.Post: 1>, _popart_options="
        "_PopartOptions(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False), _warnings={}, "
        "_warnings_disabled=set(), _is_frozen=False)"
    )
    assert "_gcd_mappings={}, _warnings={}" in repr(options.Distributed)
    assert repr(options).startswith(
        "Options(replication_factor=1, broadcast_buffers=True, device_iterations=1, log_dir='.'"
    )


def test_defaults() -> None:
    options = poptorch.Options()
    assert options.device_iterations == options.replication_factor == options.Training.gradient_accumulation == 1
    assert options.defaultOutputMode()
    assert options.resolved_output_mode(training=True) is poptorch.OutputMode.Final
    assert options.resolved_output_mode(training=False) is poptorch.OutputMode.All
    assert options.sync_pattern == poptorch.SyncPattern.Full
    assert isinstance(options.execution_strategy, poptorch.PipelinedExecution)
    assert options.random_seed is None
    assert options.profiling_dir is None
    assert options._Popart.recomputation is None
    assert options._Popart.prefetch_depth == 1
    assert options._Popart.outer_fragment_schedule == "Serial"
    assert options.effects() == []


def test_setters_return_the_options_and_values_are_attributes() -> None:
    options = (
        poptorch.Options()
        .deviceIterations(7)
        .replicationFactor(4)
        .inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
        .outputMode(poptorch.OutputMode.EveryN, 3)
        .setAvailableMemoryProportion({"IPU0": 0.25, "IPU3": 1})
        .syncPattern(poptorch.SyncPattern.SinglePipeline)
        .modelName("m")
        .enableProfiling("reports")
    )
    options.Training.gradientAccumulation(5)
    assert options.samples_factor == 7 * (4 // 2) * 5
    assert (options.output_mode, options.output_return_period) == (1, 3)
    assert options.available_memory_proportion == {0: 0.25, 3: 1}
    assert options.sync_pattern == 1
    assert options.profiling_dir == "reports"
    assert options.effects() == []


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda o: o.deviceIterations(0), AssertionError, "deviceIterations: 0 given"),
        (lambda o: o.deviceIterations(True), AssertionError, "deviceIterations: True"),
        (lambda o: o.replicationFactor("2"), AssertionError, "replicationFactor: '2'"),
        (lambda o: o.outputMode(2), AssertionError, "poptorch.OutputMode"),
        (lambda o: o.outputMode(poptorch.OutputMode.EveryN), AssertionError, "output_return_period"),
        (lambda o: o.setAvailableMemoryProportion({"0": 0.5}), AssertionError, "key .0.; keys name an IPU"),
        (lambda o: o.setAvailableMemoryProportion({"IPU0": 1.5}), AssertionError, "1.5 given for IPU0"),
        (lambda o: o.setExecutionStrategy("B1"), AssertionError, "setExecutionStrategy: str given"),
        (lambda o: o.Training.gradientAccumulation(-1), AssertionError, "gradientAccumulation: -1"),
        (
            lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction),
            ValueError,
            "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum",
        ),
        (lambda o: o.Precision.setPartialsType(torch.int8), ValueError, "torch.float or torch.half"),
        (lambda o: o.TensorLocations.numIOTiles(33), AssertionError, "even number between 32 and 192"),
        (lambda o: o.TensorLocations.setWeightLocation({}), AssertionError, "expected poptorch.TensorLocationSettings"),
        (lambda o: o._Popart.set("autoRecomputation", 5), AssertionError, "3 Pipeline"),
        (lambda o: o._Popart.set("defaultPrefetchBufferingDepth", 0), AssertionError, "at least 1"),
        (
            lambda o: o._Popart.set("replicatedCollectivesSettings.mergeAllReduceCollectives", 1),
            AssertionError,
            "mergeAllReduceCollectives', 1\\): expected True or False",
        ),
        (
            lambda o: o._Popart.set("replicatedCollectivesSettings.mergeAll", True),
            AssertionError,
            "mergeAll', True\\): unknown key.*; allowed: replicatedCollectivesSettings.prepareSchedule",
        ),
        (lambda o: o.no_such_option, AttributeError, "Invalid option no_such_option"),
    ],
)
def test_wrong_arguments(call, kind, message) -> None:
    with pytest.raises(kind, match=message):
        call(poptorch.Options())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda o: o.setAvailableMemoryProportion(0.5),
            "setAvailableMemoryProportion: 0.5 given, expected a dict",
        ),
        (lambda o: o.sourceLocationExcludes(5), "sourceLocationExcludes: 5 given, expected a list of strings"),
        (lambda o: o.appendToLocationExcludes(5), "appendToLocationExcludes: .5,. given, expected a list of strings"),
        (lambda o: o.updatableNamedBuffers(None), "updatableNamedBuffers: None given, expected a list of strings"),
        (lambda o: o.enableProfiling(5), "enableProfiling: 5 given, expected a path"),
        (lambda o: o.loadFromFile([]), r"loadFromFile: \[\] given, expected a path"),
        (
            lambda o: o.anchorTensor("a", "b", None, "c"),
            "anchorTensor: output_return_period: .c. given, expected",
        ),
        (lambda o: o.Distributed.setEnvVarNames(5, "A"), "setEnvVarNames: 5 given, expected the name"),
        (lambda o: o._execution_strategy.stage([]), r"Unknown block \[\]"),
    ],
)
def test_arguments_of_another_kind(call, message) -> None:
    with pytest.raises(AssertionError, match=message):
        call(poptorch.Options())


def test_a_variable_of_the_environment_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS", "first")
    with pytest.raises(AssertionError, match="PROCESS is 'first' in the environment, expected a whole number"):
        poptorch.Options().Distributed.setEnvVarNames("PROCESSES", "PROCESS")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda o: o.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf),
            "Precision.halfFloatCasting",
        ),
    ],
)
def test_unsupported_options_raise_where_they_are_set(call, named) -> None:
    with pytest.raises(poptorch.UnsupportedError, match=named):
        call(poptorch.Options())


def test_neutral_values_of_unsupported_options_are_accepted() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 1)
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    assert options.effects() == []


def test_what_is_without_effect_is_told_once_and_the_last_value_counts() -> None:
    options = poptorch.Options().useOfflineIpuTarget(2).useIpuId(3)
    options.Precision.enableStochasticRounding(True)
    options._Popart.set("outlineSequenceBreakCost", 10.0)
    options._Popart.set("autoRecomputation", 3)
    options._Popart.set("engineOptions", {"opt.useAutoloader": "true", "autoReport.all": "true"})
    settings = poptorch.TensorLocationSettings().useIOTilesToLoad(True).useReplicatedTensorSharding(True)
    options.TensorLocations.setWeightLocation(settings)
    notes = options.effects()
    for named in (
        "useOfflineIpuTarget(2)",
        "useIpuId(3)",
        "Precision.enableStochasticRounding(True)",
        "_Popart.set('outlineSequenceBreakCost', 10.0)",
        "_Popart.set('engineOptions.opt.useAutoloader', 'true')",
        "setWeightLocation useIOTilesToLoad",
        "setWeightLocation useReplicatedTensorSharding",
    ):
        assert len([note for note in notes if named in note]) == 1, named
    assert len(notes) == 7
    assert options._Popart.recomputation == "Pipeline"
    options.Precision.enableStochasticRounding(False)
    assert len(options.effects()) == 6


def test_every_option_has_a_row_and_every_row_an_option() -> None:
    options = poptorch.Options()
    for name, effect in EFFECTS.items():
        target = options
        for part in name.split("."):
            target = getattr(target, part)
        assert callable(target), name
        assert effect.status in (APPLIED, NO_EFFECT, UNSUPPORTED)
        assert (effect.status == APPLIED) == (effect.reason == ""), name
    readers = {"defaultOutputMode", "clone", "toDict", "set", "createOrSet", "exists", "deleteIfExists", "effects"}
    readers |= {"loadFromFile", "checkIsFrozen", "resolved_output_mode"}
    setters = {n for n in dir(type(options)) if not n.startswith("_") and callable(getattr(type(options), n))} - readers
    assert setters <= set(EFFECTS)
    for group in ("Training", "Precision", "Jit"):
        own = {n for n in vars(type(getattr(options, group))) if not n.startswith("_") and n != "partials_type"}
        assert {f"{group}.{n}" for n in own} <= set(EFFECTS)


def test_frozen_options_refuse_changes_and_clones_do_not() -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(4)
    options._freeze()
    for change in (
        lambda o: o.deviceIterations(3),
        lambda o: o.Training.gradientAccumulation(3),
        lambda o: o.modelName("a"),
        lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda o: o._Popart.set("x", 1),
        lambda o: o.enableProfiling("d"),
        lambda o: o.Precision.setPartialsType(torch.half),
        lambda o: o.randomSeed(1),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(options)
        change(options.clone())
    copied = options.clone()
    copied.Training.gradientAccumulation(1)
    copied.Precision.setPartialsType(torch.half)
    assert options.Training.gradient_accumulation == 4
    assert copied._Popart.options["partialsTypeMatMuls"] == "half"  # groups of a copy belong together
    assert "partialsTypeMatMuls" not in options._Popart.options
    assert copy.deepcopy(options).deviceIterations(9).device_iterations == 9


def test_options_can_be_pickled() -> None:
    options = poptorch.Options().deviceIterations(3)
    assert pickle.loads(pickle.dumps(options)).device_iterations == 3


def test_locations_have_popart_s_defaults() -> None:
    options = poptorch.Options()
    assert options.TensorLocations.location("optimizer").on_chip
    assert not options.TensorLocations.location("weight", on_chip_by_default=False).on_chip
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
    options.TensorLocations.setOptimizerLocation(settings.minElementsForReplicatedTensorSharding(4))
    found = options.TensorLocations.location("optimizer")
    assert (found.on_chip, found.sharded, found.min_elements_off_chip, found.min_elements_sharding) == (
        False,
        True,
        2,
        4,
    )
    with pytest.raises(AssertionError, match="kind 'bias'"):
        options.TensorLocations.location("bias")


def test_to_dict_merges_all() -> None:
    options = poptorch.Options().deviceIterations(3).setExecutionStrategy(poptorch.ShardedExecution("A"))
    options._Popart.set("key", 1)
    found = options.toDict()
    assert (found["device_iterations"], found["execution_mode"], found["key"]) == (3, 1, 1)
    assert found["gradient_accumulation"] == 1


def test_random_seed_seeds_pytorch() -> None:
    poptorch.Options().randomSeed(5)
    first = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(2))


def test_load_from_file(tmp_path) -> None:
    file = tmp_path / "options.txt"
    file.write_text(
        "# options\n\ndeviceIterations(4)\nTraining.gradientAccumulation(8)\n"
        "outputMode(poptorch.OutputMode.Sum)\nPrecision.setPartialsType(torch.half)\n"
        'setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("A").ipu(1), "B"))\n'
        "TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
    )
    options = poptorch.Options().loadFromFile(file)
    assert (options.device_iterations, options.Training.gradient_accumulation) == (4, 8)
    assert options.output_mode == poptorch.OutputMode.Sum
    assert options.Precision.partials_type is torch.half
    assert options.execution_strategy.resolver().stage_of("A").ipu == 1
    assert not options.TensorLocations.location("optimizer").on_chip


@pytest.mark.parametrize("line", ["deviceIterations 4", "noSuch(1)", "__import__('os')", "logDir(open('x'))", "x.y"])
def test_load_from_file_names_the_bad_line(tmp_path, line) -> None:
    file = tmp_path / "options.txt"
    file.write_text(f"deviceIterations(2)\n{line}\n")
    with pytest.raises(ConfigFileError, match="line 2"):
        poptorch.Options().loadFromFile(file)


def test_set_log_level() -> None:
    before = poptorch.logger.level
    try:
        poptorch.setLogLevel("ERR")
        assert poptorch.logger.level == logging.ERROR
        poptorch.setLogLevel(1)
        assert poptorch.logger.level == logging.DEBUG
        with pytest.raises(ValueError, match="; allowed: TRACE"):
            poptorch.setLogLevel("LOUD")
    finally:
        poptorch.logger.setLevel(before)


def test_compile_hooks_are_called_until_removed() -> None:
    from ipuperf.poptorch.executor.program import CompileHooks, call_hooks
    from ipuperf.runtime.run_context import RUN

    seen: list[str] = []
    with RUN.fresh(CompileHooks) as hooks:
        handles = [poptorch.registerPreCompileHook(lambda: seen.append("pre"))]
        handles.append(poptorch.registerPostCompileHook(lambda: seen.append("post")))
        for _ in range(2):
            call_hooks(hooks.before)
            call_hooks(hooks.after)
            for handle in handles:
                handle.remove()
    assert RUN.of(CompileHooks) is not hooks
    assert seen == ["pre", "post"]
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook(3)


def test_questions_about_the_machine() -> None:
    from ipuperf.runtime.settings import RunSettings, use_settings

    with use_settings(RunSettings(machine="bow-pod4")):
        assert poptorch.ipuHardwareIsAvailable(4)
        assert not poptorch.ipuHardwareIsAvailable(5)
        assert poptorch.ipuHardwareVersion() == 21
    assert not poptorch.isRunningOnIpu()
    with poptorch.profiling.Channel("c").tracepoint("t"):
        pass


class _WithLoss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def forward(self, x, target):
        return poptorch.identity_loss((self.layers(x) - target).square(), "mean")


def test_collectives_merge_by_popart_options() -> None:
    """One all-reduce for four parameters on request, and the same weights; merging alone finds no neighbours."""
    from ipuperf.lowering import Collective

    counts, weights = [], []
    for asked in ((), ("mergeAllReduce",), ("mergeAllReduce", "prepareScheduleForMerging")):
        torch.manual_seed(0)
        model = _WithLoss()
        options = poptorch.Options().replicationFactor(2)
        for name in asked:
            options._Popart.set(f"replicatedCollectivesSettings.{name}Collectives", True)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trained = poptorch.trainingModel(model, options, optimizer)
        trained(torch.arange(8.0).reshape(2, 4), torch.ones(2, 4))
        steps = trained.compiled_model.executable.device_program.walk()
        counts.append(sum(isinstance(step, Collective) for step in steps))
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert counts == [4, 4, 1]
    assert all(torch.equal(one, other) for given in weights[1:] for one, other in zip(weights[0], given))


def test_the_depth_of_stream_buffers_has_two_names_and_callbacks_their_threads() -> None:
    options = poptorch.Options()
    assert (options._Popart.prefetch_depth, options._Popart.engine_options) == (1, {})
    options._Popart.set("defaultBufferingDepth", 3)
    assert options._Popart.prefetch_depth == 3
    options._Popart.set("defaultPrefetchBufferingDepth", 4)
    assert options._Popart.prefetch_depth == 4
    given = {"streamCallbacks.multiThreadMode": "collaborative", "streamCallbacks.numWorkerThreads": "auto"}
    options._Popart.set("engineOptions", given)
    assert options._Popart.engine_options == given
    assert options.effects() == []
    with pytest.raises(AssertionError, match="multiThreadMode = 'all'; allowed: single, dedicated, collaborative"):
        options._Popart.set("engineOptions", {"streamCallbacks.multiThreadMode": "all"})


ENVIRONMENT = {
    '{"deviceIterations": 2, "logDir": "logs"}': lambda o: o.deviceIterations(2).logDir("logs"),
    '{"Precision.enableFloatingPointExceptions": true}': lambda o: o.Precision.enableFloatingPointExceptions(True),
    '{"outputMode": "poptorch.OutputMode.Sum"}': lambda o: o.outputMode(poptorch.OutputMode.Sum),
    '{"connectionType": "ConnectionType.OnDemand"}': lambda o: o.connectionType(poptorch.ConnectionType.OnDemand),
    '{"outputMode": ["EveryN", 3]}': lambda o: o.outputMode(poptorch.OutputMode.EveryN, 3),
    '{"syncPattern": 1}': lambda o: o.syncPattern(poptorch.SyncPattern.SinglePipeline),
    '{"updatableNamedBuffers": ["a", "b"]}': lambda o: o.updatableNamedBuffers(["a", "b"]),
    '{"setAvailableMemoryProportion": {"IPU0": 0.5}}': lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5}),
    '{"Precision.setPartialsType": "torch.half"}': lambda o: o.Precision.setPartialsType(torch.half),
    '{"_Popart.set": ["autoRecomputation", 1]}': lambda o: o._Popart.set("autoRecomputation", 1),
    "": lambda o: o,
}


@pytest.mark.parametrize("text", ENVIRONMENT)
def test_options_of_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``POPTORCH_DEFAULT_OPTIONS`` says what setters would, before the program's own setters."""
    plain = poptorch.Options()
    ENVIRONMENT[text](plain)
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    assert repr(poptorch.Options()) == repr(plain)
    assert poptorch.Options().updatable_named_buffers == plain.updatable_named_buffers
    assert poptorch.Options().deviceIterations(7).device_iterations == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "POPTORCH_DEFAULT_OPTIONS"),
        ("[1]", "a JSON object of options"),
        ('{"deviceIteration": 2}', "deviceIteration.*is not an option"),
        ('{"outputMode": "poptorch.OutputMode.Most"}', "outputMode.*is not an option"),
        ('{"deviceIterations": [1, 2]}', "deviceIterations"),
    ],
)
def test_wrong_options_of_the_environment(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises((ConfigFileError, AssertionError), match=message):
        poptorch.Options()

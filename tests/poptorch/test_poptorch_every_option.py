"""Every option with values of every kind: what it changes, what it is said to be without effect, what is refused."""

import itertools
from functools import lru_cache, reduce
from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.options.effects import POPART_EFFECTS  # noqa: E402

NAMES = {"poptorch": poptorch, "torch": torch}
GROUPS = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")

WHOLE = ["-1", "0", "1", "2", "31", "32", "33", "192", "194", "True", "1.5", "'2'", "None"]
FLAG = ["True", "False", "1", "None"]
SCALARS = ["-1", "0", "1", "3", "4", "5", "True", "False", "0.5", "'half'"]
TEXT = ["'a'", "''", "5", "None"]
TEXTS = ["[]", "['a', 'b']", "'a'", "['a', 5]", "5"]
SHARES = [
    "{}",
    "{'IPU0': 0, 'IPU12': 1}",
    "{'IPU0': -0.1}",
    "{'IPU0': 1.1}",
    "{'IPU': 0.5}",
    "{'IPU0': True}",
    "{0: 1}",
]
SHARES += ["{'IPU1': '1'}", "5"]
PLACES = [f"poptorch.TensorLocationSettings().{text}" for text in (
    "useOnChipStorage(True)", "useOnChipStorage(False)", "useOnChipStorage(None)", "useOnChipStorage(1)",
    "useOnChipStorage(True).useOnChipStorage(None)", "minElementsForOffChip(-1)", "minElementsForOffChip(0)",
    "minElementsForReplicatedTensorSharding(-1)", "minElementsForReplicatedTensorSharding(0)",
    "useReplicatedTensorSharding()", "useReplicatedTensorSharding(False)", "useReplicatedTensorSharding(1)",
    "useIOTilesToLoad()", "useIOTilesToLoad(False)", "useIOTilesToLoad(1)", "useIOTilesToStore()",
    "useIOTilesToStore(False)", "useIOTilesToStore(1)",
)] + ["{}"]  # fmt: skip


def members(name: str) -> list[str]:
    """The members of an enumeration of PopTorch, and a number."""
    return [f"poptorch.{name}.{member.name}" for member in getattr(poptorch, name)] + ["0", "None"]


def pairs(one: list[str], other: list[str]) -> list[str]:
    """Arguments of two."""
    return [f"{a}, {b}" for a, b in itertools.product(one, other)]


ARGUMENTS: dict[str, list[str]] = {
    **dict.fromkeys(
        """deviceIterations replicationFactor randomSeed useOfflineIpuTarget useIpuId maxRepeatLogs
        Training.gradientAccumulation TensorLocations.numIOTiles""".split(),
        WHOLE,
    ),
    **dict.fromkeys(
        """autoRoundNumIPUs broadcastBuffers showCompilationProgressBar useIpuModel enableStableNorm logCycleCount
        enableSyntheticData relaxOptimizerAttributesChecks Jit.traceModel Precision.autocastEnabled
        Precision.runningStatisticsAlwaysFloat Precision.enableFloatingPointExceptions
        Precision.enableStochasticRounding Training.setAutomaticLossScaling
        Training.setConvolutionDithering""".split(),
        FLAG,
    ),
    **dict.fromkeys(("updatableNamedBuffers", "sourceLocationExcludes"), TEXTS),
    **dict.fromkeys(("logDir", "modelName", "enableProfiling", "enableExecutableCaching"), TEXT),
    "TensorLocations.setOptimizerLocation": PLACES,
    **{f"TensorLocations.set{kind}Location": PLACES[9:] for kind in ("Activation", "Weight", "Accumulator")},
    "inputReplicaGrouping": pairs(WHOLE[:5], members("CommGroupType")),
    "outputMode": [*members("OutputMode"), *pairs(members("OutputMode"), ["0", "1", "3", "'2'"])],
    "anchorTensor": ["'a', 'b'", "5, 'b'", "'a', 5", "'a', 'b', 0", *pairs(
        [f"'a', 'b', {mode}" for mode in members("OutputMode")[:5]], ["0", "1", "3", "None"]
    )],
    "setExecutionStrategy": [
        "poptorch.ShardedExecution('a', 'b')", "poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)",
        "poptorch.ParallelPhasedExecution('a')", "poptorch.SerialPhasedExecution('a')", "None", "'a'",
    ],
    "setAvailableMemoryProportion": SHARES,
    "syncPattern": members("SyncPattern"),
    "connectionType": members("ConnectionType"),
    "appendToLocationExcludes": ["", "'a', 'b'", "5"],
    "disableModuleNamescope": [""],
    "Precision.halfFloatCasting": members("HalfFloatCastingBehavior"),
    "Precision.setPartialsType": ["torch.float", "torch.half", "torch.int8", "'half'"],
    "Training.accumulationAndReplicationReductionType": members("ReductionType"),
    "Training.setMeanAccumulationAndReplicationReductionStrategy": members("MeanReductionStrategy"),
    "Distributed.disable": [""],
    "Distributed.configureProcessId": pairs(WHOLE[:4], WHOLE[:4]),
    "Distributed.setEnvVarNames": ["'NO_SUCH', 'NOR_THIS'", "'COUNT', 'RANK'", "'RANK', 'COUNT'", "'WORD', 'RANK'"],
    **{f"_Popart.set {key!r}": SCALARS for key in POPART_EFFECTS},
    "_Popart.set": ["'other', 1", "5, 1"],
    "_Popart.set 'patterns_level'": ["0", "1", "2", "3", "'2'"],
    "_Popart.set 'patterns'": ["{}", "{'PadSum': False}", "{'PadSum': True, 'Other': True}", "5"],
    "_Popart.set 'engineOptions'": [
        "{}", "5", "{'debug.allowOutOfMemory': 'true'}", "{'autoReport.all': 'True'}", "{'other': 'x'}",
        *(f"{{'streamCallbacks.numWorkerThreads': {number!r}}}" for number in ("auto", "0", "-1", "²")),
    ],
    "_Popart.setPatterns": ["{}", "{}, 1", "{}, 2", "{'PadSum': False}, 3", "{'PadSum': True}, 0"],
}  # fmt: skip


@lru_cache
def properties(kind: type) -> list[str]:
    """Names of the properties of a class of options."""
    named = (name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, property))
    return [name for name in named if name not in GROUPS]


def readable(options: Any) -> dict[str, str]:
    """All that can be read of options."""
    state = {}
    for group in ("", *GROUPS):
        target = getattr(options, group) if group else options
        values = getattr(target, "options" if group == "_Popart" else "_values")
        state |= {f"{group}.{name}": repr(value) for name, value in values.items()}
        state |= {f"{group}.{name}": repr(getattr(target, name)) for name in properties(type(target))}
    return state | {"excludes": repr(options._source_location_excludes)}


def called(options: Any, option: str, arguments: str) -> tuple[Any, Any]:
    """The setter of an option, whose name may be followed by a first argument, and what it gives."""
    name, _, first = option.partition(" ")
    setter = reduce(getattr, name.split("."), options)
    return setter, eval(f"setter({', '.join(filter(None, [first, arguments]))})", {**NAMES, "setter": setter})


def changed(option: str, arguments: str) -> str:
    """What an option changes, and the notes about it."""
    options = poptorch.Options()
    before = readable(options)
    setter, result = called(options, option, arguments)
    assert result is setter.__self__, "a setter gives its options"
    after = readable(options)
    texts = [f"{name}={value}" for name, value in after.items() if before.get(name) != value]
    return "; ".join([*texts, *(f"NOTE {note}" for note in options.effects())]) or "nothing"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COUNT", "4"), ("RANK", "3"), ("WORD", "four")):
        monkeypatch.setenv(name, value)
    for name in ("POPTORCH_CACHE_DIR", "POPTORCH_DEFAULT_OPTIONS", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("option", ARGUMENTS)
def test_what_every_option_does(option: str, golden: Golden) -> None:
    found = [(option, each, outcome(lambda each=each: changed(option, each), str)) for each in ARGUMENTS[option]]
    golden([" ".join(each) for each in found])


def test_frozen_options_refuse_every_option() -> None:
    options = poptorch.Options()
    options._freeze()
    before = readable(options)
    for option in ARGUMENTS:
        for arguments in ARGUMENTS[option]:
            with pytest.raises((AttributeError, AssertionError, ValueError, poptorch.Error)):
                called(options, option, arguments)
    assert readable(options) == before

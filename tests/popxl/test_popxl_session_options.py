"""``ir._pb_ir.getSessionOptions()``: each option works, is said to be without effect, or is refused."""

import warnings

import numpy as np
import pytest

from ipuperf import popart, popxl
from ipuperf.frontends.options import APPLIED, NO_DIFFERENCE, NO_EFFECT, UNSUPPORTED
from ipuperf.ir import FLOAT16, FLOAT32, AmbiguityError
from ipuperf.popart.session_options import ROWS as EFFECTS
from ipuperf.popxl import ops
from ipuperf.runtime.effects import WithoutEffectWarning

#: A value that asks for something else than the default, where flipping or counting up gives none.
OTHER = {
    "partialsTypeMatMuls": "half",
    "kahnTieBreaker": "fifo",
    "cachePath": "elsewhere",
    "logDir": "elsewhere",
    "customCodeletCompileFlags": "-g",
    "customCodelets": ["codelet.cpp"],
    "dotChecks": {"ALL"},
    "bufferingDepthMap": {"x": 2},
    "prefetchBufferingDepthMap": {"x": 2},
    "virtualGraphMode": popart.VirtualGraphMode.Off,
    "autoRecomputation": popart.RecomputationType.Standard,
    "subgraphCopyingStrategy": popart.SubgraphCopyingStrategy.JustInTime,
    "mergeVarUpdate": popart.MergeVarUpdateType.All,
    "syntheticDataMode": popart.SyntheticDataMode.Zeros,
    "accumulationAndReplicationReductionType": popart.ReductionType.Mean,
    "meanAccumulationAndReplicationReductionStrategy": popart.MeanReductionStrategy.Running,
    "accumulateOuterFragmentSettings": popart.AccumulateOuterFragmentSettings(
        popart.AccumulateOuterFragmentSchedule.Scheduler, [0]
    ),
    **{f"{kind}TensorLocationSettings": popart.TensorLocationSettings(minElementsForOffChip=9)
       for kind in ("activation", "weight", "optimizerState", "accumulator")},
}  # fmt: skip


def _other(options: popart.SessionOptions, name: str) -> object:
    before = getattr(options, name)
    if name in OTHER:
        return OTHER[name]
    if isinstance(before, bool):
        return not before
    if isinstance(before, (int, float)):
        return before + 1
    return {"key": "value"} if isinstance(before, dict) else type(before)()


def _options() -> tuple[popxl.Ir, popart.SessionOptions]:
    ir = popxl.Ir()
    return ir, ir._pb_ir.getSessionOptions()


@pytest.mark.parametrize("name", EFFECTS)
def test_every_option_does_what_its_row_says(name: str) -> None:
    _, options = _options()
    row, value = EFFECTS[name], _other(options, name)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        setattr(options, name, getattr(options, name))  # what is there already: nothing is said
        assert not told
        if row.status == UNSUPPORTED:
            with pytest.raises(ValueError, match=rf"SessionOptions\.{name} = .* is not supported: "):
                setattr(options, name, value)
            return
        setattr(options, name, value)
    assert getattr(options, name) == value
    said = [w for w in told if w.category is WithoutEffectWarning and name in str(w.message)]
    assert len(said) == (row.status == NO_EFFECT and row.asked_for(value))


def test_the_table_has_no_other_words() -> None:
    assert {row.status for row in EFFECTS.values()} == {APPLIED, NO_EFFECT, NO_DIFFERENCE, UNSUPPORTED}


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("numIOTile", 1, AttributeError, "did you mean numIOTiles"),
        ("zzz", 1, AttributeError, "has no option 'zzz'$"),
        ("automaticLossScalingSettings", 1, AttributeError, "ONNX interface"),
        ("numIOTiles", "32", TypeError, "int is needed"),
        ("numIOTiles", True, TypeError, "int is needed"),
        ("numIOTiles", -1, ValueError, "at least 0"),
        ("replicatedGraphCount", 0, ValueError, "at least 1"),
        ("engineOptions", {"a": 1}, TypeError, "strings"),
        (
            "engineOptions",
            {"streamCallbacks.multiThreadMode": "many"},
            ValueError,
            "allowed: single, dedicated",
        ),
        ("engineOptions", {"streamCallbacks.numWorkerThreads": "-1"}, ValueError, "'auto' or a whole number of 0 or"),
    ],
)
def test_bad_options(name: str, value: object, error: type[Exception], words: str) -> None:
    _, options = _options()
    with pytest.raises(error, match=words):
        setattr(options, name, value)


def test_io_tiles_and_replicas_are_those_of_the_program() -> None:
    ir, options = _options()
    options.numIOTiles = 32
    assert ir.num_io_tiles == 32
    ir.num_io_tiles = 0
    assert options.numIOTiles == 0
    options.replicatedGraphCount = 4
    assert ir.replication_factor == 1  # upstream: a count without the switch
    options.enableReplicatedGraphs = True
    assert ir.replication_factor == options.getGlobalReplicationFactor() == 4
    ir.replication_factor = 2
    assert options.replicatedGraphCount == 2


def test_options_are_shared_by_all_handles_of_a_program() -> None:
    ir, options = _options()
    with ir.main_graph:
        assert popxl.get_ir()._pb_ir.getSessionOptions() is options


@pytest.mark.parametrize(
    ("text", "dtype", "found"),
    [
        ("half", np.float16, FLOAT16),
        ("Float", np.float16, FLOAT32),
        ("half", np.float32, FLOAT32),
        ("", np.float16, None),
    ],
)
def test_partials_of_products(text: str, dtype: type, found: object) -> None:
    ir, options = _options()
    options.partialsTypeMatMuls = text
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 2), dtype))
        product = (x @ x)._ir_tensor.producer
        own = ops.matmul(x, x, partials_type=popxl.float32)._ir_tensor.producer
    assert product.attributes["partials_dtype"] is found
    assert own.attributes["partials_dtype"] is FLOAT32


@pytest.mark.parametrize("stable", [False, True])
def test_statistics_of_norms(stable: bool) -> None:
    ir, options = _options()
    options.enableStableNorm = stable
    with ir.main_graph:
        x, one = popxl.variable(np.ones((2, 4))), popxl.variable(np.ones(4))
        made = [ops.layer_norm(x, one, one), ops.group_norm(x, one, one, 2)]
    assert [t._ir_tensor.producer.stable for t in made] == [stable, stable]


def test_an_unknown_type_of_partials_is_refused_where_it_is_used() -> None:
    ir, options = _options()
    options.partialsTypeMatMuls = "foo"
    with ir.main_graph, pytest.raises(ValueError, match="'foo'.*allowed: half, float"):
        popxl.variable(np.ones((2, 2))) @ np.ones((2, 2))


def test_half_partials_take_fewer_cycles() -> None:
    def cycles(text: str) -> int:
        ir, options = _options()
        options.partialsTypeMatMuls = text
        with ir.main_graph:
            x = popxl.variable(np.ones((512, 512), np.float16))
            x @ x
        return popxl.Session(ir, "ipu_model").executable.simulated_run_cycles

    assert cycles("half") < cycles("float")


def test_plan_options_of_libraries() -> None:
    ir, options = _options()
    options.convolutionOptions["availableMemoryProportion"] = "0.2"
    options.matmulOptions = {"availableMemoryProportion": "0.3"}
    with ir.main_graph:
        x = popxl.variable(np.ones((1, 1, 4, 4), np.float32))
        assert ops.conv(x, x)._ir_tensor.producer.attributes["available_memory_proportion"] == 0.2
        assert (x @ x)._ir_tensor.producer.attributes["available_memory_proportion"] == 0.3
    with pytest.warns(WithoutEffectWarning, match="enableConvDithering"):
        options.convolutionOptions["enableConvDithering"] = "true"


def test_prefetching() -> None:
    for name, value, depth in [("defaultBufferingDepth", 3, 3), ("enablePrefetchDatastreams", False, 0)]:
        ir, options = _options()
        setattr(options, name, value)
        with ir.main_graph:
            ops.host_load(popxl.h2d_stream((2,), popxl.float32))
        assert popxl.Session(ir, "ipu_model").executable.host.prefetch_depth == depth


def test_ambiguous_changes_are_an_error_unless_the_program_takes_them() -> None:
    def session(checked: bool) -> popxl.Session:
        ir, options = _options()
        options.enableInplaceAmbiguityChecking = checked
        with ir.main_graph:
            x = popxl.variable([1.0])
            ops.add_(x, x)
            x + 1
        return popxl.Session(ir, "ipu_model")

    with pytest.raises(AmbiguityError):
        session(True)
    with session(False) as running:
        running.run()


def test_the_cache_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPXL_CACHE_DIR", "somewhere")
    _, options = _options()
    assert options.enableEngineCaching
    assert options.cachePath == "somewhere"


def test_a_session_closes_the_options() -> None:
    ir, options = _options()
    popxl.Session(ir, "ipu_model")
    with pytest.raises(RuntimeError, match="cannot be changed after a Session"):
        options.numIOTiles = 2


def test_the_rest_of_the_native_object_is_refused() -> None:
    ir, _ = _options()
    ir._pb_ir.logIr()
    assert ir._pb_ir.getId() == ir.id
    with pytest.raises(AttributeError, match="native object"):
        ir._pb_ir.getAllGraphs()


@pytest.mark.parametrize(("names", "written"), [("", []), ("FINAL", ["Final"]), ("A:b", ["a", "b"]), ("ALL", "Fab")])
@pytest.mark.parametrize("of_environment", [False, True])
def test_checkpoints(tmp_path, monkeypatch: pytest.MonkeyPatch, names: str, written: str, of_environment: bool) -> None:
    monkeypatch.setenv("POPART_DOT_CHECKS", names if of_environment else "")
    ir, options = _options()
    options.logDir = str(tmp_path)
    if not of_environment:
        options.dotChecks = set(names.split(":"))
    ir.dot_checkpoint("a")
    ir.dot_checkpoint("b")
    popxl.Session(ir, "ipu_model")
    found = sorted(p.name.removesuffix("_main.dot") for p in tmp_path.iterdir())
    assert found == (["Final", "a", "b"] if written == "Fab" else written)


def test_checkpoints_without_options_are_all_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POPART_DOT_CHECKS", raising=False)
    ir, options = _options()
    ir.dot_checkpoint("a", tmp_path / "new")
    assert (options.dotChecks, options.logDir) == ({"ALL"}, str(tmp_path / "new"))
    popxl.Session(ir, "ipu_model")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["Final_main.dot", "a_main.dot"]


@pytest.mark.parametrize(
    ("mode", "workers", "threads"),
    [
        (None, None, 1),
        ("single", "auto", 1),
        ("collaborative", "auto", None),
        ("dedicated", None, 1),
        ("dedicated", "3", 4),
    ],
)
def test_threads_of_stream_callbacks(mode: str | None, workers: str | None, threads: int | None) -> None:
    ir, options = _options()
    if mode is not None:
        options.engineOptions["streamCallbacks.multiThreadMode"] = mode
    if workers is not None:
        options.engineOptions["streamCallbacks.numWorkerThreads"] = workers
    assert popxl.Session(ir, "ipu_hw").executable.host_options["callback_threads"] == threads

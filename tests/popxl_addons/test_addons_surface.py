"""Every public name of upstream's addons is here or says why it is not; the small helpers among them."""

import importlib
import json
import logging
import sys
import types
from typing import Any

import numpy as np
import pytest
from upstream_names import ADDONS_NAMES

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import debugging, layers, named_replica_grouping, performance_utils, testing_utils, utils
from ipuperf.popxl_addons.ops import fp8_utils
from ipuperf.popxl_addons.patterns import apply_pre_alias_patterns
from ipuperf.popxl_addons.surface import CANNOT
from ipuperf.runtime.effects import WithoutEffectWarning


@pytest.mark.parametrize(("module", "name"), ADDONS_NAMES)
def test_each_name_is_there_or_says_why_not(module: str, name: str) -> None:
    if f"{module}.{name}" in CANNOT:
        with pytest.raises(ImportError) as error:
            importlib.import_module(f"ipuperf.{module}")
        assert str(error.value) == f"{module} does not work in ipuperf: {CANNOT[f'{module}.{name}']}"
        return
    assert name in vars(importlib.import_module(f"ipuperf.{module}"))


# -- utils -------------------------------------------------------------------------------------------------------------


def test_timer_logs_and_tells_a_running_experiment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = types.SimpleNamespace(run=types.SimpleNamespace(summary={}))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with caplog.at_level(logging.INFO), addons.timer("Load Data"), addons.timer(log_to_wandb=False):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "Starting Load Data", "Starting ", "Duration: 0.00 mins", "Load Data duration: 0.00 mins",
    ]  # fmt: skip
    assert list(wandb.run.summary) == ["load_data_mins"]


def test_ordered_dictionaries_have_positions() -> None:
    found = addons.OrderedDict(b=1, a=2)
    assert (found.idx(0), found.idx(-1), repr(found), repr(addons.OrderedDict())) == (1, 2, "{\nb: 1,\na: 2,\n}", "{}")


def test_names_of_graphs_and_things_twice() -> None:
    assert utils.suffix_graph_name("net_subgraph(3)_grad_subgraph(12)", "recomp") == "net_grad_recomp"
    assert utils.duplicate_items("abcbcc") == ["b", "c"]
    assert utils.overrides(bool, int, "__and__")
    assert not utils.overrides(bool, int, "__add__")


# -- groupings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "stride", "size", "wanted"),
    [(None, 1, 8, (1, 8)), (4, 1, 8, (1, 4)), (4, 2, 4, (2, 2)), (4, 1, 2, (1, 2)), (4, 4, 2, (1, 1))],
)
def test_groupings_within_a_link_domain(
    monkeypatch: pytest.MonkeyPatch, domain: int | None, stride: int, size: int, wanted: tuple[int, int]
) -> None:
    if domain is not None:
        monkeypatch.setenv("POPLAR_TARGET_OPTIONS", json.dumps({"ipuLinkDomainSize": domain}))
    ir = popxl.Ir(8)
    with ir.main_graph:
        group = ir.replica_grouping(stride=stride, group_size=size)
        found = named_replica_grouping.get_ild_replica_grouping(group)
        assert (found.stride, found.group_size) == wanted
        assert named_replica_grouping.is_cross_ild(group) == (found != group)
        assert named_replica_grouping.get_instance_replica_grouping(group) == group
        assert not named_replica_grouping.is_cross_instance(group)  # there is one host process
        assert named_replica_grouping.get_ild_replica_grouping().group_size == (domain or 8)


def test_strides_that_leave_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPLAR_TARGET_OPTIONS", '{"ipuLinkDomainSize": "2"}')
    ir = popxl.Ir(8)
    with ir.main_graph, pytest.raises(ValueError, match="stride is 4; at most IPU-Link Domain size is allowed, 2"):
        named_replica_grouping.get_ild_replica_grouping(ir.replica_grouping(stride=4))


# -- testing and performance utilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [popxl.float32, popxl.float16])
def test_a_module_runs_on_host_data(dtype: popxl.dtype) -> None:
    torch = pytest.importorskip("torch")
    linear, data = torch.nn.Linear(4, 2), np.random.default_rng(0).normal(size=(3, 4))
    (found,) = testing_utils.run_module(
        layers.Linear(2),
        testing_utils.TensorInput(data, dtype),
        weights=lambda variables: layers.Linear.torch_mapping(variables, linear, dtype),
    )
    wanted = linear(torch.tensor(data, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-3 if dtype is popxl.float16 else 1e-6)
    assert testing_utils.ops_of_type([1, 2.0, True], int) == 2


def test_operations_are_counted_through_calls_and_loops() -> None:
    ir = popxl.Ir(2)
    with ir.main_graph:
        x = popxl.variable(np.ones((4, 4), np.float32))
        square = ir.create_graph(lambda t: t @ t, x)
        (y,) = ops.repeat(square, 5, x)
        (z,) = ops.call(square, y)
        _ = ops.group_norm(z * 2.0, popxl.variable(np.ones(4, np.float32)), popxl.variable(np.ones(4, np.float32)), 2)
    product, norm = 2 * 4 * 4 * 4, 3 * 8 + 2 * 8 + 4 * 16
    found = performance_utils.evaluate_FLOPs(ir.main_graph)
    assert found["TOT"] == 6 * product + 16 + norm
    assert {name.partition("_")[0] for name in found["MatMul"]} == {"Loop", "Call"}
    assert sorted(sum(v.values()) for v in found["MatMul"].values()) == [product, 5 * product]
    assert performance_utils.total_FLOPs(ir) == 2 * found["TOT"]


@pytest.mark.parametrize("mode", ["type", "flat"])
def test_operations_are_printed(capsys: pytest.CaptureFixture[str], mode: Any) -> None:
    performance_utils.print_FLOPs({"MatMul": {3: 1500, "Call_7(g)": {5: 500}}, "Add": {4: 2}, "TOT": 2002}, mode)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {
        "type": [["TOT", "2.002E+03", "100.0"], ["MatMul", "2.000E+03", "99.9"], ["Add", "2.000E+00", "0.1"]],
        "flat": [
            ["TOT", "2.002E+03", "TOT"], ["MatMul", "1.500E+03", "MatMul.3"],
            ["MatMul", "0.500E+03", "MatMul.Call_7(g).5"], ["Add", "2.000E+00", "Add.4"],
        ],
    }  # fmt: skip
    assert lines[1:] == rows[mode]


@pytest.mark.parametrize(
    ("value", "style", "wanted"),
    [(0, "nearest3", "0.000E+00"), (9072, "nearest3", "9.072E+03"), (900, "nearest3", "0.900E+03"),
     (64, "nearest3", "64.000E+00"), (0.002, "nearest3", "2.000E-03"), (2.5e9, "M", "2500.000E+06")],
)  # fmt: skip
def test_numbers_of_operations(value: float, style: str, wanted: str) -> None:
    assert addons.format_flops_scientific(value, style) == wanted


@pytest.mark.parametrize("name", ["ieee_fp32_no_denorms", "ieee_fp16_denorms", "float8_152_def", "float8_143_def"])
def test_the_largest_number_of_a_format_has_all_bits_set(name: str) -> None:
    found = getattr(fp8_utils, name)
    assert found.max_value == pytest.approx((2 - 2**-found.num_mantissa_bits) * 2**found.max_exp, rel=1e-7)


def test_formats_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="allowed: K, M, G, T, nearest3"):
        addons.format_flops_scientific(1, "P")
    with pytest.raises(ValueError, match="allowed: type, flat"):
        addons.print_FLOPs({"TOT": 1}, "tree")


# -- what is said of ops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [None, "DEBUG", "WARN"])
def test_printing_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str | None
) -> None:
    if level:
        monkeypatch.setenv("MODEL_LOG_LEVEL", level)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.float32(2.5))
        printed = debugging.print_tensor(x, "the x")
        debugging.print_text("here", level="INFO")
    assert (printed == x) == (level != "DEBUG")
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    texts = capsys.readouterr()
    shown = texts.out + texts.err
    assert [word in shown for word in ("the x", "here")] == [level == "DEBUG", level != "WARN"]
    with ir.main_graph, pytest.raises(KeyError, match="allowed: TRACE"):
        debugging.print_text("x", level="LOUD")


def test_memory_by_ipu_goes_to_products_and_convolutions() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        with popxl.ipu(0):
            a = popxl.variable(np.ones((2, 2), np.float32))
            graph = ir.create_graph(lambda t: t @ t, a)
            (b,) = ops.call(graph, ops.matmul(a, a, available_memory_proportion=0.9))
        with popxl.ipu(1):
            c = b.copy_to_ipu(1)
            c @ c
        with popxl.ipu(2):
            d = c.copy_to_ipu(2)
            d @ d
    products = [op for g in ir._ir.all_graphs() for op in g.ops if op.type == "MatMul"]
    addons.set_graph_available_memory_proportion_by_ipu(graph, [0.3])
    assert {op.attributes["available_memory_proportion"] for op in graph._base.ops} == {0.3}
    assert products[0].attributes["available_memory_proportion"] == 0.9
    addons.set_available_memory_proportion_by_ipu(ir, [0.1, 0.2])
    assert [op.attributes["available_memory_proportion"] for op in products] == [0.1, 0.2, 0.1, 0.1]
    for wrong in ([], [0.0], [0.5, 1.5]):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            addons.set_available_memory_proportion_by_ipu(ir, wrong)


def test_what_the_patterns_and_passes_say() -> None:
    ir = popxl.Ir()
    apply_pre_alias_patterns(ir)
    addons.disable_fc_pass(ir)
    with pytest.warns(WithoutEffectWarning, match="apply_pre_alias_patterns"):
        apply_pre_alias_patterns(ir, "all")
    with pytest.warns(WithoutEffectWarning, match="enable_fc_pass"):
        addons.enable_fc_pass(ir)
    with pytest.raises(KeyError, match="allowed: no_patterns"):
        apply_pre_alias_patterns(ir, "most")
    with pytest.raises(TypeError, match=r"a popxl.Ir is needed"):
        addons.enable_fc_pass(ir.main_graph)


@pytest.mark.parametrize("dtype", [popxl.float16, popxl.float32])
@pytest.mark.parametrize("target", [popxl.float8_143, popxl.float8_152])
@pytest.mark.parametrize("largest", [1.0, 240.0, 300.0, 1e-3, 6e4])
def test_scale_of_8_bit_floats(dtype: popxl.dtype, target: popxl.dtype, largest: float) -> None:
    data = np.array([[largest, -largest / 3], [0, largest / 2]])
    ir = popxl.Ir()
    with ir.main_graph:
        scale = addons.fp8_amax_scale(popxl.variable(data, dtype), target)
        stream = addons.host_store(scale)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()[stream]
    limit, stored = {popxl.float8_143: 240, popxl.float8_152: 57344}[target], float(np.array(largest, dtype.as_numpy()))
    assert found == np.floor(np.log2(limit / stored))
    assert (found.dtype, found.shape) == (np.int32, ())

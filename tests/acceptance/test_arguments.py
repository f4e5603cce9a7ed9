"""Arguments of the front ends: each is read, works, is said once to be without effect, or is refused.

The oracle of the first tests is the source itself (:mod:`arguments`), that of the others NumPy, PyTorch and the words
that the catalogue of options promises.
"""

import ast
import fnmatch
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import arguments
import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.frontends.options import NO_DIFFERENCE, NO_EFFECT, UNSUPPORTED, VOCABULARIES, Effects
from ipuperf.popxl import ops
from ipuperf.tensorflow import config as tf_config
from ipuperf.tensorflow.state import isolated

UNREAD = {
    ("frontends/poptorch_geometric/radius.py", "near(num_workers)"): "threads of the host; the result is the same",
    ("lowering/steps/base.py", "Step.with_trips(trips)"): "a step without a loop has no trips; loops override it",
    ("frontends/poptorch/aten/norms.py", "layer_norm(cudnn_enable)"): "chooses a kernel of the GPU",
    ("frontends/poptorch/aten/norms.py", "group_norm(cudnn_enabled)"): "chooses a kernel of the GPU",
    ("frontends/poptorch/aten/norms.py", "instance_norm(cudnn_enabled)"): "chooses a kernel of the GPU",
    ("frontends/poptorch/aten/norms.py", "batch_norm(cudnn_enabled)"): "chooses a kernel of the GPU",
    ("frontends/poptorch/aten/norms.py", "native_group_norm(n)"): "a size of the operand",
    ("frontends/poptorch/aten/norms.py", "native_group_norm(c)"): "a size of the operand",
    ("frontends/poptorch/aten/norms.py", "native_group_norm(hxw)"): "a size of the operand",
    ("frontends/poptorch/aten/norms.py", "instance_norm(running_var)"): "comes with running_mean, which is refused",
    ("frontends/poptorch/aten/norms.py", "instance_norm(momentum)"): "of the running statistics, which are refused",
    (
        "frontends/poptorch/aten/norms.py",
        "instance_norm(use_input_stats)",
    ): "the only value without statistics",
    ("frontends/poptorch/aten/bags.py", "embedding_bag(sparse)"): "how PyTorch stores the gradient",
    ("frontends/poptorch/aten/spectra.py", "svd(driver)"): "chooses a library of the GPU",
    ("frontends/poptorch/aten/spectra.py", "inverse(check_errors)"): "left out, as the page of simplifications says",
    ("frontends/poptorch/aten/spectra.py", "solve(check_errors)"): "left out, as the page of simplifications says",
    ("frontends/poptorch/aten/order.py", "bucketize(out_int32)"): "the type of the result, which is known",
    ("frontends/poptorch/aten/order.py", "searchsorted(out_int32)"): "the type of the result, which is known",
    ("frontends/poptorch/aten/order.py", "kthvalue(keepdim)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/order.py", "median_along(keepdim)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/order.py", "mode(keepdim)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/order.py", "sort(stable)"): "sorts are always stable",
    ("frontends/poptorch/aten/reduce.py", "distances(compute_mode)"): "how PyTorch computes it",
    ("frontends/poptorch/aten/shape.py", "cumprod(dtype)"): "the type of the result, which is known",
    ("frontends/poptorch/aten/reduce.py", "norm(dtype)"): "the type of the result, which is known",
    ("frontends/poptorch/aten/shape.py", "cumsum(dtype)"): "the type of the result, which is known",
    ("frontends/poptorch/aten/shape.py", "copy(value)"): "overwritten; its shape and type are the result's",
    ("frontends/poptorch/aten/shape.py", "fill(value)"): "overwritten; its shape and type are the result's",
    ("frontends/poptorch/aten/shape.py", "copy(non_blocking)"): "when a copy is done, not what is copied",
    ("frontends/poptorch/aten/shape.py", "nothing(low)"): "it lowers to nothing",
    ("frontends/poptorch/aten/shape.py", "repeat_interleave(output_size)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/shape.py", "upsample_linear(output_size)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/shape.py", "upsample_nearest(output_size)"): "the shape of the result, which is known",
    ("frontends/poptorch/aten/indexing.py", "embedding(sparse)"): "how PyTorch stores the gradient",
    ("frontends/poptorch/aten/indexing.py", "gather(sparse_grad)"): "how PyTorch stores the gradient",
    ("frontends/poptorch/export/derivatives.py", "gradients(retain_graph)"): "a program has no graph to be freed",
    ("frontends/poptorch/export/derivatives.py", "gradients(only_inputs)"): "PyTorch ignores it too",
    **dict.fromkeys(
        [
            ("frontends/poptorch/export/own_gradients.py", f"own_gradient({name})")
            for name in ("operands", "saved", "key")
        ],
        "the type of an op of a trace, which is replaced before it runs",
    ),
    ("ir/op.py", "Op.arranges(index)"): "a hook: an op arranges nothing unless it says so",
    ("lowering/steps/base.py", "Step.host_slices(ipu)"): "a hook: the base class has no host slices",
    (
        "frontends/cppimport/examples_utils/__init__.py",
        "load_lib(timeout)",
    ): "nothing is compiled",
    **dict.fromkeys(
        (
            ("frontends/popdist/horovod_standin/tensorflow.py", "allgather(name)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allgather(process_set)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allreduce(compression)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allreduce(device_dense)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allreduce(device_sparse)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allreduce(name)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "allreduce(process_set)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "broadcast(name)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "broadcast(process_set)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "broadcast_variables(process_set)"),
            ("frontends/popdist/horovod_standin/tensorflow.py", "broadcast_variables(variables)"),
            ("frontends/popdist/horovod_standin/torch.py", "allgather(name)"),
            ("frontends/popdist/horovod_standin/torch.py", "allgather(process_set)"),
            ("frontends/popdist/horovod_standin/job.py", "allgather_object(name)"),
            ("frontends/popdist/horovod_standin/job.py", "allgather_object(process_set)"),
            ("frontends/popdist/horovod_standin/torch.py", "allreduce(compression)"),
            ("frontends/popdist/horovod_standin/torch.py", "allreduce(name)"),
            ("frontends/popdist/horovod_standin/torch.py", "allreduce(process_set)"),
            ("frontends/popdist/horovod_standin/job.py", "barrier(process_set)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast(name)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast(process_set)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_(name)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_(process_set)"),
            ("frontends/popdist/horovod_standin/job.py", "broadcast_object(name)"),
            ("frontends/popdist/horovod_standin/job.py", "broadcast_object(process_set)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_optimizer_state(model)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_optimizer_state(optimizer)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_optimizer_state(process_set)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_parameters(params)"),
            ("frontends/popdist/horovod_standin/torch.py", "broadcast_parameters(process_set)"),
            ("frontends/popdist/horovod_standin/job.py", "join(device)"),
        ),
        "makes no difference to one process",
    ),
}
"""What no code reads, and why that is right: arguments of ATen ops that cannot change a value, and hooks."""

SET_BY_METHODS = ("Options.", "TensorLocationSettings.", "optim.")
"""Rows of PopTorch's options, which ``poptorch.options`` reads where a method sets them."""


@pytest.fixture(scope="module")
def sources() -> arguments.Sources:
    return arguments.Sources()


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings of the test, shown as often as they are given."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def _found(*texts: str) -> set[str]:
    """What :class:`arguments.Sources` finds in files that hold these texts."""
    found = object.__new__(arguments.Sources)
    found.trees = {f"frontends/popxl/{i}.py": ast.parse(text) for i, text in enumerate(texts)}
    found.index()
    return {f"{u.function}({u.parameter})" for u in found.unread()} | {
        f"stored {u.function}({u.parameter})" for u in found.only_stored()
    }


# -- the finder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, b): return a", {"f(b)"}),
        ("def f(a):\n    del a", {"f(a)"}),
        ("def f(a):\n    def g():\n        return a\n    return g", set()),
        ("def f(*args, **named): return 1", {"f(args)", "f(named)"}),
        ("def f(_a): pass\ndef _g(a): return 1", set()),
        ("def f(a):\n    '''Not here.'''\n    raise ValueError", set()),
        ("class A:\n    def m(self, a): return 1\n    def __exit__(self, a): return 1", {"A.m(a)"}),
        ("class A:\n    def m(self, a): return a\nclass B(A):\n    def m(self, a): return 1", set()),
        (
            "class B(elsewhere.A):\n    def m(self, a): return 1\n    def __init__(self, b): self.c = 1",
            {"B.__init__(b)"},
        ),
        ("class A:\n    @staticmethod\n    def m(a): return 1", {"A.m(a)"}),
        ("class A:\n    def __init__(self, a): self._a = a", {"stored A.__init__(_a)"}),
        ("class A:\n    def __init__(self, a): self.a = a\n    def m(self): return self.a", set()),
    ],
)
def test_what_the_finder_finds(text: str, found: set[str]) -> None:
    assert _found(text) == found


@pytest.mark.heavy
def test_no_argument_is_accepted_and_ignored(sources: arguments.Sources) -> None:
    found = {(u.path, f"{u.function}({u.parameter})") for u in sources.unread()}
    assert sorted(found - set(UNREAD)) == [], "read it, or give it to the front end's EFFECTS"
    assert sorted(set(UNREAD) - found) == [], "it is read now"


def test_no_argument_is_only_stored(sources: arguments.Sources) -> None:
    assert sources.only_stored() == []


# -- the tables --------------------------------------------------------------------------------------------------------


def test_every_row_is_used_and_every_use_has_a_row(sources: arguments.Sources) -> None:
    tables = (Effects(front_end) for front_end in VOCABULARIES if front_end != "popart")
    rows = {name: row for table in tables for name, row in table.items() if not name.startswith(SET_BY_METHODS)}
    patterns = arguments.uses(sources)
    assert [p for p in patterns if not fnmatch.filter(rows, p)] == []
    unused = [
        n
        for n, r in rows.items()
        if r.status in (NO_EFFECT, UNSUPPORTED) and not any(fnmatch.fnmatch(n, p) for p in patterns)
    ]
    assert unused == []


def test_every_option_of_the_configuration_has_a_row() -> None:
    options = {f"ipu.config.IPUConfig.{name}" for name in tf_config.IPUConfig().to_dict()}
    assert options == {n for n in Effects("tensorflow") if n.startswith("ipu.config.IPUConfig.") and " (" not in n}


def _default(front_end: str, argument: str) -> Any:
    """The default of ``function(argument)``; ``inspect.Parameter.empty`` when there is none."""
    path, _, name = argument.rstrip(")").partition("(")
    module = f"ipuperf.{front_end}" + (".python" if path.startswith("ipu.") else "")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):  # a module that is imported by its own name only
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    parameter = inspect.signature(found).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default


def test_defaults_never_give_a_warning_or_an_error() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    checked = 0
    for front_end in VOCABULARIES:
        for name, row in Effects(front_end).items():
            if any(c in name for c in "* ") or "(" not in name or "Options." in name or row.status == NO_DIFFERENCE:
                continue
            default = _default(front_end, name)
            if default is not inspect.Parameter.empty and row.neutral:
                checked += 1
                assert not row.asked_for(default), f"{front_end}.{name}: default {default!r}"
    assert checked > 40


# -- popxl -------------------------------------------------------------------------------------------------------------


def _doubled(x: popxl.Tensor) -> popxl.Tensor:
    return x + x


def _call(**options: Any) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        graph = ir.create_graph(_doubled, x)
        ops.call_with_info(graph, x, **options)
        ops.repeat_with_info(graph, 2, x, **options)


@pytest.mark.parametrize("value", [True, False])
def test_check_inputs_is_said_to_be_without_effect(value: bool, told: list[warnings.WarningMessage]) -> None:
    _call(check_inputs=value)
    named = ["popxl.ops.call_with_info(check_inputs)", "popxl.ops.repeat_with_info(check_inputs)"]
    assert [str(w.message).split(" is ")[0] for w in told] == ([] if value else named)


@pytest.mark.parametrize("value", [True, False])
def test_modified_regions(value: bool, told: list[warnings.WarningMessage]) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        info = ops.call_with_info(ir.create_graph(_doubled, x), x)
        info.set_parent_input_modified(x, infer_modified_regions=value)
    assert len(told) == int(value)


def _session(device: Any) -> popxl.Session:
    ir = popxl.Ir()
    with ir.main_graph:
        popxl.variable(np.ones(2, np.float32)) + 1
    return popxl.Session(ir, device)


def test_another_device_is_told(told: list[warnings.WarningMessage]) -> None:
    for device in ("cpu", "ipu_hw", "ipu_model"):
        _session(device)
    assert told == []
    _session("ipu_hv")
    assert "popxl.Session(device_desc) is without effect" in str(told[0].message)


@pytest.mark.parametrize("tiles", [0, 32])
def test_io_tiles_that_are_not_there_are_told(tiles: int, told: list[warnings.WarningMessage]) -> None:
    ir = popxl.Ir()
    ir.num_io_tiles = tiles
    with ir.main_graph, popxl.io_tiles():
        ops.host_load(popxl.h2d_stream((2,), popxl.float32))
    popxl.Session(ir)
    assert ["popxl.io_tiles() is without effect" in str(w.message) for w in told] == [True] * (tiles == 0)


def test_dithering_is_told_and_lists_have_one_entry(told: list[warnings.WarningMessage]) -> None:
    with popxl.Ir().main_graph:
        x, w = (popxl.variable(np.ones(shape, np.float32)) for shape in ((1, 1, 4, 4), (1, 1, 3, 3)))
        ops.conv(x, w, enable_conv_dithering=[0])
        assert told == []
        ops.conv(x, w, enable_conv_dithering=[1])
        assert len(told) == 1
        with pytest.raises(ValueError, match="conv: partials_types=.*one entry"):
            ops.conv(x, w, partials_types=["half", "float"])
        with pytest.raises(ValueError, match="conv_transpose: available_memory_proportions=.*one entry"):
            ops.conv_transpose(x, w, available_memory_proportions=[0.1, 0.2])


def test_no_type_is_complex_and_complex_ones_are_refused() -> None:
    assert not popxl.float32.is_complex
    with pytest.raises(AttributeError, match="complex numbers"):
        popxl.complex64  # noqa: B018


# -- tensorflow --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    with isolated():
        yield


def _configured(**attributes: Any) -> None:
    config = tf_config.IPUConfig()
    for name, value in attributes.items():
        *path, leaf = name.split("__")
        target: Any = config
        for part in path:
            target = getattr(target, part)
        setattr(target, leaf, value)
    config.configure_ipu_system()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("ipus", [0, -1, [2, 0], (-4,)])
def test_numbers_of_ipus_that_do_not_exist(ipus: Any) -> None:
    with pytest.raises(ValueError, match=r"auto_select_ipus is .*; numbers of at least 1 are needed"):
        _configured(auto_select_ipus=ipus)
    with pytest.raises(ValueError, match=r"select_ipus is -1; numbers of at least 0 are needed"):
        _configured(select_ipus=-1)


@pytest.mark.usefixtures("fresh")
def test_index_0_is_a_choice_of_ipus() -> None:
    _configured(select_ipus=0)
    with pytest.raises(ValueError, match="Only one of `auto_select_ipus` and `select_ipus`"):
        _configured(select_ipus=0, auto_select_ipus=1)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({}, []),
        ({"auto_select_ipus": 2, "allow_recompute": True, "matmuls__poplar_options": {"partialsType": "half"}}, []),
        ({"device_connection__type": tf_config.DeviceConnectionType.ON_DEMAND}, []),
        ({"matmuls__poplar_options": {"use128BitConvUnitLoad": "true"}}, ["matmuls.poplar_options (other keys)"]),
        ({"optimizations__enable_fast_math": True}, ["optimizations.enable_fast_math"]),
        (
            {"floating_point_behaviour__esr": True, "ipu_model__version": "ipu1"},
            ["floating_point_behaviour.esr", "ipu_model.version"],
        ),
    ],
)
def test_options_set_in_vain(attributes: dict[str, Any], named: list[str], told: list[warnings.WarningMessage]) -> None:
    _configured(**attributes)
    starts = [f"tensorflow.ipu.config.IPUConfig.{name} is without effect" for name in named]
    assert [str(w.message).split(": ")[0] for w in told] == starts


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: _configured(experimental__multi_replica_distribution__process_count=2), "process_count = 2"),
    ],
)
def test_what_tensorflow_refuses(build: Callable[[], object], named: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^tensorflow\..*{named}.* is not supported: "):
        build()


# -- poptorch ----------------------------------------------------------------------------------------------------------


def test_arguments_of_loaders_are_told(told: list[warnings.WarningMessage]) -> None:
    torch = pytest.importorskip("torch")
    import ipuperf.poptorch as poptorch

    data = torch.utils.data.TensorDataset(torch.arange(8))
    poptorch.DataLoader(poptorch.Options(), data, mode=poptorch.DataLoaderMode.Async, pin_memory=False)
    assert told == []
    poptorch.DataLoader(poptorch.Options(), data, num_workers=2, pin_memory=True, worker_init_fn=print)
    poptorch.AsynchronousDataAccessor(data, early_preload=True)
    named = ["DataLoader(num_workers)", "DataLoader(worker_init_fn)", "DataLoader(pin_memory)"]
    named += ["AsynchronousDataAccessor(early_preload)"]
    assert [str(w.message).split(" is ")[0] for w in told] == [f"poptorch.{name}" for name in named]


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (1.0, 1.0), (2.0, 0.5), (0.5, -1.0)])
def test_softplus_has_its_threshold(beta: float, threshold: float) -> None:
    torch = pytest.importorskip("torch")
    import ipuperf.poptorch as poptorch

    model = torch.nn.Softplus(beta, threshold)
    x = torch.linspace(-3, 3, 25)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x), rtol=1e-6, atol=1e-6)

"""Aten ops beyond the calls of ``callcases.py``: state, random numbers, half precision, options, resizing."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from atencases import (  # noqa: E402
    labels,
    noise,
    positive,
)

from ipuperf import poptorch  # noqa: E402
from ipuperf.ir import Ir, ReplicaGrouping  # noqa: E402
from ipuperf.poptorch.aten.lowering import Norms  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

F = torch.nn.functional
A = noise(3, 4)


def test_gelu_is_the_tanh_form_whatever_is_asked_for(stages: Any) -> None:
    """PopTorch makes PopART's Gelu of both; the error function would differ from it in the fourth digit."""
    x = torch.linspace(-4, 4, 65)
    exported = export_model(torch.nn.GELU(), (x,))
    assert [op.type for op in exported.parts[0].graph.ops] == ["Gelu"]
    (result,) = stages(exported, [x]).outputs
    np.testing.assert_allclose(result, torch.nn.functional.gelu(x, approximate="tanh").numpy(), rtol=1e-5, atol=1e-6)
    assert 1e-4 < np.abs(result - torch.nn.functional.gelu(x).numpy()).max() < 1e-3


def test_conversion_to_half(check_all: Any) -> None:
    check_all({"only": lambda x: (x.half(), x.half().float() * 2)}, A, rtol=2e-3, atol=2e-3)


def test_statistics_of_half_precision_are_not_half(stages: Any) -> None:
    """The mean of 4,096 times 16 is 16 and its variance 0: a sum in float16 would end at 32,768 and a square overflow
    (300 squared is beyond float16), and what the buffers hold is rounded once."""
    module = torch.nn.BatchNorm1d(2, momentum=0.5).half()
    x = torch.tensor([[16.0, 300.0], [16.0, -300.0]], dtype=torch.float16).repeat(2048, 1)
    outcome = stages(export_model(module, (x,)), [x])
    np.testing.assert_allclose(outcome.outputs[0][:, 1], np.tile([1.0, -1.0], 2048), rtol=1e-3)
    np.testing.assert_array_equal(outcome.outputs[0][:, 0], 0)
    np.testing.assert_array_equal(outcome.updates["running_mean"], [8.0, 0.0])
    expected = 0.5 + 0.5 * np.array([0, 90000 * 4096 / 4095])
    np.testing.assert_array_equal(outcome.updates["running_var"], expected.astype(np.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_state(stages: Any, training: bool, dtype: Any) -> None:
    module = torch.nn.BatchNorm2d(3).train(training).to(dtype)
    half = dtype == torch.float16
    with torch.no_grad():
        module.running_var.copy_(positive(3))
    x = (noise(4, 3, 5, 5) * 3 + 1).to(dtype)
    exported = export_model(module, (x,))
    outcome = stages(exported, [x])
    tolerance = 1e-3 if half else 1e-5
    np.testing.assert_allclose(outcome.outputs[0], module(x).detach().numpy(), rtol=10 * tolerance, atol=tolerance)
    assert set(outcome.updates) == ({"running_mean", "running_var", "num_batches_tracked"} if training else set())
    for name, value in outcome.updates.items():
        assert value.dtype == np.int32 if name == "num_batches_tracked" else value.dtype == str(dtype)[6:]
        np.testing.assert_allclose(value, getattr(module, name).numpy(), rtol=tolerance)
    assert exported.unused == ([] if training else ["num_batches_tracked"])


def test_groups_of_strided_channels(stages: Any) -> None:
    """``groupNormStridedChannelGrouping``: groups of channels 0, 2 and 1, 3 instead of 0, 1 and 2, 3."""
    module, x, order = torch.nn.GroupNorm(2, 4), noise(3, 4, 5), [0, 2, 1, 3]
    outcome = stages(export_model(module, (x,), norms=Norms(strided_groups=True)), [x])
    expected = module(x[:, order])[:, order].detach().numpy()
    np.testing.assert_allclose(outcome.outputs[0], expected, rtol=1e-4, atol=1e-5)
    options = poptorch.Options()
    assert not options._Popart.strided_groups
    options._Popart.set("groupNormStridedChannelGrouping", True)
    assert options._Popart.strided_groups
    with pytest.raises(AssertionError, match="'groupNormStridedChannelGrouping', 1.: expected True or False"):
        options._Popart.set("groupNormStridedChannelGrouping", 1)


def test_stable_statistics_of_all_norms_take_longer() -> None:
    """``enableStableNorm``: a pass more, in the forward pass alone; values are the same."""
    kinds = [torch.nn.GroupNorm(2, 4), torch.nn.InstanceNorm1d(4), torch.nn.LayerNorm(64), torch.nn.BatchNorm1d(4)]
    model = torch.nn.Sequential(*kinds, torch.nn.Flatten(), torch.nn.Linear(256, 2))
    found = []

    def flags(program: Ir) -> list[bool]:
        return [op.stable for graph in program.all_graphs() for op in graph.ops if "stable" in op.declared]

    for stable in (False, True):
        options = poptorch.Options().enableStableNorm(stable)
        inference = poptorch.inferenceModel(model, options)
        y = inference(noise(3, 4, 64))
        executable = inference._executable.executable
        assert flags(executable.ir) == [stable] * 3  # the statistics of the fourth are given
        found.append((executable.simulated_run_cycles, y))
        training = export_model(model.train(), (noise(3, 4, 64),), norms=Norms(stable=stable))
        assert flags(training.ir) == [stable] * 4
    assert found[0][0] < found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_batch_norms_over_replicas_name_their_group() -> None:
    module = torch.nn.BatchNorm1d(4)
    exported = export_model(module, (noise(3, 4),), training=False, replication_factor=4, norms=Norms(replicas=2))
    (op,) = (op for part in exported.parts for op in part.graph.ops if op.type == "BatchNormalization")
    assert op.group == ReplicaGrouping(4, 1, 2)


def one_loss(function: Any) -> Any:
    """A module whose loss is found by its function."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Any, y: Any) -> Any:
            return function(x * self.scale, y)

    return Model()


CLASSES = labels(5, 6)


LOSSES = {
    "nll": (lambda x, y: F.nll_loss(x.log_softmax(1), y), CLASSES),
    "cosine": (lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(6)), noise(6, 5) + 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_found_by_their_function(name: str) -> None:
    function, target = LOSSES[name]
    exported = export_model(one_loss(function), (noise(6, 5), target), training=True)
    assert exported.loss == (exported.outputs[0].part, exported.outputs[0].output)


def test_dropout_uses_the_seed_and_its_own_key(stages: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5), torch.nn.Dropout2d(0.3))
    x = torch.ones(8, 64, 4, 4)
    exported = export_model(module, (x,))
    keys = [op.attributes["key"] for op in exported.parts[0].graph.ops if op.type == "Dropout"]
    assert keys == [0, 1, 2]
    (result,) = stages(exported, [x]).outputs
    per_channel = (result != 0).any((2, 3)).mean()
    assert 0.6 < per_channel < 0.8
    assert 0.15 < (result != 0).mean() / per_channel < 0.35
    np.testing.assert_allclose(result[result != 0], 4 / 0.7, rtol=1e-5)
    assert not np.array_equal(result, stages(exported, [x], seed=9).outputs[0])
    module.eval()
    plain = export_model(module, (x,))
    np.testing.assert_array_equal(stages(plain, [x]).outputs[0], x.numpy())


def test_half_models(stages: Any) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    wide, x = [p.clone() for p in module.parameters()], noise(5, 8)
    expected = module(x).detach()
    module.half()
    exported = export_model(module, (x.half(),))
    assert {v.dtype.name for v in exported.variables.values()} == {"float16"}
    (result,) = stages(exported, [x.half()]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected.numpy(), rtol=2e-2, atol=2e-2)
    assert len(wide) == len(exported.variables)


def test_autocast_regions_cast(stages: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.float16):
                y = self.layer(x)
            return y, x

    module, x = Model(), noise(3, 8)
    exported = export_model(module, (x,))
    result, _ = stages(exported, [x]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, module.layer(x).detach().numpy(), rtol=1e-2, atol=1e-2)


def test_types_are_narrowed_and_come_back_so(stages: Any) -> None:
    x, i = noise(3).double(), torch.tensor([1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported = export_model(one_loss(lambda x, y: (x.double() * y, y + 1)), (x, i))
    assert any("float64 is float32 on the IPU: x" in str(w.message) for w in caught)
    assert [s.stream.dtype.name for s in exported.inputs] == ["float32", "int32"]
    outputs = stages(exported, [x, i]).outputs
    assert [o.dtype.name for o in outputs] == ["float32", "int32"]
    back = [spec.to_torch(o) for spec, o in zip(exported.outputs, outputs, strict=True)]
    assert [t.dtype for t in back] == [torch.float32, torch.int32]
    with pytest.raises(poptorch.Error, match="input 'y': 4294967296 does not fit into int32"):
        exported.inputs[1].to_numpy(torch.tensor([2**32]))


UNSUPPORTED = {
    "aten::linalg_lu is unsupported": lambda x, y: torch.linalg.lu(x)[1],
    "torch.bfloat16, which the IPU does not have": lambda x, y: x.bfloat16() * 2,
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_ops_name_op_and_line(message: str) -> None:
    with pytest.raises(poptorch.Error, match=message) as caught:
        export_model(one_loss(UNSUPPORTED[message]), (noise(6, 5), CLASSES))
    assert __file__ in str(caught.value)


# -- resizing ----------------------------------------------------------------------------------------------------------

#: Whole factors, less than 1, and such that the size is a whole multiple while elements are not repeated evenly.
FACTORS = (5.12498, 1.0, 2.0, 3.0, 1.5, 0.5, 0.51, 2.99, 1.3333333, 0.25, 7.7, 3.02)
#: The size stays or doubles, but not by the factor: PyTorch's gradient is not that of its result then.
NEARLY = (2.001, 1.0456, 2.1)


def forward_only(x: Any, **options: Any) -> Any:
    return F.interpolate(x.detach(), **options) + 0 * x.sum()


def _nearest_cases() -> dict[str, Any]:
    numbers: list[tuple[Any, dict[str, Any]]] = [(F.interpolate, {"scale_factor": f}) for f in FACTORS]
    numbers += [(F.interpolate, {"scale_factor": f, "recompute_scale_factor": True}) for f in (*FACTORS, *NEARLY)]
    numbers += [(F.interpolate, {"size": n}) for n in (1, 5, 8, 12, 13, 16, 24)]
    numbers += [(forward_only, {"scale_factor": f}) for f in NEARLY]
    return {f"case_{i}": lambda x, f=f, o=o: f(x, **o) for i, (f, o) in enumerate(numbers)}


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 1, 8, 4), (2, 2, 4, 8), (1, 2, 4, 8, 6)])
def test_nearest(check_all: Any, shape: tuple[int, ...]) -> None:
    check_all(_nearest_cases(), noise(*shape))


def test_nearest_with_a_factor_per_axis(check_all: Any) -> None:
    factors = ((2.0, 3.0), (5.12498, 2.0), (1.0, 0.4), (1.7, 2.3))
    cases = {f"case_{i}": lambda x, f=f: F.interpolate(x, scale_factor=f) for i, f in enumerate(factors)}
    check_all(cases | {"size": lambda x: F.interpolate(x, size=(7, 9))}, noise(2, 2, 8, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (1, 6), (3, 17), (31, 64)])
def test_nearest_at_every_factor_picks_what_pytorch_picks(dtype: Any, shape: tuple[int, int]) -> None:
    """Positions for many factors, by way of numbers that name their positions."""
    from ipuperf.poptorch.aten.shape import _nearest

    names = torch.arange(shape[0] * shape[1], dtype=dtype).reshape(1, 1, *shape).repeat(2, 8, 1, 1)
    for step in range(1, 80):
        factors = (step * 0.1307, step * 0.0713)
        if int(shape[0] * factors[0]) == 0 or int(shape[1] * factors[1]) == 0:
            continue
        wanted = F.interpolate(names, scale_factor=factors)
        rows, columns = _nearest(names.shape, dtype, wanted.shape[2:], factors)
        assert torch.equal(names[:, :, rows][..., columns], wanted), (shape, factors)

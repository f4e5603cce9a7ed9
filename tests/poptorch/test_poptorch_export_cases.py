"""Arguments, results, losses, PopTorch's own ops and errors of exported modules."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from exportcases import check_against_torch, noise  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional


# -- arguments and results ---------------------------------------------------------------------------------------------


@dataclass
class Batch:
    images: Any
    scale: float
    extra: Any = None


class Nested(nn.Module):
    def forward(self, batch: Any, *rest: Any, names: Any = None, flag: bool = False) -> Any:
        y = batch.images * batch.scale + rest[0]["a"]
        if flag:
            y = y + rest[1]
        return {"y": y, "pair": (y.sum(), None), "names": names, "again": [y], "fixed": torch.ones(2)}


def test_nested_arguments_and_results(stages: Any) -> None:
    model, x = Nested(), noise(2, 3)
    args = (Batch(x, 2.0), {"a": torch.ones(3)}, torch.tensor(5))
    exported = export_model(model, args, {"flag": True, "names": ["n"]})
    assert [s.name for s in exported.inputs] == ["batch.images", "rest.0.a", "rest.1"]
    tensors = exported.tensors_of(args, {"names": ["n"], "flag": True})
    result = exported.result_of(stages(exported, tensors).outputs)
    wanted = model(*args, flag=True, names=["n"])
    np.testing.assert_allclose(result["y"], wanted["y"].numpy(), rtol=1e-6)
    assert result["pair"][1] is None
    assert result["names"] == ["n"]
    np.testing.assert_allclose(result["again"][0], result["y"])
    np.testing.assert_array_equal(result["fixed"], [1, 1])
    assert exported.outputs[1].to_torch(np.array(2.0, np.float32)).shape == ()
    assert exported.outputs[-1].constant is not None
    with pytest.raises(poptorch.Error, match=r"batch.scale: 3.0 given, the model was compiled with 2.0"):
        exported.tensors_of((Batch(x, 3.0), *args[1:]), {"names": ["n"], "flag": True})
    with pytest.raises(poptorch.Error, match=r"batch.extra: a tensor given, the model was compiled with None"):
        exported.tensors_of((Batch(x, 2.0, x), *args[1:]), {"names": ["n"], "flag": True})


def test_inputs_and_parameters_as_results(stages: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.arange(3.0))

        def forward(self, x: Any, unused: Any) -> Any:
            return x, self.w, x[1:]

    x = noise(3)
    exported = export_model(Model(), (x, torch.zeros(2)))
    outputs = stages(exported, [x, torch.zeros(2)]).outputs
    for mine, wanted in zip(outputs, (x, torch.arange(3.0), x[1:]), strict=True):
        np.testing.assert_array_equal(mine, wanted.numpy())
    assert exported.inputs[1].stream is None


# -- losses ------------------------------------------------------------------------------------------------------------


class Loss(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(self.layer(x), y)


def loss_arguments() -> tuple[Any, Any]:
    return noise(5, 4), torch.tensor([0, 1, 2, 0, 1])


def test_no_loss_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        export_model(Loss(lambda x, y: x.sum()), loss_arguments(), training=True)


def test_two_independent_losses_are_an_error() -> None:
    model = Loss(lambda x, y: F.cross_entropy(x, y) + F.mse_loss(x, x.flip(0)) * 5)
    message = "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
    with pytest.raises(poptorch.Error, match=message + "poptorch.identity_loss"):
        export_model(model, loss_arguments(), training=True)


def test_several_losses_may_end_in_one(stages: Any) -> None:
    model = Loss(
        lambda x, y: poptorch.identity_loss(F.cross_entropy(x, y) + F.mse_loss(x, x.flip(0).detach()) * 5, "sum")
    )
    exported = export_model(model, loss_arguments(), training=True)
    check_against_torch(stages, model, exported, list(loss_arguments()), model(*loss_arguments()))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, y: F.cross_entropy(x, y) + x.mean(), "aten::add"),
        (lambda x, y: F.cross_entropy(x, y, reduction="none").mean(), "aten::mean"),
        (lambda x, y: (F.cross_entropy(x, y), x.mean()), ""),
        (lambda x, y: poptorch.identity_loss(F.cross_entropy(x, y) + x.mean(), "none"), ""),
    ],
)
def test_what_is_computed_after_a_loss_is_told(function: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    export_model(Loss(function), loss_arguments(), training=True)
    found = [record.getMessage() for record in caplog.records if "is not trained" in record.getMessage()]
    assert len(found) == bool(said)
    assert all(f"({said})" in message for message in found)


def test_a_loss_that_is_no_result_is_still_the_loss() -> None:
    def function(x: Any, y: Any) -> Any:
        F.cross_entropy(x, y).mul(2)
        poptorch.identity_loss(x, "mean")
        return x

    with pytest.raises(poptorch.Error, match="loss"):
        export_model(Loss(function), loss_arguments(), training=True)


# -- PopTorch's own ops ------------------------------------------------------------------------------------------------


def test_checkpoints_are_listed_and_leave_their_part() -> None:
    def function(x: Any, y: Any) -> Any:
        kept = poptorch.recomputationCheckpoint(torch.tanh(x))
        return F.cross_entropy(kept * 2, y)

    exported = export_model(Loss(function), loss_arguments(), training=True)
    ((part, tensor),) = exported.checkpoints
    assert part == 0
    assert tensor.producer.type == "Tanh"
    assert exported.parts[0].checkpoints == [tensor]
    assert tensor in exported.parts[0].graph.outputs


def test_memory_proportions_and_serialised_products(stages: Any) -> None:
    w = noise(4, 6)

    def function(x: Any, y: Any) -> Any:
        a = poptorch.set_available_memory(F.linear(x, torch.ones(4, 3), torch.ones(4)), 0.2)
        modes = poptorch.MatMulSerializationMode
        found = [poptorch.serializedMatMul(a, w, mode, factor) for mode, factor in (
            (modes.OutputChannels, 3), (modes.InputChannels, 5), (modes.ReducingDim, 2))]  # fmt: skip
        return (*found, poptorch.nop(a))

    exported = export_model(Loss(function), loss_arguments())
    products = [op for op in exported.parts[0].graph.ops if op.type == "MatMul"]
    assert len(products) == 2 + 3 + 5 + 2
    assert products[1].attributes["available_memory_proportion"] == 0.2
    outputs = stages(exported, loss_arguments()).outputs
    for mine in outputs[:3]:
        np.testing.assert_allclose(mine, outputs[3] @ w.numpy(), rtol=1e-4, atol=1e-5)


def test_each_part_of_a_serialised_product_has_the_proportion() -> None:
    w = noise(3, 6)

    def function(x: Any, y: Any) -> Any:
        modes = poptorch.MatMulSerializationMode
        found = [poptorch.serializedMatMul(x, w, mode, 3) + 1 for mode in (modes.OutputChannels, modes.ReducingDim)]
        return tuple(poptorch.set_available_memory(each, 0.3) for each in found)

    parts = [op for op in export_model(Loss(function), loss_arguments()).parts[0].graph.ops if op.type == "MatMul"]
    shares = [op.attributes["available_memory_proportion"] for op in parts]
    assert shares.count(0.3) == 2 * 3


# -- errors ------------------------------------------------------------------------------------------------------------


class Formula(nn.Module):
    """A formula of one argument."""

    def __init__(self, formula: Any) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Any) -> Any:
        return self.formula(x)


def assert_refused(function: Any, message: str, **options: Any) -> None:
    with pytest.raises(poptorch.Error, match=message) as caught:
        export_model(Loss(function), loss_arguments(), **options)
    assert f"{__file__}:" in str(caught.value)


def test_control_flow_on_data_is_refused_with_its_line(capsys: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        if x.sum() > 0:
            return x
        return y

    assert_refused(function, r"'if x.sum\(\) > 0:' depends on the value of a tensor; the program of an IPU is static")
    assert "def forward" not in capsys.readouterr().err


def test_item_is_refused() -> None:
    assert_refused(lambda x, y: x * y[0].item(), "aten::item is unsupported: the program of an IPU is static")


def packed(x: Any, y: Any) -> Any:
    from torch.nn.utils.rnn import pack_padded_sequence

    return pack_padded_sequence(x.unsqueeze(0), torch.tensor([2]), batch_first=True).data


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y: x[x > 0], "a result of rows that a mask selects is unsupported: their number depends on data"),
        (lambda x, y: x[:, y[0] > 0], "the shape of the result of aten::index depends on data"),
        (lambda x, y: torch.unique(x), "the shape of the result of aten::_unique2 depends on data"),
        (lambda x, y: x[: int(x.sum())], "depends on the value of a tensor"),
        (lambda x, y: torch.linalg.ldl_factor(x @ x.T)[0], "linalg.ldl_factor.* is unsupported"),
        (lambda x, y: x.long().masked_fill(x > 0, 2**40), "aten::masked_fill: 1099511627776 does not fit into int32"),
        (lambda x, y: x.long().sum() + (2**31), "aten::add: 2147483648 does not fit into int32"),
        (lambda x, y: (x.sum().backward(), x)[1], r"backward\(\) within a model is unsupported"),
        (packed, r"packed sequences .* are unsupported.*out\[torch.arange"),
    ],
)
def test_shapes_and_checks_that_depend_on_data_are_refused(function: Any, message: str) -> None:
    assert_refused(function, message)


def test_a_wrapped_model_within_a_model() -> None:
    inner = poptorch.inferenceModel(nn.Linear(4, 4))
    message = "a PopTorch model of Linear is called in the forward of another one"
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Loss(lambda x, y: inner(x)))(*loss_arguments())


def test_gradients_within_a_model() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_(True)
            (found,) = torch.autograd.grad(self.layer(x).square().sum(), x, create_graph=True)
            return found

    model, x = Penalty(), noise(5, 4)
    found = poptorch.inferenceModel(model)(x)
    torch.testing.assert_close(found, model(x).detach())


def test_what_a_custom_autograd_function_cannot_do_is_refused() -> None:
    class Changing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    before = torch.autograd.Function.apply
    assert_refused(lambda x, y: Changing.apply(x * 1), "ctx.mark_dirty is unsupported")
    assert torch.autograd.Function.apply == before


def test_an_error_in_a_backward_of_the_users_is_told_with_its_place() -> None:
    class Restoring(torch.autograd.Function):
        """As reversible layers: the random numbers of the forward again."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            torch.set_rng_state(None)
            return grad * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(Restoring.apply(self.layer(x)), "sum")

    with pytest.raises(
        poptorch.Error, match=r"export_cases.py:\d+: backward of .*'Restoring' cannot be traced .TypeError"
    ):
        poptorch.trainingModel(Model())(noise(5, 4))


def test_errors_of_the_module_itself_keep_line_and_reason() -> None:
    assert_refused(lambda x, y: x @ x, "cannot be exported: .*mat1 and mat2 shapes|cannot be exported: RuntimeError")


def test_ops_between_blocks_are_refused() -> None:
    def function(x: Any, y: Any) -> Any:
        with poptorch.Block(ipu_id=0):
            x = x * 2
        x = x * 4
        with poptorch.Block(ipu_id=1):
            return x * 3

    assert_refused(function, "No active Block, all the ops must belong to a Block")


def test_ops_before_the_first_block_go_to_the_first_stage() -> None:
    def function(x: Any, y: Any) -> Any:
        x = x * 2
        poptorch.Block.start(ipu_id=1)
        return x * 3

    exported = export_model(Loss(function), loss_arguments())
    assert [(p.ipu, [op.type for op in p.graph.ops]) for p in exported.parts] == [
        (0, ["Transpose", "MatMul", "Add", "Mul"]),
        (1, ["Mul"]),
    ]


def test_data_flows_to_later_stages_only() -> None:
    def function(x: Any, y: Any) -> Any:
        with poptorch.Block("later", ipu_id=1):
            x = x * 2
        with poptorch.Block("earlier", ipu_id=0):
            return x * 3

    strategy = poptorch.ParallelPhasedExecution(
        poptorch.Phase(poptorch.Stage("earlier")).ipus(0), poptorch.Phase(poptorch.Stage("later")).ipus(1)
    )
    with pytest.raises(poptorch.PartitionError, match="phase 0 runs after a block of phase 1|later stages only"):
        export_model(Loss(function), loss_arguments(), strategy=strategy)


def test_unsupported_strings_and_state_are_restored() -> None:
    before = torch.backends.mha.get_fastpath_enabled(), poptorch.isRunningOnIpu()
    assert_refused(lambda x, y: torch.linalg.lu(x)[1], "aten::linalg_lu is unsupported")
    assert (torch.backends.mha.get_fastpath_enabled(), poptorch.isRunningOnIpu()) == before


def test_complex_results_and_those_without_a_rule_are_refused() -> None:
    assert_refused(lambda x, y: torch.linalg.inv(torch.complex(x[:2, :2], x[:2, :2])).real, "of complex numbers")
    for function, message in (
        (lambda x: torch.complex(x.real, x.real), "argument 'x' of the model is complex.*view_as_real"),
        (lambda x: torch.complex(x, x), "a result of the model is complex.*view_as_real"),
    ):
        kind = torch.complex64 if "argument" in message else torch.float32
        with pytest.raises(poptorch.Error, match=message):
            export_model(Formula(function), (torch.ones(2, dtype=kind),))


def test_gradients_that_no_program_has_are_refused() -> None:
    grad, layer = torch.autograd.grad, lambda x: (x**2).sum()
    for function, message in (
        (lambda x, y: grad(layer(x), y.float(), create_graph=True)[0], "do not depend on an input"),
        (lambda x, y: grad(layer(x), x, allow_unused=True)[0], "allow_unused=True is unsupported"),
        (lambda x, y: grad(x, x, x[None], is_grads_batched=True)[0], "is_grads_batched=True is unsupported"),
        (lambda x, y: torch.func.grad(torch.sin)(x), "has to give one number"),
    ):
        assert_refused(function, message)


def test_models_without_data_can_be_exported() -> None:
    with torch.device("meta"):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        x = torch.empty(2, 8, 64)
    exported = export_model(model, (x,))
    assert exported.variables["layers.0.linear1.weight"].data.shape == (128, 64)
    assert len(exported.parameters) == 2 * 12

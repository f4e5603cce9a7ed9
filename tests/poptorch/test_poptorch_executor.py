"""The executor: results of every output mode, arguments of every kind, weights between models, the life of a model."""

import warnings
from collections import namedtuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from executorcases import (  # noqa: E402
    BLOCKS,
    IN,
    OUT,
    Network,
    accumulate,
    assert_same_weights,
    batch,
    close,
    compare,
    inference,
    options,
    twins,
)
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.runtime.effects import WithoutEffectWarning  # noqa: E402

Mode = poptorch.OutputMode


# -- output modes ------------------------------------------------------------------------------------------------------


class Three(nn.Module):
    """A batch, a scalar and a vector of another length for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, OUT)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return y, y.mean(), y.sum(dim=0)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("mode", "period"), [(Mode.All, None), (Mode.Final, None), (Mode.Sum, None), (Mode.EveryN, 2)])
def test_output_modes_of_inference(mode: Any, period: int | None, replicas: int) -> None:
    """As upstream: the results of slices and replicas are joined along axis 0; scalars are one number per slice, and a
    scalar where there is only one; EveryN(N) returns the slices N-1, 2N-1, ..."""
    torch.manual_seed(0)
    module, (x, _) = Three(), batch(4 * replicas)
    opts = inference(mode=mode, period=period, replicas=replicas, strategy=poptorch.ShardedExecution())
    found = poptorch.inferenceModel(module, opts)(x)
    slices = [[module(x[2 * (s * replicas + r) :][:2]) for r in range(replicas)] for s in range(4)]
    for number, result in enumerate(found):
        per_slice = [torch.stack([each[number] for each in row]) for row in slices]
        chosen = {
            Mode.All: per_slice,
            Mode.Final: per_slice[-1:],
            Mode.Sum: [torch.stack(per_slice).sum(dim=0)],
            Mode.EveryN: per_slice[1::2],
        }[mode]
        joined = torch.stack(chosen).flatten(0, 1)
        expected = joined.flatten(0, 1) if joined.dim() > 1 else joined.squeeze()
        assert result.shape == expected.shape
        close(result, expected, rtol=1e-4)


@pytest.mark.parametrize(("mode", "period", "count"), [(Mode.Default, 0, 1), (Mode.EveryN, 2, 6), (Mode.Sum, 0, 1)])
def test_output_modes_of_a_pipeline(mode: Any, period: int | None, count: int) -> None:
    ours, theirs = twins(Network)
    data = batch(12)
    expected = accumulate(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), data, iterations=2, accumulation=6)
    opts = options(iterations=2, mode=mode, period=period)
    out, loss = poptorch.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.1))(*data)
    outs, losses = (torch.stack([r[n] for r in expected]) for n in (0, 1))
    if mode is Mode.Sum:
        outs, losses = outs.sum(dim=0, keepdim=True), losses.sum(dim=0, keepdim=True)
    elif mode is Mode.EveryN:
        outs, losses = outs[1::2], losses[1::2]
    else:
        outs, losses = outs[-1:], losses[-1:]
    assert loss.shape == ((count,) if count > 1 else ())
    close(loss, losses.reshape(loss.shape))
    close(out, outs.flatten(0, 1))


def test_sum_of_whole_numbers() -> None:
    class Hits(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (x > 0).sum(), (x > 0).to(torch.int32)

    x, _ = batch(4)
    count, each = poptorch.inferenceModel(Hits(), inference(mode=Mode.Sum, strategy=poptorch.ShardedExecution()))(x)
    assert count.item() == int((x > 0).sum())
    assert torch.equal(each.long(), (x > 0).reshape(4, 2, IN).sum(dim=0))


@pytest.mark.parametrize("kind", [poptorch.CommGroupType.Consecutive, poptorch.CommGroupType.Orthogonal])
def test_replicas_that_share_their_input(kind: Any) -> None:
    """Two groups of two of four replicas: consecutive (0, 1), (2, 3), orthogonal (0, 2), (1, 3)."""

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return 2 * x

    opts = inference(2, 4, strategy=poptorch.ShardedExecution()).inputReplicaGrouping(2, kind)
    x = torch.arange(4.0)  # two slices for two groups
    found = poptorch.inferenceModel(Double(), opts)(x).reshape(2, 4)
    order = [0, 0, 1, 1] if kind is poptorch.CommGroupType.Consecutive else [0, 1, 0, 1]
    assert torch.equal(found, 2 * x.reshape(2, 2)[:, order])


# -- arguments and results ---------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


class Nested(nn.Module):
    """Takes and gives dictionaries, tuples, None and numbers."""

    def forward(self, images: Any, pair: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
        total = images["a"] + images["b"] * pair.left + pair.right
        if mask is not None:
            total = total * mask
        return {"total": total * scale, "pair": Pair(pair.left, None), "name": "x", "more": [images["a"], 3]}


@pytest.mark.parametrize("masked", [False, True])
def test_nested_arguments_and_results(masked: bool) -> None:
    a, b, left, right, mask = torch.randn(5, 8, 3).unbind()
    arguments = ({"a": a, "b": b},)
    named = {"pair": Pair(left, right), "scale": 2.5, **({"mask": mask} if masked else {})}
    module = Nested()
    model = poptorch.inferenceModel(module, inference(strategy=poptorch.ShardedExecution()))
    for _ in range(2):
        found, expected = model(*arguments, **named), module(*arguments, **named)
        assert found["name"] == "x"
        assert found["more"][1] == 3
        assert found["pair"].right is None
        close(found["total"], expected["total"])
        close(found["more"][0], a)
        close(found["pair"].left, left)


def test_an_input_read_by_two_stages() -> None:
    """Both stages get the micro-batch they work on."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(IN)) for _ in range(3)])

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            h = x
            for number, block in enumerate(BLOCKS):
                with poptorch.Block(block):
                    h = torch.tanh(h * self.weights[number]) + x
                    if number == 2:
                        loss = nn.functional.mse_loss(h[:, :OUT], y)
            return h, loss

    compare(network=Twice)


def test_integer_and_boolean_tensors() -> None:
    class Pick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 3)

        def forward(self, i: torch.Tensor, keep: torch.Tensor) -> Any:
            return self.table(i) * keep.unsqueeze(1), i + 1, keep

    module = Pick()
    i, keep = torch.randint(0, 10, (8,)), torch.rand(8) > 0.5
    rows, following, same = poptorch.inferenceModel(module, inference(strategy=poptorch.ShardedExecution()))(i, keep)
    close(rows, module.table(i) * keep.unsqueeze(1))
    assert torch.equal(following, i + 1)
    assert following.dtype == torch.int32
    assert torch.equal(same, keep)


def test_a_scalar_input_and_a_constant_result() -> None:
    class Shift(nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor) -> Any:
            return x + by, torch.tensor([1.0, 2.0])

    model = poptorch.inferenceModel(Shift(), poptorch.Options().showCompilationProgressBar(False))
    for by in (1.0, -2.0):
        x, constant = model(torch.ones(3), torch.tensor(by))
        assert torch.equal(x, torch.ones(3) + by)
        assert torch.equal(constant, torch.tensor([1.0, 2.0]))


def test_an_input_that_requires_a_gradient_is_detached(caplog: Any) -> None:
    module, _ = twins(Network)
    x, y = batch(6)
    poptorch.trainingModel(module, options())(x.requires_grad_(), y)
    assert "Input x has requires_grad=True" in caplog.text
    assert x.grad is None


def test_results_have_no_backward() -> None:
    module, _ = twins(Network)
    _, loss = poptorch.trainingModel(module, options())(*batch(6))
    assert not loss.requires_grad
    with pytest.raises(poptorch.Error, match="has no graph behind it"):
        loss.backward()
    assert all(parameter.grad is None for parameter in module.parameters())


# -- weights between models --------------------------------------------------------------------------------------------


def test_inference_sees_what_training_has_learnt() -> None:
    ours, theirs = twins(Network)
    training = poptorch.trainingModel(ours, options(), torch.optim.SGD(ours.parameters(), lr=0.1))
    testing = poptorch.inferenceModel(training, inference())
    x, _ = batch(4, seed=9)
    native = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for call in range(2):
        training(*batch(6, seed=call))
        accumulate(theirs, native, batch(6, seed=call), iterations=1, accumulation=6)
        close(testing(x), theirs(x))


def test_weights_change_on_the_ipus_when_they_are_copied() -> None:
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options(), torch.optim.SGD(module.parameters(), lr=0.0))
    model(*batch(6))
    with torch.no_grad():
        module.third.bias.fill_(5.0)
    out, _ = model(*batch(6))
    assert out.max() < 4, "the IPUs have the old bias, and write it back"
    assert module.third.bias.max() < 4
    with torch.no_grad():
        module.third.bias.fill_(5.0)
    model.copyWeightsToDevice()
    out, _ = model(*batch(6))
    assert out.min() > 2
    state = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
    model.load_state_dict(state)
    out, _ = model(*batch(6))
    assert not out.any()
    model.copyWeightsToHost()
    assert model.copyWeightsToHostIfNeeded() is False


def test_loading_weights_keeps_the_optimiser() -> None:
    """Momentum stays on the IPUs when weights are loaded."""
    ours, theirs = twins(Network)
    native = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    model = poptorch.trainingModel(ours, options(), torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9))
    for call in range(3):
        model(*batch(6, seed=call))
        model.copyWeightsToHost()
        model.copyWeightsToDevice()
        accumulate(theirs, native, batch(6, seed=call), iterations=1, accumulation=6)
    assert_same_weights(ours, theirs)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor([2.0]))
        self.register_buffer("other", torch.tensor([1.0]))

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.factor + self.other


def test_named_buffers_are_loaded_alone() -> None:
    module = Buffered()
    opts = poptorch.Options().showCompilationProgressBar(False).updatableNamedBuffers(["factor"])
    model = poptorch.inferenceModel(module, opts)
    assert model(torch.ones(1)).item() == 3.0
    module.factor.fill_(10.0)
    model.copyNamedBuffersToDevice()
    assert model(torch.ones(1)).item() == 11.0
    other = poptorch.inferenceModel(module, poptorch.Options().updatableNamedBuffers(["nothing"]))
    with pytest.raises(poptorch.Error, match="the model has no buffer nothing"):
        other.compile(torch.ones(1))


def test_other_buffers_and_weights_stay_as_they_were(caplog: Any) -> None:
    """What the program changes on the host is used when it is copied, not before: upstream gives 12 here, not 15."""
    module = Buffered()
    opts = poptorch.Options().showCompilationProgressBar(False).updatableNamedBuffers(["factor"])
    model = poptorch.inferenceModel(module, opts)
    x = torch.ones(3)
    assert model(x).sum().item() == 9
    module.factor.fill_(3.0)
    module.other.fill_(2.0)
    assert model(x).sum().item() == 9
    model.copyNamedBuffersToDevice()
    assert model(x).sum().item() == 12
    assert caplog.text.count("other changed on the host and the IPUs hold the old values") == 1
    model.copyWeightsToDevice()
    assert model(x).sum().item() == 15
    model.load_state_dict({"factor": torch.tensor([1.0]), "other": torch.tensor([0.0])})
    assert model(x).sum().item() == 3


def test_inference_takes_what_was_trained_but_not_what_the_program_changed() -> None:
    module, _ = twins(Network)
    trained = poptorch.trainingModel(module, options(), torch.optim.SGD(module.parameters(), lr=0.1))
    model, other = (poptorch.inferenceModel(module, inference()) for _ in range(2))
    x, _ = batch(4, seed=7)
    before = model(x)
    with torch.no_grad():
        module.heat.fill_(5.0)
    close(model(x), before)
    close(other(x), module(x))
    with torch.no_grad():
        module.heat.fill_(0.75)
    trained(*batch(6))
    close(model(x), module(x))
    assert not torch.allclose(model(x), before)


def test_life_of_a_model(caplog: Any) -> None:
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options(), torch.optim.SGD(module.parameters(), lr=0.1))
    assert not model.isCompiled()
    assert model.getPerfCounters() == {"input": [[]], "input_complete": [[]], "output": [[]], "output_complete": [[]]}
    for method in ("copyWeightsToHost", "copyWeightsToDevice", "getLatency", "detachFromDevice"):
        with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
            getattr(model, method)()
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        model.cycleCount()
    logged = poptorch.trainingModel(Network(), options().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="run the model at least once first"):
        logged.cycleCount()
    with pytest.raises(poptorch.Error, match="compilationTime: the model has not been compiled"):
        model.compilationTime()
    model.compile(*batch(6))
    assert model.isCompiled()
    assert model.isAttachedToDevice()
    model.compile(*batch(6))
    assert "Call to compile() ignored" in caplog.text
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        model.attachToDevice()
    model.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        model.detachFromDevice()
    model(*batch(6))
    assert model.isAttachedToDevice(), "a call attaches"
    assert model.model is module
    assert model.first is module.first
    with pytest.raises(AttributeError, match="nothing"):
        _ = model.nothing
    with pytest.raises(AttributeError, match="frozen"):
        model.options.deviceIterations(3)
    model.destroy()
    assert not model.isCompiled()
    model(*batch(6))
    assert model.isCompiled()
    assert "PoplarExecutor(training): Network(" in repr(model)


def test_options_of_a_model_are_frozen_and_a_clone_is_free() -> None:
    """A change that could not reach the model is an error, as upstream's (``poptorch:python/_poplar_executor.py``)."""
    module, _ = twins(Network)
    opts = options()
    model = poptorch.trainingModel(module, opts)
    for change in (
        lambda: opts.deviceIterations(5),
        lambda: opts.Training.gradientAccumulation(2),
        lambda: opts._Popart.set("autoRecomputation", 0),
        lambda: opts.setExecutionStrategy(poptorch.ShardedExecution()),
    ):
        with pytest.raises(AttributeError, match="frozen"):
            change()
    other = poptorch.trainingModel(twins(Network)[0], opts)  # frozen options serve further models
    assert opts.clone().deviceIterations(5).device_iterations == 5
    assert (model.options.device_iterations, other.options.device_iterations) == (1, 1)
    assert poptorch.trainingModel(Network()).options.output_mode == poptorch.OutputMode.Final
    assert poptorch.inferenceModel(Network()).options.output_mode == poptorch.OutputMode.All


def test_hooks_around_the_compilation() -> None:
    calls: list[str] = []
    hooks = [
        poptorch.registerPreCompileHook(lambda: calls.append("before")),
        poptorch.registerPostCompileHook(lambda: calls.append("after")),
    ]
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options())
    model(*batch(6))
    model(*batch(6))
    for hook in hooks:
        hook.remove()
    assert calls == ["before", "after"]


def test_options_without_effect_are_named_once() -> None:
    opts = inference(strategy=poptorch.ShardedExecution()).enableStableNorm(True).useIpuId(3)
    model = poptorch.inferenceModel(Three(), opts)
    with pytest.warns(WithoutEffectWarning, match=r"useIpuId\(3\) is without effect") as notes:
        model(batch(4)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", WithoutEffectWarning)
        model(batch(4)[0])
    assert len(notes) == 1


@pytest.mark.parametrize("shape", [(1,), (3,)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_a_copy_converts_what_it_reads(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Buffers of another type and shape than the tensor that is copied into them, read behind the copy; two buffers
    take the same tensor."""

    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.zeros(shape, dtype=dtype))
            self.register_buffer("same", torch.zeros(1))
            self.register_buffer("again", torch.zeros(1))

        def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
            before = self.step.reshape(-1) * 1
            self.step.copy_(t)
            self.same.copy_(t)
            self.again.copy_(t)
            return before, self.step.view(-1) + 1, self.same + self.again

    plain = Steps()
    model = poptorch.inferenceModel(Steps())
    for number in (3.75, -2.5):
        t = torch.tensor([number])
        for found, expected in zip(model(t), plain(t), strict=True):
            torch.testing.assert_close(found, expected)

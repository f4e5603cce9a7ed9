"""Training models against PyTorch with gradient accumulation written out: every optimiser, strategy and location."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from executorcases import (  # noqa: E402
    Network,
    accumulate,
    adamw,
    assert_same_weights,
    batch,
    compare,
    options,
    twins,
)

import ipuperf.poptorch as poptorch  # noqa: E402

optim = poptorch.optim


# -- optimisers --------------------------------------------------------------------------------------------------------

CASES = {
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd native": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd momentum": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd decay": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1}),
    "adam": (optim.Adam, torch.optim.Adam, {"lr": 0.01, "eps": 1e-3}),
    "adam decay": (optim.Adam, torch.optim.Adam, {"lr": 0.01, "eps": 1e-3, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "adamw": (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}),
    "adamw native": (torch.optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-3}),
    "adamw no decay": (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.0}),
    "rmsprop": (optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-2, "alpha": 0.9}),
    "rmsprop momentum": (optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-2, "momentum": 0.9}),
    "rmsprop all": (
        optim.RMSprop,
        torch.optim.RMSprop,
        {"lr": 0.01, "eps": 1e-2, "alpha": 0.8, "momentum": 0.5, "weight_decay": 0.1, "centered": True},
    ),
    "lamb": (optim.LAMB, optim.LAMB, {"lr": 0.05, "eps": 1e-3}),
    "lamb limited": (optim.LAMB, optim.LAMB, {"lr": 0.05, "eps": 1e-3, "weight_decay": 0.1, "max_weight_norm": 1.0}),
    "lamb no bias": (optim.LAMB, optim.LAMB, {"lr": 0.05, "eps": 1e-3, "bias_correction": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_optimiser(name: str) -> None:
    ours, theirs, arguments = CASES[name]
    compare(lambda p: ours(p, **arguments), lambda p: theirs(p, **arguments))


# -- what torch.optim does not do --------------------------------------------------------------------------------------


class Scalar(torch.nn.Module):
    """The gradient of the weight is the mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, -1.0]))

    def forward(self, x: Any) -> Any:
        return poptorch.identity_loss((x * self.weight).sum(dim=1).mean(), "none")


GRADIENTS = np.array([[0.5, -1.0], [0.25, 2.0], [-3.0, 0.125]])


def scalar_weights(optimiser: Any) -> list[np.ndarray]:
    """The weight after each update with the gradients of GRADIENTS."""
    module = Scalar()
    options_ = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.trainingModel(module, options_, optimiser(module.parameters()))
    found = []
    for gradient in GRADIENTS:
        model(torch.tensor(gradient, dtype=torch.float32).repeat(4, 1))
        found.append(module.weight.detach().numpy().copy())
    return found


def test_dampening_counts_from_the_first_step() -> None:
    w, v = np.array([2.0, -1.0]), np.zeros(2)
    found = scalar_weights(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
    for gradient, weight in zip(GRADIENTS, found, strict=True):
        v = 0.9 * v + 0.5 * gradient
        w = w - 0.1 * v
        np.testing.assert_allclose(weight, w, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_as_in_tensorflow(momentum: float, centered: bool) -> None:
    """``popart:willow/include/popart/adaptive.hpp``: averages begin at one, epsilon under the root, rate in the
    momentum."""
    lr, alpha, eps, decay = 0.1, 0.9, 1e-2, 0.05
    w, square, mean, v = np.array([2.0, -1.0]), np.ones(2), np.zeros(2), np.zeros(2)
    found = scalar_weights(
        lambda p: optim.RMSprop(
            p,
            lr=lr,
            alpha=alpha,
            eps=eps,
            momentum=momentum,
            centered=centered,
            weight_decay=decay,
            use_tf_variant=True,
        )
    )  # fmt: skip
    for gradient, weight in zip(GRADIENTS, found, strict=True):
        g = gradient + decay * w
        square = alpha * square + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        step = g / np.sqrt(square - (mean**2 if centered else 0) + eps)
        if momentum:
            v = momentum * v + lr * step
            w = w - v
        else:
            w = w - lr * step
        np.testing.assert_allclose(weight, w, rtol=1e-5)


def test_adamw_without_bias_correction() -> None:
    w, m, s = np.array([2.0, -1.0]), np.zeros(2), np.zeros(2)
    found = scalar_weights(lambda p: optim.AdamW(p, lr=0.1, eps=1e-3, weight_decay=0.1, bias_correction=False))
    for gradient, weight in zip(GRADIENTS, found, strict=True):
        m, s = 0.9 * m + 0.1 * gradient, 0.999 * s + 0.001 * gradient**2
        w = w - 0.1 * (m / (np.sqrt(s) + 1e-3) + 0.1 * w)
        np.testing.assert_allclose(weight, w, rtol=1e-5)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_loss_scaling_leaves_the_numbers(kind: Any) -> None:
    plain = scalar_weights(lambda p: kind(p, lr=0.1))
    scaled = scalar_weights(lambda p: kind(p, lr=0.1, loss_scaling=1024.0))
    np.testing.assert_allclose(plain, scaled, rtol=1e-6)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_loss_scale_changes_between_calls(kind: Any, half: bool) -> None:
    """The weights are those without it; the gradients that float16 carries are those with it."""
    ours, theirs = twins(Network)
    mine = kind(ours.parameters(), lr=0.05, loss_scaling=2.0)
    native = (torch.optim.SGD if kind is optim.SGD else torch.optim.AdamW)(theirs.parameters(), lr=0.05)
    for group in native.param_groups:
        group["weight_decay"] = mine.param_groups[0]["weight_decay"]
    model = poptorch.trainingModel(ours.half() if half else ours, options(), mine)
    for call, scale in enumerate((2.0, 256.0, 1.0)):
        mine.loss_scaling = scale
        model.setOptimizer(mine)
        x, y = batch(6, seed=call)
        model(x.half() if half else x, y.half() if half and y.is_floating_point() else y)
        accumulate(theirs, native, (x, y), iterations=1, accumulation=6)
    tolerance = {"rtol": 0, "atol": 5e-3} if half and kind is optim.SGD else {"rtol": 0, "atol": 5e-2 if half else 1e-5}
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.float(), other, **tolerance)
    assert {name for name, _ in model.compiled_model.pipeline.scalars} >= {"loss_scale", "gradient_scale"}


def test_a_loss_scale_that_is_marked_constant_stays() -> None:
    module, _ = twins(Network)
    mine = optim.SGD(module.parameters(), lr=0.05, loss_scaling=2.0)
    mine.variable_attrs.markAsConstant("loss_scaling")
    model = poptorch.trainingModel(module, options(), mine)
    model(*batch(6))
    mine.loss_scaling = 4.0
    with pytest.raises(poptorch.Error, match=r"loss_scaling is already compiled in as 2.0 and cannot become 4.0"):
        model.setOptimizer(mine)


def test_the_combined_variant_has_the_same_numbers() -> None:
    plain = scalar_weights(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
    combined = scalar_weights(
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=8.0)
    )
    np.testing.assert_allclose(plain, combined, rtol=1e-6)


# -- parameter groups and changes of numbers ---------------------------------------------------------------------------


def two_groups(kind: Any, module: Any, rates: tuple[float, float], **more: Any) -> Any:
    first = [*module.first.parameters(), *module.third.parameters()]
    groups = [{"params": first, "lr": rates[0]}, {"params": module.second.parameters(), "lr": rates[1]}]
    return kind(groups, lr=0.1, **more)


@pytest.mark.parametrize("kind", [(optim.SGD, torch.optim.SGD), (optim.AdamW, torch.optim.AdamW)])
def test_parameter_groups_and_a_schedule(kind: Any) -> None:
    more = {"momentum": 0.9} if kind[0] is optim.SGD else {"eps": 1e-3}
    ours, theirs = twins(Network)
    native = two_groups(kind[1], theirs, (0.05, 0.0), **more)
    model = poptorch.trainingModel(ours, options(), two_groups(kind[0], ours, (0.05, 0.0), **more))
    start = ours.second.weight.clone()
    for call, rates in enumerate([(0.05, 0.0), (0.01, 0.02), (0.0, 0.01)]):
        for group, rate in zip(native.param_groups, rates, strict=True):
            group["lr"] = rate
        if call:
            model.setOptimizer(two_groups(kind[0], ours, rates, **more))
        else:
            assert torch.equal(ours.second.weight, start)
        model(*batch(6, seed=call))
        accumulate(theirs, native, batch(6, seed=call), iterations=1, accumulation=6)
        assert_same_weights(ours, theirs)


NUMBERS = [
    {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1},
    {"lr": 0.02, "betas": (0.5, 0.7), "eps": 1e-2, "weight_decay": 0.2},
    {"lr": 0.005, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.0},
]


def test_every_number_can_change() -> None:
    """All are given to the constructor, so all are variable; a new optimiser keeps the state on the IPUs."""
    ours, theirs = twins(Network)
    native = torch.optim.AdamW(theirs.parameters(), **NUMBERS[0])
    model = poptorch.trainingModel(ours, options(), optim.AdamW(ours.parameters(), **NUMBERS[0]))
    for call, numbers in enumerate(NUMBERS):
        native.param_groups[0].update(numbers)
        model.setOptimizer(optim.AdamW(ours.parameters(), **numbers))
        model(*batch(6, seed=call))
        accumulate(theirs, native, batch(6, seed=call), iterations=1, accumulation=6)
        assert_same_weights(ours, theirs)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_a_learning_rate_scheduler() -> None:
    ours, theirs = twins(Network)
    mine, native = torch.optim.SGD(ours.parameters(), lr=0.2), torch.optim.SGD(theirs.parameters(), lr=0.2)
    schedules = [torch.optim.lr_scheduler.StepLR(each, step_size=1, gamma=0.5) for each in (mine, native)]
    model = poptorch.trainingModel(ours, options(), mine)
    for call in range(3):
        model(*batch(6, seed=call))
        accumulate(theirs, native, batch(6, seed=call), iterations=1, accumulation=6)
        for schedule in schedules:
            schedule.step()
        model.setOptimizer(mine)
    assert_same_weights(ours, theirs)


REFUSED = {
    "kind": (lambda p: torch.optim.SGD(p, lr=0.1), "compiled for adamw with 1 parameter group.*sgd with 1 given"),
    "constant": (
        lambda p: optim.AdamW(p, lr=0.01, betas=(0.5, 0.6), eps=1e-3, weight_decay=0.1),
        r"betas is constant: compiled in as \(0.9, 0.999\), it cannot become \(0.5, 0.6\); .*markAsVariable",
    ),
    "loss scaling": (
        lambda p: optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1, loss_scaling=8.0),
        "loss_scaling is already compiled in as 1.0 and cannot become 8.0",
    ),
    "bias correction": (
        lambda p: optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1, bias_correction=False),
        "bias_correction is already compiled in as True",
    ),
    "parameters": (
        lambda p: optim.AdamW(list(p)[1:], lr=0.01, eps=1e-3, weight_decay=0.1),
        "parameter group 0 has other parameters",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_is_compiled_in(compiled_adamw: Any, name: str) -> None:
    made, message = REFUSED[name]
    with pytest.raises(poptorch.Error, match=message):
        compiled_adamw.setOptimizer(made(compiled_adamw.model.parameters()))


@pytest.fixture(scope="module")
def compiled_adamw() -> Any:
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options(), adamw(module.parameters()))
    model.compile(*batch(6))
    return model


def test_a_momentum_that_was_not_there() -> None:
    module = Scalar()
    opts = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.1))
    model.setOptimizer(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5))  # not compiled yet
    model.compile(torch.ones(4, 2))
    model.setOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))  # a momentum of 0 is a number like others
    other = Scalar()
    model = poptorch.trainingModel(other, opts, torch.optim.SGD(other.parameters(), lr=0.1))
    model.compile(torch.ones(4, 2))
    with pytest.raises(poptorch.Error, match="momentum was 0 when the model was compiled.*cannot become 0.5"):
        model.setOptimizer(torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.5))


def test_an_inference_model_has_no_optimiser() -> None:
    module, _ = twins(Network)
    model = poptorch.inferenceModel(module)
    with pytest.raises(poptorch.Error, match="an inference model has no optimiser"):
        model.setOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))


class _Parts(torch.nn.Module):
    """Products of two of three parts of a layer's result; nobody reads the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 12)

    def forward(self, x: Any, y: Any) -> Any:
        one, two, _ = self.layer(x).chunk(3, dim=1)
        found = one * two
        return found, torch.nn.functional.mse_loss(found, y)


def test_gradients_of_the_parts_of_a_tensor_are_joined() -> None:
    """One Concat (with zeros for what nobody reads) in place of a padded tensor for each part and their sum, as
    PopART's SplitGradOpToConcatPattern makes it; the weights after a step are PyTorch's."""
    mine, theirs = twins(_Parts)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 4, generator=generator) for _ in range(2))
    optimizer = optim.SGD(mine.parameters(), lr=0.5)
    program = poptorch.compile_offline(
        mine, None, x, y, optimizer=optimizer, machine="gc200-1"
    ).executable.device_program
    types = [op.type for op in program.ops]
    assert types.count("Concat") == 1
    assert "SliceGrad" not in types
    poptorch.trainingModel(mine, optimizer=optimizer)(x, y)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.5)
    theirs(x, y)[1].backward()
    reference.step()
    assert_same_weights(mine, theirs)


@pytest.mark.parametrize("ipus", [1, 2])
def test_a_model_without_anything_to_train_runs_forward(ipus: int) -> None:
    nn = torch.nn

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.requires_grad_(False)
            self.norm.eval()

        def forward(self, x, y):
            with poptorch.Block("first", ipu_id=0):
                x = self.first(x)
            with poptorch.Block("last", ipu_id=ipus - 1):
                x = self.norm(x)
                return x, nn.functional.mse_loss(x, y)

    options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(3)
    model = Frozen()
    program = poptorch.trainingModel(model, options)
    x, y = torch.rand(12, 4), torch.rand(12, 4)
    torch.testing.assert_close(program(x, y)[0], model(x, y)[0])
    assert torch.equal(model.norm.running_mean, torch.zeros(4))
    program.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))

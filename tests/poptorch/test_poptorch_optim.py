"""Optimisers: native steps against PyTorch or plain NumPy, additional arguments, the executor's description."""

import copy
import math
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32  # noqa: E402
from ipuperf.poptorch.optimisers.classes import optimiser_description  # noqa: E402

optim = poptorch.optim


def parameter(seed: int = 0):
    return torch.nn.Parameter(torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)))


def train(optimiser, weight, steps: int = 5):
    for number in range(steps):
        optimiser.zero_grad()
        (weight**2 * (number + 1)).sum().backward()
        optimiser.step()
    return weight.detach().numpy()


@pytest.mark.parametrize(
    ("ours", "native", "arguments"),
    [
        (optim.SGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
        (optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}),
        (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-6}),
        (optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.8, "centered": True}),
    ],
)
def test_native_steps_are_pytorchs(ours, native, arguments) -> None:
    mine, theirs = parameter(), parameter()
    np.testing.assert_array_equal(
        train(ours([mine], loss_scaling=128.0, **arguments), mine), train(native([theirs], **arguments), theirs)
    )


@pytest.mark.parametrize("bias_correction", [True, False])
def test_lamb_against_numpy(bias_correction) -> None:
    weight = parameter()
    w = weight.detach().numpy().astype(np.float64).copy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, 6):
        g = 2 * w * t
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1, 1)
        u = (m / c1) / (np.sqrt(v / c2) + 1e-8) + 0.01 * w
        w = w - 0.05 * min(np.linalg.norm(w), 2.0) / np.linalg.norm(u) * u
    made = optim.LAMB([weight], lr=0.05, bias_correction=bias_correction, max_weight_norm=2.0)
    np.testing.assert_allclose(train(made, weight), w, rtol=2e-5, atol=1e-6)


def test_defaults_are_upstreams() -> None:
    sgd = optim.SGD([parameter()], lr=0.1)
    assert (sgd.loss_scaling, sgd.use_combined_accum, sgd.max_grad_norm) == (1.0, False, math.inf)
    assert sgd.accum_type is sgd.velocity_accum_type is torch.float32
    assert "velocity_scaling" not in sgd.defaults
    assert optim.SGD([parameter()], lr=0.1, use_combined_accum=True).defaults["velocity_scaling"] == 1.0
    lamb = optim.LAMB([parameter()])
    assert (lamb.defaults["lr"], lamb.defaults["weight_decay"], lamb.defaults["max_weight_norm"]) == (
        1e-3,
        1e-2,
        65500.0,
    )
    assert lamb.bias_correction


def test_velocity_scaling_without_combined_accumulator_is_told(caplog) -> None:
    optim.SGD([parameter()], lr=0.1, velocity_scaling=2.0)
    assert "velocity_scaling is without effect" in caplog.text


def test_variable_attributes() -> None:
    made = optim.SGD([parameter()], lr=0.1, loss_scaling=2.0)
    attributes = made.variable_attrs
    assert not attributes.isConstant("lr")
    assert not attributes.isConstant("loss_scaling")
    assert attributes.isConstant("momentum")
    attributes.markAsVariable("momentum")
    attributes.markAsConstant("lr")
    assert attributes.isConstant("lr")
    assert not attributes.isConstant("momentum")
    with pytest.raises(AssertionError, match="Unknown attribute warmth"):
        attributes.markAsConstant("warmth")
    assert {"lr", "dampening"} <= optimiser_description(made).constant
    assert "momentum" not in optimiser_description(made).constant


def test_copies_keep_the_additional_attributes() -> None:
    made = optim.AdamW([parameter()], lr=0.1, loss_scaling=8.0, bias_correction=False, accum_type=torch.half)
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        spec = optimiser_description(copied)
        assert (spec.loss_scaling, spec.bias_correction, spec.accum_dtype) == (8.0, False, FLOAT16)
        assert copied.variable_attrs.isConstant("eps")


def test_learning_rate_schedules_work() -> None:
    made = optim.AdamW([parameter()], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(made, step_size=1, gamma=0.5)
    made.step()
    schedule.step()
    assert optimiser_description(made).groups[0].values["lr"] == pytest.approx(0.05)


def test_description_of_each_kind() -> None:
    a, b = parameter(1), parameter(2)
    sgd = optimiser_description(
        optim.SGD(
            [{"params": [a], "lr": 0.5}, {"params": [b]}],
            lr=0.1,
            momentum=0.9,
            use_combined_accum=True,
            velocity_scaling=4.0,
            accum_type=torch.half,
            max_grad_norm=1.0,
        )
    )
    assert (sgd.kind, sgd.use_combined_accum, sgd.max_grad_norm) == ("sgd", True, 1.0)
    assert (sgd.accum_dtype, sgd.first_order_dtype) == (FLOAT16, FLOAT32)
    assert [group.values["lr"] for group in sgd.groups] == [0.5, 0.1]
    assert sgd.groups[1].values["velocity_scaling"] == 4.0
    assert sgd.groups[0].parameters[0] is a
    lamb = optimiser_description(optim.LAMB([a], first_order_momentum_accum_type=torch.half))
    assert (lamb.kind, lamb.first_order_dtype, lamb.second_order_dtype) == ("lamb", FLOAT16, FLOAT32)
    assert set(lamb.groups[0].values) == {"lr", "betas", "eps", "weight_decay", "max_weight_norm"}
    rms = optimiser_description(optim.RMSprop([a], use_tf_variant=True))
    assert rms.groups[0].values["use_tf_variant"] is True
    assert rms.use_tf_variant


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        (torch.optim.SGD, "sgd"),
        (torch.optim.Adam, "adam"),
        (torch.optim.AdamW, "adamw"),
        (torch.optim.RMSprop, "rmsprop"),
    ],
)
def test_native_optimisers_are_accepted(native, kind) -> None:
    made = native([parameter()], lr=0.1)
    made.step()  # PyTorch wraps step() of the class
    spec = optimiser_description(made)
    assert (spec.kind, spec.loss_scaling, spec.bias_correction, spec.constant) == (kind, 1.0, True, frozenset())


def test_others_are_refused_by_name() -> None:
    with pytest.raises(poptorch.Error, match=r"Unsupported optimizer type torch\.optim.*Adagrad; allowed are poptorch"):
        optimiser_description(torch.optim.Adagrad([parameter()]))

    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            return None

    class Plain(torch.optim.SGD):
        pass

    with pytest.raises(poptorch.Error, match=r"Odd: its step\(\) is its own"):
        optimiser_description(Odd([parameter()], lr=0.1))
    assert optimiser_description(Plain([parameter()], lr=0.1)).kind == "sgd"


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, dampening=0, use_combined_accum=True),
            ValueError,
            "nesterov=True is not supported with use_combined_accum",
        ),
        (lambda p: optim.AdamW(p, amsgrad=True), ValueError, "non-amsgrad"),
        (lambda p: optim.Adam(p, maximize=True), ValueError, "maximize=True"),
        (lambda p: optim.Adam(p, accum_type=torch.int8), AssertionError, "accum_type is torch.int8"),
        (
            lambda p: torch.optim.RMSprop([{"params": p, "centered": True}, {"params": [parameter(3)]}]),
            AssertionError,
            "centered differs between parameter groups",
        ),
    ],
)
def test_what_upstream_refuses(make, kind, message) -> None:
    with pytest.raises(kind, match=message):
        optimiser_description(make([parameter()]))

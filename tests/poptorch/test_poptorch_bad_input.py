"""What a user can get wrong with a model, options, data or the machine: an error that says what and what to do."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import BLOCKS, IN, OUT, Network, adamw, batch, inference, options, twins  # noqa: E402
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402


def trained(module: Any, opts: Any, *data: Any) -> Any:
    """Compile a training model; whatever it raises."""
    poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.1)).compile(*data)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_that_no_stage_lists() -> None:
    with pytest.raises(poptorch.PartitionError, match=r"Unknown Block 'B2' list of expected Blocks: \['B0', 'B1'\]"):
        trained(Network(), options(strategy=poptorch.PipelinedExecution("B0", "B1")), *batch(6))


class Outside(Network):
    """One op stands between two blocks."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        with poptorch.Block("B0"):
            x = self.first(x)
        x = x * 4
        with poptorch.Block("B1"):
            return x.sum() if y is None else poptorch.identity_loss(x.sum(), "none")


def test_an_op_outside_any_block() -> None:
    """Leaving a block does not bring another one back; the message has the user's line."""
    with pytest.raises(poptorch.Error, match="No active Block, all the ops must belong to a Block") as caught:
        trained(Outside(), options(strategy=poptorch.PipelinedExecution("B0", "B1")), *batch(6))
    assert "mul" in str(caught.value)
    assert "test_poptorch_bad_input.py" in str(caught.value)


class Tied(nn.Module):
    """The first and the last layer share a weight, on different IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, IN), nn.Linear(IN, IN)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with poptorch.Block("B0"):
            x = self.first(x)
        with poptorch.Block("B1"):
            return nn.functional.mse_loss(self.last(x)[:, :OUT], y)


def test_a_parameter_on_two_ipus() -> None:
    with pytest.raises(poptorch.Error, match="weight.*IPU 0.*IPU 1"):
        trained(Tied(), options(strategy=poptorch.PipelinedExecution("B0", "B1")), *batch(6))


def test_a_block_without_an_ipu() -> None:
    opts = options(strategy=poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    with pytest.raises(poptorch.PartitionError, match="SameAsIpu .* block B0 has none"):
        trained(Tied(), opts, *batch(6))


def test_a_phase_on_the_wrong_ipu() -> None:
    strategy = poptorch.ParallelPhasedExecution(*(poptorch.Phase(block).ipus(0) for block in BLOCKS))
    with pytest.raises(poptorch.PartitionError, match="'B1' of phase 1 is on IPU 0.*odd phases on odd IPUs"):
        trained(Network(), options(strategy=strategy), *batch(6))


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 4])
def test_too_little_gradient_accumulation(accumulation: int) -> None:
    """Three stages need 2 * 3 - 1 micro-batches."""
    with pytest.raises(
        poptorch.Error,
        match=rf"gradientAccumulation is {accumulation}, the pipeline needs 5 or more: in training 3 forward stages "
        "become 5",
    ):
        trained(Network(), options(accumulation=accumulation), *batch(accumulation))


def test_too_few_device_iterations() -> None:
    model = poptorch.inferenceModel(Network(), inference(2))
    with pytest.raises(poptorch.Error, match=r"deviceIterations is 2, the pipeline needs 3 or more"):
        model(batch(2)[0])


def test_gradient_accumulation_in_inference() -> None:
    with pytest.raises(AssertionError, match="gradientAccumulation is 6; an inference model"):
        poptorch.inferenceModel(Network(), options())


def test_a_return_period_that_does_not_divide() -> None:
    opts = options(iterations=3, mode=poptorch.OutputMode.EveryN, period=2)
    with pytest.raises(poptorch.Error, match="factor of the number of batches per step: output_return_period is 2, d"):
        trained(Network(), opts, *batch(18))


def test_an_anchor_s_return_period_that_does_not_divide() -> None:
    opts = options(iterations=2)
    opts.anchorTensor("w", "first.weight", poptorch.OutputMode.EveryN, 4)
    with pytest.raises(poptorch.Error, match=r"anchorTensor\('w'\) EveryN: .* output_return_period is 4, d"):
        trained(Network(), opts, *batch(12))


# -- the machine -------------------------------------------------------------------------------------------------------


def test_more_stages_than_ipus() -> None:
    with (
        use_settings(RunSettings(machine="gc200-1")),
        pytest.raises(
            poptorch.Error, match=r"3 stage\(s\) on 3 IPU\(s\) per replica.*gc200-1.*presets that fit: .*pod4"
        ),
    ):
        trained(Network(), options(), *batch(6))


def test_a_number_of_ipus_that_cannot_be_reserved() -> None:
    with pytest.raises(poptorch.PartitionError, match=r"the model is on 3, .* here 4\..*autoRoundNumIPUs\(True\)"):
        trained(Network(), options().autoRoundNumIPUs(False), *batch(6))


class Outer(nn.Module):
    """400 million products of two vectors in the second stage: 1.6 GB where there are 0.9."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.shift = nn.Parameter(torch.ones(20_000)), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        with poptorch.Block("B0"):
            x = x + self.shift
        with poptorch.Block("B1"):
            return poptorch.identity_loss(torch.tanh(x.unsqueeze(-1) * self.factor).sum(), "none")


def test_a_stage_that_does_not_fit() -> None:
    """Which IPU and tile, how much over, the largest contributors, and what would help. Nothing has been computed."""
    module = Outer()
    opts = options(strategy=poptorch.PipelinedExecution("B0", "B1"))
    opts._Popart.set("autoRecomputation", 0)
    model = poptorch.trainingModel(module, opts, torch.optim.Adam(module.parameters()))
    with use_settings(RunSettings(strict_memory=True)), pytest.raises(poptorch.Error) as caught:
        model.compile(torch.ones(6, 20_000))
    assert not model.isCompiled()
    message = str(caught.value)
    for part in (
        "does not fit: IPU 1 tile ",
        "bytes over the 638,976 there are",
        "largest: ",
        "What may help: a smaller micro-batch",
        "more stages on more IPUs",
        "recomputation of the forward pass: leave out _Popart.set('autoRecomputation', 0)",
        "setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))",
        "setActivationLocation",
        "setWeightLocation",
        "setAvailableMemoryProportion",
    ):
        assert part in message
    assert "IPU 0" not in message.split("What may help")[0]
    assert "useReplicatedTensorSharding" not in message, "there is one replica"


def test_what_is_in_force_already_is_not_advised() -> None:
    module = Outer()
    opts = options(strategy=poptorch.PipelinedExecution("B0", "B1"), replicas=2)
    away = poptorch.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setOptimizerLocation(away).setActivationLocation(away).setWeightLocation(away)
    model = poptorch.trainingModel(module, opts, torch.optim.Adam(module.parameters()))
    with use_settings(RunSettings(strict_memory=True)), pytest.raises(poptorch.Error) as caught:
        model.compile(torch.ones(12, 20_000))
    advice = str(caught.value).split("What may help: ")[1]
    assert "sharded over the replicas: useReplicatedTensorSharding()" in advice
    assert "Streaming Memory" not in advice
    assert "recomputation" not in advice


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_divide() -> None:
    model = poptorch.trainingModel(Network(), options(iterations=2, replicas=2))
    x, y = batch(24)
    with pytest.raises(
        AssertionError,
        match=r"Invalid batch dimension: the input 'y' of shape \(47, 4\) is cut into 24 .* 24 does not divide 47: "
        "deviceIterations is 2, gradientAccumulation 6, replicationFactor 2, in groups of 1",
    ):
        model(x, y[:-1])
    with pytest.raises(AssertionError, match=r"'x' of shape \(\) .* does not divide 1"):
        model(torch.tensor(1.0), y)
    assert not model.isCompiled()


@pytest.fixture(scope="module")
def compiled() -> Any:
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options(), adamw(module.parameters()))
    model.compile(*batch(6))
    return model


def test_shapes_that_change(compiled: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"Input 'x' has shape \(18, 6\), .* compiled for \(12, 6\); .*drop_last"):
        compiled(*batch(6, rows=3))
    x, y = batch(6)
    with pytest.raises(poptorch.Error, match=r"Input 'y' has shape \(12, 5\), the model was compiled for \(12, 4\)"):
        compiled(x, torch.cat([y, y[:, :1]], dim=1))


def test_types_that_change(compiled: Any) -> None:
    x, y = batch(6)
    with pytest.raises(poptorch.Error, match="Input 'x' is torch.float16, the model was compiled for torch.float32"):
        compiled(x.half(), y)


def test_wrong_arguments(compiled: Any) -> None:
    x, y = batch(6)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        compiled()
    with pytest.raises(TypeError, match="too many positional arguments"):
        compiled(x, y, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        compiled(x, y, z=y)
    with pytest.raises(poptorch.Error, match="y: None given, the model was compiled with a tensor"):
        compiled(x)
    with pytest.raises(poptorch.Error, match="y: None given, the model was compiled with a tensor"):
        compiled(x, None)


def test_a_number_that_changes() -> None:
    class Power(nn.Module):
        def forward(self, x: torch.Tensor, exponent: int) -> Any:
            return x**exponent

    model = poptorch.inferenceModel(Power(), poptorch.Options().showCompilationProgressBar(False))
    assert model(torch.full((1,), 3.0), 2).item() == 9.0
    with pytest.raises(poptorch.Error, match="exponent: 3 given, the model was compiled with 2"):
        model(torch.full((1,), 3.0), 3)


# -- models, optimisers, options ---------------------------------------------------------------------------------------


def test_things_of_the_wrong_kind() -> None:
    with pytest.raises(poptorch.Error, match="model is a function, expected torch.nn.Module"):
        poptorch.inferenceModel(lambda x: x)
    with pytest.raises(poptorch.Error, match="options is a dict, expected poptorch.Options"):
        poptorch.inferenceModel(Network(), {"deviceIterations": 3})
    with pytest.raises(poptorch.Error, match="Adagrad; allowed are"):
        poptorch.trainingModel(module := Network(), None, torch.optim.Adagrad(module.parameters()))


def test_no_loss() -> None:
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        trained(Network(), options(), batch(6)[0])


def test_an_optimiser_of_other_parameters() -> None:
    other = Network()
    model = poptorch.trainingModel(Network(), options(), torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="The optimiser has none of the parameters that the model trains"):
        model.compile(*batch(6))


@pytest.mark.parametrize("limit", [float("nan"), 0.0, -1.0])
def test_clipping_by_no_norm(limit: float) -> None:
    module = Network()
    optimiser = poptorch.optim.SGD(module.parameters(), lr=0.1, max_grad_norm=limit)
    with pytest.raises(poptorch.Error, match=f"max_grad_norm is {limit}; a number above 0 is needed"):
        poptorch.trainingModel(module, options(), optimiser).compile(*batch(6))


def test_limits_that_differ_by_kind() -> None:
    opts = options()
    for limit, choose in ((2, opts.TensorLocations.setOptimizerLocation), (9, opts.TensorLocations.setWeightLocation)):
        choose(poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(limit))
    with pytest.raises(poptorch.UnsupportedError, match="has to be the same for all kinds.*optimizer 2, weight 9"):
        trained(Network(), opts, *batch(6))


def test_a_model_that_was_not_compiled_can_be_compiled_later() -> None:
    """An error leaves nothing behind: the mode of the module, and the next call."""
    module, _ = twins(Network)
    module.second.eval()
    model = poptorch.trainingModel(module, options(strategy=poptorch.PipelinedExecution("B0", "B1")))
    for _ in range(2):
        with pytest.raises(poptorch.PartitionError, match="Unknown Block"):
            model(*batch(6))
    assert not model.isCompiled()
    assert (module.training, module.first.training, module.second.training) == (True, True, False)
    assert not poptorch.isRunningOnIpu()
    model.destroy()
    assert poptorch.trainingModel(module, options())(*batch(6))[1].numel() == 6


def test_a_batch_without_samples() -> None:
    x, y = (part[:0] for part in batch(6))
    said = r"of shape \(0, \d+\) has no samples, the batch dimension must be at least 1"
    with pytest.raises(AssertionError, match=said):
        trained(Network(), options(), x, y)
    model = poptorch.inferenceModel(Network(), inference())
    with pytest.raises(AssertionError, match=said):
        model(x)


PARAMETERS = [torch.nn.Parameter(torch.ones(2))]
DATA = torch.utils.data.TensorDataset(torch.ones(8, 2))


def _loader(**options: Any) -> Any:
    return poptorch.DataLoader(poptorch.Options(), **{"dataset": DATA, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poptorch.optim.SGD(5, lr=0.1), "SGD: params is 5; a sequence is needed"),
        (lambda: poptorch.optim.SGD(PARAMETERS, lr="a"), "SGD: lr is 'a'; a number is needed"),
        (
            lambda: poptorch.optim.SGD(PARAMETERS, lr=0.1, loss_scaling="a"),
            "SGD: loss_scaling is 'a'; a number or None",
        ),
        (lambda: poptorch.optim.Adam(PARAMETERS, lr=[]), r"Adam: lr is \[\]; a number or None is needed"),
        (lambda: poptorch.optim.Adam(PARAMETERS, betas=2), "Adam: betas is 2; a sequence of numbers or None is needed"),
        (lambda: poptorch.optim.AdamW(PARAMETERS, amsgrad="a"), "AdamW: amsgrad is 'a'; True or False or None"),
        (lambda: poptorch.optim.LAMB(PARAMETERS, max_weight_norm={}), "LAMB: max_weight_norm is {}; a number or None"),
        (
            lambda: poptorch.optim.RMSprop(PARAMETERS, use_tf_variant=[]),
            r"RMSprop: use_tf_variant is \[\]; True or Fal",
        ),
        (lambda: _loader(shuffle="a"), "DataLoader: shuffle is 'a'; True or False is needed"),
        (lambda: _loader(async_options=5), "DataLoader: async_options is 5; a mapping or None is needed"),
        (lambda: poptorch.ipuHardwareIsAvailable("a"), "ipuHardwareIsAvailable: num_ipus is 'a'; a whole number"),
        (lambda: poptorch.custom_op([], [], "a", 1, []), r"custom_op: name is \[\]; a string is needed"),
        (lambda: poptorch.load(5), "load: filename is 5; a string or a path is needed"),
    ],
)
def test_arguments_of_another_kind(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_what_upstream_asserts() -> None:
    with pytest.raises(AssertionError, match="dataset 5 given, expected a torch.utils.data.Dataset"):
        _loader(dataset=5)
    with pytest.raises(AssertionError, match=r"Adam: betas is \[\], expected two numbers"):
        poptorch.optim.Adam(PARAMETERS, betas=[])
    with pytest.raises(AssertionError, match="accum_type is torch.int8"):
        poptorch.optim.Adam(PARAMETERS, accum_type=torch.int8)
    with pytest.raises(ValueError, match=r"setLogLevel: \[\]; allowed"):
        poptorch.setLogLevel([])

"""Ops in C++ of public applications: values and gradients beside PyTorch or a plain loop."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.ops.selection.suppression import Nms  # noqa: E402
from ipuperf.ops.transfers.remap import Remap  # noqa: E402
from ipuperf.ops.updates.moving_average import ExpMovAvg  # noqa: E402
from ipuperf.runtime import custom_ops  # noqa: E402

REMAP = {f"{side}_{what}": 0 for side in ("fwd", "bwd") for what in ("grain_size", "clone_layout", "after_matmul")}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ops as their libraries register them."""
    monkeypatch.setattr(custom_ops, "_CLASSES", dict(custom_ops._CLASSES))
    custom_ops.register(("RemapCE", "ai.graphcore", 1), Remap)
    custom_ops.register(("Nms", "ai.graphcore", 1), Nms)
    custom_ops.register(("ExpMovAvg", "com.acme", 1), ExpMovAvg)


def custom(inputs: list[torch.Tensor], name: str, outputs: list[torch.Tensor], **attributes: Any) -> list[torch.Tensor]:
    domain = "com.acme" if name == "ExpMovAvg" else "ai.graphcore"
    return poptorch.custom_op(inputs, name, domain, 1, example_outputs=outputs, attributes=attributes)


class Remapped(torch.nn.Module):
    def __init__(self, attributes: dict[str, int] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attributes = attributes
        self.linear = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        if self.attributes is not None:
            (y,) = custom([y], "RemapCE", [y], **self.attributes)
        return y, poptorch.identity_loss(y.square().mean(), "none")


@pytest.mark.parametrize("attributes", [REMAP, {**REMAP, "bwd_after_matmul": 1}, {"grain_size": 8}])
def test_a_remapped_tensor_keeps_values_and_gradients(attributes: dict[str, int]) -> None:
    losses = []
    for given in (attributes, None):
        module = Remapped(given)
        model = poptorch.trainingModel(module, optimizer=poptorch.optim.SGD(module.parameters(), lr=0.1))
        losses.append([float(model(torch.ones(2, 4))[1]) for _ in range(3)])
    assert losses[0] == losses[1]
    assert losses[0][2] < losses[0][0]


def suppressed(scores: np.ndarray, boxes: np.ndarray, threshold: float, least: float) -> list[tuple[int, int]]:
    """Positions and classes of one image's boxes that remain, best first."""
    order = sorted(np.ndindex(*scores.shape), key=lambda place: -scores[place])
    chosen: list[tuple[int, int]] = []
    for box, label in order:
        overlapped = any(label == other and overlap(boxes[box], boxes[b]) > threshold for b, other in chosen)
        if scores[box, label] > least and not overlapped:
            chosen.append((box, label))
    return chosen


def overlap(one: np.ndarray, two: np.ndarray) -> float:
    width, height = (min(one[2 + axis], two[2 + axis]) - max(one[axis], two[axis]) for axis in (0, 1))
    shared = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return float(shared / (sum(areas) - shared))


class Suppressed(torch.nn.Module):
    def forward(self, scores: torch.Tensor, boxes: torch.Tensor) -> list[torch.Tensor]:
        batch, count = len(scores), 12
        outputs = [
            torch.zeros(batch, count, dtype=torch.long),
            torch.zeros(batch, count),
            torch.zeros(batch, count, 4),
            torch.zeros(batch, count, dtype=torch.int),
            torch.zeros(batch, dtype=torch.int),
        ]
        attributes = {"threshold": 0.5, "scoreThreshold": 0.3, "numDetections": count, "useGather": 1}
        return custom([scores, boxes], "Nms", outputs, **attributes)


@pytest.mark.parametrize("seed", range(3))
def test_boxes_that_remain_after_suppression(seed: int) -> None:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 1, (1, 20, 2))
    boxes = np.concatenate([corners, corners + random.uniform(0.2, 0.6, (1, 20, 2))], -1).astype(np.float32)
    scores = random.uniform(0, 1, (1, 20, 2)).astype(np.float32)
    found = poptorch.inferenceModel(Suppressed())(torch.from_numpy(scores), torch.from_numpy(boxes))
    positions, best, corners_found, classes, length = (tensor[0].numpy() for tensor in found)
    expected = suppressed(scores[0], boxes[0], 0.5, 0.3)[:12]
    count = len(expected)
    assert int(length) == count
    assert list(zip(positions[:count].tolist(), classes[:count].tolist(), strict=True)) == expected
    np.testing.assert_array_equal(best[:count], [scores[0][place] for place in expected])
    np.testing.assert_array_equal(corners_found[:count], boxes[0][positions[:count]])
    assert set(positions[count:].tolist()) <= {-1}


class Taught(torch.nn.Module):
    """A student and its running mean; ``own`` leaves the mean to the test."""

    def __init__(self, own: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own = own
        self.student, self.teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.teacher.requires_grad_(False)

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.student(x)
        with torch.no_grad():
            for weight, mean in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                if not self.own:
                    custom([weight, mean, factor], "ExpMovAvg", [weight])
            target = self.teacher(x)
        return target, poptorch.identity_loss((y - target).square().mean(), "none")


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_mean_is_kept_once_for_each_weight_update(micro_batches: int, limit: float | None) -> None:
    """The micro-batches see the mean of the step before, and the mean sees the weights of the step before."""
    module, reference = Taught(), Taught(own=True)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(micro_batches)
    weights = [p for p in module.parameters() if p.requires_grad]
    settings = {"lr": 0.1, "weight_decay": 0.01}
    optimizer = poptorch.optim.AdamW(weights, max_grad_norm=limit, **settings)
    model = poptorch.trainingModel(module, options, optimizer)
    eager = torch.optim.AdamW(reference.student.parameters(), **settings)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(2 * micro_batches, 4)
        _, losses = model(x, torch.full((micro_batches,), 0.9))
        eager.zero_grad()
        expected = []
        for batch in x.split(2):
            _, loss = reference(batch, torch.tensor(0.9))
            (loss / micro_batches).backward()
            expected.append(loss.item())
        with torch.no_grad():
            for weight, mean in zip(reference.student.parameters(), reference.teacher.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(reference.student.parameters(), limit)
        eager.step()
        torch.testing.assert_close(losses.reshape(-1), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.teacher.weight, reference.teacher.weight, rtol=1e-6, atol=1e-6)


class Recognised(torch.nn.Module):
    def __init__(self, reduction: str | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reduction = reduction
        self.linear = torch.nn.Linear(5, 6)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, times: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logs = self.linear(x).log_softmax(-1).transpose(0, 1)
        if self.reduction is None:
            loss = torch.nn.functional.ctc_loss(logs, labels, times, lengths, reduction="sum")
        else:
            attributes = {"reduction": self.reduction, "blank": 0, "outDataType": "UNDEFINED"}
            loss = custom([logs, labels, times, lengths], "Ctc", [torch.zeros(()), logs], **attributes)[0]
        return loss, poptorch.identity_loss(loss, "none")


def test_popart_s_own_ctc_is_pytorch_s() -> None:
    torch.manual_seed(2)
    arguments = (torch.randn(3, 8, 5), torch.randint(1, 6, (3, 3)), torch.tensor([8, 7, 8]), torch.tensor([3, 2, 1]))
    losses = []
    for reduction in ("Sum", None):
        module = Recognised(reduction)
        model = poptorch.trainingModel(module, optimizer=poptorch.optim.SGD(module.parameters(), lr=0.05))
        losses.append([float(model(*arguments)[0]) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    with pytest.raises(poptorch.Error, match="Ctc: reduction is 'all'; allowed: Sum, Mean, NoReduction"):
        poptorch.trainingModel(Recognised("all"), optimizer=poptorch.optim.SGD(module.parameters(), lr=0.1))(*arguments)


def test_the_options_of_a_model_have_the_name_that_lightning_reads() -> None:
    options = poptorch.Options().replicationFactor(2)
    assert poptorch.inferenceModel(Suppressed(), options)._options.toDict()["replication_factor"] == 2

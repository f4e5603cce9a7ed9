"""Orders, buckets, running sums and products, bags, CTC: what the table of supported operations does not try."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from atencases import labels, noise  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

F = torch.nn.functional
EQUAL = torch.tensor([[2, 1, 2, 0], [5, 5, 5, 5], [-1, 3, -1, 3]])
ORDERS = {
    "sort_stable": lambda x: torch.sort(x, dim=1, stable=True),
    "sort_down": lambda x: torch.sort(x, dim=0, descending=True, stable=True),
    "argsort": lambda x: torch.argsort(x, dim=1, stable=True),
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1).values,
    "mode": lambda x: torch.mode(x, 1).values,
    "median": lambda x: torch.median(x, 1, keepdim=True).values,
    "msort": torch.msort,
}
BUCKETS = {
    "bucketize_int": lambda x: torch.bucketize(x, torch.tensor([0.5, 1.5, 3.0])),
    "unsorted": lambda x: torch.bucketize(x, torch.tensor([1, 2, 3, 6, 4, 5])),
    "no_boundaries": lambda x: torch.bucketize(x, torch.tensor([])),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([0, 1, 3, 5]), x, right=True),
    "searchsorted_lines": lambda x: torch.searchsorted(torch.arange(12).reshape(3, 4), x),
    "histc": lambda x: torch.histc(x.float(), 4, -1, 3),
    "histc_of_data": lambda x: torch.histc(x.float(), 5),
    "bincount": lambda x: torch.bincount(x.abs().flatten(), minlength=6),
    "bincount_weights": lambda x: torch.bincount(x.abs().flatten(), x.flatten() * 0.5, minlength=6).float(),
}
BITS = {
    "bits": lambda x: (x & 3, x | 8, x ^ 5, ~x, x << 2, x >> 1, 3 & x),
    "signbit": torch.signbit,
    "cumsum": lambda x: (x.cumsum(1), x.cumsum(0, dtype=torch.float32), x.cumprod(1)),
    "reductions": lambda x: ((x > 0).sum(), (x > 0).prod(1), (x > 0).cumsum(1)),
}


def test_whole_numbers(check_all: Any) -> None:
    check_all({**ORDERS, **BUCKETS, **BITS}, EQUAL)


SHAPES = {
    "sort": lambda x: torch.sort(x, -1)[0],
    "cumprod": lambda x: torch.cumprod(x, 0),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "asinh": torch.asinh,
    "erfc": torch.erfc,
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0])),
    "signbit": torch.signbit,
    "frac": torch.frac,
}


@pytest.mark.parametrize("shape", [(), (0,), (1,)])
def test_small_shapes(check_all: Any, shape: tuple[int, ...]) -> None:
    check_all(SHAPES, torch.full(shape, 0.75))


SCALARS = {
    "argmax": lambda x: (x.argmax(0), x.argmax(-1, keepdim=True), x.argmin(0)),
    "extremes": lambda x: (*x.max(-1), *x.min(0, keepdim=True)),
}


def test_scalars_have_one_axis_for_positions(check_all: Any) -> None:
    check_all(SCALARS, torch.tensor(1.5))


def test_histograms_of_whole_numbers(stages: Any) -> None:
    """PyTorch has them on other devices than the CPU only."""
    exported = export_model(Called(lambda x: torch.histc(x, 4, -1, 3)), (EQUAL.int(),))
    (counts,) = stages(exported, [EQUAL.int()]).outputs
    assert counts.tolist() == np.histogram(EQUAL.numpy(), 4, (-1, 3))[0].tolist()


def test_running_products_of_zeros_have_gradients(check_all: Any) -> None:
    check_all({"cumprod": lambda x: (x.cumprod(1), x.prod(1))}, torch.tensor([[2.0, 0.0, 3.0, 0.0, 5.0]]))


def test_powers_of_zero_have_gradients(check_all: Any) -> None:
    exponents = torch.tensor([0.0, 1.0, 2.0, 3.0])
    check_all({"pow": lambda x: (x**exponents, x**0, x**1)}, torch.tensor([0.0, 0.0, 0.0, 2.0]))


def test_covariances(check_all: Any) -> None:
    counts, weights = torch.tensor([1, 2, 1, 3]), torch.tensor([0.5, 1.0, 0.25, 2.0])
    cases = {
        "cov": lambda x: (torch.cov(x), x.cov(correction=0), torch.cov(x[0])),
        "weighted": lambda x: (torch.cov(x, fweights=counts), torch.cov(x, fweights=counts, aweights=weights)),
        "corrcoef": lambda x: (torch.corrcoef(x), x[0].corrcoef() * x.sum()),
    }
    check_all(cases, noise(3, 4))


def test_distances(check_all: Any) -> None:
    orders = {f"p{i}": lambda x, y, p=p: torch.cdist(x, y, p) for i, p in enumerate((1.0, 2.0, 3.0, float("inf")))}
    check_all(orders, noise(3, 1, 4, 5), noise(2, 6, 5))  # some rows are equal


LABELS = torch.tensor([1, 0, -100, 3, 2, 1])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.1])
LOSSES = {
    f"{reduction}_{smoothing > 0}": lambda x, r=reduction, s=smoothing: F.cross_entropy(
        x, LABELS, WEIGHTS, reduction=r, label_smoothing=s
    )
    for reduction in ("mean", "sum", "none")
    for smoothing in (0.0, 0.2)
}
LOSSES |= {
    "chances": lambda x: F.cross_entropy(x, x.detach().softmax(1), WEIGHTS, label_smoothing=0.1),
    "nll": lambda x: F.nll_loss(x, LABELS.clamp(min=0), WEIGHTS, ignore_index=3),
    "gaussian": lambda x: F.gaussian_nll_loss(x, x.detach() * 0.5, x.detach() ** 2, full=True),
}


def test_weighted_losses(check_all: Any) -> None:
    check_all(LOSSES, noise(6, 4))


def test_weighted_losses_of_images(check_all: Any) -> None:
    target = labels(4, 2, 3, 3)
    check_all({"weighted": lambda x: F.cross_entropy(x, target, WEIGHTS, label_smoothing=0.1)}, noise(2, 4, 3, 3))


BAG = torch.tensor([1, 2, 4, 4, 3, 1])
BAGS = {
    f"{mode}_{last}": lambda w, m=mode, last=last: F.embedding_bag(
        BAG, w, torch.tensor([0, 2, 2, 5, 6][: 4 + last]), mode=m, include_last_offset=bool(last)
    )
    for mode in ("sum", "mean", "max")
    for last in (0, 1)
}


def test_bags_of_other_lengths(check_all: Any) -> None:
    check_all(BAGS, noise(5, 3))


PADDED = {
    f"{mode} {bags} padding {padding}": lambda w, m=mode, i=indices, o=offsets, p=padding: F.embedding_bag(
        i, w, o, mode=m, padding_idx=p
    )
    for mode in ("sum", "mean", "max")
    for bags, indices, offsets in (
        ("rows", torch.tensor([[1, 2, 4], [4, 4, 3], [2, 2, 2]]), None),
        ("bags", BAG, torch.tensor([0, 2, 2, 5])),
    )
    for padding in (2, -1, 0)
}
PADDED["weighted"] = lambda w: F.embedding_bag(
    torch.tensor([[1, 2, 4]]), w, mode="sum", per_sample_weights=torch.tensor([[0.5, 2.0, -1.0]]), padding_idx=4
)


@pytest.mark.heavy
def test_padding_of_bags(check_all: Any) -> None:
    check_all(PADDED, noise(5, 3))


def test_gradients_of_bags_are_not_scaled() -> None:
    bag = torch.nn.EmbeddingBag(5, 3, scale_grad_by_freq=True)
    with pytest.raises(poptorch.Error, match="scale_grad_by_freq=True is unsupported"):
        poptorch.inferenceModel(bag)(BAG.reshape(2, 3))


def test_ctc_losses(check_all: Any) -> None:
    target, times, lengths = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([6, 5]), torch.tensor([3, 2])
    cases = {
        reduction: lambda x, r=reduction: F.ctc_loss(x.log_softmax(-1), target, times, lengths, reduction=r)
        for reduction in ("mean", "sum", "none")
    }
    cases["lists"] = lambda x: F.ctc_loss(x.log_softmax(-1), target, (6, 5), (3, 2), zero_infinity=True)
    cases["module"] = lambda x: torch.nn.CTCLoss(blank=3)(x.log_softmax(-1), target.clamp(max=2), times, lengths)
    cases["single"] = lambda x: F.ctc_loss(x[:, 0].log_softmax(-1), target[0], times[:1], lengths[:1])
    check_all(cases, noise(6, 2, 4))


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


REFUSED = {
    "minlength must be given": (lambda i: torch.bincount(i), EQUAL.abs().flatten()),
    "one_hot: num_classes is the length of an axis of the result": (lambda i: F.one_hot(i), EQUAL.abs()),
    "offsets that depend on data": (
        lambda i: F.embedding_bag(BAG, torch.ones(5, 3), i, mode="sum"), torch.tensor([0, 2])),
    "pad them": (
        lambda x: F.ctc_loss(x, torch.tensor([1, 2, 3]), torch.tensor([6, 5]), torch.tensor([2, 1])), noise(6, 2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    function, operand = REFUSED[message]
    with pytest.raises(poptorch.Error, match=message):
        export_model(Called(function), (operand,))


@pytest.mark.parametrize("kind", [torch.float32, torch.int32])
def test_a_running_sum_has_the_type_of_its_out(stages: Any, kind: Any) -> None:
    def function(x: Any) -> Any:
        return torch.cumsum(x, 1, out=torch.empty(x.shape).to(kind))

    x = noise(3, 5) * 3
    (result,) = stages(export_model(Called(function), (x,)), [x]).outputs
    np.testing.assert_allclose(result, function(x).numpy(), rtol=1e-5)


def test_the_decoder_gives_labels(stages: Any) -> None:
    logs, lengths = noise(9, 3, 10).log_softmax(-1), torch.tensor([5, 7, 9], dtype=torch.int32)
    exported = export_model(Called(lambda x, n: poptorch.ctc_beam_search_decoder(x, n, top_paths=2)), (logs, lengths))
    chances, sizes, found = stages(exported, [logs, lengths]).outputs
    assert (chances.shape, sizes.shape, found.shape) == ((3, 2), (3, 2), (3, 2, 9))
    assert (chances[:, 0] >= chances[:, 1]).all()
    assert (sizes <= lengths.numpy()[:, None]).all()


@pytest.mark.parametrize("mode", list(poptorch.MatMulSerializationMode)[:3])
def test_serialised_products_in_float16_may_add_in_float32(check_all: Any, mode: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        return poptorch.serializedMatMul(x, y, mode, 4, keep_precision=True)

    check_all({"only": function}, noise(8, 4).half(), noise(4, 8).half(), rtol=1e-2, atol=1e-2)

"""What is computed of rows that a mask selects: values and gradients as PyTorch's, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402

F = torch.nn.functional
GENERATOR = torch.Generator().manual_seed(11)
X, Y = torch.randn(6, 4, generator=GENERATOR), torch.randn(6, 4, generator=GENERATOR)
LABELS = torch.tensor([0, 3, 1, 2, 2, 1])
W = torch.randn(3, 4, generator=GENERATOR)


def mask_of(x: Any) -> Any:
    return x[:, 0] > 0


def scattered(x: Any, y: Any) -> Any:
    """Rows read by positions, and written back by adding."""
    (row,) = torch.where(mask_of(x))
    return torch.zeros(6, 4).index_add(0, row, x[row] * y[row].tanh())


def written(x: Any, y: Any) -> Any:
    out, mask = y * 1, mask_of(x)
    out[mask] = x[mask].exp() + 1
    return out


def written_at(x: Any, y: Any) -> Any:
    out = y * 1
    (row,) = mask_of(x).nonzero(as_tuple=True)
    out[row] = x[row] * 2
    return out


def added(x: Any, y: Any) -> Any:
    out, mask = y * 1, mask_of(x)
    out[mask] += x[mask]
    out[mask] *= 3
    return out


def places(x: Any, y: Any) -> Any:
    rows, columns = torch.where(x > 0.3)
    return (x[rows, columns] * y[rows, columns]).sum()


def experts(x: Any, y: Any) -> Any:
    mask = mask_of(x)
    one = F.layer_norm(F.linear(x[mask], W), (3,)).softmax(-1).amax(1)
    other = F.relu(x[~mask] @ W.t()).mean(-1, keepdim=True)
    return one.sum() + other.mean()


def classified(x: Any, y: Any, labels: Any, **named: Any) -> Any:
    chosen = labels != 2
    return F.cross_entropy(x[chosen], labels[chosen], **named) + F.nll_loss(x.log_softmax(1)[chosen], labels[chosen])


def two_axes(x: Any, y: Any) -> Any:
    mask = (x > 0).view(2, 3, 4)
    return F.smooth_l1_loss(x.view(2, 3, 4)[mask], y.view(2, 3, 4)[mask], beta=0.5)


CASES: dict[str, Callable[..., Any]] = {
    "added": added,
    "arithmetic": lambda x, y: (1 - x[m := mask_of(x)] / (2 + y[m].square()) ** 2 + 3 * -x[m]).sum(0),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x[m := mask_of(x)], y[m].sigmoid(), pos_weight=W[0].exp()),
    "coordinates": places,
    "experts": experts,
    "harmless": lambda x, y: x[x > 0].log().sum() + (x[x > 0] - 0.0).sqrt().mean(),
    "losses": lambda x, y: F.mse_loss(x[m := mask_of(x)], y[m]) + F.l1_loss(x[m], y[m], reduction="sum"),
    "masked_select": lambda x, y: torch.masked_select(x, y > 0).square().mean(),
    "mean_of_axes": lambda x, y: x[mask_of(x)].mean() + x[mask_of(x)].mean(0).exp().sum(),
    "none_reduced": lambda x, y: (F.huber_loss(x[m := mask_of(x)], y[m], reduction="none").sum(1) * 2).mean(),
    "scattered": scattered,
    "singular": lambda x, y: ((z := F.linear(y[y @ (x[0] - 3) > 0], x[:3] - 3)[:, 0]).log() + z.sqrt() + 1 / z).sum(),
    "shapes": lambda x, y: x[mask_of(x)].view(-1, 2, 2)[:, 0, None].flatten(1).unsqueeze(-1).squeeze(-1).sum(),
    "sliced": lambda x, y: x[mask_of(x), 1:3].mul(2).sum(),
    "topk": lambda x, y: x[mask_of(x)].topk(2, -1).values.sum() + x[mask_of(x)].max(1)[0].sum(),
    "two_axes": two_axes,
    "written": written,
    "written_at": written_at,
}


def test_values_and_gradients_are_pytorchs(check_all: Any) -> None:
    check_all(CASES, operands={name: [X, Y] for name in CASES})


@pytest.mark.parametrize("named", [{}, {"label_smoothing": 0.2}, {"reduction": "sum"}, {"weight": X[0].exp()}])
def test_losses_of_labels(check_all: Any, named: Any) -> None:
    check_all({"classified": lambda x, y: classified(x, y, LABELS * 1, **named)}, operands={"classified": [X, Y]})


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (lambda x: x[mask_of(x)].sum() / x[mask_of(x)].shape[0], "the number"),
    "len": (lambda x: x.sum() * len(x[mask_of(x)]), "the number"),
    "truth": (lambda x: x if mask_of(x).nonzero() else -x, "the truth"),
    "loop": (lambda x: sum(row[0] * x[row[0]] for row in mask_of(x).nonzero()), "a loop over each"),
    "sizes": (lambda x: x.new_zeros(*x[mask_of(x)].shape), "the number"),
    "sorted": (lambda x: x[mask_of(x)].sort(0)[0].sum(), "sort"),
    "largest": (lambda x: x[mask_of(x)].max(), "max over all"),
    "two_masks": (lambda x: (x[mask_of(x)] + x[x[:, 1] > 0]).sum(), "add with rows of another mask"),
    "joined": (lambda x: torch.cat([x[mask_of(x)], x]).sum(), "cat"),
    "other_rows": (lambda x: (x[mask_of(x)] + x).sum(), "add with other rows"),
    "transposed": (lambda x: x[mask_of(x)].T.sum(), "T of rows"),
    "view": (lambda x: x[mask_of(x)].view(-1).sum(), "a view that joins or divides"),
    "result": (lambda x: x[mask_of(x)], "a result"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_of_rows_is_refused(name: str) -> None:
    function, text = REFUSED[name]

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    with pytest.raises(poptorch.UnsupportedError, match=rf"(?s){text}.*depends on data.*torch.where"):
        poptorch.inferenceModel(Model())(X)

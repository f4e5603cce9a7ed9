"""Aten ops that move, reduce and pick elements: value and gradients against PyTorch autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from atencases import labels, noise  # noqa: E402

F = torch.nn.functional


SHAPES = {
    "view": lambda x: x.view(6, 4),
    "view_minus": lambda x: x.view(2, -1),
    "reshape": lambda x: x.transpose(0, 1).reshape(-1),
    "flatten": lambda x: x.flatten(1),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "slice": lambda x: x[:, 1:, ::2],
    "negative_slice": lambda x: x[:, -2:],
    "select": lambda x: x[1, :, -1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(2, 1),
    "split_sizes": lambda x: x.split([1, 3], 2),
    "chunk": lambda x: x.chunk(2, 2),
    "unbind": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x + 1], -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll(1, 1),
    "roll_all": lambda x: x.roll(5),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad_value": lambda x: F.pad(x, (1, 0), value=2.0),
    "pad_cut": lambda x: F.pad(x, (-1, 1)),
    "reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2), mode="circular"),
    "tril": torch.tril,
    "triu": lambda x: x.triu(1),
    "masked_causal": lambda x: x.masked_fill(torch.tril(torch.ones(3, 4)) == 0, -1e4),
    "index_list": lambda x: x[[1, 0]],
    "index_two": lambda x: x[:, [0, 2], [1, 3]],
    "index_front": lambda x: x[[0, 1], :, [1, 3]],
    "index_negative": lambda x: x[torch.tensor([-1])],
    "cumsum": lambda x: x.cumsum(1),
    "zeros_like": lambda x: x + torch.zeros_like(x) + torch.ones_like(x) + torch.full((4,), 2.0) + torch.arange(4),
    "contiguous": lambda x: x.transpose(0, 1).contiguous().view(-1),
    "pixel": lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "diff": lambda x: x.diff(dim=1),
    "outer": lambda x: torch.outer(x[0, 0], x[1, 0]),
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum((0, 2)),
    "mean": lambda x: x.mean(1, keepdim=True),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "max_dim": lambda x: tuple(x.max(2)),
    "min_dim": lambda x: tuple(x.min(0, keepdim=True)),
    "argmax": lambda x: x.argmax(1),
    "argmax_all": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "var": lambda x: x.var(1),
    "var_biased": lambda x: x.var((0, 1), unbiased=False),
    "std": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(),
    "norm1": lambda x: x.norm(p=1, dim=1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm3": lambda x: x.norm(p=3),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(),
    "sum_bool": lambda x: (x > 0).sum(),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "einsum_sum": lambda x: torch.einsum("bij->j", x),
    "bilinear": lambda x: F.interpolate(x[None], scale_factor=2),
}


def test_shapes_and_reductions(check_all: Any) -> None:
    check_all(SHAPES, noise(2, 3, 4))


PICKING = {
    "embedding": lambda t, i, c, r: F.embedding(i, t),
    "padding": lambda t, i, c, r: F.embedding(i, t, padding_idx=3),
    "rows": lambda t, i, c, r: t.index_select(0, i.flatten()),
    "columns": lambda t, i, c, r: t.index_select(1, c[:, 0]),
    "indexing": lambda t, i, c, r: t[i],
    "along_columns": lambda t, i, c, r: t.gather(1, c),
    "along_rows": lambda t, i, c, r: t.gather(0, r),
    "one_hot": lambda t, i, c, r: F.one_hot(i, 7) + t.sum(),
}


def test_picking_by_index(check_all: Any) -> None:
    check_all(PICKING, noise(7, 5), labels(7, 3, 2), labels(5, 7, 2), labels(7, 4, 5))


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

"""Aten ops that change tables at positions: values and gradients against PyTorch, and the ops that they become."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from atencases import labels, noise, positive  # noqa: E402

from ipuperf import poptorch  # noqa: E402

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
#: Tables of axis 0 have 4 rows; positions for 7 rows of 5 elements, the same for a whole row, and for a line.
LINE = labels(4, 7)


def scatter_cases() -> dict[str, Any]:
    """Each of table ``t`` (4 x 5), positions ``i`` (7 x 5), values ``v`` (7 x 5), line ``n`` (7)."""
    cases: dict[str, Any] = {
        "scatter_add": lambda t, i, v, n: t.scatter_add(0, i, v),
        "scatter_add_": lambda t, i, v, n: (t * 2).scatter_add_(0, i, v),
        "scatter_add_rows": lambda t, i, v, n: t.scatter_add(-2, n[:, None].expand_as(v), v),
        "scatter_add_zeros": lambda t, i, v, n: torch.zeros(4, 5).scatter_add(0, n[:, None].expand(7, 5), v),
        "scatter_add_columns": lambda t, i, v, n: t.T.scatter_add(-1, i.T, v.T),
        "scatter_add_fewer": lambda t, i, v, n: t.scatter_add(0, i[:3, :2], v.detach()),
        "scatter_add_more_values": lambda t, i, v, n: t.scatter_add(0, i[:, :4], v.detach()),
        "scatter": lambda t, i, v, n: t.scatter(0, torch.arange(4)[:, None].expand(4, 5), v[:4]),
        "scatter_number": lambda t, i, v, n: t.scatter(0, i[:1], 2.5),
        "scatter_multiply": lambda t, i, v, n: t.detach().scatter(0, i, v.detach(), reduce="multiply"),
        "scatter_add_up": lambda t, i, v, n: t.detach().scatter(0, i, v.detach(), reduce="add"),
        "index_add": lambda t, i, v, n: t.index_add(0, n, v),
        "index_add_alpha": lambda t, i, v, n: t.index_add(0, n, v, alpha=-0.5),
        "index_add_last": lambda t, i, v, n: t.index_add(-1, n[:3] % 4, v[:4, :3]),
        "index_add_": lambda t, i, v, n: (t + 1).index_add_(0, n, v),
        "index_copy": lambda t, i, v, n: t.index_copy(0, torch.tensor([2, 0]), v[:2]),
        "index_fill": lambda t, i, v, n: t.index_fill(0, n[:2], 1.5),
        "index_put": lambda t, i, v, n: t.index_put((torch.tensor([1, 3]),), v[:2]),
        "index_put_sum": lambda t, i, v, n: t.index_put((n,), v, accumulate=True),
        "index_put_two": lambda t, i, v, n: t.index_put((n[:3], torch.tensor([4, 0, 2])), v[0, :3], accumulate=True),
        "set_columns": lambda t, i, v, n: _set(t, (slice(None), torch.tensor([1, -1])), v[:4, :2]),
        "index_put_number": lambda t, i, v, n: t.index_put((torch.tensor([0]),), torch.tensor(3.0)),
        "set_rows": lambda t, i, v, n: _set(t, torch.tensor([3, 1]), v[:2]),
        "set_all": lambda t, i, v, n: _set(t, n[:1], 2.0),
        "gather_rows": lambda t, i, v, n: t.gather(0, n[:, None].expand(7, 5)),
        "gather_constant": lambda t, i, v, n: t.gather(1, torch.tensor([[0, 4, 4]]).expand(4, 3)),
        "gather_fewer": lambda t, i, v, n: t.gather(0, n[:, None].expand(7, 3)),
    }  # fmt: skip
    for reduce, own in itertools.product(REDUCTIONS, (True, False)):
        named = {"reduce": reduce, "include_self": own}
        cases[f"scatter_{reduce}_{own}"] = lambda t, i, v, n, o=named: t.scatter_reduce(0, i, v, **o)
        cases[f"scatter_rows_{reduce}_{own}"] = (
            lambda t, i, v, n, o=named: t.scatter_reduce(0, n[:, None].expand(7, 5), v, **o)
        )  # fmt: skip
        if reduce != "sum":
            cases[f"index_{reduce}_{own}"] = lambda t, i, v, n, o=named: t.index_reduce(0, n, v, **o)
    return cases


def _set(t: Any, places: Any, values: Any) -> Any:
    t = t.clone()
    t[places] = values
    return t


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*beta.*")
def test_scatters_and_indexing(check_all: Any) -> None:
    check_all(scatter_cases(), positive(4, 5), labels(4, 7, 5), positive(7, 5) * 1.01, LINE)


@pytest.mark.parametrize("dim", [-3, -1, 0, 1, 2])
def test_of_three_axes(check_all: Any, dim: int) -> None:
    """Full positions, a line of them, and several scatters at once, along each axis."""
    shape = [4, 3, 5]
    shape[dim] = 6
    values, positions = positive(*shape), labels(shape[dim] - 2, *shape)

    def mean(t: Any, i: Any, v: Any) -> Any:
        return t.scatter_reduce(dim, i, v, "mean") + t.scatter_reduce(dim, i, v * 2, "mean", include_self=False)

    cases = {
        "sum": lambda t, i, v: t.scatter_add(dim, i, v),
        "line": lambda t, i, v: t.index_add(dim, i.movedim(dim, 0).flatten(1)[:, 0], v),
        "means": mean,
        "greatest": lambda t, i, v: t.scatter_reduce(dim, i, v, "amax"),
        "gather": lambda t, i, v: t.gather(dim, i),
    }
    shape[dim] = 4
    check_all(cases, positive(*shape), positions, values)


@pytest.mark.filterwarnings("ignore:.*beta.*")
def test_nothing_and_no_axes(check_all: Any) -> None:
    none = torch.zeros(0, dtype=torch.long)
    check_all(
        {
            "no_updates": lambda t: t.scatter_add(0, none[:, None].expand(0, 2), t[:0]),
            "no_slices": lambda t: t.index_add(0, none, t[:0]),
            "no_columns": lambda t: t[:, :0].index_add(0, torch.tensor([1]), t[:1, :0]).sum() + t,
            "none_put": lambda t: t.index_put((none,), t[:0]),
            "no_axes": lambda t: t[0, 0].scatter_add(0, torch.tensor(0), t[1, 1]),
            "one": lambda t: t[:1, 0].index_add(0, torch.tensor([0, 0]), t[:2, 1]),
            "one_of_no_axes": lambda t: t[0, 0].index_add(0, torch.tensor(0), t[1, 1]),
            "lookup_of_no_axes": lambda t: t[0, 0].index_select(0, torch.tensor([0])) * t[1, 1],
            "gather_of_no_axes": lambda t: t[1, 1].gather(0, torch.tensor(0)),
        },
        positive(3, 2),
    )  # fmt: skip


def ran(function: Any, table: Any, index: Any, values: Any) -> Any:
    """What PopTorch's inference gives."""

    class Model(torch.nn.Module):
        def forward(self, table: Any, index: Any, values: Any) -> Any:
            return function(table, index, values)

    return poptorch.inferenceModel(Model())(table, index, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_types(reduce: str, include_self: bool, dtype: Any) -> None:
    table = torch.tensor([[3, -4], [5, 6], [-8, 4]]).to(dtype)
    values = torch.tensor([[2, -7], [-1, 3], [4, 8]]).to(dtype)
    index = torch.tensor([[0, 2], [2, 2], [0, 0]])
    found = ran(lambda t, i, v: t.scatter_reduce(0, i, v, reduce, include_self=include_self), table, index, values)
    expected = table.scatter_reduce(0, index, values, reduce, include_self=include_self)
    torch.testing.assert_close(found, expected)


def ops_of(function: Any, *tensors: Any, **options: Any) -> list[Any]:
    """The ops that a function of tensors becomes in PopTorch's inference, in order."""
    from ipuperf.poptorch.export.module import export_model

    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return function(a, b, c)

    exported = export_model(Model(), tensors, training=False)
    return [op for part in exported.parts for op in part.graph.ops]


def scatters(function: Any, *tensors: Any) -> list[tuple[int, str, tuple[int, ...]]]:
    """Groups, reduction and shape of the indices of the scatters of a function."""
    return [
        (op.group_size, op.reduction, op.inputs[1].shape)
        for op in ops_of(function, *tensors)
        if op.type == "ScatterReduce"
    ]


INDEX = labels(4, 8, 16)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("reduce", "groups"), [("sum", 3), ("amax", 3), ("mean", 6)])
def test_scatters_of_one_kind_are_groups_of_one(reduce: str, groups: int, own: bool) -> None:
    """Three become one, a mean's count with its sum; what is first overwritten is another one."""

    def three(t: Any, i: Any, v: Any) -> Any:
        return torch.cat([t.scatter_reduce(0, i, v * k, reduce, include_self=own) for k in range(1, 4)], 1)

    named = {"sum": "sum", "amax": "max", "mean": "sum"}[reduce]
    before = [] if own else [(groups, "none", (groups, 8, 16))]
    assert scatters(three, noise(4, 16), INDEX, noise(8, 16)) == [*before, (groups, named, (groups, 8, 16))]


def test_what_stays_apart() -> None:
    """Other shapes, other reductions, and scatters that need each other's result."""

    def shapes(t: Any, i: Any, v: Any) -> Any:
        return t.scatter_add(0, i, v).sum() + t[:, :8].scatter_add(0, i[:, :8], v[:, :8]).sum()

    def kinds(t: Any, i: Any, v: Any) -> Any:
        return t.scatter_reduce(0, i, v, "amax") + t.scatter_reduce(0, i, v, "amin")

    def chain(t: Any, i: Any, v: Any) -> Any:
        return t.scatter_add(0, i, v).scatter_add(0, i, v * 2) + t.scatter_add(0, i, v * 3)

    operands = noise(4, 16), INDEX, noise(8, 16)
    assert [groups for groups, _, _ in scatters(shapes, *operands)] == [1, 1]
    assert [groups for groups, _, _ in scatters(kinds, *operands)] == [1, 1]
    assert [groups for groups, _, _ in scatters(chain, *operands)] == [2, 1]
    torch.testing.assert_close(ran(chain, *operands), chain(*operands))


def test_an_index_that_repeats_a_line_is_one() -> None:
    """Whole slices are scattered and looked up; zeros that sums go into are not read."""

    def wide(t: Any, n: Any, v: Any) -> Any:
        return torch.zeros_like(t).scatter_add(0, n[:, None].expand_as(v), v)

    operands = noise(4, 16), LINE, noise(7, 16)
    (op,) = [op for op in ops_of(wide, *operands) if op.type == "ScatterReduce"]
    assert ([t.shape for t in op.inputs], op.work()[0].indices) == ([(7, 16), (7, 1)], 7)
    (op,) = [
        op for op in ops_of(lambda t, n, v: t.gather(0, n[:, None].expand(7, 16)), *operands) if op.type == "Gather"
    ]
    assert (op.inputs[1].shape, op.work()[0].width) == ((7,), 16)


def test_memory_proportions_reach_lookups() -> None:
    """Of one op, and of all ops of an IPU."""

    def one(t: Any, n: Any, v: Any) -> Any:
        return poptorch.set_available_memory(t.index_add(0, n, v), 0.25).index_select(0, n)

    operands = noise(4, 16), LINE, noise(7, 16)
    planned = [op for op in ops_of(one, *operands) if "available_memory_proportion" in op.declared]
    assert [op.available_memory_proportion for op in planned] == [0.25, None]

    options = poptorch.Options()
    options.setAvailableMemoryProportion({"IPU0": 0.125})

    class Model(torch.nn.Module):
        def forward(self, t: Any, n: Any, v: Any) -> Any:
            return one(t, n, v)

    model = poptorch.inferenceModel(Model(), options)
    model.compile(*operands)
    program = model.compiled_model.executable.ir
    shares = [op.available_memory_proportion for graph in program.all_graphs() for op in graph.ops
              if "available_memory_proportion" in op.declared]  # fmt: skip
    assert set(shares) == {0.25, 0.125}


class _Masked(torch.nn.Module):
    def __init__(self, values: Any, accumulate: bool) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(values)
        self.accumulate = accumulate

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 2).index_put_((mask,), self.values, self.accumulate)
        return y, poptorch.identity_loss((y**2).sum(), "none")


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4)])
def test_a_bool_mask_writes_the_same_values_at_each_place(shape: tuple[int, ...], accumulate: bool) -> None:
    """As Wav2Vec2 hides frames: values and gradients are PyTorch's."""
    x, mask = torch.randn(2, 3, 4), torch.tensor([[True, False, True], [False, False, True]])
    module = _Masked(torch.randn(shape), accumulate)
    expected = _Masked(module.values.detach().clone(), accumulate)
    model = poptorch.trainingModel(module, optimizer=poptorch.optim.SGD(module.parameters(), lr=0.1))
    found, _ = model(x, mask)
    wanted, loss = expected(x, mask)
    torch.testing.assert_close(found, wanted.detach())
    loss.backward()
    torch.testing.assert_close(module.values.detach(), (expected.values - 0.1 * expected.values.grad).detach())


def test_values_that_depend_on_the_number_of_places_are_refused() -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    with pytest.raises(poptorch.Error, match=r"a shape that broadcasts to \(4,\); \(3, 4\) given"):
        poptorch.inferenceModel(_Masked(torch.randn(3, 4), False))(torch.randn(2, 3, 4), mask)


def in_place(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A copy of the operand after a change."""

    def function(x: Any) -> Any:
        copied = x * 1
        change(copied)
        return copied

    return function


CASES: dict[str, Callable[[Any], Any]] = {
    "diag": lambda x: x.diag(),
    "trace": lambda x: x.trace(),
    "diagonal": lambda x: x[1:].diagonal(),
    "diagonal_of_transposed": lambda x: x.t().diagonal(1),
    "diagonal_of_two_axes": lambda x: torch.diagonal(x.view(2, 2, 6), 1, 0, 2),
    "windows": lambda x: x.unfold(1, 2, 1),
    "windows_of_transposed": lambda x: x.t().unfold(0, 3, 2),
    "windows_of_a_part": lambda x: x[1:, 2:][1:].unfold(1, 2, 1),
    "windows_twice": lambda x: x.unfold(0, 2, 1).unfold(1, 3, 2),
    "strided": lambda x: x.as_strided((2, 3), (6, 1), 2),
    "overlapping": lambda x: x.as_strided((4, 3), (1, 1)),
    "strided_part": lambda x: x[1:][1:].as_strided((2, 3), (6, 1)),
    "strided_in_memory": lambda x: (x * 2).t().as_strided((2, 3), (1, 1), 2),
    "filled_diagonal": in_place(lambda x: x.diagonal().fill_(0.5)),
    "diagonal_of_a_view": in_place(lambda x: x.t()[1:].diagonal().add_(3)),
    "scaled_windows": in_place(lambda x: x.unfold(1, 2, 2).mul_(2)),
    "strided_in_place": in_place(lambda x: x.as_strided((2, 2), (6, 1)).add_(1)),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, 0] * 2),
}


@pytest.mark.heavy
def test_values_and_gradients(check_all: Any) -> None:
    check_all(CASES, noise(4, 6))


class Strided(torch.nn.Module):
    """``as_strided`` of a view."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, x: Any) -> Any:
        return x[1:].as_strided(*self.arguments)


def test_an_offset_into_the_memory_of_a_view_is_refused() -> None:
    with pytest.raises(poptorch.UnsupportedError, match="does not begin where its memory does"):
        poptorch.inferenceModel(Strided((2, 3), (6, 1), 0)).compile(noise(4, 6))


class Pooled(torch.nn.Module):
    """A pooling with the positions of what it found."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 2, return_indices=True)


def test_positions_of_a_pooling_are_refused() -> None:
    with pytest.raises(poptorch.UnsupportedError, match="max_pool2d_with_indices: result 1"):
        poptorch.inferenceModel(Pooled()).compile(noise(1, 2, 4, 4))

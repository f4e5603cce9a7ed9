"""A program whose equal ops are decomposed once is the one that PyTorch gives when it decomposes all of them."""

import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")


import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.export import trace as export_trace  # noqa: E402
from ipuperf.poptorch.export.equal_ops import ASSERTION, simplified_once  # noqa: E402
from ipuperf.poptorch.export.reuse import Kept  # noqa: E402
from ipuperf.poptorch.export.structure import Signature, flatten  # noqa: E402
from ipuperf.poptorch.export.surroundings import kept_annotations  # noqa: E402

F = torch.nn.functional


def _program(module: torch.nn.Module, tensor: torch.Tensor) -> Any:
    """What ``torch.export`` gives for a module, before it is simplified."""
    seen: list[Any] = []

    class Watching(Kept):
        def simplified(self, program: Any, simplify: Callable[[Any], Any], annotation: Any) -> Any:
            seen.append(program)
            return super().simplified(program, export_trace._simplified, annotation)

    before, export_trace._KEPT = export_trace._KEPT, Watching()
    try:
        arguments, leaves, _ = flatten({next(iter(inspect.signature(module.forward).parameters)): tensor})
        export_trace.trace(module, Signature(module.forward), arguments, leaves)
    finally:
        export_trace._KEPT = before
    return seen[0]


def _nodes(program: Any) -> list[Any]:
    """All that the lowering reads of a graph; selected results have no names of their own."""
    nodes = [node for node in program.graph.nodes if node.target is not ASSERTION]
    names = {n: n.name if n.target is not operator.getitem else f"item {i}" for i, n in enumerate(nodes)}

    def written(value: Any) -> str:
        return str(torch.fx.map_arg(value, names.__getitem__))

    def value_of(node: Any) -> Any:
        tensors = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors if isinstance(t, torch.Tensor)]

    return [
        (n.op, names[n], str(n.target), written(n.args), written(n.kwargs), value_of(n))
        + ((export_trace._annotation(n),) if value_of(n) and n.op == "call_function" else ())
        for n in nodes
    ]


def _both(module: torch.nn.Module, tensor: torch.Tensor) -> tuple[Any, Any]:
    program = _program(module, tensor)
    return simplified_once(program, export_trace._simplified, kept_annotations), export_trace._simplified(program)


def _check(module: torch.nn.Module, tensor: torch.Tensor) -> None:
    once, whole = _both(module, tensor)
    assert once is not None
    assert _nodes(once) == _nodes(whole)
    assert [str(spec) for spec in once.graph_signature.input_specs] == [
        str(spec) for spec in whole.graph_signature.input_specs
    ]


class Layer(torch.nn.Module):
    """Attention and feed-forward; views of every kind."""

    def __init__(self, hidden: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.inputs, self.output = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.norm, self.dropout = torch.nn.LayerNorm(hidden), torch.nn.Dropout(dropout)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.reshape(*part.shape[:2], 2, -1).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        y = x + self.dropout(self.output(y)) * self.scale
        return self.norm(F.gelu(y)).to(torch.float16).to(x.dtype)


class Stack(torch.nn.Module):
    """Several layers, some of them the same object or with the same weight; options change what each does."""

    def __init__(self, plan: list[tuple[str, bool]], *, first: bool = False) -> None:
        super().__init__()
        made: list[torch.nn.Module] = []
        for kind, training in plan:
            layer = made[-1] if kind == "same" and made else Layer()
            if kind == "tied" and made:
                layer.output.weight = made[-1].output.weight
            if kind == "hooked":
                layer.register_forward_hook(lambda module, args, result: result * 2)
            made.append(layer.train(training))
        self.layers, self.first = torch.nn.ModuleList(made), first

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"block {number}", ipu_id=0):
                x = layer(x)
                kept.append(x)
        return x.mean(), kept[0] if self.first else x


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("plan", "first"),
    [
        ([("new", True), ("same", False), ("tied", True), ("hooked", True)], False),
        ([("hooked", False), ("tied", False), ("same", True)], True),
    ],
)
def test_layers_with_shared_tied_and_hooked_members(plan: list[tuple[str, bool]], first: bool) -> None:
    _check(Stack(plan, first=first), torch.zeros(2, 4, 8))


class Shapes(torch.nn.Module):
    """Ops whose decomposition depends on strides, and the same ones on other strides."""

    def forward(self, x: torch.Tensor) -> Any:
        y = x.transpose(0, 1)
        flat = [t.reshape(-1) for t in (x, y, x, y[:, :1].expand(3, 2), x.contiguous())]
        a, b = torch.topk(flat[0], 2)
        parts = torch.split(x, [1, 2], dim=1)
        low, high = torch.aminmax(x)
        return flat[0] + flat[1], flat[3], a, b, parts[1], low + high, F.softplus(x), F.cross_entropy(x, b)


def test_strides_tell_views_from_copies() -> None:
    _check(Shapes(), torch.zeros(2, 3))


class Plain(torch.nn.Module):
    """Ops of which it is known what becomes of them, and the same ones where it is not."""

    def forward(self, x: torch.Tensor) -> Any:
        c, d = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0)
        y = F.dropout(x, 0.5, False) + F.dropout(x, 0.3, True) + F.dropout(x, 0.0, True)
        y = y.reshape(1, 2, 3) * c + d
        t = y.transpose(1, 2)
        parts = (*y.chunk(2, 1), *torch.split(x, [1, 2], 1), *torch.unbind(x, 0), *torch.broadcast_tensors(x, c))
        views = (
            y.flatten(),
            y.flatten(1),
            t.flatten(1),
            y.flatten(1, 1) + 1,
            x.unflatten(1, (3, 1)),
            t.unflatten(1, (3, 1)),
        )
        copies = t.contiguous(), x.contiguous() + 1, x.detach(), x.expand_as(y), x.to(torch.float16), x.to("cpu") * 3
        return (*(part * 2 for part in parts), *views, *copies)


@pytest.mark.heavy
def test_what_becomes_of_plain_ops() -> None:
    _check(Plain(), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_shapes_and_types(shape: tuple[int, ...], dtype: Any) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.hardswish(x.reshape(-1)) + F.hardswish(x.reshape(-1))
            return y.to(torch.float32) + torch.arange(1.0)

    _check(Twice(), torch.zeros(shape, dtype=dtype))


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).add_(1)


class Region(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


@pytest.mark.parametrize("build", [InPlace, Region, Counting, lambda: torch.nn.BatchNorm1d(3)])
def test_programs_that_change_something_are_decomposed_whole(build: Callable[[], Any]) -> None:
    once, whole = _both(build(), torch.zeros(2, 3))
    assert once is None
    assert whole is not None

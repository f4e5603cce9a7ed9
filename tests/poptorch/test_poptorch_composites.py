"""An export looks only at the composite ops it needs: the same graph as when it looks at all of them."""

import inspect
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.export import exported_program  # noqa: E402

from ipuperf.poptorch.aten.table import handler_of  # noqa: E402
from ipuperf.poptorch.export import composites as export_composites  # noqa: E402
from ipuperf.poptorch.export import trace as export_trace  # noqa: E402
from ipuperf.poptorch.export.composites import few_composites, may_decompose  # noqa: E402
from ipuperf.poptorch.export.structure import Signature, flatten  # noqa: E402
from ipuperf.poptorch.export.surroundings import no_code  # noqa: E402

F = torch.nn.functional


class Everything(torch.nn.Module):
    """Composite ops: with a handler, without, inside the decomposition of others, in a region without gradients;
    factories."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        y, _ = self.attention(y, y, y)
        y = y + torch.outer(y[0, 0], y[1, 0]).sum() + y.diff(dim=1).sum() + torch.eye(4).sum()
        with torch.no_grad():
            z = F.dropout(y * 2, 0.5) + F.smooth_l1_loss(y, x)
        return F.interpolate(y + z, scale_factor=2).std() + torch.linspace(0, 1, 4).sum()


def _nodes(module: torch.nn.Module, x: torch.Tensor) -> list[tuple[Any, ...]]:
    arguments, leaves, _ = flatten({"x": x})
    traced = export_trace.trace(module, Signature(module.forward), arguments, leaves)
    return [
        (node.op, str(node.target), str(node.args), str(node.kwargs), export_trace.location_of_node(node))
        for inner in traced.program.graph_module.modules()
        if isinstance(inner, torch.fx.GraphModule)
        for node in inner.graph.nodes
    ]


@pytest.mark.heavy
def test_the_graph_is_that_of_all_composites(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Everything(), torch.zeros(2, 3, 4)
    few = _nodes(module, x)
    monkeypatch.setattr(export_trace, "few_composites", lambda program: nullcontext())
    assert few == _nodes(module, x)
    assert any("linear" in target for _, target, *_ in few)
    assert len(few) > 30


def test_those_with_a_handler_and_those_never_decomposed_are_always_kept() -> None:
    every = export_composites.export_utils._collect_all_valid_cia_ops_for_aten_namespace()
    kept = export_composites._always()
    assert kept < every
    assert torch.ops.aten.linear.default in kept
    assert all(handler_of(op) is None and may_decompose(op) for op in every - kept)


def test_pytorch_is_left_as_it_was() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), strict=False)
    before = exported_program._collect_all_valid_cia_ops

    def fails() -> None:
        with few_composites(program):
            assert exported_program._collect_all_valid_cia_ops is not before
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert exported_program._collect_all_valid_cia_ops is before


def test_without_pytorchs_function_all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = exported_program._collect_all_valid_cia_ops
    monkeypatch.setattr(export_composites, "_COLLECT", "is not there")
    with few_composites(None):
        assert exported_program._collect_all_valid_cia_ops is before


def _graph(scale: float) -> Any:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("rows")
    graph.output(graph.call_function(torch.add, (x, y), {"alpha": scale}))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_it_is_called_and_asked_for_its_signature() -> None:
    with no_code():
        later = _graph(2)
        assert later.code == ""
    eager = _graph(2)
    x, y = torch.ones(2), torch.arange(2.0)
    assert torch.equal(later(x, y), eager(x, y))
    assert torch.equal(later(x, rows=y), eager(x, y))
    assert inspect.signature(later.forward) == inspect.signature(eager.forward)


def test_it_follows_a_change_of_its_graph() -> None:
    with no_code():
        module = _graph(2)
        assert torch.equal(module(torch.ones(1), torch.ones(1)), torch.tensor([3.0]))
        (op,) = module.graph.find_nodes(op="call_function", target=torch.add)
        op.kwargs = {"alpha": 5}
        module.recompile()
        assert torch.equal(module(torch.ones(1), torch.ones(1)), torch.tensor([6.0]))
    module.recompile()
    assert "alpha = 5" in module.code


def test_what_is_printed_is_written() -> None:
    with no_code():
        assert "alpha = 2" in _graph(2).print_readable(print_output=False)

"""Graphs whose code is written when they are called: results and signatures are those of graphs with code."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch.export.surroundings import no_code  # noqa: E402


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

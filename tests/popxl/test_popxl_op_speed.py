"""What making an op costs does not grow with the program, and the contexts around ops can be used again."""

import numpy as np
import pytest

from ipuperf import ir as _ir
from ipuperf import popxl
from ipuperf.popxl import ops


def looks_at_readers(monkeypatch: pytest.MonkeyPatch, readers: int) -> int:
    """How often ops are asked what they call while one more op reads a tensor that ``readers`` ops read already."""
    asked: list[_ir.Op] = []
    original = _ir.Op.called_graphs

    def asking(op: _ir.Op) -> tuple[_ir.Graph, ...]:
        asked.append(op)
        return original(op)

    ir = popxl.Ir(replication=1)
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32))
        for _ in range(readers):
            ops.add(x, x)
        monkeypatch.setattr(_ir.Op, "called_graphs", asking)
        ops.add(x, x)
    monkeypatch.undo()
    return len(asked)


def test_the_place_of_an_operand_does_not_ask_all_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_at_readers(monkeypatch, 40) == looks_at_readers(monkeypatch, 2)


def test_contexts_of_ops_are_decorators_and_can_be_entered_again() -> None:
    named = popxl.name_scope("layer")

    @named
    def layer(x: popxl.Tensor) -> popxl.Tensor:
        return ops.relu(x)

    ir = popxl.Ir(replication=1)
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32), name="x")
        with named, named:
            inner = ops.relu(x)
        assert [t.name.rpartition("/")[0] for t in (layer(x), inner, ops.relu(x))] == ["layer", "layer/layer", ""]
    with pytest.raises(ValueError, match="stop"), popxl.ipu(1):
        raise ValueError("stop")
    assert not _ir.CONTEXT.ipus
    assert not _ir.CONTEXT.scopes

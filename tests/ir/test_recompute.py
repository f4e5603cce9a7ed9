"""Gradient graphs that run forward ops again: which ops, in which order, and the same numbers."""

import numpy as np
import pytest

from ipuperf.ir import CONTEXT, FLOAT32, UINT32, Derivative, Graph, Ir, Recomputation, Tensor, TensorSpec, Variable
from ipuperf.numerics import Evaluator
from ipuperf.ops import Add, Call, CopyVarUpdate, Dropout, Mul, Sin, Tanh, autodiff

SPEC = TensorSpec((4, 5), FLOAT32)


def chain(ir: Ir, length: int = 6) -> tuple[Graph, list[Tensor]]:
    """``x -> sin -> sin -> ...``; the graph and the result of each op."""
    graph = ir.create_named_graph("chain")
    values = [graph.add_input(SPEC, "x")]
    for number in range(length):
        values.append(graph.create(Sin, [values[-1]], [f"s{number}"]).outputs[0])
    graph.add_output(values[-1])
    return graph, values[1:]


def again(derivative: Derivative) -> list[str]:
    """Names of the results of the forward ops that the gradient graph of :func:`chain` has, in order."""
    return [op.outputs[0].name for op in derivative.graph.ops if op.type == "Sin"]


def test_values_between_checkpoints_are_made_again_stretch_by_stretch() -> None:
    graph, values = chain(Ir())
    derivative = autodiff(graph, recomputation=Recomputation(graph.ops, [values[1], values[3]]))
    # sin's gradient reads its operand: s4 from s3, s2 from s1, s0 from x; s5 is read by nobody
    assert again(derivative) == ["s4", "s2", "s0"]
    assert [t.name for t in derivative.forward_values] == ["s1", "s3", "x"]
    assert [t.name for t in graph.outputs] == ["s5", "s1", "s3"]  # nothing else waits
    kinds = [op.type for op in derivative.graph.ops]
    assert kinds.index("Sin") < kinds.index("Cos")


def test_without_checkpoints_one_stretch_comes_before_its_first_reader() -> None:
    graph, _ = chain(Ir())
    derivative = autodiff(graph, recomputation=Recomputation(graph.ops))
    assert again(derivative) == ["s0", "s1", "s2", "s3", "s4"]
    assert [t.name for t in derivative.forward_values] == ["x"]


def test_only_the_ops_named_run_again() -> None:
    graph, values = chain(Ir())
    derivative = autodiff(graph, recomputation=Recomputation([graph.ops[2]]))
    assert again(derivative) == ["s2"]
    assert values[2] not in derivative.forward_values
    assert len(derivative.forward_values) == 5


def test_nothing_to_recompute_is_the_plain_gradient_graph() -> None:
    plain = autodiff(chain(Ir())[0])
    derivative = autodiff(chain(Ir())[0], recomputation=Recomputation())
    assert [op.type for op in derivative.graph.ops] == [op.type for op in plain.graph.ops]
    assert not derivative.graph.constraints


def gradient(recomputed: bool, kept: bool = False) -> dict[str, np.ndarray]:
    """d(sum of outputs)/d(x, w) of a graph with a call, a constant, random numbers and a value read twice."""
    ir, rng = Ir(2), np.random.default_rng(0)
    inner = ir.create_named_graph("inner")
    a = inner.add_input(SPEC, "a")
    inner.add_output(inner.create(Tanh, [inner.create(Sin, [a], ["inside"]).outputs[0]], ["b"]).outputs[0])
    graph = ir.create_named_graph("layer")
    x, w, seed = (graph.add_input(s, n) for s, n in ((SPEC, "x"), (SPEC, "w"), (TensorSpec((2,), UINT32), "seed")))
    factor = graph.constant(rng.normal(size=SPEC.shape), FLOAT32, "factor")
    called = graph.create(Call, [x], ["called"], callee=inner).outputs[0]
    scaled = graph.create(Mul, [graph.create(Mul, [called, factor], ["f"]).outputs[0], w], ["scaled"]).outputs[0]
    dropped = graph.create(Dropout, [scaled, seed], ["dropped"], p=0.4, key=3).outputs[0]
    total = graph.create(Add, [graph.create(Mul, [dropped, scaled], ["twice"]).outputs[0], called], ["y"]).outputs[0]
    graph.add_output(total)
    marks = Recomputation(graph.ops if recomputed else (), [scaled] if kept else ())
    derivative = autodiff(graph, [total], [x, w], recomputation=marks)
    main = ir.main_graph
    given = {
        tensor: main.add(Variable(name, tensor.spec, main, data, ir.grouping()))
        for tensor, name, data in (
            (x, "x", rng.normal(size=SPEC.shape).astype(np.float32)),
            (w, "w", rng.normal(size=SPEC.shape).astype(np.float32)),
            (seed, "seed", np.array([7, 9], np.uint32)),
        )
    }
    forward = main.create(Call, list(given.values()), [t.name for t in graph.outputs], callee=graph)
    given.update(zip(graph.outputs, forward.outputs))
    ones = main.constant(np.ones(SPEC.shape), FLOAT32, "ones")
    operands = [ones if c.is_gradient else given[c.tensor] for c in derivative.inputs]
    backward = main.create(Call, operands, ["dx", "dw"], callee=derivative.graph)
    found = {}
    with CONTEXT.detached():
        for name, tensor in zip(("dx", "dw"), backward.outputs, strict=True):
            held = main.add(Variable(f"{name}_held", SPEC, main, np.zeros(SPEC.shape, np.float32), ir.grouping()))
            main.create(CopyVarUpdate, [held, tensor], [name])
            found[name] = held
    evaluator = Evaluator(ir)
    evaluator.load_variables()
    evaluator.run({})
    evaluator.store_variables(list(found.values()))
    return {name: np.array(held.data) for name, held in found.items()}


@pytest.mark.parametrize("kept", [False, True])
def test_gradients_are_the_same_numbers(kept: bool) -> None:
    plain, found = gradient(False), gradient(True, kept)
    for name, expected in plain.items():
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(found[name], expected)

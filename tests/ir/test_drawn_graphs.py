"""Golden rows of drawn graphs: their order, phases and ambiguities, their derivatives, and what is left of them after
each transform.

A drawn graph has ops of very different sizes, views, changes in place, calls, constraints, scopes and phases. Laws of
orders and values of gradients have tests of their own; here every choice of the scheduler and of autodiff counts.
"""

from random import Random
from typing import Any

import numpy as np
import pytest
from answers import answer
from programtext import checksum, program_text
from rows import Golden

from ipuperf import ir as base
from ipuperf import ops
from ipuperf.functions import arithmetic, products, shapes
from ipuperf.ir import CONTEXT, FLOAT32, Builder, Graph, Ir, Recomputation, Tensor, TensorSpec
from ipuperf.ir.printing import dot_text

SIDES = (1, 2, 3, 16, 64)
UNARY = (arithmetic.exp, arithmetic.sin, arithmetic.negate)
BINARY = (arithmetic.add, arithmetic.mul, arithmetic.sub)


def unary(r: Random, x: Tensor) -> Tensor:
    return r.choice(UNARY)(x)


def binary(r: Random, x: Tensor, y: Tensor) -> Tensor:
    return r.choice(BINARY)(x, y)


def product(r: Random, x: Tensor) -> Tensor:
    return products.matmul(x, shapes.transpose_(x, (1, 0)))


def drawn(seed: int, *, changing: bool) -> Graph:
    """A graph with inputs, called from the main graph of its program.

    ``changing``: some ops change tensors in place."""
    r = Random(seed)
    ir = Ir(replication_factor=1 + seed % 2)
    inner, changer, graph = ir.create_graph("inner"), ir.create_graph("changer"), ir.create_graph("drawn")
    spec = TensorSpec((3, 16), FLOAT32)
    with CONTEXT.use_graph(inner):
        x, y = inner.add_input(spec, "x"), inner.add_input(spec, "y")
        inner.add_output(arithmetic.exp(x) * y)
        inner.add_output(arithmetic.exp(y))
    with CONTEXT.use_graph(changer):
        x, y = changer.add_input(spec, "x", by_ref=True), changer.add_input(spec, "y")
        changer.add_output(CONTEXT.builder.op(ops.AddLhsInplace, [x, y]))
    values = [graph.add_input(TensorSpec((3, side), FLOAT32), f"x{side}") for side in SIDES]
    values.append(graph.add_input(spec, "y"))
    values.append(graph.constant(np.ones((3, 16), np.float32), name="c"))
    builder = Builder(graph)
    with CONTEXT.building(builder):
        for _ in range(r.randrange(8, 30)):
            x = r.choice(values)
            alike = [t for t in values if t.spec == x.spec]
            act = r.randrange(11 if changing else 8)
            with (
                CONTEXT.scope(r.choice("ab")),
                CONTEXT.on_ipu(0),
                CONTEXT.phase(r.choice((None, None, "bwd", "update"))),
            ):
                if act < 3:
                    values.append(unary(r, x))
                elif act < 5:
                    values.append(binary(r, x, r.choice(alike)))
                elif act == 5:
                    values.append(shapes.transpose_(shapes.transpose_(x, (1, 0)), (1, 0)))
                elif act == 6:
                    values.append(product(r, x))
                    values.pop() if values[-1].shape[1] not in SIDES else None
                elif act == 7 and x.spec == spec:
                    values += builder.create(ops.Call, [x, r.choice(alike)], ["a", "b"], callee=inner).outputs
                elif act == 8 and x.spec == spec:
                    given = [x, r.choice(alike)]
                    values += builder.create(ops.Call, given, ["c"], callee=changer, by_ref=(0,)).outputs
                elif act > 8:
                    with CONTEXT.sequence(r.choice((True, False, "pass"))):
                        values.append(builder.op(ops.AddLhsInplace, [x, r.choice(alike)]))
        for tensor in r.sample([t for t in values if t.producer is not None], 2):
            graph.add_output(tensor)
    for _ in range(3):
        one, other = sorted(r.sample(graph.ops, 2), key=lambda op: op.id)
        graph.constrain(one, other)
    main = ir.main_graph
    with CONTEXT.use_graph(main):
        given = [main.constant(np.ones(t.shape, np.float32), name=t.name) for t in graph.inputs]
        CONTEXT.builder.create(ops.Call, given, ["r", "s"], callee=graph)
    return graph


def _checked(graph: Graph) -> None:
    with graph.ir.checked():
        pass


def said(graph: Graph) -> dict[str, Any]:
    """The row of a program: the order of ``graph``, and checksums of all else."""
    root, phases = base.roots(graph), base.phases_of(graph.ir.main_graph)
    facts = {
        "needs": [(op.id, sorted(o.id for o in before)) for op, before in base.dependencies(graph).items()],
        "roots": [(t.id, owner.id) for t, owner in root.items() if owner is not t],
        "changes": [(op.id, found) for op, found in base.changes(graph).items()],
        "phases": [(op.label, phase) for op, phase in phases.items()],
        "readers": [(t.id, [op.id for op in t.consumers]) for t in graph.tensors.values()],
        "below": [g.name for g in base.below(graph.ir.main_graph)],
        "deep": [g.name for g in graph.ir.callees_first()],
    }
    return {
        "order": " ".join(str(op.id) for op in base.schedule(graph)),
        "ambiguity": answer(lambda: _checked(graph)),
        "text": checksum(program_text(graph.ir)),
        **{name: checksum(repr(fact)) for name, fact in facts.items()},
        "dot": checksum(dot_text(graph)),
    }


SEEDS = range(24)


def test_orders(golden: Golden) -> None:
    golden([said(drawn(seed, changing=True)) for seed in SEEDS])


@pytest.mark.parametrize("again", ["nothing", "all", "some"])
def test_derivatives(again: str, golden: Golden) -> None:
    golden([derivative(seed, again) for seed in SEEDS])


def derivative(seed: int, again: str) -> dict[str, Any]:
    """What is said of a derivative that computes parts of a drawn graph again."""
    graph = drawn(seed, changing=False)
    r = Random(seed)
    ops_again = {"nothing": [], "all": graph.ops, "some": r.sample(graph.ops, len(graph.ops) // 2)}[again]
    kept = [t for op in ops_again for t in op.outputs if r.randrange(3) == 0]
    reached = [t for t in graph.inputs if _reaches(t, graph)]

    plan = Recomputation(ops_again, kept, constants=again == "all")
    try:
        found = ops.autodiff(graph, required=reached, recomputation=plan)
    except base.IrError as error:
        return {**said(graph), "ambiguity": str(error)}
    ends = [(c.tensor.id, c.is_gradient) for c in (*found.inputs, *found.outputs)]
    places = [(op.id, op.scope, op.location != "") for op in found.graph.ops]
    return {**said(found.graph), "ends": checksum(repr((ends, places)))}


def _reaches(tensor: Tensor, graph: Graph) -> bool:
    """Whether an output depends on a tensor."""
    reached = {tensor}
    for op in graph.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
    return not reached.isdisjoint(graph.outputs)


@pytest.mark.parametrize("transform", ["elide", "prune", "copy"])
def test_transforms(transform: str, golden: Golden) -> None:
    golden([transformed(seed, transform) for seed in SEEDS])


def transformed(seed: int, transform: str) -> dict[str, Any]:
    """What is said of a drawn graph after a change."""
    graph = drawn(seed, changing=transform == "elide")
    if transform == "elide":
        base.elide(graph, [op for op in list(graph.ops) if op.type in ("Tanh", "Exp", "Transpose")])
    elif transform == "prune":
        return {"kept": answer(lambda: base.prune(graph, range(len(graph.inputs)))), **_alone(graph)}
    else:
        with CONTEXT.use_graph(graph), CONTEXT.scope("again"):
            for op in list(graph.ops):
                CONTEXT.builder.copy(op, op.inputs)
    return _alone(graph)


def _alone(graph: Graph) -> dict[str, Any]:
    lines = [
        (op.label, op.tile_set, op.scope, [t.id for t in op.inputs], [t.id for t in op.outputs]) for op in graph.ops
    ]
    ends = [t.id for t in (*graph.inputs, *graph.outputs)]
    readers = [(t.id, [op.id for op in t.consumers]) for t in graph.tensors.values()]
    needs = sorted((op.id, sorted(o.id for o in before)) for op, before in graph.constraints.items())
    return {"ops": len(graph.ops), "text": checksum(repr((lines, ends, readers, needs)))}

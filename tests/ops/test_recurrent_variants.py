"""Recurrent layers as TensorFlow has them: values and gradients against the same steps written out with PyTorch's
functions; what their vertices and rows ask for."""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT16
from ipuperf.machine import load_machine
from ipuperf.ops.recurrent.activations import ACTIVATIONS
from ipuperf.ops.recurrent.cells import CELLS

GATES = {"lstm": 4, "gru": 3, "gru_reset_first": 3, "rnn": 1}


def operands(rng, time=4, batch=3, inputs=5, units=2, replicas=2, dtype=np.float64, **attributes):
    cell, inputs_first = attributes["cell"], attributes.get("inputs_first")
    wide = GATES[cell] * units
    weights = [(inputs, wide), (units, wide)] if inputs_first else [(wide, inputs), (wide, units)]
    shapes = [(time, batch, inputs), *weights, *[(wide,)] * (2 if cell == "gru" else 1)]
    shapes += [(batch, units)] * (2 if cell == "lstm" else 1)
    arrays = [rng.standard_normal((replicas, *shape)).astype(dtype) for shape in shapes]
    if attributes.get("lengths"):
        arrays.append(rng.integers(0, time + 1, (replicas, batch)).astype(np.int32))
    if attributes.get("scored"):
        arrays.append(rng.random((replicas, time, batch)).astype(dtype))
    return arrays


def count(trains, cell, **_):
    kind = CELLS[cell]
    return 1 + kind.states + trains * (kind.states - 1 + (kind.kept > 0))


def by_torch(torch, attributes):
    """Results of all steps, behind them the last states, in one tensor."""
    cell, functions = (
        attributes["cell"],
        {
            "tanh": torch.tanh,
            "sigmoid": torch.sigmoid,
            "relu": torch.relu,
            "hard_sigmoid": lambda v: torch.clamp(0.2 * v + 0.5, 0, 1),
            "softmax": lambda v: torch.softmax(v, -1),
        },
    )
    act, gate = functions[attributes.get("activation", "tanh")], functions[attributes.get("gate", "sigmoid")]

    def step(x, h, c, product, score):
        if cell == "rnn":
            return act(x + product(h)), c
        if cell == "lstm":
            i, f, g, o = (x + product(h)).chunk(4, -1)
            c = gate(f) * c + gate(i) * act(g)
            return gate(o) * act(c), c
        first, second, xn = x.chunk(3, -1)
        one, other, hn = product(h).chunk(3, -1)
        r, z = gate(first + one), gate(second + other)
        if attributes.get("update_first"):
            r, z = z, r
        n = act(xn + r * hn) if cell == "gru" else act(xn + product(r * h).chunk(3, -1)[2])
        z = z if score is None else z * (1 - score[:, None])
        return z * h + (1 - z) * n, c

    def reference(x, own, recurrent, bias, *others):
        if not attributes.get("inputs_first"):
            own, recurrent = own.T, recurrent.T
        others = list(others)
        other = others.pop(0) if cell == "gru" else 0
        h, c = others.pop(0), (others.pop(0) if cell == "lstm" else None)
        lengths = others.pop(0) if attributes.get("lengths") else None
        scores = others.pop(0) if attributes.get("scored") else None
        rows = []
        for t in range(x.shape[0]):
            score = None if scores is None else scores[t]
            new, cells = step(x[t] @ own + bias, h, c, lambda v: v @ recurrent + other, score)
            inside = torch.ones(x.shape[1], 1) > 0 if lengths is None else (t < lengths)[:, None]
            rows.append(torch.where(inside, new, 0.0))
            h = torch.where(inside, new, h)
            c = None if c is None else torch.where(inside, cells, c)
        return torch.stack([*rows, h, *([] if c is None else [c])])

    return reference


def build(attributes):
    def made(graph, *tensors):
        names = [f"y{i}" for i in range(count(True, **attributes))]
        found = graph.create(ops.Recurrent, tensors, names, **attributes, trains=True).outputs
        shape = (1, *found[1].shape)
        last = [
            graph.create(ops.Reshape, [t], [f"r{i}"], shape=shape).outputs[0]
            for i, t in enumerate(found[1 : 1 + CELLS[attributes["cell"]].states])
        ]
        return graph.create(ops.Concat, [found[0], *last], ["all"], axis=0).outputs[0]

    return made


VARIANTS = [
    {"cell": "lstm", "inputs_first": True},
    {"cell": "lstm", "lengths": True},
    {"cell": "lstm", "activation": "relu", "gate": "hard_sigmoid"},
    {"cell": "lstm", "activation": "softmax", "gate": "softmax"},
    {"cell": "lstm", "activation": "hard_sigmoid", "gate": "tanh", "lengths": True, "inputs_first": True},
    {"cell": "gru", "update_first": True, "inputs_first": True},
    {"cell": "gru", "lengths": True, "scored": True},
    {"cell": "gru", "activation": "sigmoid", "gate": "hard_sigmoid", "scored": True},
    {"cell": "gru_reset_first"},
    {"cell": "gru_reset_first", "update_first": True, "inputs_first": True},
    {"cell": "gru_reset_first", "lengths": True, "scored": True, "inputs_first": True},
    {"cell": "gru_reset_first", "activation": "relu", "gate": "softmax", "scored": True},
    {"cell": "rnn", "activation": "relu", "lengths": True},
]


@pytest.mark.parametrize("size", [{}, {"time": 1, "batch": 1, "inputs": 1, "units": 3}])
@pytest.mark.parametrize("attributes", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_values_and_gradients(bench, rng, attributes, size):
    torch = pytest.importorskip("torch")
    bench.check(build(attributes), by_torch(torch, attributes), operands(rng, **size, **attributes))


def test_only_the_last_state_has_a_gradient(bench, rng):
    """The loop backwards begins with it: no sequence of gradients is there."""
    attributes = {"cell": "lstm", "inputs_first": True}
    arrays = operands(rng, **attributes)
    op = bench.op(ops.Recurrent, *arrays, outputs=count(True, **attributes), **attributes, trains=True)
    graph = op.graph
    derivative = ops.autodiff(graph, [graph.add_output(op.outputs[1])], graph.inputs)
    (back,) = (found for found in derivative.graph.ops if isinstance(found, ops.RecurrentGrad))
    assert (back.of_results, back.of_last, back.of_cell) == (False, True, False)
    assert back.work()[0].weights == 1


def test_half_precision_is_rounded_at_the_end(bench, rng):
    attributes = {"cell": "gru_reset_first", "lengths": True, "scored": True}
    arrays = operands(rng, dtype=np.float16, **attributes)
    wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in arrays]
    for one, other in zip(*(bench.run(ops.Recurrent, *a, outputs=2, **attributes) for a in (arrays, wide))):
        np.testing.assert_array_equal(one, other.astype(np.float16))


def works(bench, rng, **attributes):
    """Of the layer and of its gradient."""
    size = {"time": 7, "batch": 3, "inputs": 5, "units": 4}
    arrays = operands(rng, dtype=np.float32, **size, **attributes)
    op = bench.op(ops.Recurrent, *arrays, outputs=count(True, **attributes), **attributes, trains=True)
    wanted = [t for t in op.graph.inputs if t.dtype.is_floating_point]
    derivative = ops.autodiff(op.graph, [op.graph.add_output(op.outputs[0])], wanted)
    back = next(found for found in derivative.graph.ops if isinstance(found, ops.RecurrentGrad))
    return op.work()[0], back.work()[0]


def test_the_products_of_a_reset_state(bench, rng):
    forward, backward = works(bench, rng, cell="gru_reset_first", inputs_first=True)
    assert [(p.m, p.k, p.n) for p in forward.products] == [(3, 9, 8), (3, 9, 4)]
    assert [(p.m, p.k, p.n) for p in backward.products] == [(3, 8, 9), (3, 4, 9)]


def test_what_rows_bring(bench, rng):
    """Lengths cost vertices that mask and values of each sequence that travel; scores a value, and their vertices."""
    plain, plain_back = works(bench, rng, cell="gru")
    scored, scored_back = works(bench, rng, cell="gru", scored=True)
    ending, ending_back = works(bench, rng, cell="gru", lengths=True)
    assert (plain.rows, scored.rows, ending.rows) == (0, 1, 2)
    assert len(scored.vertices) == len(plain.vertices) + 1
    assert len(scored_back.vertices) == len(plain_back.vertices) + 4
    assert len(ending.vertices) == len(plain.vertices) + 3 + 4  # mask, old states; four kept values
    assert len(ending_back.vertices) == len(plain_back.vertices) + 3 + 1
    assert (scored_back.rows, scored_back.written) == (1, plain_back.written)


def test_options_of_both_passes(bench, rng):
    options = {"partials_dtype": FLOAT16, "available_memory_proportion": 0.1, "gradient_memory_proportion": 0.3}
    forward, backward = works(bench, rng, cell="lstm", **options)
    assert (forward.products[0].partials_dtype, forward.products[0].available_memory_proportion) == (FLOAT16, 0.1)
    assert (backward.products[0].partials_dtype.name, backward.products[0].available_memory_proportion) == (
        "float32",
        0.3,
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_that_popnn_has_no_vertex_of_are_programs_of_their_own(bench, rng, activation):
    known, _ = works(bench, rng, cell="lstm")
    forward, backward = works(bench, rng, cell="lstm", activation=activation)
    own = ACTIVATIONS[activation]
    added = 0 if own.shares else 2 * len(own.work(FLOAT16, 12, 4)) - 1
    assert len(forward.vertices) == len(known.vertices) + added
    assert all(v.cycles(np.array([0, 64]), load_machine("gc200-1").chip)[1] > 0 for v in backward.vertices)

"""Recurrent layers: values and gradients against PyTorch's, step by step; their loops' cost, counted by hand."""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT32, IrError
from ipuperf.lowering.recurrences import StepSlices
from ipuperf.machine import load_machine
from ipuperf.ops.recurrent.cells import CELLS
from ipuperf.ops.work import Recurrence

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
NAMES = {"lstm": "LSTM", "gru": "GRU", "tanh": "RNN", "relu": "RNN"}


def of(cell):
    """The op's attributes for a layer of PyTorch."""
    return {"cell": cell} if cell in ("lstm", "gru") else {"cell": "rnn", "activation": cell}


def count(cell, trains=False):
    """How many results the op has."""
    kind = CELLS[of(cell)["cell"]]
    return 1 + kind.states + trains * (kind.states - 1 + (kind.kept > 0))


def operands(rng, cell, time=4, batch=3, inputs=5, units=2, replicas=2, dtype=np.float64):
    wide = GATES[cell] * units
    shapes = [(time, batch, inputs), (wide, inputs), (wide, units), *[(wide,)] * (2 if cell == "gru" else 1)]
    shapes += [(batch, units)] * (2 if cell == "lstm" else 1)
    return [rng.standard_normal((replicas, *shape)).astype(dtype) for shape in shapes]


def layer(torch, cell, own, recurrent):
    """PyTorch's layer with empty parameters."""
    options = {} if cell in ("lstm", "gru") else {"nonlinearity": cell}
    return getattr(torch.nn, NAMES[cell])(own.shape[1], recurrent.shape[1], dtype=own.dtype, **options)


def by_torch(cell, which=0):
    """Results of all steps, or (1) the last cell."""
    torch = pytest.importorskip("torch")

    def reference(x, own, recurrent, bias, *others):
        other = others[0] if cell == "gru" else torch.zeros_like(bias)
        states = [state[None] for state in others[cell == "gru" :]]
        parameters = {"weight_ih_l0": own, "weight_hh_l0": recurrent, "bias_ih_l0": bias, "bias_hh_l0": other}
        given = tuple(states) if cell == "lstm" else states[0]
        results, after = torch.func.functional_call(layer(torch, cell, own, recurrent), parameters, (x, given))
        return after[1][0] if which else results

    return reference


def build(cell, which=0):
    outputs = count(cell, True)

    def made(graph, *tensors):
        op = graph.create(ops.Recurrent, tensors, [f"y{i}" for i in range(outputs)], **of(cell), trains=True)
        return op.outputs[2 * which]

    return made


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("cell", GATES)
def test_values_and_gradients(bench, rng, cell, time):
    bench.check(build(cell), by_torch(cell), operands(rng, cell, time))


def test_the_gradient_of_the_last_cell(bench, rng):
    bench.check(build("lstm", 1), by_torch("lstm", 1), operands(rng, "lstm"))


@pytest.mark.parametrize("cell", GATES)
def test_without_training_nothing_is_kept(bench, rng, cell):
    arrays = operands(rng, cell)
    found = bench.run(ops.Recurrent, *arrays, outputs=count(cell), **of(cell))
    kept = bench.run(ops.Recurrent, *arrays, outputs=count(cell, True), **of(cell), trains=True)
    for one, other in zip(found, kept):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[1], found[0][:, -1])
    if cell == "lstm":
        np.testing.assert_array_equal(found[2], kept[3][:, -1])
    graph = bench.op(ops.Recurrent, *arrays, outputs=count(cell), **of(cell)).graph
    output = graph.add_output(next(op for op in graph.ops).outputs[0])
    with pytest.raises(IrError, match="made without `trains`"):
        ops.autodiff(graph, [output], [graph.inputs[0]])


@pytest.mark.parametrize("cell", GATES)
def test_half_precision_is_rounded_at_the_end(bench, rng, cell):
    arrays = operands(rng, cell, dtype=np.float16)
    outputs = count(cell)
    narrow = bench.run(ops.Recurrent, *arrays, outputs=outputs, **of(cell))
    wide = bench.run(ops.Recurrent, *(a.astype(np.float32) for a in arrays), outputs=outputs, **of(cell))
    for one, other in zip(narrow, wide, strict=True):
        np.testing.assert_array_equal(one, other.astype(np.float16))


def recurrence(bench, rng, cell, *, trains=False, backward=False, **shape) -> Recurrence:
    arrays = operands(rng, cell, dtype=np.float32, **shape)
    op = bench.op(ops.Recurrent, *arrays, outputs=count(cell, trains), **of(cell), trains=trains)
    if backward:
        graph = op.graph
        derivative = ops.autodiff(graph, [graph.add_output(op.outputs[0])], graph.inputs)
        op = next(found for found in derivative.graph.ops if isinstance(found, ops.RecurrentGrad))
    (work,) = op.work()
    assert isinstance(work, Recurrence)
    return work


def test_the_products_of_a_step(bench, rng):
    """Input and state are one product; of a GRU, whose reset gate comes after that of the state, each has its own."""
    sizes = {"time": 7, "batch": 3, "inputs": 5, "units": 4}
    lstm = recurrence(bench, rng, "lstm", **sizes)
    assert lstm.steps == 7
    assert [(p.m, p.k, p.n, p.pass_) for p in lstm.products] == [(3, 9, 16, "fcinf")]
    gru = recurrence(bench, rng, "gru", trains=True, **sizes)
    assert [(p.m, p.k, p.n) for p in gru.products] == [(3, 5, 12), (3, 4, 12)]
    back = recurrence(bench, rng, "gru", trains=True, backward=True, **sizes)
    assert [(p.m, p.k, p.n, p.pass_) for p in back.products] == [
        (3, 12, 5, "fcbwd"),
        (3, 12, 4, "fcbwd"),
    ]
    assert lstm.flops == 7 * (2 * 3 * 9 * 16 + sum(v.flops for v in lstm.vertices))


def test_what_a_step_reads_and_writes(bench, rng):
    """StepSlices of inputs, and of states."""
    sizes = {"time": 7, "batch": 3, "inputs": 5, "units": 4}
    lstm = recurrence(bench, rng, "lstm", trains=True, **sizes)
    assert (lstm.read, lstm.written) == ((1, 0), (0, 1 + 1 + 5))  # results, cells; four gates and a tangent
    assert (lstm.results, lstm.kept) == ((0, 4), 6)
    assert recurrence(bench, rng, "lstm", **sizes).written == (0, 1)
    back = recurrence(bench, rng, "lstm", trains=True, backward=True, **sizes)
    assert (back.read, back.written, back.results) == ((0, 1 + 1 + 5), (1, 4), (1, 1))
    plain = recurrence(bench, rng, "tanh", trains=True, backward=True, **sizes)
    assert (plain.read, plain.written) == ((0, 2), (1, 1))


def test_where_slices_lie(bench, rng):
    """PopLibs' rules by hand: 16 sequences of 256 units are 256 grains of 16, on a tile each; five such shards have
    place on 1,472 tiles, and there are as many as keep eight slices of a step within a tenth of a tile's memory."""
    chip = load_machine("gc200-1").chip
    for time, shards in ((50, 1), (124, 1), (125, 2), (300, 3), (5000, 5)):
        slices = StepSlices(
            chip, recurrence(bench, rng, "lstm", time=time, batch=16, inputs=256, units=256, replicas=1)
        )
        assert (slices.state.elements.max, slices.state.elements.active) == (16, 256)
        assert slices.shards == shards
    assert slices.of(1, 4, shard=1).dense()[256:512].tolist() == [5 * 16] * 256
    small = StepSlices(chip, recurrence(bench, rng, "lstm", time=9, batch=3, inputs=24, units=5, replicas=1))
    assert (small.inputs.elements.max, small.inputs.elements.active) == (8, 9)
    assert (small.state.elements.max, small.state.elements.active) == (1, 15)
    wide = StepSlices(chip, recurrence(bench, rng, "tanh", time=2, batch=64, inputs=1024, units=8, replicas=1))
    assert (wide.inputs.elements.max, wide.inputs.elements.active, wide.shards) == (48, 1366, 1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_time_grows_with_the_steps_and_code_does_not(bench, rng, cell, backward):
    from ipuperf.lowering.layout import linear
    from ipuperf.lowering.supersteps import Superstepper

    machine, found = load_machine("gc200-1"), {}
    for time in (5, 10, 15):
        arrays = operands(rng, cell, time=time, batch=16, inputs=64, units=64, replicas=1, dtype=np.float32)
        op = bench.op(ops.Recurrent, *arrays, outputs=count(cell, True), **of(cell), trains=True)
        if backward:
            derivative = ops.autodiff(op.graph, [op.graph.add_output(op.outputs[0])], op.graph.inputs)
            op = next(made for made in derivative.graph.ops if isinstance(made, ops.RecurrentGrad))
        layouts = {t: linear(t.spec.elements, FLOAT32.size, 2, machine.chip.tiles) for t in op.inputs}
        out = Superstepper(op, 0, layouts, machine).run()
        found[time] = sum(step.cost.cycles for step in out.steps), out.code, len(out.plans)
    (first, code, plans), (second, _, _), (third, most, _) = found.values()
    assert third - second == second - first > 0
    assert plans == (2 if cell == "gru" else 1)
    before, after = (sum(float(np.sum(part)) for part in own.parts.values()) for own in (code, most))
    assert after == pytest.approx(before, rel=0.1)  # bringing a longer sequence takes more exchange code


def test_each_shard_has_code_of_its_own_up_to_fifteen(bench, rng):
    """One tile holds 124 steps of 16 units: the loop stands once for each shard, or once where there are many."""
    from ipuperf.lowering.layout import linear
    from ipuperf.lowering.supersteps import Superstepper

    machine, code, exchanges = load_machine("gc200-1"), {}, {}
    for time in (100, 300, 1800, 2000):
        arrays = operands(rng, "lstm", time=time, batch=1, inputs=16, units=16, replicas=1, dtype=np.float32)
        op = bench.op(ops.Recurrent, *arrays, outputs=count("lstm", True), cell="lstm", trains=True)
        layouts = {t: linear(t.spec.elements, FLOAT32.size, 2, machine.chip.tiles) for t in op.inputs}
        out = Superstepper(op, 0, layouts, machine).run()
        code[time] = sum(float(np.sum(part)) for part in out.code.parts.values())
        exchanges[time] = sum("/shard" in step.name for step in out.steps) / 2  # each with its sync
    assert exchanges == {100: 0, 300: 2, 1800: 14, 2000: 16}
    assert 2 * code[100] < code[300] < 4 * code[100]
    assert code[2000] < code[300] < code[1800]

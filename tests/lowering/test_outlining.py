"""Stretches of ops that occur again share their code."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ir, ops
from ipuperf.lowering import OUTLINE_THRESHOLD, lower
from ipuperf.lowering.outlining import HIGH_VALUE, LOW_VALUE, called, repeated, value_of
from ipuperf.machine import load_machine
from ipuperf.ops import work as w

GC200 = load_machine("gc200-1")
HIGH, LOW = HIGH_VALUE, LOW_VALUE


def slowly(keys, values, threshold):
    """Every stretch compared with every earlier one."""
    found = [False] * len(keys)
    for start, stop in itertools.combinations(range(len(keys) + 1), 2):
        part = values[start:stop]
        if None in part or sum(part) <= threshold + 1e-9:
            continue
        length = stop - start
        for other in range(start - length + 1):
            if keys[other : other + length] == keys[start:stop] and None not in values[other : other + length]:
                found[start:stop] = [True] * length
    return found


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=24), st.sampled_from([0.0, 1.0, 2.0, 3.5]))
def test_repeated_agrees_with_every_pair_of_stretches(rows, threshold):
    """Ops of key 0 are worth 2, others 1; some end a stretch."""
    keys = [key for key, _ in rows]
    values = [None if key == 3 and ends else 2.0 if key == 0 else 1.0 for key, ends in rows]
    found, expected = repeated(keys, values, threshold), slowly(keys, values, threshold)
    assert [a <= b for a, b in zip(found, expected, strict=True)] == [True] * len(keys)
    if len(set(keys)) == len(keys):
        assert not any(found)


def test_a_product_is_shared_alone_and_others_beside_it_or_in_elevens():
    layer, values = [1, 2, 3], [LOW, HIGH, LOW]
    assert repeated(layer * 3, values * 3, 1.0) == [False] * 3 + [True] * 6
    assert repeated([2, 7, 2], [HIGH, LOW, HIGH], 1.0) == [False, False, True]
    small = list(range(11))
    assert repeated(small * 2, [LOW] * 22, 1.0) == [False] * 11 + [True] * 11
    assert not any(repeated(small[:10] * 2, [LOW] * 20, 1.0)), "ten others are worth the threshold, not more"
    assert repeated([1, 2, 9, 1, 2], [LOW, HIGH, None, LOW, HIGH], 1.0) == [False, False, False, True, True]
    assert not any(repeated(layer * 3, values * 3, 5000.0)[:3])
    assert not any(repeated(layer * 3, values * 3, 5000.0))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40), st.sampled_from([0.0, 1.0, 2.0, 3.5]))
def test_calls_are_stretches_that_occur_twice(rows, threshold):
    """Ops of key 0 are worth 2, others 1; some end a stretch; the graph changes now and then."""
    keys = [key for key, _ in rows]
    values = [None if end == 0 else 2.0 if key == 0 else 1.0 for key, end in rows]
    graphs = list(itertools.accumulate(end == 9 for _, end in rows))
    found = called(keys, values, graphs, threshold)
    ops = [index for stretch in found for index in stretch]
    assert ops == sorted(set(ops)), "in order, none overlap"
    for stretch in found:
        first, last = stretch.start, stretch.stop
        assert None not in values[first:last]
        assert sum(values[first:last]) > threshold
        assert len(set(graphs[first:last])) == 1
        others = [i for i in range(len(keys) - len(stretch) + 1) if i + len(stretch) <= first or i >= last]
        assert any(keys[i : i + len(stretch)] == keys[first:last] for i in others)


def test_each_of_many_equal_layers_is_a_call():
    layer, values = [1, 2, 3], [LOW, HIGH, LOW]
    assert called(layer * 4, values * 4, [0] * 12, 1.0) == [range(n, n + 3) for n in (0, 3, 6, 9)]
    assert called([2, 7, 2], [HIGH, LOW, HIGH], [0] * 3, 1.0) == [range(1), range(2, 3)]
    assert called(layer * 2, values * 2, [0] * 3 + [1] * 3, 1.0) == [range(3), range(3, 6)], "calls of two graphs"
    assert called([1, 2, 1, 2], [LOW, HIGH, LOW, HIGH], [0, 0, 0, 1], 1.0) == [range(1, 2), range(3, 4)]
    assert called([1, 2, 3], [LOW, HIGH, LOW], [0] * 3, 1.0) == []
    inner = [5, 5, 1]  # the two 5 are alike, but inside something larger that is
    assert called(inner * 2, [HIGH] * 6, [0] * 6, 1.0) == [range(3), range(3, 6)]


def test_values_are_those_of_popart():
    product = w.MatMul(1, 8, 8, 8, ir.FLOAT32, ir.FLOAT32, ir.FLOAT32)
    assert value_of("MatMul", [product], 1) == HIGH
    assert value_of("Relu", [], 1) == LOW
    assert value_of("LayerNorm", [], 1) == HIGH
    assert (value_of("AdamUpdater", [], 1), value_of("AdamUpdater", [], 4)) == (LOW, HIGH)


def layers(count, width=512):
    """``count`` equal layers, each with its own weights."""
    program = ir.Ir()
    main = program.main_graph
    spec = ir.TensorSpec((width, width), ir.FLOAT32)

    def variable(name):
        data = np.zeros(spec.shape, np.float32)
        return main.add(ir.Variable(name, spec, main, data, program.grouping()))

    x = variable("x")
    for number in range(count):
        x = main.create(ops.MatMul, [x, variable(f"w{number}")], ["y"]).outputs[0]
        x = main.create(ops.Tanh, [x], ["y"]).outputs[0]
    return program


def code(program, outlining):
    lowered = lower(program, GC200, outlining=outlining)
    parts = lowered.memory.categories[0]
    return lowered, parts["internalExchangeCode"].total, parts["vertexInstanceState"].total


def test_equal_layers_share_their_exchange_code():
    _, one, _ = code(layers(2), OUTLINE_THRESHOLD)
    outlined, many, state = code(layers(8), OUTLINE_THRESHOLD)
    plain, whole, whole_state = code(layers(8), None)
    assert many == one, "six more layers need no more exchange code"
    assert whole > 3 * many
    assert state < whole_state
    assert computing(outlined) == computing(plain), "cycles are those of the same steps, besides copies"
    assert outlined.memory.peak_not_always_live() == plain.memory.peak_not_always_live()


def computing(program):
    return [step for step in program.walk() if not step.name.startswith("poplar::Memcpy")]


def copies(program):
    """(op, cycles without launch and set-up) of the copies of a program."""
    chip = GC200.chip
    return [
        (program.ops[step.op_id].name.split("/")[-1], step.duration - chip.launch_cycles - chip.copy_setup_cycles)
        for step in program.walk()
        if step.name.startswith("poplar::Memcpy")
    ]


def test_calls_copy_operands_in_and_results_out():
    """Three layers of a product and its Tanh: the second and third read alike what lies alike, and are calls: each
    copies its input and its weights before and its result after."""
    program = layers(3)
    lowered = lower(program, GC200, outlining=OUTLINE_THRESHOLD)
    lies = {variable.name: variable.bytes for variable in lowered.memory.variables}
    second, third = [op for op in program.main_graph.ops if op.type == "MatMul"][1:]
    results = [op.outputs[0].id for op in program.main_graph.ops if op.type == "Tanh"][1:]
    rate = GC200.chip.memcpy_bytes_per_cycle

    def cycles(*names):
        return -(-sum((lies[name].dense() for name in names), start=np.zeros(1472, np.int64)).max() // rate)

    found = copies(lowered)
    assert [n for _, n in found] == [
        cycles(second.inputs[0].id, "w1"), cycles(results[0]), cycles(third.inputs[0].id, "w2"), cycles(results[1]),
    ]  # fmt: skip
    assert copies(lower(program, GC200)) == []


def test_what_a_call_changes_is_copied_back_and_what_nobody_reads_is_not():
    """Twice: weights of 4,096 elements become the sum of themselves and a product, which nobody else reads."""
    program = ir.Ir()
    main = program.main_graph

    def variable(name, shape):
        spec = ir.TensorSpec(shape, ir.FLOAT32)
        return main.add(ir.Variable(name, spec, main, np.zeros(shape, np.float32), program.grouping()))

    x = variable("x", (64, 64))
    for number in range(2):
        product = main.create(ops.MatMul, [x, variable(f"w{number}", (64, 64))], ["p"]).outputs[0]
        main.create(ops.AddLhsInplace, [variable(f"sum{number}", (64, 64)), product], ["s"])
    lowered = lower(program, GC200, outlining=OUTLINE_THRESHOLD)
    lies = {variable.name: variable.bytes.dense() for variable in lowered.memory.variables}
    rate = GC200.chip.memcpy_bytes_per_cycle
    first = copies(lowered)[:2]
    assert first[0][1] == -(-(lies["x"] + lies["w0"] + lies["sum0"]).max() // rate)
    assert first[1][1] == -(-lies["sum0"].max() // rate)


def test_default_is_no_outlining_as_in_popxl():
    assert lower(layers(3), GC200).memory.always_live_bytes() == code(layers(3), None)[0].memory.always_live_bytes()


def test_popart_options():
    pytest.importorskip("torch")
    from ipuperf import poptorch

    options = poptorch.Options()
    assert options._Popart.outlining == OUTLINE_THRESHOLD
    options._Popart.set("outlineThreshold", 10.0)
    assert options._Popart.outlining == 10.0
    options._Popart.set("enableOutlining", False)
    assert options._Popart.outlining is None
    with pytest.raises(AssertionError, match=r"_Popart.set\('enableOutlining', 1\): expected True or False"):
        options._Popart.set("enableOutlining", 1)
    with pytest.raises(AssertionError, match=r"_Popart.set\('outlineThreshold', 'low'\): expected a number"):
        options._Popart.set("outlineThreshold", "low")


def transfers(count, width=4096):
    """``count`` tensors loaded from a buffer of their own each, and stored to it again."""
    program = ir.Ir()
    main = program.main_graph
    entry = main.constant(np.zeros(1, np.uint32), ir.UINT32, "entry")
    for number in range(count):
        buffer = program.remote_buffer((width,), ir.FLOAT32, 1)
        empty = main.create(ops.Init, [], [f"t{number}"], shape=(width,), dtype=ir.FLOAT32).outputs[0]
        loaded = main.create(ops.RemoteLoad, [empty, entry], [f"t{number}"], buffer=buffer).outputs[0]
        main.create(ops.RemoteStore, [loaded, entry], [], buffer=buffer)
    return program


def test_transfers_share_code_whatever_their_buffers():
    """PopART decides on the buffers after outlining: what shares a function becomes entries of one."""
    pod = load_machine("pod4")

    def held(count, outlining):
        return lower(transfers(count), pod, outlining=outlining).memory.categories[0]["hostExchangeCode"].total

    nothing = held(0, None)
    one = held(1, OUTLINE_THRESHOLD) - nothing
    assert held(6, OUTLINE_THRESHOLD) - nothing == one > 0
    assert held(6, None) - nothing == 6 * one


def test_copies_of_operands_are_where_the_operands_lie():
    """Three layers, of which the first reads its input in another layout. An addition and the next product occur again:
    two calls copy the sum before, a bias of one tile and the weights in, and the product out."""
    program = layers(0)
    main = program.main_graph

    def variable(name, shape):
        spec = ir.TensorSpec(shape, ir.FLOAT32)
        return main.add(ir.Variable(name, spec, main, np.zeros(shape, np.float32), program.grouping()))

    x, products = variable("first", (512, 512)), []
    for number in range(3):
        x = main.create(ops.MatMul, [x, variable(f"w{number}", (512, 512))], ["y"]).outputs[0]
        products.append(x.id)
        x = main.create(ops.Add, [x, variable(f"b{number}", (1,))], ["y"]).outputs[0]
    sizes = []
    for state in (16, 32):
        code = replace(GC200.chip.code, copy_state_bytes=state)
        machine = replace(GC200, chip=replace(GC200.chip, code=code))
        lowered = lower(program, machine, outlining=OUTLINE_THRESHOLD)
        sizes.append(lowered.memory.categories[0]["vertexInstanceState"].total)
    tiles = {v.name: v.bytes.active for v in lowered.memory.variables}
    assert tiles["b1"] == tiles["b2"] == 1
    first, second, third = (tiles[product] for product in products)
    assert sizes[1] - sizes[0] == 16 * (first + second + tiles["w1"] + 1 + second + third + tiles["w2"] + 1)

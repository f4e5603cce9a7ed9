"""Random programs against a naive interpreter that keeps every value: reuse of memory must never show."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.numerics.memory import Pool, aligned_zeros
from ipuperf.numerics.plan import make_plan
from ipuperf.ops.control import Call, Loop
from ipuperf.ops.elementwise.arithmetic import Add, AddLhsInplace, Mul, Sub
from ipuperf.ops.shape import Reshape, Slice, Transpose, TransposeInplace
from ipuperf.ops.transfers.streams import HostStore

SIDE = 3
BINARY = {"add": (Add, np.add), "sub": (Sub, np.subtract), "mul": (Mul, np.multiply)}


@dataclass
class Value:
    """A tensor and, for the oracle, the array object that it names (shared by in-place results and views)."""

    tensor: ir.Tensor
    array: np.ndarray


def draw_body(data, graph: ir.Graph, values: list[Value], steps: int) -> None:
    """Add random ops to ``graph`` and compute them at once on the oracle's arrays."""
    for _ in range(steps):
        kind = data.draw(st.sampled_from([*BINARY, "inplace", "transpose", "view", "reshape", "slice", "constant"]))
        a, b = data.draw(st.sampled_from(values)), data.draw(st.sampled_from(values))
        if kind in BINARY:
            op_class, function = BINARY[kind]
            made = function(a.array, b.array)
            op = graph.create(op_class, [a.tensor, b.tensor], ["t"])
        elif kind == "inplace":
            op = graph.create(AddLhsInplace, [a.tensor, b.tensor], ["t"])
            a.array += b.array.copy()
            made = a.array
        elif kind == "transpose":
            op = graph.create(Transpose, [a.tensor], ["t"], permutation=(1, 0))
            made = a.array.T.copy()
        elif kind == "view":
            op = graph.create(TransposeInplace, [a.tensor], ["t"], permutation=(1, 0))
            made = a.array.T
        elif kind == "reshape":
            flat = graph.create(Reshape, [a.tensor], ["t"], shape=(SIDE * SIDE,)).outputs[0]
            op = graph.create(Reshape, [flat], ["t"], shape=(SIDE, SIDE))
            made = a.array.copy()
        elif kind == "slice":
            op = graph.create(Slice, [a.tensor], ["t"], axis=0, start=None, stop=None, step=-1)
            made = a.array[::-1].copy()
        else:
            constant = graph.constant(np.full((SIDE, SIDE), 0.5, np.float32))
            op = graph.create(Add, [a.tensor, constant], ["t"])
            made = a.array + np.float32(0.5)
        values.append(Value(op.outputs[0], made))


def start(count: int) -> tuple[ir.Ir, list[Value]]:
    program = ir.Ir()
    main, rng = program.main_graph, np.random.default_rng(count)
    values = []
    for i in range(count):
        array = (rng.integers(-4, 5, (SIDE, SIDE)) / 4).astype(np.float32)
        spec = ir.TensorSpec((SIDE, SIDE), ir.FLOAT32)
        variable = ir.Variable(f"v{i}", spec, main, array.copy(), program.grouping())
        main.add(variable)
        values.append(Value(variable, array))
    return program, values


def store(main: ir.Graph, tensor: ir.Tensor, name: str) -> ir.Stream:
    stream = ir.Stream(name, tensor.spec, main, "d2h")
    main.add(stream)
    main.create(HostStore, [tensor], [], stream=stream)
    return stream


def check(program: ir.Ir, expected: dict[ir.Stream, np.ndarray], variables: list[Value]) -> None:
    evaluator = Evaluator(program)
    for _ in range(2):
        evaluator.load_variables()
        result = evaluator.run()
        for stream, array in expected.items():
            np.testing.assert_array_equal(result[stream][0, 0], array)
        for value in variables:
            np.testing.assert_array_equal(evaluator.variables[value.tensor][0], value.array)


@pytest.mark.heavy
@settings(max_examples=150)
@given(st.data())
def test_random_programs(data):
    program, values = start(3)
    variables = values[:]
    main = program.main_graph
    with np.errstate(all="ignore"), ir.CONTEXT.sequence(True):
        draw_body(data, main, values, data.draw(st.integers(1, 14)))
        expected = {}
        for i in range(data.draw(st.integers(1, 3))):
            value = data.draw(st.sampled_from(values))
            expected[store(main, value.tensor, f"o{i}")] = value.array.copy()
            draw_body(data, main, values, 2)
    check(program, expected, variables)


def graph_with_inputs(program: ir.Ir, count: int, by_ref: list[bool]) -> ir.Graph:
    graph = program.create_graph("g")
    for i in range(count):
        graph.add_input(ir.TensorSpec((SIDE, SIDE), ir.FLOAT32), f"i{i}", by_ref=by_ref[i])
    return graph


@pytest.mark.heavy
@settings(max_examples=150)
@given(st.data())
def test_random_calls_and_loops(data):
    """The oracle passes copies for operands by value and the caller's arrays by reference. Distinct operands only:
    what overlapping references mean is not defined."""
    program, values = start(3)
    variables, main = values[:], program.main_graph
    by_ref = [data.draw(st.booleans()) for _ in range(3)]
    carried = data.draw(st.integers(0, 2))
    trips = data.draw(st.integers(0, 3))
    loop = data.draw(st.booleans())
    if loop:
        by_ref[:carried] = [False] * carried
    graph = graph_with_inputs(program, 3, by_ref)
    script_seed = data.draw(st.integers(0, 10_000))
    with np.errstate(all="ignore"), ir.CONTEXT.sequence(True):
        recorded = Recorded(script_seed, steps=data.draw(st.integers(1, 6)))
        recorded.build(graph, carried if loop else 2)
        draw_body(data, main, values, data.draw(st.integers(0, 3)))
        op = main.create(
            Loop if loop else Call,
            [v.tensor for v in variables],
            ["t"] * len(graph.outputs),
            callee=graph,
            **({"trip_count": trips} if loop else {}),
        )
        operands = [v.array for v in variables]
        if loop:
            results = [a.copy() for a in operands[:carried]]
            for _ in range(trips):
                passed = [a if ref else a.copy() for a, ref in zip(operands, by_ref)]
                results = [a.copy() for a in recorded.run([*results, *passed[carried:]])[:carried]]
        else:
            results = [a.copy() for a in recorded.run([a if ref else a.copy() for a, ref in zip(operands, by_ref)])]
        values += [Value(t, a) for t, a in zip(op.outputs, results)]
        draw_body(data, main, values, data.draw(st.integers(0, 4)))
        expected = {store(main, v.tensor, f"o{i}"): v.array.copy() for i, v in enumerate(values[3:])}
    check(program, expected, variables)


class Recorded:
    """A random graph body that can be run again on other arrays."""

    def __init__(self, seed: int, steps: int) -> None:
        rng = np.random.default_rng(seed)
        self.steps = [(int(rng.integers(0, 4)), *map(int, rng.integers(0, 3 + i, 2))) for i in range(steps)]
        self.outputs = [int(i) for i in rng.integers(0, 3 + steps, 2)]

    def build(self, graph: ir.Graph, outputs: int) -> None:
        tensors = list(graph.inputs)
        for kind, a, b in self.steps:
            if kind == 0:
                op = graph.create(Sub, [tensors[a], tensors[b]], ["t"])
            elif kind == 1:
                op = graph.create(AddLhsInplace, [tensors[a], tensors[b]], ["t"])
            elif kind == 2:
                op = graph.create(Transpose, [tensors[a]], ["t"], permutation=(1, 0))
            else:
                op = graph.create(TransposeInplace, [tensors[a]], ["t"], permutation=(1, 0))
            tensors.append(op.outputs[0])
        for index in self.outputs[:outputs]:
            graph.add_output(tensors[index])

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        values = list(arrays)
        for kind, a, b in self.steps:
            if kind == 0:
                values.append(values[a] - values[b])
            elif kind == 1:
                values[a] += values[b].copy()
                values.append(values[a])
            else:
                values.append(values[a].T.copy() if kind == 2 else values[a].T)
        return [values[i] for i in self.outputs]


def test_pool_reuses_what_fits_and_keeps_alignment():
    pool = Pool()
    big = pool.acquire((1000,), np.dtype(np.float32))
    assert big.array((1000,), np.dtype(np.float32)).ctypes.data % 64 == 0
    pool.release(big)
    assert pool.acquire((10,), np.dtype(np.float32)) is not big  # far too large
    assert pool.acquire((900,), np.dtype(np.float32)) is big
    first, second = (pool.acquire((64,), np.dtype(np.int8)) for _ in range(2))
    pool.release(first)
    pool.release(second)
    assert pool.acquire((64,), np.dtype(np.int8)) is second  # the warm one
    assert pool.acquire((0,), np.dtype(np.int8)) is first


def test_a_copy_that_nobody_can_tell_from_a_view_is_none():
    program, (value, *_) = start(1)
    main = program.main_graph
    turned = main.create(Transpose, [value.tensor], ["t"])
    summed = main.create(Add, [turned.outputs[0], turned.outputs[0]], ["s"]).outputs[0]
    store(main, summed, "o")
    assert make_plan(main).elided == {turned}
    store(main, turned.outputs[0], "p")
    with ir.CONTEXT.sequence(True):
        main.create(AddLhsInplace, [turned.outputs[0], summed], ["u"])
    assert make_plan(main).elided == set()


def test_zeroed_arrays_are_aligned_and_name_what_they_are_for_when_there_is_no_memory():
    array = aligned_zeros((3, 5), np.dtype(np.float16))
    assert array.ctypes.data % 64 == 0
    assert not array.any()
    with pytest.raises(
        MemoryError, match=r"variable 'w': the values of all replicas are 4,611,686,018,427,387,904 bytes"
    ):
        aligned_zeros((2**60,), np.dtype(np.float32), "variable 'w'")

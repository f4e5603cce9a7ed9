"""Dynamic slices and updates and IncrementMod against NumPy, two replicas with different positions."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.ops.selection.dynamic import (
    DynamicIndexError,
    DynamicSlice,
    DynamicSlicePadGrad,
    DynamicUpdate,
    DynamicUpdateInplace,
    IncrementMod,
    IncrementModInplace,
    planned_slice_cycles,
    slice_cycles,
)
from ipuperf.ops.work import SliceVertices

SPEC = ir.TensorSpec


def index(*rows, dtype=np.uint32):
    return np.array(rows, dtype)


def wrapped(array, starts, axes, sizes):
    """The slice by ``np.take`` with wrap-around, one axis after the other."""
    for axis, start, size in zip(axes, starts, sizes):
        array = np.take(array, range(start, start + size), axis=axis, mode="wrap")
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize(
    ("axes", "sizes", "starts"),
    [
        ((0,), (1,), [[3], [0]]),
        ((0,), (2,), [[2], [4]]),  # replica 1 goes on at the begin
        ((1, 0), (3, 2), [[2, 4], [0, 1]]),
        ((-1,), (2,), [[1], [0]]),
        ((0, 1, 2), (5, 4, 2), [[0, 0, 0], [1, 2, 1]]),
    ],
)
def test_slice(bench, rng, dtype, axes, sizes, starts):
    t = rng.integers(-99, 99, (2, 5, 4, 2)).astype(dtype)
    found = bench.run(DynamicSlice, t, index(*starts), axes=axes, sizes=sizes)
    for replica in range(2):
        np.testing.assert_array_equal(found[replica], wrapped(t[replica], starts[replica], axes, sizes))


@pytest.mark.parametrize("op_class", [DynamicUpdate, DynamicUpdateInplace])
def test_update(bench, rng, op_class):
    t, update = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 2, 4))
    expected = t.copy()
    expected[0, 1:3] = update[0]
    expected[1, 4], expected[1, 0] = update[1]
    before = t.copy()
    found = bench.run(op_class, t, index([1], [4], dtype=np.int32), update, axes=[0], sizes=[2])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(t, expected if op_class is DynamicUpdateInplace else before)


def test_inplace_update_shares_the_base(bench, rng):
    op = bench.op(DynamicUpdateInplace, np.zeros((1, 3, 2)), index([0]), np.zeros((1, 1, 2)), axes=[0], sizes=[1])
    assert (op.modified_inputs(), op.aliases()) == ((0,), {0: 0})
    assert op.type == "DynamicUpdateInplace"


@pytest.mark.parametrize("starts", [[[1], [0]], [[2], [1]]])
def test_gradients(bench, rng, starts):
    torch = pytest.importorskip("torch")
    t, update, at = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 2, 4)), index(*starts)

    def sliced(graph, base, position):
        return graph.create(DynamicSlice, [base, position], ["y"], axes=[0], sizes=[2]).outputs[0]

    def updated(graph, base, position, new):
        return graph.create(DynamicUpdate, [base, position, new], ["y"], axes=[0], sizes=[2]).outputs[0]

    _, grad, found = bench.gradients(sliced, [t, at])
    _, update_grad, update_found = bench.gradients(updated, [t, at, update])
    for replica in range(2):
        rows = [(starts[replica][0] + i) % 3 for i in range(2)]
        leaf = torch.tensor(t[replica], requires_grad=True)
        leaf[rows].backward(torch.tensor(grad[replica]))
        np.testing.assert_allclose(found[0][replica], leaf.grad.numpy())
        leaf, new = torch.tensor(t[replica], requires_grad=True), torch.tensor(update[replica], requires_grad=True)
        leaf.index_put((torch.tensor(rows),), new).backward(torch.tensor(update_grad[replica]))
        np.testing.assert_allclose(update_found[0][replica], leaf.grad.numpy())
        np.testing.assert_allclose(update_found[1][replica], new.grad.numpy())


def test_names_of_the_gradients(bench):
    graph = ir.Ir().create_graph("f")
    base, new = (graph.add_input(SPEC(shape, ir.FLOAT32), name) for shape, name in (((3, 4), "t"), ((1, 4), "u")))
    at = graph.add_input(SPEC((1,), ir.UINT32), "i")
    made = graph.create(DynamicUpdate, [base, at, new], ["y"], axes=[0], sizes=[1]).outputs[0]
    graph.add_output(graph.create(DynamicSlice, [made, at], ["z"], axes=[0], sizes=[1]).outputs[0])
    from ipuperf.ops import autodiff

    types = [op.type for op in autodiff(graph).graph.ops]
    assert types == ["DynamicSlicePadGrad", "DynamicUpdateToUpdateGrad", "DynamicUpdateUpdaterGrad"]


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ir.ShapeError, r"axes \(0, 1\) and sizes \(1,\)", {"axes": [0, 1]}),
        (ir.ShapeError, "axis 2 is out of range for rank 2", {"axes": [2]}),
        (ir.ShapeError, r"axes \(0, 0\) name an axis twice", {"axes": [0, -2], "sizes": [1, 1]}),
        (ir.ShapeError, "size 4 on axis 0; allowed are 1 to 3", {"sizes": [4]}),
        (ir.ShapeError, "size 0 on axis 0", {"sizes": [0]}),
        (ir.ShapeError, r"'i' has shape \(1,\); 2 elements are needed", {"axes": [0, 1], "sizes": [1, 4]}),
        (ir.ShapeError, r"has shape \(1, 4\); the slice has \(2, 4\)", {"sizes": [2]}),
        (ir.DTypeError, "'i' is float32; allowed are uint32, int32", {"at": ir.FLOAT32}),
        (ir.DTypeError, "different dtypes", {"new": ir.FLOAT16}),
    ],
)
def test_errors(error, message, change):
    graph = ir.Ir().main_graph
    attributes = {"axes": [0], "sizes": [1]} | {k: v for k, v in change.items() if k in ("axes", "sizes")}
    tensors = [
        graph.intermediate(SPEC((3, 4), ir.FLOAT32), "t"),
        graph.intermediate(SPEC((1,), change.get("at", ir.UINT32)), "i"),
        graph.intermediate(SPEC((1, 4), change.get("new", ir.FLOAT32)), "u"),
    ]
    with pytest.raises(error, match=message):
        graph.create(DynamicUpdate, tensors, ["y"], **attributes)


def test_the_padded_gradient_must_have_the_slices_shape():
    graph = ir.Ir().main_graph
    gradient, at = (graph.intermediate(s, n) for s, n in ((SPEC((1, 4), ir.FLOAT32), "g"), (SPEC((1,), ir.INT32), "i")))
    with pytest.raises(ir.ShapeError, match=r"DynamicSlicePadGrad.*'g.*has shape \(1, 4\); the slice has \(2, 4\)"):
        graph.create(DynamicSlicePadGrad, [gradient, at], ["y"], axes=[0], sizes=[2], shape=(3, 4))


@pytest.mark.parametrize("position", [3, -1])
def test_index_outside(bench, position):
    with pytest.raises(DynamicIndexError, match=rf"DynamicSlice.*index {position} on axis 0; allowed are 0 to 2"):
        bench.run(DynamicSlice, np.zeros((1, 3, 4)), index([position], dtype=np.int32), axes=[0], sizes=[1])


def test_the_planner_expects_a_slice_of_whole_vectors(mk2):
    """One element a worker: no whole vector for the planner, 25 + 6 (39 + 24) = 403; the vertex moves one, 415. The two
    agree where every worker has whole vectors, and are never further apart than two cycles a worker."""
    one = np.array([1])
    assert (planned_slice_cycles(one, 4, mk2)[0], slice_cycles(4, 1)(one, mk2)[0]) == (403, 415)
    count = np.arange(1, 400)
    apart = slice_cycles(2, 1)(count, mk2) - planned_slice_cycles(count, 2, mk2)
    assert set(apart.tolist()) == {0, 12}
    assert not apart[-(-count // 6) % 4 == 0].any()


def test_work(bench, mk2):
    # docs/reference/cycles.md 4.3: 25 + W (39 + (24 + 2 ceil(m / v)) k): 120 floats of a slice on a tile are m = 20
    # elements for a worker, 10 vectors: 25 + 6 (39 + 44) = 523. Two positions of 60: m = 10, 5 vectors: 25 + 6 (39 + 2
    # * 34).
    assert slice_cycles(4, 1)(np.array([0, 120]), mk2).tolist() == [0, 523]
    assert slice_cycles(4, 2)(np.array([120]), mk2).tolist() == [25 + 6 * (39 + 2 * 34)]
    assert slice_cycles(2, 1)(np.array([120]), mk2).tolist() == [25 + 6 * (39 + 24 + 2 * 5)]
    t, new = np.zeros((1, 3, 4), np.float32), np.zeros((1, 1, 4), np.float32)
    (read,) = bench.op(DynamicSlice, t, index([0]), axes=[0], sizes=[1]).work()
    assert isinstance(read, SliceVertices)
    assert (read.vertex, read.elements, read.writes) == ("popops::DynamicSlice1D<float>", 4, False)
    (write,) = bench.op(DynamicUpdateInplace, t, index([0]), new, axes=[0], sizes=[1]).work()
    assert (write.vertex, write.writes) == ("popops::DynamicUpdateSlice1D<float>", True)
    assert len(bench.op(DynamicUpdate, t, index([0]), new, axes=[0], sizes=[1]).work()) == 2


# -- IncrementMod ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_class", [IncrementMod, IncrementModInplace])
@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_increment_mod(bench, op_class, dtype):
    t = np.array([[0, 2, 6], [5, 4, 3]], dtype)
    before = t.copy()
    found = bench.run(op_class, t, increment=3, modulus=7)
    np.testing.assert_array_equal(found, (before + 3) % 7)
    np.testing.assert_array_equal(t, found if op_class is IncrementModInplace else before)


def test_increment_mod_remainder_has_the_sign_of_the_sum(bench):
    found = bench.run(IncrementMod, np.array([[-5, 5]], np.int32), increment=-3, modulus=7)
    np.testing.assert_array_equal(found, [[-1, 2]])  # C's remainder: -8 % 7 == -1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_increment_mod_of_floats_may_be_fractions(bench, mk2, dtype):
    found = bench.run(IncrementMod, np.array([[0.25, 1.5, -4]], dtype), increment=0.75, modulus=2)
    np.testing.assert_array_equal(found, np.array([[1, 0.25, -1.25]], dtype))
    (work,) = bench.op(IncrementMod, np.zeros((1, 8), dtype), increment=0.75, modulus=2).work()
    rest = {np.float16: 2 + 2 * 225, np.float32: 4 + 4 * 93}[dtype]  # 8 elements a worker: additions, remainders
    assert work.cycles(np.array([48]), mk2).tolist() == [6 * (20 + rest) + 11]


def test_increment_mod_with_the_largest_modulus(bench):
    largest = 2**32 - 1
    found = bench.run(IncrementMod, np.array([[0, largest - 1, largest]], np.uint32), increment=1, modulus=largest)
    np.testing.assert_array_equal(found, [[1, 0, 0]])  # the last sum wraps round to 0

"""Reshape, Transpose, Slice, Concat, Expand, Init: values, when views are allowed, gradients, errors."""

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, IrError, ShapeError
from ipuperf.ops.work import Copy

X = np.arange(2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6)

CASES = [
    (ops.Reshape, {"shape": (3, 8)}, lambda x: x.reshape(3, 8)),
    (ops.Reshape, {"shape": (2, -1)}, lambda x: x.reshape(2, 12)),
    (ops.Transpose, {"permutation": None}, lambda x: x.T),
    (ops.Transpose, {"permutation": (0, 1)}, lambda x: x),
    (ops.Slice, {"axis": 1, "start": 1, "stop": 6, "step": 2}, lambda x: x[:, 1:6:2]),
    (ops.Slice, {"axis": -2, "start": -1, "stop": None, "step": -1}, lambda x: x[::-1]),
    (ops.Slice, {"axis": (0, 1), "start": (1, 2), "stop": (3, 99), "step": (1, 3)}, lambda x: x[1:3, 2:99:3]),
    (ops.Slice, {"axis": [1], "start": [None], "stop": [-2]}, lambda x: x[:, :-2]),
    (ops.Expand, {"shape": (3, 4, 6)}, lambda x: np.broadcast_to(x, (3, 4, 6))),
]


@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize(("op_class", "attributes", "function"), CASES)
def test_values(bench, op_class, attributes, function, views):
    result = bench.run(op_class, X, views=views, **attributes)
    for r in range(2):
        np.testing.assert_array_equal(result[r], function(X[r]))
    assert np.may_share_memory(result, X) == views


@pytest.mark.parametrize(("op_class", "attributes"), [(c, a) for c, a, _ in CASES])
def test_gradients(bench, rng, op_class, attributes):
    torch = pytest.importorskip("torch")

    def reference(x):
        if op_class is ops.Slice:
            axes, starts, stops = (
                v if isinstance(v, (tuple, list)) else [v] for v in (attributes[k] for k in ("axis", "start", "stop"))
            )
            steps = attributes.get("step", 1)
            steps = steps if isinstance(steps, tuple) else [steps] * len(axes)
            for axis, *part in zip(axes, starts, stops, steps, strict=True):
                picked = list(range(*slice(*part).indices(x.shape[axis])))
                x = torch.index_select(x, axis % 2, torch.tensor(picked))
            return x
        if op_class is ops.Reshape:
            return x.reshape(attributes["shape"])
        return (
            x.expand(attributes["shape"]) if op_class is ops.Expand else x.permute(attributes["permutation"] or (1, 0))
        )

    bench.check(
        lambda g, t: g.create(op_class, [t], ["y"], **attributes).outputs[0],
        reference,
        [rng.standard_normal((2, 4, 6))],
    )


def test_expand_inserts_axes_after_the_replica_axis(bench):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(bench.run(ops.Expand, x, shape=(3, 2)), np.stack([np.stack([row] * 3) for row in x]))


def test_concat(bench, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal((2, 3, n)) for n in (2, 1, 4)]
    np.testing.assert_array_equal(bench.run(ops.Concat, *arrays, axis=1), np.concatenate(arrays, axis=2))
    np.testing.assert_array_equal(bench.run(ops.ConcatInplace, *arrays, axis=-1), np.concatenate(arrays, axis=2))
    bench.check(
        lambda g, *t: g.create(ops.Concat, list(t), ["y"], axis=-1).outputs[0],
        lambda *t: torch.cat(t, dim=-1),
        arrays,
    )


def test_init():
    graph = ir.Ir().create_graph("g")
    zero = graph.create(ops.Init, [], ["z"], shape=(2, 3), dtype=FLOAT32, meta_shape=(6,))
    rest = graph.create(ops.Init, [], ["u"], shape=(2, 3), dtype=FLOAT32, init="undefined")
    out = np.full((2, 2, 3), np.nan, np.float32)
    rest.kernel([], [out], None)()
    assert np.isnan(out).all()
    zero.kernel([], [out], None)()
    assert (out == 0).all()
    assert zero.outputs[0].meta_shape == (6,)
    assert zero.work()[0].vertex == "popops::Fill<float>"
    assert rest.work() == []
    with pytest.raises(IrError, match="init='ones'; allowed: zero, undefined"):
        graph.create(ops.Init, [], ["u"], shape=(2,), dtype=FLOAT32, init="ones")


# -- a view must never be seen -----------------------------------------------------------------------------------------


def two_steps(op_class, attributes, change_result):
    """A copy of x followed by an in-place change of x (or of the copy), ordered; returns graph, x, copy."""
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(ir.TensorSpec((4, 6), FLOAT32), "x")
    with ir.CONTEXT.use_graph(graph), ir.CONTEXT.sequence(True):
        copy = graph.create(op_class, [x], ["c"], **attributes).outputs[0]
        target = copy if change_result else x
        graph.create(ops.ExpInplace, [target], ["e"])
        last = graph.create(ops.Identity, [x if change_result else copy], ["i"]).outputs[0]
    return graph, x, last


@pytest.mark.parametrize("change_result", [True, False])
@pytest.mark.parametrize(("op_class", "attributes", "function"), CASES[:-1])
def test_changes_in_place_do_not_reach_copies(run_graph, op_class, attributes, function, change_result):
    graph, x, last = two_steps(op_class, attributes, change_result)
    values = run_graph(graph, {x: X.copy()})
    expected = X if change_result else np.stack([function(row) for row in X])
    np.testing.assert_array_equal(values[last], expected)


def test_results_that_leave_the_graph_are_copies(run_graph):
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(ir.TensorSpec((4, 6), FLOAT32), "x")
    y = graph.add_output(graph.create(ops.Transpose, [x], ["y"], permutation=None).outputs[0])
    assert not np.may_share_memory(run_graph(graph, {x: X})[y], X)


def test_in_place_views_share_and_cost_nothing(bench):
    for op_class, attributes in (
        (ops.ReshapeInplace, {"shape": (24,)}),
        (ops.TransposeInplace, {"permutation": (1, 0)}),
        (ops.SliceInplace, {"axis": 0, "start": 1, "stop": 3}),
    ):
        op = bench.op(op_class, X, **attributes)
        assert op.aliases() == {0: 0}
        assert op.work() == []
        assert np.may_share_memory(bench.run(op_class, X, **attributes), X)


def test_change_of_a_view_that_numpy_cannot_express(run_graph):
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(ir.TensorSpec((4, 6), FLOAT32), "x")
    turned = graph.create(ops.TransposeInplace, [x], ["t"], permutation=(1, 0)).outputs[0]
    flat = graph.create(ops.ReshapeInplace, [turned], ["r"], shape=(24,)).outputs[0]
    np.testing.assert_array_equal(run_graph(graph, {x: X})[flat][0], X[0].T.reshape(-1))
    graph.create(ops.ExpInplace, [flat], ["e"])
    with pytest.raises(IrError, match="use the out-of-place op"):
        run_graph(graph, {x: X.copy()})


VIEWS = [(ops.Expand, {"shape": (2, 4, 6)}), (ops.Reshape, {"shape": (6, 4)})]


@pytest.mark.parametrize(("op_class", "attributes"), VIEWS)
def test_views_where_nothing_can_tell(bench, op_class, attributes):
    op = bench.op(op_class, X, **attributes)
    assert op.work() == []
    op.graph.add_output(op.outputs[0])
    copied = op.outputs[0].spec.bytes
    assert op.work() == [Copy(copied)]  # what is passed in would leave the graph under another name


@pytest.mark.parametrize(("op_class", "attributes"), VIEWS)
def test_results_of_the_graph_may_leave_it_as_views(bench, op_class, attributes):
    graph = bench.op(ops.Exp, X).graph
    made = graph.create(ops.Exp, [graph.inputs[0]], ["m"]).outputs[0]
    op = graph.create(op_class, [made], ["v"], **attributes)
    graph.add_output(op.outputs[0])
    assert op.work() == []
    graph.add_output(made)
    assert op.work() != []


@pytest.mark.parametrize(("op_class", "attributes"), VIEWS)
def test_copies_of_what_changes_later(bench, op_class, attributes):
    op = bench.op(op_class, X, **attributes)
    op.graph.create(ops.AddLhsInplace, [op.inputs[0], op.inputs[0]], ["changed"])
    assert op.work() == [Copy(op.outputs[0].spec.bytes)]


@pytest.mark.parametrize(
    ("op_class", "attributes", "message"),
    [
        (ops.Reshape, {"shape": (5, 5)}, "does not hold the 24 elements"),
        (ops.Reshape, {"shape": (-1, -1)}, "at most one -1"),
        (ops.Reshape, {"shape": (-1, 5)}, "does not hold"),
        (ops.Transpose, {"permutation": (0, 0)}, "does not order the 2 axes"),
        (ops.Slice, {"axis": 2, "start": 0, "stop": 1}, "axis 2 is out of range for rank 2"),
        (ops.Slice, {"axis": 0, "start": 0, "stop": 1, "step": 0}, "step 0"),
        (ops.Slice, {"axis": (0, 1), "start": 0, "stop": 1}, "different lengths"),
        (ops.Slice, {"axis": (0, -2), "start": (0, 0), "stop": (1, 1)}, "sliced twice"),
        (ops.Concat, {"axis": 4}, "axis 4 is out of range"),
        (ops.Expand, {"shape": (4, 5)}, "cannot be broadcast to"),
    ],
)
def test_errors(bench, op_class, attributes, message):
    with pytest.raises(ShapeError, match=message):
        bench.op(op_class, X, **attributes)


# -- split and subsample -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
@pytest.mark.parametrize(("axis", "sizes"), [(0, (1, 3, 1)), (-1, (2, 0, 4)), (1, (5,)), (0, (5,))])
def test_split(bench, axis, sizes, dtype):
    x = np.arange(2 * 5 * 5 * 6).reshape(2, 5, 5, 6).astype(dtype)
    found = bench.run(ops.Split, x, outputs=len(sizes), axis=axis, sizes=sizes)
    found = found if len(sizes) > 1 else [found]
    ends = np.cumsum((0, *sizes))
    for part, low, high in zip(found, ends, ends[1:], strict=False):
        np.testing.assert_array_equal(part, np.moveaxis(np.moveaxis(x, axis % 3 + 1, 0)[low:high], 0, axis % 3 + 1))


@pytest.mark.parametrize("used", [0, 1, 2])
def test_split_gradient_with_parts_that_nothing_reads(bench, rng, used):
    x = rng.standard_normal((2, 5, 3))
    split = lambda graph, t: graph.create(ops.Split, [t], ["a", "b", "c"], axis=0, sizes=(1, 3, 1))  # noqa: E731
    bench.check(
        lambda graph, t: graph.create(ops.Exp, [split(graph, t).outputs[used]], ["y"]).outputs[0],
        lambda t: t.split((1, 3, 1))[used].exp(),
        [x],
    )


@pytest.mark.parametrize("strides", [(2, 1), (2,), 3, (1, 4), (7, 7)])
def test_subsample(bench, rng, strides):
    x = rng.standard_normal((2, 5, 6))
    first, second = (strides, 1) if isinstance(strides, int) else (*strides, 1)[:2]
    bench.check(
        lambda graph, t: graph.create(ops.Subsample, [t], ["y"], strides=strides).outputs[0],
        lambda t: t[::first, ::second],
        [x],
    )


@pytest.mark.parametrize(("shape", "strides"), [((), ()), ((0,), (2,)), ((1,), (2,))])
def test_subsample_of_little(bench, shape, strides):
    x = np.ones((2, *shape), np.float16)
    np.testing.assert_array_equal(bench.run(ops.Subsample, x, strides=strides), x)

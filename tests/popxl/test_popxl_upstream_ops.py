"""Functions of ``popxl.ops`` that are one op upstream: its type, and values in a session."""

import numpy as np
import pytest

import ipuperf
from ipuperf import popxl
from ipuperf.popxl import ops

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 4 - 1
INDEX = np.array([2, 0], np.int32)


def constant(value):
    return popxl.constant(np.asarray(value), name="c")


#: Name: (function of a tensor ``(3, 4)``, operation type, its value or values).
CASES = {
    "split": (lambda t: ops.split(t, [1, 3], axis=-1), "Split", [X[:, :1], X[:, 1:]]),
    "split equally": (lambda t: ops.split(t, 3), "Split", [X[:1], X[1:2], X[2:]]),
    "subsample": (lambda t: ops.subsample(t, [2, 3]), "Subsample", X[::2, ::3]),
    "subsample some": (lambda t: ops.subsample(t, [2]), "Subsample", X[::2]),
    "subsample one": (lambda t: ops.subsample(t, 2), "Subsample", X[::2]),
    "logsum": (lambda t: ops.logsum(t), "ReduceLogSum", np.log(X.sum())),
    "logsumexp": (lambda t: ops.logsumexp(t, [0], True), "ReduceLogSumExp", np.log(np.exp(X).sum(0, keepdims=True))),
    "median": (lambda t: ops.median(t, axis=[0, -1]), "ReduceMedian", np.float32(0.25)),
    "swish": (ops.swish, "Swish", X / (1 + np.exp(-X))),
    "swish_": (ops.swish_, "SwishInplace", X / (1 + np.exp(-X))),
    "detach": (lambda t: t.detach(), "Detach", X),
    "detach_": (lambda t: t.detach_(), "DetachInplace", X),
    "lamb_square": (ops.lamb_square, "LambSquare", np.sum(X * X)),
    "histogram": (lambda t: ops.histogram(t, [-0.5, 1.0], False), "Histogram", np.array([2, 6, 4], np.uint32)),
    "print_tensor": (lambda t: ops.print_tensor(t, "seen"), "PrintTensor", X),
    "interpolate": (lambda t: ops.interpolate(t, (1, 2)), "Resize", X.repeat(2, 1)),
    "gather": (lambda t: ops.gather(t, constant(INDEX), 1), "Gather", X[:, INDEX]),
    "tied_gather": (lambda t: ops.tied_gather(t, constant(INDEX)), "PopartTiedGather", X[INDEX]),
    "groupedgather": (
        lambda t: ops.groupedgather(t, constant(np.array([[0], [3], [1]], np.int32)), 1, 3), "Gather",
        np.stack([X[0, [0]], X[1, [3]], X[2, [1]]]),
    ),
    "scatter": (
        lambda t: ops.scatter(t, constant(np.tile(INDEX[:, None], (1, 4))), constant(np.zeros((2, 4), np.float32))),
        "Scatter", np.stack([0 * X[0], X[1], 0 * X[2]]),
    ),
    "scatter_reduce": (
        lambda t: ops.scatter_reduce(t, constant(np.array([1, 1, 0], np.int32)), "max", axis=0, axis_size=3),
        "ScatterReduce", np.stack([X[2], X[1], 0 * X[0]]),
    ),
    "roi_align": (
        lambda t: ops.roi_align(
            t.reshape((1, 1, 3, 4)), constant(np.array([[0, 0, 2, 2]], np.float32)), constant(np.array([0], np.int32)),
            (1, 1), 1.0, 1,
        ),
        "RoiAlign", X[1, 1].reshape(1, 1, 1, 1),
    ),
    "topk": (lambda t: ops.topk(t, 1, -1, True, True), "TopK", [X[:, -1:], np.full((3, 1), 3, np.int32)]),
    "cumsum": (lambda t: ops.cumsum(t, 1), "CumSum", X.cumsum(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_op_and_its_value(name, capsys):
    function, type_, expected = CASES[name]
    wanted = expected if isinstance(expected, list) else [expected]
    ir = popxl.Ir()
    with ir.main_graph:
        found = function(popxl.variable(X, name="x"))
        tensors = found if isinstance(found, (list, tuple)) else [found]
        made = [op for op in ir.main_graph._base.ops if op.type not in ("Reshape", "HostStore")]
        assert [op.type for op in made] == [type_]
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, tensor in zip(streams, tensors, strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_hw") as session:
        outputs = session.run()
    for stream, value in zip(streams, wanted, strict=True):
        np.testing.assert_allclose(outputs[stream], value, rtol=1e-6, atol=1e-6)
    if name == "print_tensor":
        assert capsys.readouterr().err.startswith("seen: [[-1. ")


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda t: ops.split(t, 2), ValueError, "2 does not divide 3 elements"),
        (lambda t: ops.split(t, [1, 1]), popxl.errors.popart_exception, "do not add up to the 3 elements"),
        (lambda t: ops.histogram(t, [1.0, 0.0], False), ValueError, "do not rise"),
        (lambda t: ops.interpolate(t, (1, 1), "area"), ValueError, "mode 'area'; allowed: nearest, linear, cubic"),
        (lambda t: ops.scatter_reduce(t, t, "mean", axis_size=2), ValueError, "allowed: none, sum, max, min, mul"),
        (lambda t: ops.scatter_reduce(t, t, "sum"), ValueError, "one of initial_values and axis_size"),
        (lambda t: ops.subsample(t, 1.5), ValueError, "whole number"),
    ],
)
def test_errors(function, error, message):
    ir = popxl.Ir()
    with ir.main_graph, pytest.raises(error, match=message):
        function(popxl.variable(X))


def test_printing_takes_the_time_of_an_output_stream():
    def seconds(printed):
        ir = popxl.Ir()
        with ir.main_graph:
            t = popxl.variable(X) + 1
            if printed == "printed":
                ops.print_tensor(t, "seen")
            elif printed == "stored":
                ops.host_store(popxl.d2h_stream(t.shape, t.dtype), ops.identity(t))
        return ipuperf.simulate_session(popxl.Session(ir, "ipu_hw")).summary()["total_cycles"]

    nothing, printed, stored = map(seconds, ("nothing", "printed", "stored"))
    assert nothing < printed < stored  # the copy runs while the host handles what was printed
    assert stored - printed < 1000

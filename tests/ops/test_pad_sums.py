"""Gradients of disjoint parts of a tensor are joined: values, and which parts are."""

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, TensorSpec

SHAPE = (5, 6)


def differentiated(slices, *, joins_pads, whole=False):
    """The gradient graph of all ``slices`` (and of the tensor itself) of a tensor."""
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(TensorSpec(SHAPE, FLOAT32), "x")
    for attributes in slices:
        graph.add_output(graph.create(ops.Slice, [x], ["part"], **attributes).outputs[0])
    if whole:
        graph.add_output(graph.create(ops.Gelu, [x], ["whole"]).outputs[0])
    return ops.autodiff(graph, joins_pads=joins_pads)


def along(axis, *ends, step=1):
    return [{"axis": axis, "start": start, "stop": stop, "step": step} for start, stop in ends]


JOINED = {
    "whole": (along(1, (0, 2), (2, 4), (4, 6)), 0),
    "in another order": (along(0, (3, 5), (0, 1), (1, 3)), 0),
    "from the end": (along(-1, (-6, -2), (-2, None)), 0),
    "gap between": (along(0, (0, 2), (3, 5)), 1),
    "gaps at the ends": (along(1, (1, 2), (2, 5)), 2),
    "full axes beside": (
        [{"axis": [0, 1], "start": [a, 0], "stop": [b, 6], "step": [1]} for a, b in ((0, 2), (2, 5))],
        0,
    ),
}


@pytest.mark.parametrize(("slices", "zeros"), JOINED.values(), ids=list(JOINED))
def test_disjoint_stretches_of_one_axis_are_joined(run_graph, rng, slices, zeros):
    derivative = differentiated(slices, joins_pads=True)
    counted = [op.type for op in derivative.graph.ops]
    assert sorted(counted) == ["Concat", *["Init"] * zeros]
    fed = {t: rng.standard_normal((2, *t.shape)).astype(np.float32) for t in derivative.graph.inputs}
    want = np.zeros((2, *SHAPE), np.float32)
    for attributes, tensor in zip(slices, derivative.graph.inputs, strict=True):
        axes = np.atleast_1d(attributes["axis"])
        starts, stops = (np.atleast_1d(attributes[name]) for name in ("start", "stop"))
        index = [slice(None)] * 3
        for axis, start, stop in zip(axes, starts, stops, strict=True):
            index[1 + axis % 2] = slice(start, stop)
        want[tuple(index)] = fed[tensor]
    np.testing.assert_array_equal(run_graph(derivative.graph, fed)[derivative.graph.outputs[0]], want)


SUMMED = {
    "overlapping": (along(0, (0, 3), (2, 5)), False),
    "of two axes": ([*along(0, (0, 2)), *along(1, (3, 6))], False),
    "of two axes each": (
        [{"axis": [0, 1], "start": [a, a], "stop": [b, b], "step": [1]} for a, b in ((0, 2), (2, 4))],
        False,
    ),
    "with a step": (along(1, (0, 6), (1, 6), step=2), False),
    "with a step, apart": (along(1, (0, 3), (3, 6), step=2), False),
    "beside another gradient": (along(0, (0, 2), (2, 5)), True),
    "empty": (along(0, (0, 0), (0, 5)), False),
}


@pytest.mark.parametrize(("slices", "whole"), SUMMED.values(), ids=list(SUMMED))
def test_other_gradients_are_padded_and_added_up(slices, whole):
    joined, summed = (
        [op.type for op in differentiated(slices, joins_pads=on, whole=whole).graph.ops] for on in (True, False)
    )
    assert joined == summed
    assert "SliceGrad" in summed


def test_gradients_are_joined_only_where_that_is_asked_for():
    slices, _ = JOINED["whole"]
    counted = [op.type for op in differentiated(slices, joins_pads=False).graph.ops]
    assert sorted(counted) == ["Add", "Add", "SliceGrad", "SliceGrad", "SliceGrad"]


def test_a_joined_gradient_is_reported_where_the_slices_are():
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(TensorSpec(SHAPE, FLOAT32), "x")
    y = graph.create(ops.Gelu, [x], ["y"]).outputs[0]
    for attributes in JOINED["gap between"][0]:
        graph.add_output(graph.create(ops.Slice, [y], ["part"], **attributes).outputs[0])
    slices = [op for op in graph.ops if op.type == "Slice"]
    for op in slices:
        op.scope = "slices"
    made = [op for op in ops.autodiff(graph, joins_pads=True).graph.ops if op.type in ("Concat", "Init")]
    assert {(op.scope, op.location) for op in made} == {("slices", slices[0].location)}

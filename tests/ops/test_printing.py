"""Tensors printed while a program runs."""

import numpy as np
import pytest

from ipuperf import ops


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_passes_the_tensor_on(bench, capsys, shape, dtype):
    x = np.arange(2 * int(np.prod(shape))).reshape(2, *shape).astype(dtype)
    np.testing.assert_array_equal(bench.run(ops.PrintTensor, x, title="x"), x)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"x (replica 0): {np.array2string(x[0])}\nx (replica 1): {np.array2string(x[1])}\n"


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"digits": 2}, "[0.33 0.67 1.  ]"),
        ({"digits": 1, "float_format": "fixed", "separator": ", "}, "[0.3, 0.7, 1.0]"),
        ({"digits": 1, "float_format": "scientific"}, "[3.3e-01 6.7e-01 1.0e+00]"),
        ({"digits": 1, "open_bracket": "<", "close_bracket": ">"}, "<0.3 0.7 1. >"),
        ({"digits": 1, "summarise_threshold": 2, "edge_items": 1}, "[0.3 ... 1. ]"),
        ({"digits": 0, "summarise_threshold": 0, "edge_items": 1}, "[0.33333334 0.6666667  1.        ]"),
        ({"digits": 1, "max_line_width": 8}, "[0.3\n 0.7\n 1. ]"),
    ],
)
def test_formats(bench, capsys, named, text):
    bench.run(ops.PrintTensor, np.array([[1 / 3, 2 / 3, 1]], np.float32), title="t", **named)
    assert capsys.readouterr().err == f"t: {text}\n"


def test_gradient(bench, capsys, rng):
    x = rng.standard_normal((1, 3))
    for named, lines in (({}, 1), ({"print_gradient": True}, 2), ({"print_self": False}, 0)):
        _, grad, (found,) = bench.gradients(
            lambda graph, t, named=named: graph.create(ops.PrintTensor, [t], ["y"], title="t", **named).outputs[0], [x]
        )
        np.testing.assert_array_equal(found, grad)
        printed = capsys.readouterr().err
        assert printed.count("\n") == lines
        assert ("t_gradient" in printed) == (lines == 2)

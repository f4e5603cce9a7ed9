"""Bits of whole numbers, and inverse trigonometric functions: values, errors, cycles."""

import numpy as np
import pytest

from ipuperf import ops


def test_large_negative_numbers_do_not_cancel(bench):
    x = np.array([[-1e4, -3e3, 1e-5]], np.float32)
    np.testing.assert_allclose(bench.run(ops.Asinh, x), np.arcsinh(x.astype(np.float64)), rtol=1e-6)


BITS = {
    ops.BitwiseAnd: np.bitwise_and,
    ops.BitwiseOr: np.bitwise_or,
    ops.BitwiseXor: np.bitwise_xor,
    ops.ShiftLeft: np.left_shift,
    ops.ShiftRight: np.right_shift,
}


@pytest.mark.parametrize("op_class", BITS, ids=lambda c: c.type)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int16, np.uint8])
def test_bits(bench, rng, op_class, dtype):
    x, y = (rng.integers(0, 7, (2, 3, n)).astype(dtype) for n in (4, 1))
    np.testing.assert_array_equal(bench.run(op_class, x, y), BITS[op_class](x, y))


def test_bits_of_negative_numbers(bench):
    x, y = np.array([[-8, 7]], np.int32), np.array([[1, 2]], np.int32)
    assert bench.run(ops.ShiftRight, x, y).tolist() == [[-4, 1]]
    assert bench.run(ops.BitwiseNot, x).tolist() == [[7, -8]]


def test_cycles(bench, mk2):
    """An arc sine takes 102 + 4 cycles for each element of a worker (17 fixed), a bitwise operation 7 (29 fixed)."""
    (arc,) = bench.op(ops.Asin, np.zeros((1, 600), np.float32)).work()
    assert arc.cycles(np.array([600]), mk2).tolist() == [6 * (17 + 106 * 100) + 20]
    x = np.zeros((1, 600), np.int32)
    (both,) = bench.op(ops.BitwiseAnd, x, x).work()
    assert both.cycles(np.array([600]), mk2).tolist() == [6 * (29 + 7 * 100) + 11]

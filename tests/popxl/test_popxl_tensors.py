"""Tensors, data types, arithmetic, indexing and the list of ops of the PopXL front end."""

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ipuperf import popxl
from ipuperf.popxl import ops


def evaluate(fn: Any, *arrays: np.ndarray) -> np.ndarray:
    """``fn`` of variables with these values."""
    ir = popxl.Ir()
    with ir.main_graph:
        t = fn(*(popxl.variable(a) for a in arrays))
        stream = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(stream, t)
    with popxl.Session(ir, "ipu_model") as session:
        return session.run()[stream]


A = np.arange(1, 13, dtype=np.float32).reshape(3, 4) / 4
B = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("symbol", [operator.add, operator.sub, operator.mul])
@pytest.mark.parametrize("make", ["tensor", "parameter", "range"])
def test_pytorchs_tensors_and_ranges_are_host_data(symbol: Any, make: str) -> None:
    if make == "range":
        other: Any = range(4)
    else:
        torch = pytest.importorskip("torch")
        other = torch.tensor(B[0], requires_grad=make == "parameter")
    numbers = np.asarray(other.detach() if make != "range" else other, np.float32)
    np.testing.assert_array_equal(evaluate(lambda t: symbol(t, other), A), symbol(A, numbers))
    np.testing.assert_array_equal(evaluate(lambda t: symbol(other, t), A), symbol(numbers, A))


@pytest.mark.parametrize(
    "symbol",
    [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod],
)
@pytest.mark.parametrize("other", [B, 2, 0.5, np.float32(3)])
def test_operators_and_reflected_operators(symbol: Any, other: Any) -> None:
    numpy_of = np.fmod if symbol is operator.mod else symbol
    if isinstance(other, np.ndarray):
        np.testing.assert_allclose(evaluate(symbol, A, other), numpy_of(A, other), rtol=1e-5)
        return
    np.testing.assert_allclose(evaluate(lambda a: symbol(a, other), A), numpy_of(A, np.float32(other)), rtol=1e-5)
    np.testing.assert_allclose(evaluate(lambda a: symbol(other, a), A), numpy_of(np.float32(other), A), rtol=1e-5)


def test_more_operators() -> None:
    np.testing.assert_array_equal(evaluate(lambda a: -a, A), -A)
    np.testing.assert_allclose(evaluate(lambda a, b: a @ b.T, A, B), A @ B.T, rtol=1e-5)
    np.testing.assert_allclose(evaluate(lambda a: a @ B.T, A), A @ B.T, rtol=1e-5)
    yes, no = np.array([True, True, False]), np.array([True, False, False])
    np.testing.assert_array_equal(evaluate(lambda a, b: a & b, yes, no), yes & no)
    np.testing.assert_array_equal(evaluate(lambda a, b: a | b, yes, no), yes | no)
    np.testing.assert_array_equal(evaluate(lambda a: ~a, no), ~no)


def test_scalars_take_the_dtype_of_the_tensor() -> None:
    with popxl.Ir().main_graph as main:
        half = popxl.variable(np.ones(2, np.float16))
        assert (half * 2).dtype is popxl.float16
        assert (1 - half).dtype is popxl.float16
        assert [c.dtype for c in main.constants] == [popxl.float16] * 2
        assert (popxl.variable(np.ones(2, np.int32)) + 1).dtype is popxl.int32
        with pytest.raises(TypeError):
            _ = half + "x"
        with pytest.raises(ValueError, match="different dtypes"):
            _ = half + popxl.variable(np.ones(2, np.float32))


def test_in_place_addition_rebinds_and_changes_the_old_tensor() -> None:
    def fn(a: popxl.Tensor) -> popxl.Tensor:
        with popxl.in_sequence():
            before = a
            a += 1
            assert a != before
            return before * 10

    np.testing.assert_array_equal(evaluate(fn, A), (A + 1) * 10)


INDICES = st.one_of(
    st.integers(-3, 2),
    st.just(slice(None)),
    st.slices(3).filter(lambda s: len(range(*s.indices(3))) > 0),
)


@settings(max_examples=40)
@given(st.lists(INDICES, min_size=0, max_size=2))
def test_indexing_is_numpys(parts: list[Any]) -> None:
    data = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    for key in (tuple(parts), (..., *parts)):
        np.testing.assert_array_equal(evaluate(lambda t, key=key: t[key] * 1, data), data[key])


def test_indexing_errors() -> None:
    with popxl.Ir().main_graph:
        t = popxl.variable(A)
        for key, error in ((3, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError), ((0, None), TypeError)):
            with pytest.raises(error, match="index"):
                t[key]


@settings(max_examples=20)
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_reshape_works_out_minus_one(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    position = data.draw(st.integers(0, len(shape) - 1))
    wanted = tuple(-1 if i == position else n for i, n in enumerate(shape))
    np.testing.assert_array_equal(evaluate(lambda t: t.flatten().reshape(wanted), array), array)


def test_reshape_errors() -> None:
    with popxl.Ir().main_graph:
        t = popxl.variable(A)
        for shape in ((5, -1), (-1, -1), (-2, 6), (5,)):
            with pytest.raises(ValueError, match="[Rr]eshape"):
                t.reshape(shape)


def test_properties() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        t = popxl.variable(A, name="t")
        assert (t.shape, t.rank, t.nelms, len(t), t.strides()) == ((3, 4), 2, 12, 3, (16, 4))
        assert t.spec == popxl.TensorSpec((3, 4), popxl.float32)
        assert t.meta_shape == ()
        assert t.ir == ir
        assert t.T.shape == (4, 3)
        assert t.shape_on_host == t.shape_on_replica == (3, 4)
        with pytest.raises(ValueError):
            len(popxl.variable(1.0))
        with pytest.raises(TypeError):
            iter(t)


def test_spec_is_a_mapping() -> None:
    spec = popxl.TensorSpec((2,), popxl.float16, (2, 2))
    assert dict(spec) == {"shape": (2,), "dtype": popxl.float16, "meta_shape": (2, 2)}
    with popxl.Ir().main_graph as main:
        graph = main.ir.create_empty_graph("g")
        with graph:
            t = popxl.graph_input(**spec, name="x")
    assert t.spec == spec


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (True, None, "bool"),
        (3, None, "int32"),
        (3.0, None, "float32"),
        (np.ones(2), None, "float32"),
        (np.ones(2, np.uint64), None, "uint32"),
        (np.ones(2, np.int64), None, "int32"),
        (np.ones(2, np.int8), None, "int8"),
        ([1.0, 2.0], popxl.float16, "float16"),
        (np.ones(2), popxl.float64, "float64"),
    ],
)
def test_host_data_types(data: Any, dtype: Any, expected: str) -> None:
    with popxl.Ir().main_graph:
        assert popxl.constant(data, dtype).dtype.name == expected
        assert popxl.variable(data, dtype).dtype.name == expected


def test_host_data_is_copied_and_empty_data_refused() -> None:
    data = np.ones(2, np.float32)
    with popxl.Ir().main_graph:
        t = popxl.variable(data)
        data[:] = 7
        np.testing.assert_array_equal(t._variable.data, [1, 1])
        with pytest.raises(ValueError, match="empty"):
            popxl.variable(np.ones((0, 2)))
        assert popxl.constant(np.ones(2), downcast=False).dtype is popxl.float64


def test_variables_only_in_the_main_graph() -> None:
    ir = popxl.Ir()
    with ir.main_graph, ir.create_empty_graph("g"), pytest.raises(ValueError, match="main graph"):
        popxl.variable(1.0)


def test_dtypes() -> None:
    assert popxl.half is popxl.float16
    assert popxl.float is popxl.float32
    assert repr(popxl.int8) == "popxl.dtypes.int8"
    assert popxl.dtype.as_dtype(np.float32) is popxl.float32
    assert popxl.dtype.as_dtype("bool") is popxl.bool
    assert popxl.float32.as_numpy() == np.float32
    with pytest.raises(ValueError, match="unknown popxl dtype"):
        popxl.dtype.as_dtype("float8")
    with pytest.raises(ValueError, match="None is not a dtype"):
        popxl.dtype.as_dtype(None)
    with pytest.raises(AttributeError, match="not supported"):
        _ = popxl.dtypes.complex64


def test_dtype_from_and_to_torch() -> None:
    torch = pytest.importorskip("torch")
    assert popxl.float16.as_torch() is torch.float16
    assert popxl.dtype.as_dtype(torch.int32) is popxl.int32


# -- unsupported names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (popxl, "no_such_name"),
        (ops, "code_copy"),
        (ops.collectives, "no_such_name"),
        (ops.var_updates, "no_such_name"),
        (popxl.transforms, "no_such_name"),
    ],
)
def test_unsupported_names_say_what_there_is(module: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name} is not supported by ipuperf yet; supported: "):
        getattr(module, name)
    assert not hasattr(module, name)


def test_all_lists_are_right() -> None:
    for module in (popxl, ops, ops.collectives, ops.var_updates, popxl.transforms):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_maximum_of_scalars() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        a, b = popxl.variable(1.0, popxl.float32), popxl.variable(2.0, popxl.float32)
        tensors = [ops.maximum(a, b), ops.maximum(1.5, a, 0.5), ops.maximum(a, np.array([[3, 0]]))]
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, tensor in zip(streams, tensors):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_model") as session:
        results = session.run()
    wanted = [2.0, 1.5, [[3.0, 1.0]]]
    for stream, expected in zip(streams, wanted):
        assert stream.dtype == popxl.float32
        np.testing.assert_array_equal(results[stream], expected)


@pytest.mark.parametrize("key", [slice(None), (slice(None), slice(None)), Ellipsis, slice(0, 3), slice(None, None, 1)])
def test_a_full_slice_is_a_copy(key: Any) -> None:
    ir = popxl.Ir()
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    with ir.main_graph, popxl.in_sequence(True):
        x = popxl.variable(data)
        y = x[key]
        assert y != x
        ops.add_(y, 1.0)
        out = popxl.d2h_stream((3, 2), popxl.float32)
        ops.host_store(out, y)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], data + 1)
    np.testing.assert_array_equal(session.get_tensor_data(x), data)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 5)])
def test_strides_are_those_of_an_array(dtype: str, shape: tuple[int, ...]) -> None:
    with popxl.Ir().main_graph:
        array = np.zeros(shape, dtype)
        x = popxl.variable(array)
        assert x.strides() == array.strides
        assert x.strides((7, 3)) == np.zeros((7, 3), dtype).strides


def test_a_slice_of_nothing_in_particular_is_the_tensor() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(np.ones(3, np.float32))
        assert ops.slice(x) == ops.slice(x, axis=0) == ops.slice_(x) == x

"""Small parts of the public surface: indexing, ``diag``, seeds, locations, types for tests, ``downcast_inputs``."""

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops, random_seed, testing
from ipuperf.popxl.context import _execution_context


def _value(build, data):
    ir = popxl.Ir()
    with ir.main_graph:
        tensor = build(popxl.variable(data))
        stream = popxl.d2h_stream(tensor.shape, tensor.dtype)
        ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_model") as session:
        return session.run()[stream]


@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (5, 2), (1, 1)])
def test_diag(shape):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(_value(lambda t: t.diag(), data), np.diag(data))


def test_diag_needs_a_matrix():
    with popxl.Ir().main_graph, pytest.raises(ValueError, match="a matrix"):
        popxl.variable(np.ones(3)).diag()


@pytest.mark.parametrize("kind", [popxl.variable, np.array, list])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_index_by_integers_and_masks(kind, dtype):
    data = np.arange(8, dtype=dtype).reshape(4, 2)
    rows = [[0, 3], [1, 1]]
    np.testing.assert_array_equal(_value(lambda t: t[kind(rows)], data), data[np.array(rows)])
    for mask in ([[True], [False], [False], [True]], [[True, False]] * 4):
        np.testing.assert_array_equal(_value(lambda t, m=mask: t[kind(m)], data), np.where(mask, data, 0))


@pytest.mark.parametrize("key", ["a", True, 1.5, [1.5]])
def test_other_indices_are_refused(key):
    with popxl.Ir().main_graph, pytest.raises(TypeError, match="not allowed"):
        popxl.variable(np.arange(2))[key]


@pytest.mark.parametrize("number", [0, 100, 2**32, random_seed.MAX_UINT64])
def test_words_of_a_seed(number):
    high, low = random_seed.uint64_to_two_uint32(number)
    assert (high << 32) + low == number
    assert random_seed.two_uint32_to_uint64(high, low) == number


@pytest.mark.parametrize("number", [-1, 2**64])
def test_seeds_have_64_bits(number):
    with pytest.raises(ValueError, match="a seed"):
        random_seed.uint64_to_two_uint32(number)


def test_types_for_tests():
    unsigned = {popxl.uint8, popxl.uint16, popxl.uint32, popxl.uint64}
    assert set(testing.get_all_int_dtypes(include_signed=False)) == unsigned
    assert {popxl.float16, popxl.bool, *unsigned} < set(testing.get_all_dtypes())


def test_programs_have_one_execution_context():
    with popxl.Ir().main_graph:
        with _execution_context(popxl.ExecutionContext.Normal):
            popxl.variable(1) + 1
        with (
            pytest.raises(NotImplementedError, match="one part"),
            _execution_context(popxl.ExecutionContext.WeightsFromHostFragment),
        ):
            pass


def test_the_context_says_where_ops_go():
    ir = popxl.Ir()
    context = popxl.context.get_current_context()
    with pytest.raises(RuntimeError, match="no graph"):
        _ = context.graph
    with ir.main_graph, popxl.ipu(1), popxl.io_tiles(), popxl.name_scope("a"), popxl.in_sequence():
        assert (context.graph, context.main_graph) == (ir.main_graph, ir.main_graph)
        assert (context.ipu_id, context.io_tile_set, context.name_scopes, context.in_sequence) == (1, True, ["a"], True)
    assert (context.ipu_id, context.io_tile_set, context.in_sequence) == (0, False, None)
    with pytest.raises(AttributeError, match="_get_debug_info"):
        context._get_debug_info("op")


def test_checks_of_operands():
    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_empty_graph()
        one, unplaced = popxl.variable(0) + 0, popxl.variable(0)
        with popxl.ipu(1):
            other = popxl.variable(0) + 0
        with popxl.io_tiles():
            away = popxl.variable(0) + 0
        check = ops.utils.check_tensor_ipu_and_tile_set
        check(a=one, b=one, c=unplaced)
        with pytest.raises(ValueError, match="different IPUs: a on 0, b on 1"):
            check(a=one, b=other, c=unplaced)
        with pytest.raises(ValueError, match="different tile sets: a on compute, b on io"):
            check(a=one, b=away)
        ops.utils.check_in_graph(ir.main_graph, a=one)
        with pytest.raises(ValueError, match="a .* is of graph 'main', not of 'graph_subgraph"):
            ops.utils.check_in_graph(graph, a=one)


def test_older_places_of_host_casts():
    assert popxl.utils.host_pow2scale_cast_to_fp8 is popxl.fp8_utils.host_pow2scale_cast_to_fp8
    assert popxl.utils.host_cast_then_pow2scale is popxl.fp8_utils.host_pow2scale_cast_from_fp8
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = popxl.utils.nothing

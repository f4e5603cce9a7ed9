"""Ops of 8-bit floats against PyTorch's types with the same codes, NumPy and PyTorch products; cost and refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf import ir, popart, popxl
from ipuperf.functions import products
from ipuperf.ir import IrError, float8
from ipuperf.machine import MachineError
from ipuperf.popxl import ops
from ipuperf.popxl.fp8_utils import host_pow2scale_cast_from_fp8, host_pow2scale_cast_to_fp8
from ipuperf.runtime.settings import RunSettings, use_settings

torch = pytest.importorskip("torch")

FORMATS = {popxl.float8_143: torch.float8_e4m3fnuz, popxl.float8_152: torch.float8_e5m2fnuz}
SHAPES = [(), (1,), (3, 4), (2, 1, 5)]


def session_of(build: Callable[..., popxl.Tensor], *data: np.ndarray, replicas: int = 1) -> tuple[Any, Any]:
    """A session of ``build`` of variables, and its output stream."""
    program = popxl.Ir(replication=replicas)
    with program.main_graph:
        tensors = [popxl.variable(d, popxl.dtype.as_dtype(d)) for d in data]
        y = build(*tensors)
        stream = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(stream, y)
    return popxl.Session(program, "ipu_model"), stream


def value(build: Callable[..., popxl.Tensor], *data: np.ndarray) -> np.ndarray:
    session, stream = session_of(build, *data)
    with session:
        return session.run()[stream]


def eight(rng: np.random.Generator, shape: tuple[int, ...], dtype: popxl.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Codes of random numbers, and the numbers."""
    codes = host_pow2scale_cast_to_fp8(rng.normal(size=shape).astype(np.float32), dtype)
    return codes, host_pow2scale_cast_from_fp8(codes, popxl.float32)


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", [np.float16, np.float32])
@pytest.mark.parametrize("scale", [-3, 0, 2])
def test_casts_are_those_of_pytorch(dtype: Any, shape: tuple[int, ...], source: type, scale: int) -> None:
    rng = np.random.default_rng(len(shape))
    x = (rng.normal(size=shape) * 2.0 ** rng.integers(-12, 12, shape)).astype(source)
    found = value(lambda t: ops.pow2scale_cast_to_fp8(t, popxl.constant(scale), dtype), x)
    wanted = torch.from_numpy(np.ldexp(x.astype(np.float32), scale).reshape(-1)).to(FORMATS[dtype])
    assert found.dtype == dtype.as_numpy()
    np.testing.assert_array_equal(found.view(np.uint8).reshape(-1), wanted.view(torch.uint8).numpy())
    back = value(lambda t: ops.pow2scale_cast_from_fp8(t, popxl.constant(-scale), popxl.float32), found)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(back.reshape(-1), wanted.float().numpy() * 2.0**-scale)


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
@pytest.mark.parametrize("to", [popxl.float16, popxl.float32])
def test_all_256_codes_go_there_and_back(dtype: Any, to: Any) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.as_numpy())

    def there_and_back(t: popxl.Tensor) -> popxl.Tensor:
        zero = popxl.constant(0)
        return ops.pow2scale_cast_to_fp8(ops.pow2scale_cast_from_fp8(t, zero, to), zero, dtype)

    np.testing.assert_array_equal(value(there_and_back, codes).view(np.uint8), codes.view(np.uint8))


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_of_nothing_comes_nothing(dtype: Any) -> None:
    """Variables cannot be empty, what is sliced from them can: casts and products of no rows, and of no columns."""

    def cast(t: popxl.Tensor) -> popxl.Tensor:
        return ops.pow2scale_cast_to_fp8(t, popxl.constant(0), dtype)

    x, y = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    back = value(lambda t: ops.pow2scale_cast_from_fp8(cast(t[0:0]), popxl.constant(1)), x)
    assert back.shape == (0, 4)
    rows = value(lambda s, t: ops.matmul_pow2scaled(cast(s[0:0]), cast(t), popxl.constant(0)), x, y)
    assert rows.shape == (0, 5)
    inner = value(lambda s, t: ops.matmul_pow2scaled(cast(s[:, 0:0]), cast(t[0:0]), popxl.constant(0)), x, y)
    np.testing.assert_array_equal(inner, np.zeros((3, 5), np.float16))


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_what_is_too_large_is_nan(dtype: Any) -> None:
    x = np.array([1e30, -1e30, np.inf, np.nan], np.float32)
    found = value(lambda t: ops.pow2scale_cast_to_fp8(t, popxl.constant(0), dtype), x)
    assert found.view(np.uint8).tolist() == [float8.NAN] * 4


SIZES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((4,), (4,)),
    ((1, 1), (1, 1)),
    ((5, 7), (7,)),
]


@pytest.mark.parametrize(("left", "right"), SIZES)
@pytest.mark.parametrize("formats", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("scale", [-5, 3])
def test_products(left: tuple[int, ...], right: tuple[int, ...], formats: tuple[int, int], scale: int) -> None:
    rng, types = np.random.default_rng(1), list(FORMATS)
    a, wide_a = eight(rng, left, types[formats[0]])
    b, wide_b = eight(rng, right, types[formats[1]])
    found = value(lambda x, y: ops.matmul_pow2scaled(x, y, popxl.constant(scale)), a, b)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.ldexp(wide_a.astype(np.float64) @ wide_b, scale), rtol=1e-3, atol=1e-5)


def test_the_scale_counts_before_the_result_is_rounded() -> None:
    a, wide = eight(np.random.default_rng(0), (1, 300), popxl.float8_143)
    a.view(np.uint8)[:], wide[:] = 0x7F, 240.0
    found = value(lambda x, y: ops.matmul_pow2scaled(x, y, popxl.constant(-12)), a, a.T.copy())
    assert found.tolist() == [[float(np.float16(300 * 240 * 240 / 2**12))]]


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
@pytest.mark.parametrize(("stride", "groups"), [((1, 1), 1), ((2, 1), 2)])
def test_convolutions(dtype: Any, stride: tuple[int, int], groups: int) -> None:
    rng = np.random.default_rng(2)
    x, wide_x = eight(rng, (2, 4, 7, 6), dtype)
    w, wide_w = eight(rng, (6, 4 // groups, 3, 2), dtype)
    y = value(lambda t, k: ops.conv_pow2scaled(t, k, popxl.constant(1), stride, (1, 0, 1, 0), groups=groups), x, w)
    wanted = torch.nn.functional.conv2d(torch.tensor(wide_x), torch.tensor(wide_w), None, stride, (1, 0), 1, groups)
    np.testing.assert_allclose(y, 2 * wanted.numpy(), rtol=1e-3, atol=1e-3)
    z, wide_z = eight(rng, (2, 6, 4, 5), dtype)
    back = value(lambda t, k: ops.conv_transpose_pow2scaled(t, k, popxl.constant(-1), stride, groups=groups), z, w)
    wanted = torch.nn.functional.conv_transpose2d(
        torch.tensor(wide_z), torch.tensor(wide_w), None, stride, groups=groups
    )
    np.testing.assert_allclose(back, wanted.numpy() / 2, rtol=1e-3, atol=1e-3)


def test_each_replica_has_its_own_scale() -> None:
    program = popxl.Ir(replication=2)
    with program.main_graph:
        scales = popxl.variable(np.array([1, 3], np.int32), replica_grouping=program.replica_grouping(group_size=1))
        t = popxl.variable(np.array([1.0, 2.0], np.float16))
        y = ops.pow2scale_cast_from_fp8(ops.pow2scale_cast_to_fp8(t, scales), popxl.constant(0))
        stream = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(stream, y)
    with popxl.Session(program, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[stream], [[2.0, 4.0], [8.0, 16.0]])


def test_a_scale_out_of_range_is_an_error_of_the_run() -> None:
    session, _ = session_of(
        lambda t, s: ops.pow2scale_cast_to_fp8(t, s), np.ones(2, np.float16), np.array(32, np.int32)
    )
    error = popart.poplar_application_runtime_error
    with pytest.raises(error, match=r"log2_scale is \[32\]; allowed: -32 to 31"), session:
        session.run()


def test_wrong_types_and_shapes() -> None:
    with popxl.Ir().main_graph:
        half, one = popxl.variable(np.ones((2, 2), np.float16)), popxl.constant(1)
        codes = ops.pow2scale_cast_to_fp8(half, one)
        for wrong, error, words in [
            (lambda: ops.pow2scale_cast_to_fp8(codes, one), TypeError, "allowed: float16, float32"),
            (lambda: ops.pow2scale_cast_to_fp8(half, one, popxl.float16), TypeError, "allowed: float8_143"),
            (lambda: ops.pow2scale_cast_from_fp8(half, one), TypeError, "allowed: float8_143"),
            (lambda: ops.pow2scale_cast_from_fp8(codes, one, popxl.int32), TypeError, "allowed: float16, float32"),
            (lambda: ops.matmul_pow2scaled(codes, half, one), TypeError, "allowed: float8_143"),
            (lambda: ops.matmul_pow2scaled(codes, codes, half), ValueError, "must be a scalar tensor"),
            (lambda: ops.matmul_pow2scaled(codes, codes, popxl.constant(1.0)), TypeError, "int32 is needed"),
            (lambda: ops.conv_pow2scaled(half, half, one), TypeError, "allowed: float8_143"),
            (lambda: codes + codes, IrError, "float8_143; a number type is needed"),
            (lambda: ops.equal(codes, codes), IrError, "float8_143; a number type is needed"),
            (lambda: ops.sum(codes), IrError, "float8_143; a number type is needed"),
            (lambda: ops.relu(codes), IrError, "float8_143; allowed"),
            (lambda: ops.cast(codes, popxl.float16), IrError, "cast by pow2scale_cast_to_fp8"),
            (lambda: ops.cast(half, popxl.float8_143), IrError, "cast by pow2scale_cast_to_fp8"),
        ]:
            with pytest.raises(error, match=words):
                wrong()


def test_there_is_no_gradient() -> None:
    program = popxl.Ir()

    def around(t: popxl.Tensor) -> popxl.Tensor:
        zero = popxl.constant(0)
        return t + ops.pow2scale_cast_from_fp8(ops.pow2scale_cast_to_fp8(t, zero), zero)

    with program.main_graph:
        graph = program.create_graph(around, popxl.TensorSpec((2, 2), popxl.float16))
        with pytest.raises(IrError, match="have no gradient, differentiate in float16"):
            popxl.transforms.autodiff(graph)


def _program(dtype: Any, size: int) -> Any:
    def product(x: popxl.Tensor) -> popxl.Tensor:
        if dtype is popxl.float16:
            return ops.matmul(x, x, partials_type=popxl.float16)
        return ops.matmul_pow2scaled(x, x, popxl.constant(0))

    with use_settings(RunSettings("bow-1")):
        return session_of(product, np.zeros((size, size), dtype.as_numpy()))[0].executable.device_program


def test_products_are_twice_as_fast_as_those_of_halves() -> None:
    """The AMP unit multiplies two 8-bit floats where it multiplies one half: compute cycles of a large product, against
    the peaks of the C600's data sheet (560 and 280 TFLOP/s)."""
    cycles = {}
    for dtype in (popxl.float16, popxl.float8_143):
        phases = [s for s in _program(dtype, 2048).walk() if getattr(s, "vertex", "").startswith("poplin::ConvPartial")]
        cycles[dtype] = sum(phase.slowest for phase in phases)
    assert 1.8 < cycles[popxl.float16] / cycles[popxl.float8_143] < 2.2


def test_the_figures_say_that_their_confidence_is_low() -> None:
    assert _program(popxl.float8_152, 64).texts("low confidence")


def test_mk2_has_no_8_bit_floats() -> None:
    for machine in ("gc200-1", "gc2-1"):
        with use_settings(RunSettings(machine)):
            session, _ = session_of(lambda t: ops.pow2scale_cast_to_fp8(t, popxl.constant(0)), np.ones(2, np.float16))
            with pytest.raises(MachineError, match="Pow2ScaleThenCast.*compute no 8-bit floats; allowed: ipu21"):
                session.executable.simulated_run_cycles  # noqa: B018


def test_auto_takes_a_machine_that_has_them() -> None:
    session, _ = session_of(lambda t: ops.pow2scale_cast_to_fp8(t, popxl.constant(0)), np.ones(2, np.float16))
    assert session.executable.machine.chip.architecture == "ipu21"
    assert session.executable.simulated_run_cycles > 0


def test_functions_are_those_of_the_library() -> None:
    graph = ir.Ir().main_graph
    spec = ir.TensorSpec((2, 3), ir.FLOAT16)
    with ir.CONTEXT.building(ir.Builder(graph)):
        x, scale = graph.add_input(spec, "x"), graph.constant(0, ir.INT32)
        y = products.pow2scale_cast_to_fp8(x, scale)
    assert (y.dtype, y.shape) == (ir.FLOAT8_143, (2, 3))


def _two_halves(t: popxl.Tensor) -> popxl.Tensor:
    return ops.concat_([ops.slice_(t, 0, 2), ops.slice_(t, 2, 4)])


MOVES: dict[str, tuple[Callable[[popxl.Tensor], popxl.Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "slice": (lambda t: ops.slice(t, 1, 3, 1, 0), lambda x: x[1:3]),
    "slice_ and concat_": (_two_halves, lambda x: x),
    "dynamic_slice": (
        lambda t: ops.dynamic_slice(t, popxl.constant(np.array([1], np.uint32)), [1], [2], True),
        lambda x: x[:, 1:3],
    ),
    "reshape_": (lambda t: ops.reshape_(t, (2, 8)), lambda x: x.reshape(2, 8)),
    "transpose": (lambda t: t.T, lambda x: x.T),
    "gather": (lambda t: ops.gather(t, popxl.constant([0, 2])), lambda x: x[[0, 2]]),
    "subsample": (lambda t: ops.subsample(t, [2, 2]), lambda x: x[::2, ::2]),
    "identity": (ops.identity, lambda x: x),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_ops_that_move_elements_move_codes(name: str, dtype: Any) -> None:
    move, wanted = MOVES[name]
    codes, _ = eight(np.random.default_rng(0), (4, 4), dtype)
    session, stream = session_of(move, codes)
    with session:
        np.testing.assert_array_equal(session.run()[stream], wanted(codes))
    assert session.executable.simulated_run_cycles > 0


def test_formats_do_not_mix() -> None:
    with popxl.Ir().main_graph:
        one, other = (popxl.constant([1.0], dtype) for dtype in FORMATS)
        with pytest.raises(TypeError, match="All inputs to a concat operation must have the same type"):
            ops.concat([one, other])


@pytest.mark.parametrize("sharded", [False, True])
def test_remote_and_sharded_variables(sharded: bool) -> None:
    codes, _ = eight(np.random.default_rng(0), (5, 3), popxl.float8_152)
    program = popxl.Ir(replication=2)
    with program.main_graph, popxl.in_sequence():
        if sharded:
            v, shard = popxl.replica_sharded_variable(codes, popxl.float8_152)
            t = ops.collectives.replicated_all_gather(shard)
        else:
            buffer = popxl.remote_buffer((5, 3), popxl.float8_152)
            v = popxl.remote_variable(codes, buffer)
            t = ops.remote_load(buffer, 0)
        stream = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(stream, t)
    other = host_pow2scale_cast_to_fp8(np.ones((5, 3)), popxl.float8_152)
    with popxl.Session(program, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[stream][1], codes)
        session.write_variable_data(v, other)
        np.testing.assert_array_equal(session.run()[stream][1], other)
        np.testing.assert_array_equal(session.get_tensor_data(v), other)

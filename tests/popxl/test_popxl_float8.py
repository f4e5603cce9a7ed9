"""8-bit floats: value tables and casts on the host."""

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl.fp8_utils import host_pow2scale_cast_from_fp8, host_pow2scale_cast_to_fp8

FORMATS = {popxl.float8_143: "float8_e4m3fnuz", popxl.float8_152: "float8_e5m2fnuz"}


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_every_code_has_the_value_of_pytorchs_type_with_the_same_bias(dtype):
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    found = host_pow2scale_cast_from_fp8(codes.view(dtype.as_numpy()))
    expected = torch.from_numpy(codes).view(getattr(torch, FORMATS[dtype])).float().numpy()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(host_pow2scale_cast_to_fp8(found, dtype).view(np.uint8), codes)


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_rounding_is_that_of_pytorch(dtype):
    rng = np.random.default_rng(0)
    torch = pytest.importorskip("torch")
    x = (rng.standard_normal(4000) * 2.0 ** rng.integers(-18, 6, 4000)).astype(np.float32)
    expected = torch.from_numpy(x).to(getattr(torch, FORMATS[dtype])).view(torch.uint8).numpy()
    np.testing.assert_array_equal(host_pow2scale_cast_to_fp8(x, dtype).view(np.uint8), expected)


def test_overflow_saturates_or_is_nan_and_the_scale_comes_first():
    x = np.array([250.0, -250.0, np.inf, 0.75])
    saturated = host_pow2scale_cast_to_fp8(x, popxl.float8_143, nan_on_overflow=False)
    assert saturated.view(np.uint8).tolist() == [0x7F, 0xFF, 0x80, 0b00111100]
    assert host_pow2scale_cast_to_fp8(x, popxl.float8_143, 0, True).view(np.uint8).tolist()[:2] == [0x80, 0x80]
    assert host_pow2scale_cast_to_fp8(x, popxl.float8_143, -2, True).view(np.uint8).tolist()[3] == 0b00101100


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
@pytest.mark.parametrize("kind", [popxl.constant, popxl.variable])
def test_tensors_take_scale_and_overflow(dtype, kind):
    data = np.array([0.75, -3.0, 1e6], np.float32)
    for scale, nan in [(0, None), (-2, True), (3, False)]:
        with popxl.Ir().main_graph:
            t = kind(data, dtype, log2_scale=scale, nan_on_overflow=nan)
        expected = host_pow2scale_cast_to_fp8(data, dtype, scale, nan is not False)
        np.testing.assert_array_equal(t._ir_tensor.data.view(np.uint8), expected.view(np.uint8))


def test_scales_are_for_8_bit_floats_and_have_bounds():
    with popxl.Ir().main_graph:
        with pytest.raises(RuntimeError, match="log2_scale=1 .*popxl.float8_143"):
            popxl.variable(1.0, log2_scale=1)
        with pytest.raises(RuntimeError, match="nan_on_overflow=True"):
            popxl.constant(1.0, popxl.float16, nan_on_overflow=True)
        for scale in (-33, 32):
            with pytest.raises(ValueError, match=f"log2_scale is {scale}; allowed: -32 to 31"):
                popxl.constant(1.0, popxl.float8_143, log2_scale=scale)


@pytest.mark.parametrize("dtype", FORMATS, ids=repr)
def test_the_scale_of_least_error(dtype):
    from ipuperf.popxl.fp8_utils import host_fp8_mse_scale, host_fp8_mse_scale_pb

    rng = np.random.default_rng(0)
    for size, sign in [(2.0**30, -1), (2.0**-24, 1)]:
        x = (rng.uniform(1, 2, 50) * size).astype(np.float32)
        error, scale = host_fp8_mse_scale(x, dtype)
        assert scale * sign > 0
        assert scale == host_fp8_mse_scale_pb(x, dtype)
        tried = {}
        for s in range(-31, 32):
            cast = host_pow2scale_cast_to_fp8(x, dtype, s, nan_on_overflow=False)
            tried[s] = np.mean((host_pow2scale_cast_from_fp8(cast, popxl.float64, -s) - x.astype(np.float64)) ** 2)
        np.testing.assert_allclose(error, min(tried.values()))
    with pytest.raises(RuntimeError, match="allowed: float16, float32"):
        host_fp8_mse_scale(np.ones(2, np.int32))

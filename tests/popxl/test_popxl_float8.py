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


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="allowed: popxl.float8_143, popxl.float8_152"):
        host_pow2scale_cast_to_fp8(1.0, popxl.float16)

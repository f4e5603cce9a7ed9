"""8-bit floats."""

from ....refusals import refused

_INSTEAD = "TensorFlow has no such type here; PopXL programs have 8-bit floats"
convert_to_f8 = refused("f8_ops.convert_to_f8", _INSTEAD)
convert_from_f8 = refused("f8_ops.convert_from_f8", _INSTEAD)
f8_matmul = refused("f8_ops.f8_matmul", _INSTEAD)
f8_conv_2d = refused("f8_ops.f8_conv_2d", _INSTEAD)
f8_conv_3d = refused("f8_ops.f8_conv_3d", _INSTEAD)

__all__ = ["convert_from_f8", "convert_to_f8", "f8_conv_2d", "f8_conv_3d", "f8_matmul"]

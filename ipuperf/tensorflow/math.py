"""``tf.math``: element-wise functions, reductions, the matrix product."""

from . import functions as _functions

__all__ = [
    *"""
    abs add argmax argmin ceil cos divide equal exp floor floor_divide greater greater_equal is_finite is_nan less
    less_equal log log_softmax logical_and logical_not logical_or matmul maximum minimum mod multiply negative
    not_equal pow reciprocal reduce_max reduce_mean reduce_min reduce_prod reduce_sum rsqrt sigmoid sign sin softmax
    sqrt square subtract tanh
    """.split()
]
globals().update({_name: getattr(_functions, _name) for _name in __all__})

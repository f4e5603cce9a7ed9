"""In-place updates of variables (upstream ``popxl.ops.var_updates``); semantics in ``docs/reference/popxl.md`` 7."""

from ...package import refuse as _refuse
from .accumulate import (
    accumulate_,
    accumulate_mean_,
    accumulate_moving_average_,
    accumulate_moving_average_square_,
    accumulate_square_,
    accumulator_scale_,
    accumulator_zero_,
    copy_var_update_,
    sparse_accumulate_,
)
from .adam_updater import adam_updater, adamax_updater, lamb_updater
from .adam_var_update import adam_var_update

__all__ = ["accumulate_", "accumulate_mean_", "accumulate_moving_average_", "accumulate_moving_average_square_"]
__all__ += ["accumulate_square_", "accumulator_scale_", "accumulator_zero_", "adam_updater", "adam_var_update"]
__all__ += ["adamax_updater", "copy_var_update_", "lamb_updater", "sparse_accumulate_"]
__getattr__ = _refuse(__name__, __all__)

"""In-place updates of variables (upstream ``popxl.ops.var_updates``); semantics in ``docs/reference/popxl.md`` 7."""

# ruff: noqa: F401  # what is imported is the package's content
from ...package import offer as _offer
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

__all__, __getattr__ = _offer(__name__)

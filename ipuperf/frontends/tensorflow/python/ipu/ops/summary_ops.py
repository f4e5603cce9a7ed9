"""Reports in TensorBoard's summaries."""

from ....refusals import refused

_INSTEAD = "run the program by `ipuperf run --report DIR`"
ipu_compile_summary = refused("summary_ops.ipu_compile_summary", _INSTEAD)
get_ipu_reports = refused("summary_ops.get_ipu_reports", _INSTEAD)

__all__ = ["get_ipu_reports", "ipu_compile_summary"]

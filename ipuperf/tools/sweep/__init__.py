"""Many configurations of one program, simulated on all cores or on a Dask cluster: one table with a row for each.

:func:`run_sweep` runs a :class:`Sweep` (:func:`read_sweep`: of a TOML file) and gives a DataFrame; :func:`read_table`
reads what it wrote, :func:`draw` makes figures of it.
"""

from ipuperf.tools.errors import SweepError

from .plots import draw
from .run import run_sweep
from .spec import Sweep, read_sweep, script_sweep
from .table import FORMAT, read_table, write_table

__all__ = [
    "FORMAT",
    "Sweep",
    "SweepError",
    "draw",
    "read_sweep",
    "read_table",
    "run_sweep",
    "script_sweep",
    "write_table",
]

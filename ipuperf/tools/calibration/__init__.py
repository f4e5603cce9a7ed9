"""Room ``calibration``: figures of a machine fitted to the user's measured steps; ``ipuperf calibrate``.

:func:`calibrate` reads the measurements, simulates their programs on machines with changed figures and fits;
:func:`calibration_text` and :func:`write_machine` show and keep what came of it. No preset is changed.
"""

from ipuperf.tools.calibration.fit import NOISE, PRIORS, Calibration, Fit, Fitted, Pair, calibrate
from ipuperf.tools.calibration.machine_file import check_target, write_machine
from ipuperf.tools.calibration.measurements import Measurement, read_measurements
from ipuperf.tools.calibration.text import calibration_text
from ipuperf.tools.errors import CalibrationError

__all__ = [
    "NOISE",
    "PRIORS",
    "Calibration",
    "CalibrationError",
    "Fit",
    "Fitted",
    "Measurement",
    "Pair",
    "calibrate",
    "calibration_text",
    "check_target",
    "read_measurements",
    "write_machine",
]

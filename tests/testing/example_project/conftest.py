"""The program says ``import popxl``, as on an IPU: here that finds ipuperf."""

import ipuperf

ipuperf.install()

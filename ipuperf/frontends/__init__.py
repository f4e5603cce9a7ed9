"""The front ends: packages with the names of upstream's, which programs import (``popxl``, ``poptorch`` ...).

``popart``, ``popdist``, ``cppimport`` and ``pva`` stand in for the packages that programs use beside them.
``ipuperf.popxl`` is short for ``ipuperf.frontends.popxl``, and so on (:mod:`ipuperf`).
"""

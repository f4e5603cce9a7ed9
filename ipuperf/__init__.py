"""ipuperf: run IPU programs without an IPU, with real numbers and simulated time.

The rooms of the package and who may import whom are described in ``docs/design.md``.
"""

__version__ = "0.1.0"

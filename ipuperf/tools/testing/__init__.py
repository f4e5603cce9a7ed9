"""Guard the cycles and bytes of programs in tests: the fixture ``cycle_baseline`` and assertions on traces.

The pytest plug-in :mod:`ipuperf.testing.plugin` is installed with the package. A pytest run loads nothing else of
ipuperf until a test asks for ``cycle_baseline``: the names below are imported on first use.

>>> from ipuperf.testing import assert_fits                     # doctest: +SKIP
>>> def test_step(cycle_baseline):                              # doctest: +SKIP
...     session = my_program()
...     cycle_baseline.check(session, rtol=0.01)
...     assert_fits(session)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipuperf.tools.errors import BaselineError
    from ipuperf.tools.testing.assertions import (
        assert_bubble,
        assert_fits,
        assert_overlap,
        assert_peak_tile_bytes,
        assert_throughput,
    )
    from ipuperf.tools.testing.fixture import CycleBaseline
    from ipuperf.tools.testing.measures import bubble_share, overlap_share, throughput
    from ipuperf.tools.testing.subject import trace_of

_HOMES = {
    "BaselineError": ".errors",
    "CycleBaseline": "fixture",
    "assert_bubble": "assertions",
    "assert_fits": "assertions",
    "assert_overlap": "assertions",
    "assert_peak_tile_bytes": "assertions",
    "assert_throughput": "assertions",
    "bubble_share": "measures",
    "overlap_share": "measures",
    "throughput": "measures",
    "trace_of": "subject",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BaselineError",
    "CycleBaseline",
    "assert_bubble",
    "assert_fits",
    "assert_overlap",
    "assert_peak_tile_bytes",
    "assert_throughput",
    "bubble_share",
    "overlap_share",
    "throughput",
    "trace_of",
]

"""ipuperf: run IPU programs without an IPU, with real numbers and simulated time.

``docs/design.md`` describes the rooms of the package and who may import whom. ``import ipuperf`` itself is cheap:
everything below is loaded on first use. Front ends and tools have short names: ``ipuperf.popxl`` and
``ipuperf.frontends.popxl`` are one module (:data:`SHORT_NAMES`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ipuperf.base.version import __version__
from ipuperf.runtime.aliases import ShortNames

if TYPE_CHECKING:
    from ipuperf.machine import Machine
    from ipuperf.trace import Trace

SHORT_NAMES = {
    "frontends": (
        *("popxl", "popxl_addons", "poptorch", "poptorch_geometric", "tensorflow"),
        *("popart", "popdist", "cppimport", "pva"),
    ),
    "tools": ("calibration", "datasets", "levers", "sweep", "testing", "tuning", "validation"),
    "pipelines": ("schedules",),
}
"""Packages that users import without naming the room they stand in, by room."""

# First: a checkout of an older version may have left folders of these names, which Python takes for packages.
sys.meta_path.insert(0, ShortNames(__name__, SHORT_NAMES))


def install(**options: Any) -> None:
    """Let ``import popxl``, ``popxl_addons``, ``poptorch``, ``popart``, ``popdist`` and ``tensorflow`` find ipuperf's.

    See :mod:`ipuperf.runtime.install`.
    """
    from ipuperf.runtime.install import install as install_front_ends

    install_front_ends(**options)


def simulate_session(session: Any, machine: str | Machine | None = None, **options: Any) -> Trace:
    """Return the trace of one ``session.run`` of a ``popxl.Session`` (numbers are not computed).

    Args:
        session: the session.
        machine: preset name, TOML file or machine; ``None`` takes the session's own machine.
        options: passed to :func:`ipuperf.simulation.simulate` (``fidelity``, ``fold``, ``prefetch_depth``, ``seed``
            ...); by default, options about the host are the session's own. The sync pattern always is.

    Raises:
        TypeError: ``session`` has no executable.
        MachineError: the machine does not exist or is too small.
    """
    from ipuperf.lowering import ipus_per_replica, lower
    from ipuperf.runtime.executable import Executable, choose_machine
    from ipuperf.simulation import simulate

    executable = getattr(session, "executable", None)
    if not isinstance(executable, Executable):
        raise TypeError(f"simulate_session: {session!r} is no session; expected a popxl.Session")
    target = executable.machine
    if machine is not None:
        target = choose_machine(machine, executable.ir.replication_factor, ipus_per_replica(executable.ir))
    program = lower(executable.ir, target, name=executable.name, sync_pattern=executable.lowering.sync_pattern)
    return simulate(program, target, **{**executable.host_options, **options})


def load_ipython_extension(shell: Any) -> None:
    """Give IPython the magic ``%%ipuperf`` (``%load_ext ipuperf``); see :mod:`ipuperf.runtime.magic`."""
    from ipuperf.runtime.magic import register

    register(shell)


__all__ = ["__version__", "install", "load_ipython_extension", "simulate_session"]

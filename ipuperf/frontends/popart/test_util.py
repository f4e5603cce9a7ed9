"""``import test_util``: the part of the helper beside PopART's tests that needs no native module.

PopART's own tests, and many tests modelled on them, import ``test_util`` from a folder of PopART's source. A program
under :func:`ipuperf.install` that has no such module of its own finds this one. The other names of that file read
PopART's native reports and are not here.

Source: popart: tests/integration/test_util.py (names and meaning).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .devices import DeviceInfo, DeviceManager
from .enums import DeviceConnectionType

F = TypeVar("F", bound=Callable[..., Any])


def ipu_available(numIPUs: int = 1) -> bool:
    """Whether the simulated machine has ``numIPUs`` IPUs."""
    return DeviceManager().tryAcquireAvailableDevice(numIPUs, DeviceConnectionType.OnDemand) is not None


def create_test_device(
    numIpus: int = 1, connectionType: DeviceConnectionType = DeviceConnectionType.Always
) -> DeviceInfo:
    """A device of ``numIpus`` IPUs of the simulated machine; a context manager, as every device.

    Raises:
        IrError (``popart_exception``): the machine has fewer.
    """
    return DeviceManager().acquireAvailableDevice(numIpus, connectionType)


def requires_ipu(func: F) -> F:
    """Decorate a test that needs hardware: it runs on the simulated machine, and fails if that is too small.

    The test's argument ``numIPUs``, if it has one, says how many IPUs it needs.
    """

    @functools.wraps(func)
    def checked(*args: Any, **kwargs: Any) -> Any:
        create_test_device(kwargs.get("numIPUs", 1), DeviceConnectionType.OnDemand)
        return func(*args, **kwargs)

    return cast(F, checked)


def requires_ipu_model(func: F) -> F:
    """Decorate a test that runs on PopART's model of an IPU: here all run on the simulated machine."""
    return func


__all__ = ["create_test_device", "ipu_available", "requires_ipu", "requires_ipu_model"]

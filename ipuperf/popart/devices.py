"""``popart.DeviceManager``: devices are descriptions here; the machine that runs is the simulated one.

Source: popart: willow/include/popart/devicemanager.hpp and the names of its Python binding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ipuperf.ir import IrError
from ipuperf.runtime.effects import tell
from ipuperf.runtime.executable import choose_machine
from ipuperf.runtime.settings import current_settings

from .enums import DeviceConnectionType, DeviceType


@dataclass
class DeviceInfo:
    """A device: so many IPUs, of a kind. ``popxl.Session(ir, device)`` takes one; the program's own number of IPUs and
    the machine of the run decide what is simulated.

    Attributes:
        type: what was asked for; all kinds run alike.
        numIpus: number of IPUs.
        connectionType: as given.
        isAttached: whether :meth:`attach` was called last.
    """

    type: DeviceType
    numIpus: int
    connectionType: DeviceConnectionType = DeviceConnectionType.Always
    isAttached: bool = field(default=False)

    def attach(self) -> bool:
        """True: a simulated machine is always free."""
        self.isAttached = True
        return True

    def tryAttachUntilTimeout(self) -> bool:
        """As :meth:`attach`: there is nothing to wait for."""
        return self.attach()

    def detach(self) -> None:
        """The device is given back."""
        self.isAttached = False

    def __enter__(self) -> DeviceInfo:
        self.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


class DeviceManager:
    """Where programs get their devices from."""

    def acquireAvailableDevice(
        self, numIpus: int = 1, connectionType: DeviceConnectionType = DeviceConnectionType.Always
    ) -> DeviceInfo:
        """A device of ``numIpus`` IPUs of the machine of the run, attached unless it is to be later.

        Raises:
            IrError (``popart_exception``): the machine has fewer IPUs, or ``numIpus`` is no number of IPUs.
        """
        device = DeviceInfo(DeviceType.Ipu, _count(numIpus, "acquireAvailableDevice"), connectionType)
        from ipuperf.machine import MachineError  # `import popxl` needs no machine

        try:
            choose_machine(current_settings().machine, 1, device.numIpus)
        except MachineError as error:
            raise IrError(f"DeviceManager.acquireAvailableDevice: {error}") from error
        if connectionType is DeviceConnectionType.Always:
            device.attach()
        return device

    def tryAcquireAvailableDevice(
        self, numIpus: int = 1, connectionType: DeviceConnectionType = DeviceConnectionType.Always
    ) -> DeviceInfo | None:
        """:meth:`acquireAvailableDevice`, or None where that is an error."""
        try:
            return self.acquireAvailableDevice(numIpus, connectionType)
        except IrError:
            return None

    def createIpuModelDevice(self, options: Mapping[str, object]) -> DeviceInfo:
        """A device of ``options["numIPUs"]`` IPUs (default 1); other options describe the IPU, which the machine of the
        run does here: they are said to be without effect."""
        return self._described(DeviceType.IpuModel, "createIpuModelDevice", options)

    def createOfflineIPUDevice(self, options: Mapping[str, object]) -> DeviceInfo:
        """As :meth:`createIpuModelDevice`."""
        return self._described(DeviceType.OfflineIpu, "createOfflineIPUDevice", options)

    def createCpuDevice(self) -> DeviceInfo:
        """A device of one IPU: programs always run on simulated IPUs."""
        return DeviceInfo(DeviceType.Cpu, 1)

    @staticmethod
    def _described(kind: DeviceType, method: str, options: Mapping[str, object]) -> DeviceInfo:
        remaining = dict(options)
        count = _count(remaining.pop("numIPUs", 1), method)
        if remaining:
            tell(
                f"popart.DeviceManager.{method}({', '.join(map(str, remaining))}) is without effect: the machine is the "
                "simulated one of `ipuperf run --machine`"
            )
        return DeviceInfo(kind, count)


def _count(number: object, method: str) -> int:
    """A number of IPUs, given as a number or in digits."""
    text = str(number)
    if not text.isdecimal() or int(text) < 1:
        raise IrError(f"DeviceManager.{method}: {number!r} IPUs; a whole number of at least 1 is needed")
    return int(text)

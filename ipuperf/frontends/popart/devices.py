"""``popart.DeviceManager``: a device is only a description here; programs run on the simulated machine.

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
    """A device: a number of IPUs of a kind. ``popxl.Session(ir, device)`` takes one.

    The program's own number of IPUs and the machine of the run decide what is simulated.

    Attributes:
        type: the requested kind; all kinds run alike.
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
        """Give the device back."""
        self.isAttached = False

    def __enter__(self) -> DeviceInfo:
        self.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


class DeviceManager:
    """The object that gives devices to programs."""

    def acquireAvailableDevice(
        self, numIpus: int = 1, connectionType: DeviceConnectionType = DeviceConnectionType.Always
    ) -> DeviceInfo:
        """Return a device of ``numIpus`` IPUs of the run's machine, attached if ``connectionType`` is ``Always``.

        Raises:
            IrError (``popart_exception``): the machine has fewer IPUs, or ``numIpus`` is no number of IPUs.
        """
        device = DeviceInfo(DeviceType.Ipu, _count(numIpus, "acquireAvailableDevice"), connectionType)
        from ipuperf.machine import MachineError  # `import popxl` needs no machine

        try:
            choose_machine(current_settings().machine, 1, device.numIpus)
        except MachineError as error:
            raise IrError(f"DeviceManager.acquireAvailableDevice: {error}") from error
        # With other connection types the program attaches itself.
        if connectionType is DeviceConnectionType.Always:
            device.attach()
        return device

    def tryAcquireAvailableDevice(
        self, numIpus: int = 1, connectionType: DeviceConnectionType = DeviceConnectionType.Always
    ) -> DeviceInfo | None:
        """Return :meth:`acquireAvailableDevice`'s device, or None if that raises an error."""
        try:
            return self.acquireAvailableDevice(numIpus, connectionType)
        except IrError:
            return None

    def createIpuModelDevice(self, options: Mapping[str, object]) -> DeviceInfo:
        """Return a device of ``options["numIPUs"]`` IPUs (default 1).

        Other options describe the IPU. Here the machine of the run does that, so a note says that they have no effect.
        """
        return self._described(DeviceType.IpuModel, "createIpuModelDevice", options)

    def createOfflineIPUDevice(self, options: Mapping[str, object]) -> DeviceInfo:
        """As :meth:`createIpuModelDevice`."""
        return self._described(DeviceType.OfflineIpu, "createOfflineIPUDevice", options)

    def createCpuDevice(self) -> DeviceInfo:
        """A device of one IPU: programs always run on simulated IPUs."""
        return DeviceInfo(DeviceType.Cpu, 1)

    @staticmethod
    def _described(kind: DeviceType, method: str, options: Mapping[str, object]) -> DeviceInfo:
        unused = dict(options)
        count = _count(unused.pop("numIPUs", 1), method)
        if unused:
            tell(
                f"popart.DeviceManager.{method}({', '.join(map(str, unused))}) is without effect: the machine is the "
                "simulated one of `ipuperf run --machine`"
            )
        return DeviceInfo(kind, count)


def _count(number: object, method: str) -> int:
    """Read a number of IPUs, given as a number or in digits."""
    text = str(number)
    if not text.isdecimal() or int(text) < 1:
        raise IrError(f"DeviceManager.{method}: {number!r} IPUs; a whole number of at least 1 is needed")
    return int(text)
